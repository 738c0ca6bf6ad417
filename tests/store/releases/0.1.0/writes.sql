-- What a node of 0.1.0 writes to PostgreSQL: its own statements, with values for rows of postgres.sql.gz in place of the parameters.
-- Each of them changes that database. test_older_nodes.py runs them on the schema of today. Of pruning, all but prune_jobs and
-- prune_endpoints are sent for what prune_jobs removed, in its transaction.

-- name: set_queue
INSERT INTO queue_settings (queue, paused, max_running) VALUES ('job/acme/waiting', 1, NULL)
ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused, max_running = excluded.max_running;

-- name: unset_queue
DELETE FROM queue_settings WHERE queue = 'job/acme/paused/by/us';

-- name: set_endpoint
UPDATE endpoints SET state = 'disabled', reason = 'somebody said so', updated_at = 1800000000000000::BIGINT WHERE id = 'ep_ynwvxtaulozf5iddhoeyb47r' RETURNING id;

-- name: take_deliveries
WITH wanted AS (
  SELECT w.endpoint_id, w.count, w.length FROM UNNEST(ARRAY['ep_ynwvxtaulozf5iddhoeyb47r']::TEXT[], ARRAY[10]::INTEGER[], ARRAY[16500000]::BIGINT[])
    AS w(endpoint_id, count, length)
  LEFT JOIN endpoints e ON e.id = w.endpoint_id
  WHERE COALESCE(e.state, 'active') = 'active'
), due AS MATERIALIZED (
  SELECT d.id, w.length FROM wanted w CROSS JOIN LATERAL (
    SELECT d.id FROM deliveries d
    WHERE d.state = 'pending' AND d.endpoint_id = w.endpoint_id AND d.due_at <= 1800000000000000::BIGINT
      AND (d.lease_until IS NULL OR d.lease_until <= 1800000000000000::BIGINT)
    ORDER BY d.due_at, d.id
    LIMIT w.count
    FOR UPDATE SKIP LOCKED
  ) d
)
UPDATE deliveries SET lease = lease + 1, lease_until = 1800000000000000::BIGINT + due.length
FROM due WHERE deliveries.id = due.id
RETURNING deliveries.id, deliveries.lease, deliveries.endpoint_id;

-- name: release_delivery
UPDATE deliveries SET lease_until = NULL WHERE id = '01M7PPHBD121266KDGM1MHVJT2' AND lease = 1 AND state = 'pending';

-- name: replay_delivery
UPDATE deliveries
SET state = 'pending', attempt = 0, lease = lease + 1, lease_until = NULL, due_at = 1800000000000000::BIGINT, since_at = 1800000000000000::BIGINT,
    reason = 'replayed', updated_at = 1800000000000000::BIGINT
WHERE id = '01M7PPHBBT9ME1DEX42F4EZF2J' AND state <> 'pending'
RETURNING endpoint_id;

-- name: replay_endpoint
UPDATE deliveries
SET state = 'pending', attempt = 0, lease = lease + 1, lease_until = NULL, due_at = 1800000000000000::BIGINT, since_at = 1800000000000000::BIGINT,
    reason = 'replayed', updated_at = 1800000000000000::BIGINT
WHERE id IN (SELECT d.id FROM deliveries d WHERE d.state = 'dead' AND d.endpoint_id = 'ep_powxq2lp7gsqhp4gsppqgc5r' ORDER BY d.id LIMIT 10)
RETURNING id;

-- name: give_up_deliveries
UPDATE deliveries SET state = 'dead', reason = 'gave up', updated_at = 1800000000000000::BIGINT
WHERE state = 'pending' AND (lease_until IS NULL OR lease_until <= 1800000000000000::BIGINT) AND id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHBD121266KDGM1MHVJT2']::TEXT[]) AS i(value))
RETURNING id;

-- name: prune_jobs
DELETE FROM jobs
WHERE id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHB2S9K1QGYAC64ZDQHR3']::TEXT[]) AS i(value)) AND finished_at <= 1800000000000000::BIGINT - 0
  AND (FALSE OR prune_at IS NULL OR prune_at <= 1800000000000000::BIGINT)
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = jobs.id AND d.state = 'pending')
RETURNING id;

