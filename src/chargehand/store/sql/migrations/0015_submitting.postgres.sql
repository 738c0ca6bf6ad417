-- What a producer submits within a transaction of its own may have a key with limits, and a task may have metadata.
-- oldest: 12

ALTER TABLE submissions ADD COLUMN limit_key TEXT NOT NULL DEFAULT '';

-- As before, with `limit_key` and the metadata.
CREATE OR REPLACE FUNCTION chargehand_asked(of_kind TEXT, asked JSONB) RETURNS submissions LANGUAGE plpgsql AS $$
DECLARE
  job submissions;
BEGIN
  job.id := chargehand_new_id();
  job.kind := of_kind;
  job.tenant := chargehand_tenant(asked);
  job.run_at := chargehand_instant(asked, 'run_at');
  job.delay := COALESCE(chargehand_length(asked, 'delay_seconds', 0), 0);
  job.idempotency_key := chargehand_text(asked, 'idempotency_key', 255);
  job.limit_key := COALESCE(chargehand_text(asked, 'limit_key', 255), '');
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

CREATE OR REPLACE FUNCTION chargehand_submit_task(command TEXT, payload JSON, options JSON DEFAULT '{}') RETURNS TEXT
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  asked JSONB := chargehand_options(options, '{priority,max_attempts,run_at,delay_seconds,idempotency_key,unique_key,limit_key,webhook,metadata,traceparent,tracestate,tenant}');
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
  job.metadata := convert_to('{"command":' || to_json(spelt) || COALESCE(',"metadata":' || convert_from(chargehand_metadata(options -> 'metadata'), 'UTF8'), '') || '}', 'UTF8');
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

CREATE OR REPLACE FUNCTION chargehand_submit_job(queue TEXT, payload JSON, options JSON DEFAULT '{}') RETURNS TEXT
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  asked JSONB := chargehand_options(options,
    '{priority,max_attempts,run_at,delay_seconds,deadline_seconds,idempotency_key,limit_key,webhook,on,metadata,traceparent,tracestate,tenant}');
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

CREATE OR REPLACE FUNCTION chargehand_commit() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
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
                         metadata, deadline_at, unique_key, keep, limit_key, seq, created_at, updated_at)
  VALUES (NEW.id, NEW.kind, NEW.tenant, NEW.queue, '', 'queued', '', 'queued', '', 1, NEW.priority, due, 0,
          NEW.max_attempts, 0, '', NEW.idempotency_key, NEW.fingerprint, NEW.traceparent, NEW.tracestate, NEW.reports,
          NEW.metadata, now + NEW.deadline, NEW.unique_key, NEW.keep, NEW.limit_key, 1, now, now)
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

-- A function that was replaced has its rights still, and has to be told again to look for nothing outside this schema.
DO $$
DECLARE
  made RECORD;
BEGIN
  FOR made IN
    SELECT p.oid::REGPROCEDURE AS function, p.pronamespace::REGNAMESPACE AS schema FROM pg_proc p
    WHERE p.prosecdef AND p.proname LIKE 'chargehand\_%' AND p.pronamespace = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'submissions'::REGCLASS)
  LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = %s, pg_temp', made.function, made.schema);
  END LOOP;
END $$;
