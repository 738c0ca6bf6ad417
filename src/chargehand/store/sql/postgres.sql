-- PostgreSQL: a round trip costs more than the work, so operations of one kind travel in one statement, which writes the events
-- too. They travel as rows of JSON: an array for each column costs the driver five times as much, and the database no less. Bytes
-- travel beside them in one array, and a row has the number of its own.

-- part: submit
WITH n AS (
  SELECT *, :now AS at FROM json_to_recordset(:rows::JSON) AS n(
    id TEXT, kind TEXT, tenant TEXT, queue TEXT, node TEXT, payload INTEGER, priority INTEGER, max_attempts INTEGER,
    run_at BIGINT, delay BIGINT, idempotency_key TEXT, fingerprint TEXT, traceparent TEXT, tracestate TEXT, reports TEXT,
    metadata INTEGER, deadline BIGINT, unique_key TEXT, keep BIGINT, flow TEXT, step INTEGER, waits BIGINT, waiting_for TEXT, limit_key TEXT)
), keyed AS (
  INSERT INTO job_keys (tenant, kind, idempotency_key, job_id, fingerprint)
  SELECT n.tenant, n.kind, n.idempotency_key, n.id, n.fingerprint FROM n WHERE n.idempotency_key IS NOT NULL
  ON CONFLICT DO NOTHING
  RETURNING job_id
), inserted AS (
  INSERT INTO jobs_live (id, kind, tenant, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt,
                    max_attempts, lease, waiting_for, idempotency_key, fingerprint, traceparent, tracestate, reports,
                    metadata, deadline_at, unique_key, keep, flow, step, limit_key, seq, created_at, updated_at)
  SELECT n.id, n.kind, n.tenant, n.queue, n.node, 'queued', '', 'queued', '', 1, n.priority,
         COALESCE(n.waits, GREATEST(n.at, COALESCE(n.run_at, 0)) + n.delay), 0, n.max_attempts, 0, n.waiting_for, n.idempotency_key, n.fingerprint,
         n.traceparent, n.tracestate, n.reports, (:blobs::BYTEA[])[n.metadata], n.at + n.deadline, n.unique_key, n.keep, n.flow, n.step,
         n.limit_key, 1, n.at, n.at
  FROM n WHERE n.idempotency_key IS NULL OR n.id IN (SELECT k.job_id FROM keyed k)
  ON CONFLICT DO NOTHING
  RETURNING id, run_at, created_at
), payloads AS (
  INSERT INTO job_payloads (job_id, payload) SELECT n.id, (:blobs::BYTEA[])[n.payload] FROM n JOIN inserted i ON i.id = n.id
), events AS (
  INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message)
  SELECT i.id, 1, i.created_at, 'info', 'submit', 'queued', '', '', 0, '', '' FROM inserted i
)

-- name: submit_jobs
{part submit}
SELECT i.id, i.run_at, i.created_at FROM inserted i;

-- part: new_deliveries
json_to_recordset(:deliveries::JSON) AS n(
    id TEXT, tenant TEXT, job_id TEXT, seq INTEGER, endpoint_id TEXT, url TEXT, dialect TEXT, shown_url TEXT)

-- Endpoints in the order of their ids, so that two groups with the same ones wait for each other instead of for ever.
-- part: deliver
ensured AS (
  INSERT INTO endpoints (id, tenant, url, state, reason, created_at, updated_at)
  SELECT DISTINCT ON (d.endpoint_id) d.endpoint_id, d.tenant, d.shown_url, 'active', '', d.at, d.at
  FROM d ORDER BY d.endpoint_id
  ON CONFLICT (id) DO NOTHING
), delivered AS (
  INSERT INTO deliveries_pending (id, tenant, job_id, seq, endpoint_id, url, dialect, state, attempt, tries, lease, due_at,
                          since_at, reason, created_at, updated_at)
  SELECT d.id, d.tenant, d.job_id, d.seq, d.endpoint_id, d.url, d.dialect, 'pending', 0, 0, 0, d.at, d.at, '', d.at, d.at
  FROM d
)