-- name: prune_tries
DELETE FROM delivery_tries
WHERE delivery_id IN (SELECT d.id FROM deliveries d WHERE d.job_id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHB7B2G9G0SNVD930EKKE']::TEXT[]) AS i(value)));

-- name: prune_deliveries
DELETE FROM deliveries WHERE job_id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHB7B2G9G0SNVD930EKKE']::TEXT[]) AS i(value));

-- name: prune_events
DELETE FROM job_events WHERE job_id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHB2S9K1QGYAC64ZDQHR3']::TEXT[]) AS i(value));

-- name: prune_payloads
DELETE FROM job_payloads WHERE job_id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHB2S9K1QGYAC64ZDQHR3']::TEXT[]) AS i(value));

-- name: prune_results
DELETE FROM job_results WHERE job_id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHB2S9K1QGYAC64ZDQHR3']::TEXT[]) AS i(value));

-- name: prune_job_files
DELETE FROM files WHERE job_id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHDWE4EN6V4NJDAFYQ7AG']::TEXT[]) AS i(value));

-- name: prune_endpoints
DELETE FROM endpoints
WHERE state = 'active' AND updated_at <= 1800000000000000::BIGINT - 0
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = endpoints.id);

-- name: put_file
INSERT INTO files (id, tenant, job_id, name, purpose, media_type, size, sha256, created_at)
VALUES ('01M7PPJ0000000000000000001', 'acme', NULL, 'new.jsonl', 'batch', 'application/jsonl', 1, '0000000000000000000000000000000000000000000000000000000000000000', 1800000000000000::BIGINT)
ON CONFLICT (job_id, name) WHERE job_id IS NOT NULL DO UPDATE
SET purpose = excluded.purpose, media_type = excluded.media_type, size = excluded.size, sha256 = excluded.sha256,
    created_at = excluded.created_at
RETURNING files.id, files.tenant, files.job_id, files.name, files.purpose, files.media_type, files.size, files.sha256, files.created_at;

-- name: drop_files
DELETE FROM files
WHERE id IN (SELECT i.value FROM UNNEST(ARRAY['01M7PPHDVRCSA5FAKAP4AY7BZK']::TEXT[]) AS i(value)) AND (CAST('acme' AS TEXT) IS NULL OR tenant = 'acme')
RETURNING id;

-- name: put_record
INSERT INTO records (kind, tenant, name, body, version, due_at, created_at, updated_at)
VALUES ('topic', 'acme', 'new', '{}', 1, NULL, 1800000000000000::BIGINT, 1800000000000000::BIGINT)
ON CONFLICT (kind, tenant, name) DO UPDATE
SET body = excluded.body, version = records.version + 1, due_at = excluded.due_at, updated_at = excluded.updated_at
WHERE CAST(NULL AS BIGINT) IS NULL
RETURNING records.kind, records.tenant, records.name, records.body, records.version, records.due_at, records.created_at, records.updated_at;

-- name: change_record
UPDATE records SET body = '{}', version = version + 1, due_at = NULL, updated_at = 1800000000000000::BIGINT
WHERE kind = 'topic' AND tenant = 'acme' AND name = 'encode' AND version = 1
RETURNING records.kind, records.tenant, records.name, records.body, records.version, records.due_at, records.created_at, records.updated_at;

-- name: drop_record
DELETE FROM records
WHERE kind = 'topic' AND tenant = 'acme' AND name = 'encode'
  AND (CAST(1 AS BIGINT) IS NULL OR version = 1)
RETURNING name;

-- name: submit_jobs
WITH n AS (
  SELECT *, 1800000000000000::BIGINT AS at FROM UNNEST(
    ARRAY['01M7PPJ0000000000000000001']::TEXT[], ARRAY['acme']::TEXT[], ARRAY['job']::TEXT[], ARRAY['job/acme/waiting']::TEXT[], ARRAY['1']::BYTEA[], ARRAY[0]::INTEGER[],
    ARRAY[5]::INTEGER[], ARRAY[NULL]::BIGINT[], ARRAY[0]::BIGINT[], ARRAY[NULL]::TEXT[], ARRAY[NULL]::TEXT[],
    ARRAY['']::TEXT[], ARRAY['']::TEXT[], ARRAY['']::TEXT[], ARRAY[NULL]::BYTEA[],
    ARRAY[NULL]::BIGINT[], ARRAY[NULL]::TEXT[], ARRAY[NULL]::BIGINT[]
  ) AS n(id, tenant, kind, queue, payload, priority, max_attempts, run_at, delay, idempotency_key, fingerprint,
         traceparent, tracestate, reports, metadata, deadline, unique_key, keep)
), inserted AS (
  INSERT INTO jobs (id, tenant, kind, queue, state, stage, topic, previous, topic_seq, priority, run_at, attempt,
                    max_attempts, lease, waiting_for, idempotency_key, fingerprint, traceparent, tracestate, reports,
                    metadata, deadline_at, unique_key, keep, seq, created_at, updated_at)
  SELECT n.id, n.tenant, n.kind, n.queue, 'queued', '', 'queued', '', 1, n.priority,
         GREATEST(n.at, COALESCE(n.run_at, 0)) + n.delay, 0, n.max_attempts, 0, '', n.idempotency_key, n.fingerprint,
         n.traceparent, n.tracestate, n.reports, n.metadata, n.at + n.deadline, n.unique_key, n.keep, 1, n.at, n.at
  FROM n
  ON CONFLICT DO NOTHING
  RETURNING id, run_at, created_at
), payloads AS (
  INSERT INTO job_payloads (job_id, payload) SELECT n.id, n.payload FROM n JOIN inserted i ON i.id = n.id
), events AS (
  INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message)
  SELECT i.id, 1, i.created_at, 'info', 'submit', 'queued', '', '', 0, '', '' FROM inserted i
)
SELECT i.id, i.run_at, i.created_at FROM inserted i;

