-- A producer may submit within a transaction of its own. What it asks for lies in `submissions` until the transaction commits, and
-- only then becomes a job: until then nobody waits for the producer, whatever time it takes, but others with the same key.
-- oldest: 9

-- Unlogged, since no row outlives its transaction.
CREATE UNLOGGED TABLE submissions (
  id              TEXT    NOT NULL PRIMARY KEY,
  kind            TEXT    NOT NULL,
  tenant          TEXT    NOT NULL,
  queue           TEXT    NOT NULL,
  payload         BYTEA   NOT NULL,
  priority        INTEGER NOT NULL,
  max_attempts    INTEGER NOT NULL,
  run_at          BIGINT,
  delay           BIGINT  NOT NULL,
  idempotency_key TEXT,
  fingerprint     TEXT,
  traceparent     TEXT    NOT NULL,
  tracestate      TEXT    NOT NULL,
  reports         TEXT    NOT NULL,
  metadata        BYTEA,
  deadline        BIGINT,
  unique_key      TEXT,
  keep            BIGINT
);
-- Of two transactions with the same key, the second waits until the first has ended.
CREATE UNIQUE INDEX submissions_key ON submissions (tenant, kind, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX submissions_unique ON submissions (tenant, kind, queue, unique_key) WHERE unique_key IS NOT NULL;

-- For which tenants a role of the database may submit, and all roles that are members of it.
CREATE TABLE producers (
  role   TEXT NOT NULL,
  tenant TEXT NOT NULL CHECK (tenant ~ '^[a-z][a-z0-9-]{1,62}$'),
  PRIMARY KEY (role, tenant)
);

-- Checks ---------------------------------------------------------------------------------------------------------------

CREATE FUNCTION chargehand_refuse(field TEXT, reason TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = field || ': ' || reason;
END $$;

CREATE FUNCTION chargehand_options(options JSON, allowed TEXT[]) RETURNS JSONB LANGUAGE plpgsql AS $$
DECLARE
  asked JSONB := COALESCE(options, '{}');
  strange TEXT;
BEGIN
  IF jsonb_typeof(asked) <> 'object' THEN
    PERFORM chargehand_refuse('options', 'must be a JSON object');
  END IF;
  SELECT o.name INTO strange FROM jsonb_object_keys(asked) AS o(name) WHERE o.name <> ALL (allowed) LIMIT 1;
  IF strange IS NOT NULL THEN
    PERFORM chargehand_refuse('options', format('there is no %s; allowed are %s', left(to_json(strange)::TEXT, 50), array_to_string(allowed, ', ')));
  END IF;
  RETURN jsonb_strip_nulls(asked);
END $$;

-- An empty text is one that was left out.
CREATE FUNCTION chargehand_text(asked JSONB, field TEXT, longest INTEGER) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
  value TEXT := asked ->> field;
BEGIN
  IF jsonb_typeof(asked -> field) NOT IN ('string', 'null') THEN
    PERFORM chargehand_refuse(field, 'must be a text');
  ELSIF length(value) > longest OR value COLLATE "C" ~ '[^ -~]' THEN
    PERFORM chargehand_refuse(field, format('must have at most %s printable characters of ASCII', longest));
  END IF;
  RETURN NULLIF(value, '');
END $$;

CREATE FUNCTION chargehand_number(asked JSONB, field TEXT, lowest NUMERIC, highest NUMERIC) RETURNS NUMERIC LANGUAGE plpgsql AS $$
DECLARE
  value NUMERIC;
BEGIN
  IF jsonb_typeof(asked -> field) = 'number' THEN
    value := (asked ->> field)::NUMERIC;
  END IF;
  IF asked ? field AND (value BETWEEN lowest AND highest) IS NOT TRUE THEN
    PERFORM chargehand_refuse(field, format('must be a number from %s to %s', lowest, highest));
  END IF;
  RETURN value;
END $$;

CREATE FUNCTION chargehand_integer(asked JSONB, field TEXT, lowest BIGINT, highest BIGINT) RETURNS INTEGER LANGUAGE plpgsql AS $$
DECLARE
  value NUMERIC := chargehand_number(asked, field, lowest, highest);
BEGIN
  IF value <> trunc(value) THEN
    PERFORM chargehand_refuse(field, 'must be a whole number');
  END IF;
  RETURN value;
END $$;

-- In microseconds, by the arithmetic of the engine.
CREATE FUNCTION chargehand_length(asked JSONB, field TEXT, lowest NUMERIC) RETURNS BIGINT LANGUAGE sql AS $$
  SELECT trunc(chargehand_number(asked, field, lowest, 315360000)::DOUBLE PRECISION * 1000000)::BIGINT
$$;

CREATE FUNCTION chargehand_instant(asked JSONB, field TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
  value TEXT := chargehand_text(asked, field, 50);
  at TIMESTAMPTZ;
BEGIN
  IF value IS NULL THEN
    RETURN NULL;
  END IF;
  IF value ~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' THEN
    BEGIN
      at := value::TIMESTAMPTZ;
    EXCEPTION WHEN data_exception THEN
      at := NULL;
    END;
  END IF;
  IF at IS NULL OR at >= '9000-01-01Z' THEN
    PERFORM chargehand_refuse(field, 'must be an instant of RFC 3339 before the year 9000, such as 2030-01-31T12:00:00Z');
  END IF;
  RETURN GREATEST(trunc(EXTRACT(EPOCH FROM at) * 1000000), 0)::BIGINT;
END $$;

CREATE FUNCTION chargehand_tenant(asked JSONB) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
  named TEXT := chargehand_text(asked, 'tenant', 63);
  own TEXT[];
BEGIN
  IF named !~ '^[a-z][a-z0-9-]{1,62}$' THEN
    PERFORM chargehand_refuse('tenant', 'must be 2 to 63 lower-case letters, digits and hyphens, beginning with a letter');
  END IF;
  -- Within a function that runs as its owner, current_user is the owner and session_user who has logged in.
  IF pg_has_role(session_user, current_user, 'MEMBER') THEN
    RETURN COALESCE(named, 'default');
  END IF;
  own := ARRAY(
    SELECT DISTINCT p.tenant FROM producers p JOIN pg_roles r ON r.rolname = p.role
    WHERE pg_has_role(session_user, r.oid, 'MEMBER') ORDER BY p.tenant
  );
  IF named = ANY (own) OR (named IS NULL AND cardinality(own) = 1) THEN
    RETURN COALESCE(named, own[1]);
  ELSIF named IS NULL AND cardinality(own) > 1 THEN
    PERFORM chargehand_refuse('tenant', format('must be one of %s', array_to_string(own, ', ')));
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
    MESSAGE = format('tenant: the role %I may not submit for %s; the table producers says who may', session_user, COALESCE(named, 'any tenant'));
END $$;

-- What the server has told of its settings.
CREATE FUNCTION chargehand_settings(of_kind TEXT) RETURNS JSONB LANGUAGE plpgsql AS $$
DECLARE
  said JSONB;
BEGIN
  SELECT convert_from(r.body, 'UTF8') INTO said FROM records r WHERE r.kind = 'submitting' AND r.tenant = '' AND r.name = of_kind;
  IF said IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
      MESSAGE = format('no server has told this database how it takes a %s; start one of this version, in which that is enabled', of_kind);
  END IF;
  RETURN said;
END $$;

-- What is nested deeper is not read by the servers and by most clients. Of the brackets, each round takes away the innermost.
CREATE FUNCTION chargehand_check_depth(field TEXT, value TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
  brackets TEXT := value;
BEGIN
  IF length(value) - length(translate(value, '[{', '')) > 900 THEN
    brackets := regexp_replace(regexp_replace(value, '"([^"\\]|\\.)*"', '', 'g'), '[^][{}]+', '', 'g');
    FOR round IN 1 .. 900 LOOP
      brackets := replace(replace(brackets, '[]', ''), '{}', '');
      EXIT WHEN brackets = '';
    END LOOP;
    IF brackets <> '' THEN
      PERFORM chargehand_refuse(field, 'is nested more than 900 deep');
    END IF;
  END IF;
END $$;

CREATE FUNCTION chargehand_payload(payload JSON, may_be_null BOOLEAN, settings JSONB) RETURNS BYTEA LANGUAGE plpgsql AS $$
DECLARE
  bytes BYTEA := convert_to(btrim(payload::TEXT, E' \t\r\n'), 'UTF8');
  most BIGINT := settings -> 'max_body_bytes';
BEGIN
  IF bytes IS NULL OR (json_typeof(payload) = 'null' AND NOT may_be_null) THEN
    PERFORM chargehand_refuse('payload', 'is required');
  ELSIF octet_length(bytes) > most THEN
    PERFORM chargehand_refuse('payload', format('is over %s bytes, the most that is accepted (server.max_body_bytes)', most));
  END IF;
  PERFORM chargehand_check_depth('payload', payload::TEXT);
  RETURN bytes;
END $$;

CREATE FUNCTION chargehand_metadata(metadata JSON) RETURNS BYTEA LANGUAGE plpgsql AS $$
DECLARE
  bytes BYTEA := convert_to(btrim(metadata::TEXT, E' \t\r\n'), 'UTF8');
BEGIN
  IF json_typeof(metadata) = 'null' THEN
    RETURN NULL;
  ELSIF json_typeof(metadata) <> 'object' OR octet_length(bytes) > 16384 THEN
    PERFORM chargehand_refuse('metadata', 'must be a JSON object of at most 16384 bytes');
  END IF;
  PERFORM chargehand_check_depth('metadata', metadata::TEXT);
  RETURN bytes;
END $$;

-- Names ----------------------------------------------------------------------------------------------------------------

CREATE FUNCTION chargehand_base32(bits BIT VARYING, alphabet TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
  SELECT string_agg(substr(alphabet, substring(bits FROM place FOR 5)::BIT(5)::INTEGER + 1, 1), '' ORDER BY place)
  FROM generate_series(1, length(bits), 5) AS place
$$;

-- A ULID: 48 bits of milliseconds, then ten of microseconds, so that the ids of a transaction are in the order of its calls, then
-- random ones. The first bit behind the time stays free, as in the ids of nodes.
CREATE FUNCTION chargehand_new_id() RETURNS TEXT LANGUAGE sql AS $$
  SELECT chargehand_base32(
    B'00' || (c.at / 1000)::BIT(48) || B'0' || (c.at % 1000)::BIT(10) || ('x' || left(c.random, 12) || right(c.random, 12))::BIT(69),
    '0123456789ABCDEFGHJKMNPQRSTVWXYZ')
  FROM (SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT AS at, encode(uuid_send(gen_random_uuid()), 'hex') AS random) c
$$;

-- The id of a tenant's endpoint is made from the URL as it is shown: without its query.
CREATE FUNCTION chargehand_endpoint_id(of_tenant TEXT, url TEXT) RETURNS TEXT LANGUAGE sql AS $$
  SELECT 'ep_' || chargehand_base32(
    ('x' || encode(substr(sha256(convert_to(of_tenant || E'\n' || split_part(url, '?', 1), 'UTF8')), 1, 15), 'hex'))::BIT(120),
    'abcdefghijklmnopqrstuvwxyz234567')
$$;

-- The URL in the form in which nodes store and call it. Where it may lead is decided by the node that calls it.
CREATE FUNCTION chargehand_url(field TEXT, url TEXT) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
  part TEXT[] := regexp_match(url, '^(https?)://([a-z0-9_.-]+)(?::([0-9]{1,5}))?(|[/?][^# \\]*)$', 'i');
  scheme TEXT := lower(part[1]);
  host TEXT := lower(part[2]);
  port INTEGER := part[3];
  label TEXT := '[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?';
  address BOOLEAN := host ~ '(^|\.)([0-9]+|0x[0-9a-f]*)\.?$';
BEGIN
  IF url IS NULL THEN
    RETURN NULL;
  ELSIF part IS NULL OR port NOT BETWEEN 1 AND 65535 OR length(host) > 254 OR host !~ format('^%s(\.%s)*\.?$', label, label)
     OR (address AND host !~ '^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(?!$)|$)){4}$') THEN
    PERFORM chargehand_refuse(field, 'must be http:// or https://, a name or an IPv4 address, perhaps a port, and a path, in ASCII and '
      'without user, fragment, white space and backslash');
  END IF;
  RETURN scheme || '://' || host || COALESCE(':' || NULLIF(port, CASE scheme WHEN 'http' THEN 80 ELSE 443 END), '')
    || CASE WHEN part[4] LIKE '/%' THEN '' ELSE '/' END || part[4];
END $$;

-- Where the job's changes are sent, as the engine keeps it. The settings have the rest of it.
CREATE FUNCTION chargehand_reports(of_tenant TEXT, url TEXT, settings JSONB) RETURNS TEXT LANGUAGE sql AS $$
  SELECT COALESCE('[{"url":' || to_json(url) || ',"endpoint_id":"' || chargehand_endpoint_id(of_tenant, url) || '"'
    || (settings ->> 'report') || ']', '')
$$;

-- Submitting -----------------------------------------------------------------------------------------------------------

-- What all kinds have.
CREATE FUNCTION chargehand_asked(of_kind TEXT, asked JSONB) RETURNS submissions LANGUAGE plpgsql AS $$
DECLARE
  job submissions;
BEGIN
  job.id := chargehand_new_id();
  job.kind := of_kind;
  job.tenant := chargehand_tenant(asked);
  job.run_at := chargehand_instant(asked, 'run_at');
  job.delay := COALESCE(chargehand_length(asked, 'delay_seconds', 0), 0);
  job.idempotency_key := chargehand_text(asked, 'idempotency_key', 255);
  job.traceparent := COALESCE(asked ->> 'traceparent', '');
  job.tracestate := COALESCE(asked ->> 'tracestate', '');
  IF job.traceparent !~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN
    job.traceparent := '';
  END IF;
  IF job.traceparent = '' OR length(job.tracestate) > 512 OR job.tracestate COLLATE "C" ~ '[^ -~]' THEN
    job.tracestate := '';
  END IF;
  RETURN job;
END $$;

-- Keep it until the commit, unless its key has made a job before, or its unique key has a live one; return the job's id.
CREATE FUNCTION chargehand_put(job submissions) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
  known TEXT;
  before TEXT;
BEGIN
  INSERT INTO submissions SELECT job.* ON CONFLICT DO NOTHING;
  IF FOUND THEN
    SELECT k.job_id, k.fingerprint INTO known, before FROM job_keys k
    WHERE k.tenant = job.tenant AND k.kind = job.kind AND k.idempotency_key = job.idempotency_key;
    IF known IS NULL THEN
      SELECT j.id, job.fingerprint INTO known, before FROM jobs_live j
      WHERE j.kind = job.kind AND j.tenant = job.tenant AND j.queue = job.queue AND j.node = '' AND j.unique_key = job.unique_key;
    END IF;
    IF known IS NULL THEN
      RETURN job.id;
    END IF;
    DELETE FROM submissions s WHERE s.id = job.id;
  ELSE
    -- That of another transaction is gone when we have waited for its end: this one is our own.
    SELECT s.id, s.fingerprint INTO known, before FROM submissions s
    WHERE s.tenant = job.tenant AND s.kind = job.kind
      AND (s.idempotency_key = job.idempotency_key OR (s.queue = job.queue AND s.unique_key = job.unique_key))
    ORDER BY s.idempotency_key IS NOT DISTINCT FROM job.idempotency_key DESC LIMIT 1;
  END IF;
  IF before IS DISTINCT FROM job.fingerprint THEN
    PERFORM chargehand_refuse('idempotency_key', format(
      'was used before with another request (job %s); send the same request again, or use a new key', known));
  END IF;
  RETURN known;
END $$;

CREATE FUNCTION chargehand_submit_task(command TEXT, payload JSON, options JSON DEFAULT '{}') RETURNS TEXT
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  asked JSONB := chargehand_options(options, '{priority,max_attempts,run_at,delay_seconds,idempotency_key,unique_key,webhook,traceparent,tracestate,tenant}');
  settings JSONB := chargehand_settings('task');
  spelt TEXT := btrim(chargehand_text(jsonb_build_object('command', command), 'command', 200));
  job submissions := chargehand_asked('task', asked);
  policy JSONB;
  tiers INTEGER[];
BEGIN
  IF COALESCE(spelt, '') = '' OR spelt LIKE '%*%' THEN
    PERFORM chargehand_refuse('command', 'must not be blank, and have no *');
  END IF;
  job.queue := lower(spelt COLLATE "C");
  job.delay := CASE WHEN job.run_at IS NULL THEN job.delay ELSE 0 END;
  job.payload := chargehand_payload(payload, false, settings);
  job.metadata := convert_to('{"command":' || to_json(spelt) || '}', 'UTF8');
  job.unique_key := chargehand_text(asked, 'unique_key', 255);
  job.reports := chargehand_reports(job.tenant, chargehand_url('webhook', NULLIF(btrim(chargehand_text(asked, 'webhook', 2048)), '')), settings);
  SELECT convert_from(r.body, 'UTF8')::JSONB -> 'policy' INTO policy FROM records r
  WHERE r.kind = 'topic' AND r.tenant = job.tenant AND r.name = job.queue;
  job.max_attempts := LEAST(1000, COALESCE(NULLIF(GREATEST(chargehand_integer(asked, 'max_attempts', -2147483648, 2147483647), 0), 0),
    NULLIF((policy ->> 'maxAttempts')::INTEGER, 0), (settings ->> 'max_attempts')::INTEGER));
  job.priority := LEAST(GREATEST(COALESCE(chargehand_integer(asked, 'priority', -2147483648, 2147483647), 0), 0), 9);
  tiers := ARRAY(SELECT LEAST(t.value::INTEGER, 9) FROM jsonb_array_elements_text(policy -> 'priorityTiers') AS t(value));
  -- The highest tier that is not above the priority, else the lowest.
  job.priority := COALESCE((SELECT COALESCE(MAX(t) FILTER (WHERE t <= job.priority), MIN(t)) FROM UNNEST(tiers) AS t), job.priority);
  -- A key is removed with its task, so a task with a key is kept for an hour at least.
  job.keep := NULLIF((policy ->> 'retentionSeconds')::BIGINT, 0) * 1000000;
  IF job.keep IS NOT NULL AND job.idempotency_key IS NOT NULL THEN
    job.keep := GREATEST(job.keep, 3600000000);
  END IF;
  RETURN chargehand_put(job);
END $$;

CREATE FUNCTION chargehand_submit_job(queue TEXT, payload JSON, options JSON DEFAULT '{}') RETURNS TEXT
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  asked JSONB := chargehand_options(options,
    '{priority,max_attempts,run_at,delay_seconds,deadline_seconds,idempotency_key,webhook,on,metadata,traceparent,tracestate,tenant}');
  settings JSONB := chargehand_settings('job');
  job submissions := chargehand_asked('job', asked);
  topics JSONB := COALESCE(asked -> 'on', '[]');
BEGIN
  IF (length(queue) BETWEEN 1 AND 200 AND queue <> '*' AND queue !~ '[\x01-\x1f\x7f]') IS NOT TRUE THEN
    PERFORM chargehand_refuse('queue', 'must have 1 to 200 characters, no control character among them, and not be *');
  ELSIF jsonb_typeof(topics) <> 'array' OR NOT topics <@ '["queued", "running", "succeeded", "failed", "cancelled"]'
     OR octet_length(topics::TEXT) > 300 THEN
    PERFORM chargehand_refuse('on', 'must be a list of states: queued, running, succeeded, failed, cancelled');
  END IF;
  job.queue := queue;
  job.payload := chargehand_payload(payload, true, settings);
  job.priority := COALESCE(chargehand_integer(asked, 'priority', 0, 9), 0);
  job.max_attempts := COALESCE(chargehand_integer(asked, 'max_attempts', 1, 1000), (settings ->> 'max_attempts')::INTEGER);
  job.deadline := chargehand_length(asked, 'deadline_seconds', 0.001);
  job.metadata := chargehand_metadata(options -> 'metadata');
  IF topics <> '[]' THEN
    settings := jsonb_set(settings, '{report}', to_jsonb(format(',"on":%s%s', replace(topics::TEXT, ', ', ','), settings ->> 'report')));
  END IF;
  job.reports := chargehand_reports(job.tenant, chargehand_url('webhook', chargehand_text(asked, 'webhook', 2048)), settings);
  IF job.idempotency_key IS NOT NULL THEN
    job.fingerprint := left(encode(sha256(convert_to(queue || E'\n' || asked, 'UTF8') || job.payload), 'hex'), 32);
  END IF;
  RETURN chargehand_put(job);
END $$;

-- At the commit: write what the engine writes for a job that it takes.
CREATE FUNCTION chargehand_commit() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  now BIGINT := (EXTRACT(EPOCH FROM statement_timestamp()) * 1000000)::BIGINT;
  due BIGINT := GREATEST(now, COALESCE(NEW.run_at, 0)) + NEW.delay;
  told JSONB := COALESCE(jsonb_path_query_array(NULLIF(NEW.reports, '')::JSONB, '$[*] ? (!exists(@.on) || @.on == "queued")'), '[]');
  channel TEXT;
BEGIN
  DELETE FROM submissions s WHERE s.id = NEW.id;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF NEW.idempotency_key IS NOT NULL THEN
    INSERT INTO job_keys (tenant, kind, idempotency_key, job_id, fingerprint)
    VALUES (NEW.tenant, NEW.kind, NEW.idempotency_key, NEW.id, NEW.fingerprint) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
        MESSAGE = 'idempotency_key: another job was submitted with it before this transaction ended; repeat the transaction';
    END IF;
  END IF;
  INSERT INTO jobs_live (id, kind, tenant, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt,
                         max_attempts, lease, waiting_for, idempotency_key, fingerprint, traceparent, tracestate, reports,
                         metadata, deadline_at, unique_key, keep, seq, created_at, updated_at)
  VALUES (NEW.id, NEW.kind, NEW.tenant, NEW.queue, '', 'queued', '', 'queued', '', 1, NEW.priority, due, 0,
          NEW.max_attempts, 0, '', NEW.idempotency_key, NEW.fingerprint, NEW.traceparent, NEW.tracestate, NEW.reports,
          NEW.metadata, now + NEW.deadline, NEW.unique_key, NEW.keep, 1, now, now)
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
      MESSAGE = 'unique_key: another job with it became live before this transaction ended; repeat the transaction';
  END IF;
  INSERT INTO job_payloads (job_id, payload) VALUES (NEW.id, NEW.payload);
  INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message)
  VALUES (NEW.id, 1, now, 'info', 'submit', 'queued', '', '', 0, '', '');
  INSERT INTO endpoints (id, tenant, url, state, reason, created_at, updated_at)
  SELECT r.value ->> 'endpoint_id', NEW.tenant, split_part(r.value ->> 'url', '?', 1), 'active', '', now, now
  FROM jsonb_array_elements(told) AS r(value)
  ON CONFLICT (id) DO NOTHING;
  INSERT INTO deliveries_pending (id, tenant, job_id, seq, endpoint_id, url, dialect, state, attempt, tries, lease, due_at,
                                  since_at, reason, created_at, updated_at)
  SELECT chargehand_new_id(), NEW.tenant, NEW.id, 1, r.value ->> 'endpoint_id', r.value ->> 'url', COALESCE(r.value ->> 'dialect', 'standard'),
         'pending', 0, 0, 0, now, now, '', now, now
  FROM jsonb_array_elements(told) AS r(value);
  -- A hint that was lost is made good by polling, so none is worth a commit that fails because their queue is full.
  SELECT 'chargehand_' || convert_from(r.body, 'UTF8') INTO channel FROM records r
  WHERE r.kind = 'channel' AND r.tenant = '' AND r.name = 'hints' AND pg_notification_queue_usage() < 0.5;
  PERFORM pg_notify(channel, 'from-commits' || json_build_object(
    'queues', json_build_array(json_build_array(json_build_array(NEW.kind, NEW.tenant, NEW.queue), due)), 'jobs', json_build_array(NEW.id),
    'endpoints', jsonb_path_query_array(told, '$[*].endpoint_id')))
  WHERE channel IS NOT NULL;
  RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER chargehand_commit AFTER INSERT ON submissions DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION chargehand_commit();

-- Nobody may call any of them unless told so, and those that run as their owner look for nothing outside this schema.
DO $$
DECLARE
  made RECORD;
BEGIN
  FOR made IN
    SELECT p.oid::REGPROCEDURE AS function, p.pronamespace::REGNAMESPACE AS schema, p.prosecdef AS as_owner FROM pg_proc p
    WHERE p.proname LIKE 'chargehand\_%' AND p.pronamespace = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'submissions'::REGCLASS)
  LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', made.function);
    IF made.as_owner THEN
      EXECUTE format('ALTER FUNCTION %s SET search_path = %s, pg_temp', made.function, made.schema);
    END IF;
  END LOOP;
END $$;