-- name: submit_reporting_jobs
{part submit}, d AS MATERIALIZED (
  SELECT n.*, i.created_at AS at FROM {part new_deliveries} JOIN inserted i ON i.id = n.job_id
), {part deliver}
SELECT i.id, i.run_at, i.created_at FROM inserted i;

-- name: insert_deliveries
WITH d AS MATERIALIZED (SELECT n.*, :now AS at FROM {part new_deliveries}), {part deliver}
SELECT COUNT(*) FROM d;

-- Locked, though nothing is changed: who locks writes to the log, and a commit that wrote waits for the standby. Else a repeated
-- request could be acknowledged for a job that is seen here and is on no standby yet. So is the job of a unique key, below.
-- name: job_by_key
SELECT k.job_id, k.fingerprint FROM job_keys k
WHERE k.tenant = :tenant AND k.kind = :kind AND k.idempotency_key = :idempotency_key
FOR KEY SHARE;

-- name: free_keys
DELETE FROM job_keys WHERE job_id IN (SELECT i.value FROM {each ids as i});

-- name: find_jobs
SELECT {job j}
FROM jobs j
WHERE j.tenant = :tenant AND j.kind IN (SELECT k.value FROM {each kinds as k}) AND j.id IN (
  SELECT CAST(:id AS TEXT)
  UNION SELECT d.job_id FROM deliveries d WHERE d.id = :id
  UNION SELECT o.job_id FROM job_keys o WHERE o.tenant = :tenant AND o.kind IN (SELECT k.value FROM {each kinds as k}) AND o.idempotency_key = :key)
ORDER BY j.id DESC;