-- name: claim_jobs
WITH found AS (
  SELECT c.id, c.priority, c.run_at, q.room,
         ROW_NUMBER() OVER (PARTITION BY q.queue ORDER BY c.priority DESC, c.run_at, c.id) AS place
  FROM UNNEST(ARRAY['job/acme/waiting']::TEXT[], ARRAY[10]::BIGINT[]) AS q(queue, room)
  CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p(priority)
  CROSS JOIN LATERAL (
    SELECT j.id, j.priority, j.run_at FROM jobs j
    WHERE j.state = 'queued' AND j.queue = q.queue AND j.priority = p.priority AND j.run_at <= 1800000000000000::BIGINT
    ORDER BY j.run_at, j.id
    LIMIT 1::INTEGER + 2::INTEGER
  ) c
), candidates AS MATERIALIZED (
  SELECT f.id FROM found f WHERE f.place <= f.room ORDER BY f.priority DESC, f.run_at, f.id LIMIT 1::INTEGER + 2::INTEGER
), picked AS MATERIALIZED (
  SELECT j.id, j.priority, j.run_at FROM jobs j
  WHERE j.id = ANY(ARRAY(SELECT c.id FROM candidates c)) AND j.state || '' = 'queued'
  ORDER BY j.priority DESC, j.run_at, j.id
  LIMIT 1
  FOR UPDATE SKIP LOCKED
), dealt AS (
  SELECT p.id, s.owner, s.length, s.stage, s.number, 1800000000000000::BIGINT AS at
  FROM (SELECT p.id, ROW_NUMBER() OVER (ORDER BY p.priority DESC, p.run_at, p.id) AS number FROM picked p) p
  JOIN UNNEST(ARRAY['worker-2']::TEXT[], ARRAY[60000000]::BIGINT[], ARRAY['claimed']::TEXT[]) WITH ORDINALITY AS s(owner, length, stage, number)
    ON s.number = p.number
), claimed AS (
  UPDATE jobs
  SET state = 'running', stage = d.stage, attempt = attempt + 1, lease = lease + 1, lease_owner = d.owner,
      lease_until = d.at + d.length, waiting_for = '', seq = seq + 1, updated_at = d.at,
      previous = CASE WHEN d.stage <> '' THEN topic ELSE previous END,
      topic_seq = CASE WHEN d.stage <> '' THEN seq + 1 ELSE topic_seq END,
      topic = CASE WHEN d.stage <> '' THEN 'running:' || d.stage ELSE topic END
  FROM dealt d
  WHERE jobs.id = d.id AND jobs.id = ANY(ARRAY(SELECT p.id FROM picked p))
  RETURNING jobs.*, d.number
), events AS (
  INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message)
  SELECT c.id, c.seq, c.updated_at, 'info', 'claim', 'running', c.stage,
         CASE WHEN c.topic_seq = c.seq THEN c.previous ELSE c.topic END, c.attempt, '', 'claimed by ' || c.lease_owner
  FROM claimed c
)
SELECT c.id, c.tenant, c.kind, c.queue, c.state, c.stage, c.topic, c.previous, c.priority, c.run_at, c.attempt, c.max_attempts, c.lease, c.lease_owner, c.lease_until, c.waiting_for, c.error, c.failed_step, c.idempotency_key, c.traceparent, c.tracestate, c.reports, c.metadata, c.seq, c.created_at, c.updated_at, c.finished_at, c.deadline_at, p.payload, c.topic_seq, c.number, k.count
FROM (SELECT COUNT(*) AS count FROM candidates) k
LEFT JOIN claimed c ON TRUE
LEFT JOIN job_payloads p ON p.job_id = c.id
ORDER BY c.number;