-- The state is said where it is known: jobs that are over lie in other tables than those that wait.
-- name: list_succeeded_jobs
SELECT {job j} FROM (SELECT {job j} FROM jobs j WHERE j.state = 'succeeded' AND {part newest_of_tenant} {part page};

-- name: end_of_list_succeeded_jobs
SELECT {job e} FROM jobs e WHERE e.id = (
  SELECT j.id FROM jobs j WHERE j.state = 'succeeded' AND {part newest_of_tenant} LIMIT 1 OFFSET :skip);

-- name: list_queued_jobs
SELECT {job j} FROM (SELECT {job j} FROM jobs j WHERE j.state = 'queued' AND {part newest_of_tenant} {part page};

-- name: end_of_list_queued_jobs
SELECT {job e} FROM jobs e WHERE e.id = (
  SELECT j.id FROM jobs j WHERE j.state = 'queued' AND {part newest_of_tenant} LIMIT 1 OFFSET :skip);

-- name: job_by_unique_key
SELECT j.id FROM jobs_live j WHERE {same j :} AND j.unique_key = :unique_key
FOR KEY SHARE;

-- Locked, so that two nodes cannot both count the running jobs of a limited queue and both find room. A statement of its own:
-- the next one must see what the other node committed while this one waited.
-- name: lock_queue_settings
SELECT {part settings} FROM queue_settings s
WHERE EXISTS (SELECT 1 FROM {each queue of queues as q} WHERE {same s q})
ORDER BY s.kind, s.tenant, s.queue, s.node
FOR UPDATE;

-- name: count_running
SELECT q.kind, q.tenant, q.queue, q.node, (SELECT COUNT(*) FROM jobs_live j WHERE j.state = 'running' AND {same j q})
FROM {each queue of queues as q};

-- A room is how many jobs the queue may take; where it is NULL, it was not read, and nothing is claimed if there are settings. Nor
-- is anything claimed if deliveries must be made with a claim, and the caller will not make them in the same transaction.
-- Candidates are found without locks, one seek for each queue and priority; then only what is taken is locked. The spare
-- candidates are for those that another node is taking; the last column says whether there may be more behind them. MATERIALIZED keeps the planner from running the locking part
-- more often than LIMIT allows; ANY(ARRAY(…)) tells it that few rows are meant, where it would guess a tenth of the table;
-- `|| ''` keeps it off the index of queued jobs, where it would look for an id from end to end.
-- part: asked
WITH asked AS MATERIALIZED (
  SELECT q.*, q.room IS NULL AND EXISTS (SELECT 1 FROM queue_settings s WHERE {same s q}) AS limited
  FROM json_to_recordset(:rooms::JSON) AS q(kind TEXT, tenant TEXT, queue TEXT, node TEXT, room BIGINT, number INTEGER)
), found AS (
  SELECT c.id, c.priority, c.run_at, q.room,
         ROW_NUMBER() OVER (PARTITION BY q.number ORDER BY c.priority DESC, c.run_at, c.id) AS place
  FROM (SELECT * FROM asked WHERE NOT EXISTS (SELECT 1 FROM asked a WHERE a.limited)) q
  CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p(priority)
  CROSS JOIN LATERAL (
    SELECT j.id, j.priority, j.run_at FROM jobs_live j
    WHERE j.state = 'queued' AND {same j q} AND j.priority = p.priority AND j.run_at <= :now
    ORDER BY j.run_at, j.id
    LIMIT :limit::INTEGER + :spare::INTEGER
  ) c
), candidates AS MATERIALIZED (
  SELECT f.id, f.priority, f.run_at FROM found f WHERE f.room IS NULL OR f.place <= f.room
  ORDER BY f.priority DESC, f.run_at, f.id LIMIT :limit::INTEGER + :spare::INTEGER

-- part: take_candidates
), picked AS MATERIALIZED (
  SELECT j.id, j.priority, j.run_at, j.reports FROM jobs_live j
  WHERE j.id = ANY(ARRAY(SELECT c.id FROM candidates c)) AND j.state || '' = 'queued'
  ORDER BY j.priority DESC, j.run_at, j.id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
), dealt AS (
  SELECT p.id, s.owner, s.length, s.stage, s.lease_random, s.number, :now AS at
  FROM (SELECT p.id, ROW_NUMBER() OVER (ORDER BY p.priority DESC, p.run_at, p.id) AS number FROM picked p) p
  JOIN json_to_recordset(:slots::JSON) AS s(number INTEGER, owner TEXT, length BIGINT, stage TEXT, lease_random BIGINT)
    ON s.number = p.number
), claimed AS (
  UPDATE jobs_live j
  SET state = 'running', stage = d.stage, attempt = attempt + 1, lease_owner = d.owner,
      lease = (CASE WHEN lease >> 32 = 0 THEN lease ELSE lease >> 32 END + 1 << 32) + d.lease_random,
      lease_until = d.at + d.length, waiting_for = '', seq = seq + 1, updated_at = d.at,
      previous = CASE WHEN d.stage <> '' THEN topic ELSE previous END,
      topic_seq = CASE WHEN d.stage <> '' THEN seq + 1 ELSE topic_seq END,
      topic = CASE WHEN d.stage <> '' THEN 'running:' || d.stage ELSE topic END
  FROM dealt d
  WHERE j.id = d.id AND j.id = ANY(ARRAY(SELECT p.id FROM picked p))
    AND (:delivers::BOOLEAN OR NOT EXISTS (SELECT 1 FROM picked p WHERE p.reports <> ''))
  RETURNING j.*, d.number
), events AS (
  INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message)
  SELECT c.id, c.seq, c.updated_at, 'info', 'claim', 'running', c.stage,
         CASE WHEN c.topic_seq = c.seq THEN c.previous ELSE c.topic END, c.attempt, '', 'claimed by ' || c.lease_owner
  FROM claimed c
)
SELECT {job c}, p.payload, c.topic_seq, c.number, k.count, k.refused
FROM (
  SELECT (SELECT COUNT(*) FROM candidates) AS count,
         EXISTS (SELECT 1 FROM asked a WHERE a.limited)
         OR (NOT :delivers AND EXISTS (SELECT 1 FROM picked p WHERE p.reports <> '')) AS refused
) k
LEFT JOIN claimed c ON TRUE
LEFT JOIN job_payloads p ON p.job_id = c.id
ORDER BY c.number;

-- name: claim_jobs
{part asked} {part take_candidates}

-- name: find_candidates
{part asked}) SELECT c.priority, c.run_at, c.id FROM candidates c;