-- name: change_jobs
WITH c AS (
  SELECT *, 1800000000000000::BIGINT AS at FROM UNNEST(
    ARRAY['01M7PPHAZ44Q97NEBR28PWBH43']::TEXT[], ARRAY['succeed']::TEXT[], ARRAY['running']::TEXT[], ARRAY['succeeded']::TEXT[], ARRAY['']::TEXT[], ARRAY['succeeded']::TEXT[],
    ARRAY[TRUE]::BOOLEAN[], ARRAY[FALSE]::BOOLEAN[], ARRAY[0]::INTEGER[], ARRAY[0]::BIGINT[], ARRAY[FALSE]::BOOLEAN[],
    ARRAY['']::TEXT[], ARRAY[NULL]::TEXT[], ARRAY[NULL]::TEXT[], ARRAY[TRUE]::BOOLEAN[], ARRAY[1]::BIGINT[],
    ARRAY[NULL]::BIGINT[], ARRAY[NULL]::BIGINT[], ARRAY['acme']::TEXT[], ARRAY['42']::BYTEA[], ARRAY['info']::TEXT[], ARRAY['']::TEXT[],
    ARRAY['']::TEXT[], ARRAY[NULL]::BYTEA[], ARRAY[NULL]::TEXT[], ARRAY[NULL]::BYTEA[], ARRAY['job']::TEXT[], ARRAY[NULL]::TEXT[]
  ) AS c(job_id, move, source, state, stage, topic, visible, reset, delta, delay, kept, waiting_for, error, failed_step,
         final, lease, lease_until, deadline_at, tenant, result, level, step, message, data, owner, payload, kind,
         seen_stage)
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
  WHERE j.id = c.job_id AND j.id = ANY(ARRAY['01M7PPHAZ44Q97NEBR28PWBH43']) AND STRPOS(c.source, j.state) > 0
    AND (c.lease IS NULL OR j.lease = c.lease) AND (c.tenant IS NULL OR j.tenant = c.tenant)
    AND (c.owner IS NULL OR j.lease_owner = c.owner) AND (c.kind IS NULL OR j.kind = c.kind)
    AND (c.seen_stage IS NULL OR j.stage = c.seen_stage)
    AND (c.lease_until IS NULL OR j.lease_until = c.lease_until)
    AND (c.deadline_at IS NULL OR j.deadline_at = c.deadline_at)
    AND (NOT c.reset OR j.unique_key IS NULL OR NOT EXISTS (
      SELECT 1 FROM jobs o
      WHERE o.tenant = j.tenant AND o.kind = j.kind AND o.queue = j.queue AND o.unique_key = j.unique_key
        AND o.state IN ('queued', 'running')))
  RETURNING j.id, j.tenant, j.kind, j.queue, j.attempt, j.seq, j.run_at, j.created_at, j.updated_at, j.topic, j.previous,
            j.topic_seq, j.reports
), payloads AS (
  UPDATE job_payloads p SET payload = c.payload FROM c JOIN moved m ON m.id = c.job_id
  WHERE p.job_id = c.job_id AND c.payload IS NOT NULL
), results AS (
  INSERT INTO job_results (job_id, result)
  SELECT c.job_id, c.result FROM c JOIN moved m ON m.id = c.job_id WHERE c.result IS NOT NULL
  ON CONFLICT (job_id) DO UPDATE SET result = excluded.result
), events AS (
  INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message, error, data)
  SELECT m.id, m.seq, m.updated_at, c.level, c.move, c.state, c.stage,
         CASE WHEN m.topic_seq = m.seq THEN m.previous ELSE m.topic END, m.attempt, c.step, c.message, c.error, c.data
  FROM c JOIN moved m ON m.id = c.job_id
)
SELECT m.id, m.tenant, m.kind, m.queue, m.attempt, m.seq, m.run_at, m.created_at, m.updated_at, m.topic, m.topic_seq, m.reports
FROM moved m;

-- name: beat_jobs
UPDATE jobs j SET lease_until = 1800000000000000::BIGINT + b.length
FROM UNNEST(ARRAY['01M7PPHAZ44Q97NEBR28PWBH43']::TEXT[], ARRAY[1]::BIGINT[], ARRAY['acme']::TEXT[], ARRAY[NULL]::TEXT[], ARRAY['job']::TEXT[], ARRAY[60000000]::BIGINT[])
  AS b(job_id, lease, tenant, owner, kind, length)
WHERE j.id = b.job_id AND j.state = 'running' AND (b.lease IS NULL OR j.lease = b.lease)
  AND (b.tenant IS NULL OR j.tenant = b.tenant) AND (b.owner IS NULL OR j.lease_owner = b.owner)
  AND (b.kind IS NULL OR j.kind = b.kind)
RETURNING j.id, j.lease, j.tenant, j.lease_owner, j.kind, j.lease_until;

-- name: note_job
WITH noted AS (
  UPDATE jobs SET seq = seq + 1
  WHERE id = '01M7PPHAZ44Q97NEBR28PWBH43' AND (1::BIGINT IS NULL OR (lease = 1 AND state = 'running'))
    AND ('acme'::TEXT IS NULL OR tenant = 'acme')
    AND (NULL::TEXT IS NULL OR (lease_owner = NULL AND state = 'running'))
    AND ('job'::TEXT IS NULL OR kind = 'job')
  RETURNING id, seq, state, stage, topic, attempt
)
INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message, data)
SELECT n.id, n.seq, 1800000000000000::BIGINT, 'info', 'note', n.state, n.stage, n.topic, n.attempt, '', 'all of it', NULL FROM noted n
RETURNING seq;

-- name: ensure_endpoints
INSERT INTO endpoints (id, tenant, url, state, reason, created_at, updated_at)
SELECT e.id, e.tenant, e.url, 'active', '', 1800000000000000::BIGINT, 1800000000000000::BIGINT
FROM UNNEST(ARRAY['ep_new']::TEXT[], ARRAY['acme']::TEXT[], ARRAY['http://127.0.0.1:9/new']::TEXT[]) AS e(id, tenant, url)
ORDER BY e.id
ON CONFLICT (id) DO NOTHING;

-- name: insert_deliveries
INSERT INTO deliveries (id, tenant, job_id, seq, endpoint_id, url, dialect, state, attempt, tries, lease, due_at, since_at,
                        reason, created_at, updated_at)
SELECT d.id, d.tenant, d.job_id, d.seq, d.endpoint_id, d.url, d.dialect, 'pending', 0, 0, 0, d.at, d.at, '', d.at, d.at
FROM (
  SELECT *, 1800000000000000::BIGINT AS at FROM UNNEST(
    ARRAY['01M7PPJ0000000000000000001']::TEXT[], ARRAY['acme']::TEXT[], ARRAY['01M7PPHB2S9K1QGYAC64ZDQHR3']::TEXT[], ARRAY[3]::INTEGER[], ARRAY['ep_powxq2lp7gsqhp4gsppqgc5r']::TEXT[], ARRAY['http://127.0.0.1:9/dead']::TEXT[],
    ARRAY['standard']::TEXT[]) AS d(id, tenant, job_id, seq, endpoint_id, url, dialect)
) d;

-- name: settle_deliveries
WITH s AS (
  SELECT *, 1800000000000000::BIGINT AS at FROM UNNEST(
    ARRAY['01M7PPHBD121266KDGM1MHVJT2']::TEXT[], ARRAY[1]::BIGINT[], ARRAY['delivered']::TEXT[], ARRAY[0]::BIGINT[], ARRAY['']::TEXT[],
    ARRAY[200]::INTEGER[], ARRAY[0.1]::DOUBLE PRECISION[], ARRAY['']::TEXT[], ARRAY['ok']::TEXT[], ARRAY['ep_ynwvxtaulozf5iddhoeyb47r']::TEXT[]
  ) AS s(delivery_id, lease, state, retry_length, reason, status, duration, error, answer, gone)
), settled AS (
  UPDATE deliveries d
  SET state = s.state, attempt = d.attempt + 1, tries = d.tries + 1, lease_until = NULL, due_at = s.at + s.retry_length,
      reason = s.reason, updated_at = s.at
  FROM s
  WHERE d.id = s.delivery_id AND d.lease = s.lease AND d.state = 'pending'
  RETURNING d.id, d.tries
), logged AS (
  INSERT INTO delivery_tries (delivery_id, number, at, status, duration_seconds, error, answer)
  SELECT s.delivery_id, t.tries, s.at, s.status, s.duration, s.error, s.answer FROM s JOIN settled t ON t.id = s.delivery_id
), gone AS (
  UPDATE endpoints e SET state = 'disabled', reason = s.reason, updated_at = s.at
  FROM s JOIN settled t ON t.id = s.delivery_id WHERE e.id = s.gone
)
SELECT t.id FROM settled t;