-- Those that were found before, where a key's limits decide.
-- name: claim_found_jobs
WITH asked AS (SELECT FALSE AS limited), candidates AS MATERIALIZED (
  SELECT i.value AS id FROM {each ids as i}
{part take_candidates}

-- name: jobs_of_keys
SELECT k.value, c.priority, c.run_at, c.id
FROM {each keys as k}
CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p(priority)
CROSS JOIN LATERAL (
  SELECT j.id, j.priority, j.run_at FROM jobs_live j
  WHERE j.state = 'queued' AND j.limit_key <> '' AND {same j :} AND j.limit_key = k.value AND j.priority = p.priority AND j.run_at <= :now
  ORDER BY j.run_at, j.id
  LIMIT :each
) c;

-- name: keyless_jobs
SELECT c.priority, c.run_at, c.id
FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p(priority)
CROSS JOIN LATERAL (
  SELECT j.id, j.priority, j.run_at FROM jobs_live j
  WHERE j.state = 'queued' AND j.limit_key = '' AND {same j :} AND j.priority = p.priority AND j.run_at <= :now
  ORDER BY j.run_at, j.id
  LIMIT :each
) c;

-- name: add_starts
INSERT INTO limit_starts (kind, tenant, queue, node, limit_key, at)
SELECT s.kind, s.tenant, s.queue, s.node, s.limit_key, s.at
FROM json_to_recordset(:rows::JSON) AS s(kind TEXT, tenant TEXT, queue TEXT, node TEXT, limit_key TEXT, at BIGINT);

-- Before a step ends its flow is locked, in the order of their ids: so of several who end steps of a flow one after the other counts,
-- and nobody who holds a flow waits for a step of it that somebody else is ending.
-- part: lock_flows
WITH locked AS MATERIALIZED (
  SELECT f.id FROM jobs_live f
  WHERE f.id = ANY(ARRAY(SELECT s.flow FROM jobs_live s WHERE s.id = ANY(:job_ids::TEXT[]) AND s.flow IS NOT NULL))
  ORDER BY f.id
  FOR UPDATE
),

-- Every move of a single job; a job stands in it at most once.
-- part: changes
c AS (
  SELECT *, :now AS at FROM json_to_recordset(:rows::JSON) AS c(
    job_id TEXT, tenant TEXT, kind TEXT, lease BIGINT, owner TEXT, move TEXT, source TEXT, state TEXT, stage TEXT, topic TEXT,
    visible BOOLEAN, reset BOOLEAN, delta INTEGER, delay BIGINT, kept BOOLEAN, final BOOLEAN, waiting_for TEXT, error TEXT,
    failed_step TEXT, lease_until BIGINT, deadline_at BIGINT, seen_stage TEXT, level TEXT, step TEXT, message TEXT,
    result INTEGER, data INTEGER)
), moved AS (
  UPDATE jobs j
  SET state = c.state, stage = c.stage,
      attempt = CASE WHEN c.reset THEN 0 ELSE GREATEST(j.attempt + c.delta, 0) END,
      deadline_at = CASE WHEN c.reset THEN NULL ELSE j.deadline_at END,
      run_at = CASE WHEN c.state = 'queued' THEN c.at + c.delay ELSE j.run_at END,
      lease_owner = CASE WHEN c.kept THEN j.lease_owner END,
      lease_until = CASE WHEN c.kept THEN j.lease_until END,
      waiting_for = c.waiting_for, error = c.error, failed_step = c.failed_step,
      seq = j.seq + 1, updated_at = c.at, finished_at = CASE WHEN c.final THEN c.at END,
      prune_at = CASE WHEN c.final THEN c.at + j.keep END,
      previous = CASE WHEN c.visible AND j.topic <> c.topic THEN j.topic ELSE j.previous END,
      topic_seq = CASE WHEN c.visible AND j.topic <> c.topic THEN j.seq + 1 ELSE j.topic_seq END,
      topic = CASE WHEN c.visible THEN c.topic ELSE j.topic END
  FROM c
  WHERE j.id = c.job_id AND j.id = ANY(:job_ids::TEXT[]) AND STRPOS(c.source, j.state) > 0
    AND j.kind = c.kind AND (c.tenant IS NULL OR j.tenant = c.tenant)
    AND (c.lease IS NULL OR j.lease = c.lease) AND (c.owner IS NULL OR j.lease_owner = c.owner)
    AND (c.seen_stage IS NULL OR j.stage = c.seen_stage)
    AND (c.lease_until IS NULL OR j.lease_until = c.lease_until)
    AND (c.deadline_at IS NULL OR j.deadline_at = c.deadline_at)
    AND (NOT c.reset OR (j.flow IS NULL AND j.steps_left IS NULL AND (j.unique_key IS NULL OR NOT EXISTS (
      SELECT 1 FROM jobs_live o WHERE {same o j} AND o.unique_key = j.unique_key))))

-- part: changed
  RETURNING j.id, j.kind, j.tenant, j.queue, j.node, j.attempt, j.seq, j.run_at, j.created_at, j.updated_at, j.topic, j.previous,
            j.topic_seq, j.reports, j.flow, j.step
), results AS (
  INSERT INTO job_results (job_id, result)
  SELECT c.job_id, (:blobs::BYTEA[])[c.result] FROM c JOIN moved m ON m.id = c.job_id WHERE c.result IS NOT NULL
  ON CONFLICT (job_id) DO UPDATE SET result = excluded.result
), events AS (
  INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message, error, data)
  SELECT m.id, m.seq, m.updated_at, c.level, c.move, c.state, c.stage,
         CASE WHEN m.topic_seq = m.seq THEN m.previous ELSE m.topic END, m.attempt, c.step, c.message, c.error, (:blobs::BYTEA[])[c.data]
  FROM c JOIN moved m ON m.id = c.job_id
)
SELECT m.id, m.kind, m.tenant, m.queue, m.node, m.attempt, m.seq, m.run_at, m.created_at, m.updated_at, m.topic, m.topic_seq, m.reports, m.flow, m.step
FROM moved m;

-- Jobs that are no steps. The states are said, so that only the live jobs are looked at.
-- name: change_silent_jobs
WITH {part changes} AND j.state IN ('queued', 'running') {part changed}

-- name: change_live_jobs
{part lock_flows} {part changes} AND j.state IN ('queued', 'running') AND (SELECT COUNT(*) FROM locked) >= 0 {part changed}

-- name: change_jobs
{part lock_flows} {part changes} AND (SELECT COUNT(*) FROM locked) >= 0 {part changed}

-- name: change_payload
UPDATE job_payloads SET payload = :payload WHERE job_id = :job_id;

-- name: beat_jobs
UPDATE jobs_live j SET lease_until = :now + b.length
FROM json_to_recordset(:rows::JSON) AS b(job_id TEXT, tenant TEXT, kind TEXT, lease BIGINT, owner TEXT, length BIGINT)
WHERE j.id = b.job_id AND j.id = ANY(:job_ids::TEXT[]) AND j.state = 'running' AND j.kind = b.kind AND (b.tenant IS NULL OR j.tenant = b.tenant)
  AND (b.lease IS NULL OR j.lease = b.lease) AND (b.owner IS NULL OR j.lease_owner = b.owner)
RETURNING j.id, j.lease, j.tenant, j.lease_owner, j.kind, j.lease_until;

-- name: note_job
WITH noted AS (
  UPDATE jobs SET seq = seq + 1
  WHERE id = :job_id AND kind = :kind AND (:tenant::TEXT IS NULL OR tenant = :tenant)
    AND (:lease::BIGINT IS NULL OR (lease = :lease AND state = 'running'))
    AND (:owner::TEXT IS NULL OR (lease_owner = :owner AND state = 'running'))
  RETURNING id, seq, state, stage, topic, attempt
)
INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message, data)
SELECT n.id, n.seq, :now, :level, 'note', n.state, n.stage, n.topic, n.attempt, :step, :message, :data FROM noted n
RETURNING seq;

-- Differs for speed: grouping a million rows by five columns takes ten times as long as finding the few groups, one seek for each, and
-- counting each within its index.
-- name: count_queues
WITH RECURSIVE lanes AS (
  (SELECT f.kind, f.tenant, f.queue, f.node, f.priority FROM jobs_live f
   WHERE f.state = 'queued' ORDER BY f.kind, f.tenant, f.queue, f.node, f.priority LIMIT 1)
  UNION ALL
  SELECT n.kind, n.tenant, n.queue, n.node, n.priority FROM lanes l CROSS JOIN LATERAL (
    SELECT f.kind, f.tenant, f.queue, f.node, f.priority FROM jobs_live f
    WHERE f.state = 'queued' AND (f.kind, f.tenant, f.queue, f.node, f.priority) > (l.kind, l.tenant, l.queue, l.node, l.priority)
    ORDER BY f.kind, f.tenant, f.queue, f.node, f.priority
    LIMIT 1) n
)
SELECT l.kind, l.tenant, l.queue, l.priority,
  (SELECT COUNT(*) FROM jobs_live j WHERE j.state = 'queued' AND {same j l} AND j.priority = l.priority AND j.run_at <= :now),
  (SELECT COUNT(*) FROM jobs_live j WHERE j.state = 'queued' AND {same j l} AND j.priority = l.priority AND j.run_at > :now),
  0,
  (SELECT MIN(j.run_at) FROM jobs_live j WHERE j.state = 'queued' AND {same j l} AND j.priority = l.priority AND j.run_at <= :now)
FROM lanes l
UNION ALL
SELECT j.kind, j.tenant, j.queue, 0, 0, 0, COUNT(*), NULL
FROM jobs_live j WHERE j.state = 'running'
GROUP BY j.kind, j.tenant, j.queue
ORDER BY 1, 2, 3;

-- Differs because several nodes send: SKIP LOCKED, and many endpoints in one round trip.
-- name: take_deliveries
WITH wanted AS (
  SELECT w.endpoint_id, w.count, w.length FROM json_to_recordset(:rows::JSON)
    AS w(endpoint_id TEXT, count INTEGER, length BIGINT)
  LEFT JOIN endpoints e ON e.id = w.endpoint_id
  WHERE COALESCE(e.state, 'active') = 'active'
), due AS MATERIALIZED (
  SELECT d.id, w.length FROM wanted w CROSS JOIN LATERAL (
    SELECT d.id FROM deliveries_pending d
    WHERE d.endpoint_id = w.endpoint_id AND d.due_at <= :now
      AND (d.lease_until IS NULL OR d.lease_until <= :now)
    ORDER BY d.due_at, d.id
    LIMIT w.count
    FOR UPDATE SKIP LOCKED
  ) d
)
UPDATE deliveries_pending d SET lease = lease + 1, lease_until = :now + due.length
FROM due WHERE d.id = due.id
RETURNING d.id, d.lease, d.endpoint_id;

-- name: next_dues
SELECT w.value,
       (SELECT MIN(d.due_at) FROM deliveries_pending d WHERE d.endpoint_id = w.value AND d.due_at > :now),
       COALESCE(e.state, 'active')
FROM {each endpoint_ids as w} LEFT JOIN endpoints e ON e.id = w.value;

-- name: settle_deliveries
WITH s AS (
  SELECT *, :now AS at FROM json_to_recordset(:rows::JSON) AS s(
    delivery_id TEXT, lease BIGINT, state TEXT, retry_length BIGINT, reason TEXT, status INTEGER,
    duration DOUBLE PRECISION, error TEXT, answer TEXT, gone TEXT)
), settled AS (
  UPDATE deliveries d
  SET state = s.state, attempt = d.attempt + 1, tries = d.tries + 1, lease_until = NULL, due_at = s.at + s.retry_length,
      reason = s.reason, updated_at = s.at
  FROM s
  WHERE d.id = s.delivery_id AND d.id = ANY(:delivery_ids::TEXT[]) AND d.lease = s.lease AND d.state = 'pending'
  RETURNING d.id, d.job_id, d.tries
), logged AS (
  INSERT INTO delivery_tries (job_id, delivery_id, number, at, status, duration_seconds, error, answer)
  SELECT t.job_id, s.delivery_id, t.tries, s.at, s.status, s.duration, s.error, s.answer FROM s JOIN settled t ON t.id = s.delivery_id
), gone AS (
  UPDATE endpoints e SET state = 'disabled', reason = s.reason, updated_at = s.at
  FROM s JOIN settled t ON t.id = s.delivery_id WHERE e.id = s.gone
)
SELECT t.id FROM settled t;

-- Differs because several nodes write: waits for a replay that another one is about to commit; the next statement must see it.
-- name: lock_deliveries
SELECT d.id FROM deliveries d WHERE d.job_id IN (SELECT i.value FROM {each ids as i}) ORDER BY d.id FOR UPDATE;

-- What is in a period goes with it. One by one go those of the rest, and those whose period should have gone and did not.
-- name: prunable_jobs
(SELECT j.id FROM jobs_over_rest j
 WHERE j.finished_at <= :now - :age AND j.prune_at IS NULL AND {part not_of_a_flow}
   AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
 ORDER BY j.finished_at
 LIMIT :limit)
UNION
(SELECT j.id FROM jobs_over j
 WHERE j.finished_at <= :now - :age - :age / 8 - 600000000 AND j.prune_at IS NULL AND {part not_of_a_flow}
   AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
 ORDER BY j.finished_at
 LIMIT :limit)
LIMIT :limit;

-- part: free_keys_of_gone
freed AS (DELETE FROM job_keys k USING gone g WHERE k.job_id = g.id) SELECT g.id FROM gone g;

-- name: prune_jobs
WITH gone AS (
  DELETE FROM jobs_over j
  WHERE j.id IN (SELECT i.value FROM {each ids as i}) AND j.finished_at <= :now - :age AND (j.prune_at IS NULL OR j.prune_at <= :now)
    AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
    AND {part not_of_a_flow}
  RETURNING j.id
), {part free_keys_of_gone}

-- name: purge_jobs
WITH gone AS (
  DELETE FROM jobs_over j
  WHERE j.id IN (SELECT i.value FROM {each ids as i}) AND j.tenant = :tenant AND j.kind = :kind
    AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
    AND {part not_of_a_flow}
  RETURNING j.id
), {part free_keys_of_gone}

-- name: now
SELECT :now;

-- What the sessions of nodes are called. Two Chargehands with two schemas may share a database and a user.
-- part: session_name
('chargehand ' || (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'schema_migrations'::REGCLASS))

-- What every connection begins with. It waits for lock_schema, and lock_schema waits for it: so a migration either finds the
-- session under its name, or the session finds the migrated schema.
-- name: join_schema
SELECT COALESCE(MAX(m.version), 0), COALESCE(MAX(COALESCE(m.oldest, m.version)), 0),
       set_config('application_name', {part session_name}, false)
FROM schema_migrations m;

-- name: lock_schema
LOCK TABLE schema_migrations IN ACCESS EXCLUSIVE MODE;

-- Only other migrations wait for this one.
-- name: lock_migrations
LOCK TABLE schema_migrations IN SHARE ROW EXCLUSIVE MODE;

-- Waits a second for each to end: until then a commit under way may still happen.
-- name: end_sessions
SELECT a.pid, pg_terminate_backend(a.pid, 1000) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name = {part session_name};

-- name: count_sessions
SELECT COUNT(*) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name = {part session_name};

-- Two starts at once are no strangers to each other: a session is called ours from its first moment.
-- name: strangers
SELECT a.pid, a.application_name FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = current_user AND a.backend_type = 'client backend'
  AND a.pid <> pg_backend_pid() AND a.application_name NOT LIKE 'chargehand%';

-- The id of its job says in which tables a delivery and all about it lie: without it those of all periods would be looked into.
-- name: subjects
SELECT d.id, j.kind, j.queue, e.state, e.stage, t.status, t.duration_seconds
FROM UNNEST(:ids::TEXT[], :job_ids::TEXT[]) AS i(id, job_id)
JOIN deliveries d ON d.id = i.id AND d.job_id = i.job_id
JOIN jobs j ON j.id = i.job_id
JOIN job_events e ON e.job_id = i.job_id AND e.seq = d.seq
LEFT JOIN delivery_tries t ON t.job_id = i.job_id AND t.delivery_id = i.id AND t.number = d.tries;
