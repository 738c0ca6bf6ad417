-- SQLite: one writer applies a group of operations in one transaction, so statements take one row each and stay simple.
-- What is written often has no RETURNING: for that SQLite makes a temporary table with a cache of its own each time, which costs
-- more than the write. The row is read before or after instead; between the two nobody else can write.

-- name: insert_job
INSERT INTO jobs (id, kind, tenant, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt, max_attempts,
                  lease, waiting_for, idempotency_key, fingerprint, traceparent, tracestate, reports, metadata,
                  deadline_at, unique_key, keep, flow, step, limit_key, seq, created_at, updated_at)
VALUES (:id, :kind, :tenant, :queue, :node, 'queued', '', 'queued', '', 1, :priority, :run_at, 0, :max_attempts,
        0, :waiting_for, :idempotency_key, :fingerprint, :traceparent, :tracestate, :reports, :metadata,
        :deadline_at, :unique_key, :keep, :flow, :step, :limit_key, 1, :now, :now)
ON CONFLICT DO NOTHING;

-- name: insert_payload
INSERT INTO job_payloads (job_id, payload) VALUES (:job_id, :payload);

-- name: insert_event
INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message, error, data)
VALUES (:job_id, :seq, :now, :level, :move, :state, :stage, :previous, :attempt, :step, :message, :error, :data);

-- name: put_payload
UPDATE job_payloads SET payload = :payload WHERE job_id = :job_id;

-- name: put_result
INSERT INTO job_results (job_id, result) VALUES (:job_id, :result)
ON CONFLICT (job_id) DO UPDATE SET result = excluded.result;

-- name: row_of_payload
SELECT p.rowid FROM job_payloads p WHERE p.job_id = :job_id;

-- name: row_of_result
SELECT r.rowid FROM job_results r WHERE r.job_id = :job_id;

-- name: job_by_key
SELECT j.id, j.fingerprint FROM jobs j
WHERE j.tenant = :tenant AND j.kind = :kind AND j.idempotency_key = :idempotency_key;

-- name: job_by_unique_key
SELECT j.id FROM jobs j
WHERE {same j :} AND j.unique_key = :unique_key
  AND j.state IN ('queued', 'running');

-- Differs because SQLite would choose the index of all jobs of the tenant.
-- name: list_stopped_jobs
SELECT {job j} FROM (
  SELECT {job j} FROM jobs j INDEXED BY jobs_stopped WHERE j.state IN ('failed', 'cancelled') AND {part newest_of_tenant} {part page};

-- name: end_of_list_stopped_jobs
SELECT {job e} FROM jobs e WHERE e.id = (
  SELECT j.id FROM jobs j INDEXED BY jobs_stopped
  WHERE j.state IN ('failed', 'cancelled') AND {part newest_of_tenant} LIMIT 1 OFFSET :skip);

-- The priorities of a queue that have something due: one seek for each from the highest to the lowest that is queued, and one
-- alone where nothing is.
-- name: due_priorities
SELECT p.column1
FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p
WHERE p.column1 <= (SELECT MAX(j.priority) FROM jobs j WHERE j.state = 'queued' AND {same j :})
  AND p.column1 >= (SELECT MIN(j.priority) FROM jobs j WHERE j.state = 'queued' AND {same j :})
  AND EXISTS (SELECT 1 FROM jobs j WHERE j.state = 'queued' AND {same j :} AND j.priority = p.column1 AND j.run_at <= :now);

-- name: due_jobs
SELECT j.run_at, j.id FROM jobs j
WHERE j.state = 'queued' AND {same j :} AND j.priority = :priority AND j.run_at <= :now
ORDER BY j.run_at, j.id
LIMIT :limit;

-- name: jobs_of_keys
SELECT k.value, j.priority, j.run_at, j.id
FROM {each keys as k}
CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p
CROSS JOIN jobs j
WHERE j.id IN (
  SELECT i.id FROM jobs i
  WHERE i.state = 'queued' AND i.limit_key <> '' AND {same i :} AND i.limit_key = k.value AND i.priority = p.column1 AND i.run_at <= :now
  ORDER BY i.run_at, i.id
  LIMIT :each);

-- name: keyless_jobs
SELECT j.priority, j.run_at, j.id
FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p
CROSS JOIN jobs j
WHERE j.id IN (
  SELECT i.id FROM jobs i INDEXED BY jobs_keyless
  WHERE i.state = 'queued' AND i.limit_key = '' AND {same i :} AND i.priority = p.column1 AND i.run_at <= :now
  ORDER BY i.run_at, i.id
  LIMIT :each);

-- name: add_start
INSERT INTO limit_starts (kind, tenant, queue, node, limit_key, at) VALUES (:kind, :tenant, :queue, :node, :limit_key, :at);

-- In the order of the list. The writer reads on only while it has room for what it gets.
-- name: claimable_jobs
SELECT {job j}, p.payload
FROM {each ids as i}
CROSS JOIN jobs j ON j.id = i.value
LEFT JOIN job_payloads p ON p.job_id = j.id;

-- The writer has read the job in this transaction and knows every value.
-- name: claim_job
UPDATE jobs
SET state = 'running', stage = :stage, attempt = :attempt, lease = :lease, lease_owner = :owner, lease_until = :lease_until,
    waiting_for = '', seq = :seq, updated_at = :now, previous = :previous, topic = :topic,
    topic_seq = CASE WHEN :stage <> '' THEN :seq ELSE topic_seq END
WHERE id = :job_id AND state = 'queued';

-- The one statement that writes every move of a single job. What it changed besides is told by `topic_seq = seq`: callers see
-- a new topic.
-- name: change_job
UPDATE jobs
SET state = :state, stage = :stage,
    attempt = CASE WHEN :reset THEN 0 ELSE MAX(attempt + :attempt_delta, 0) END,
    deadline_at = CASE WHEN :reset THEN NULL ELSE deadline_at END,
    run_at = CASE WHEN :state = 'queued' THEN :now + :delay ELSE run_at END,
    lease_owner = CASE WHEN :lease_kept THEN lease_owner END,
    lease_until = CASE WHEN :lease_kept THEN lease_until END,
    waiting_for = :waiting_for, error = :error, failed_step = :failed_step,
    seq = seq + 1, updated_at = :now, finished_at = CASE WHEN :final THEN :now END,
    prune_at = CASE WHEN :final THEN :now + keep END,
    previous = CASE WHEN :visible AND topic <> :topic THEN topic ELSE previous END,
    topic_seq = CASE WHEN :visible AND topic <> :topic THEN seq + 1 ELSE topic_seq END,
    topic = CASE WHEN :visible THEN :topic ELSE topic END
WHERE id = :job_id AND INSTR(:source, state) > 0
  AND kind = :kind AND (:tenant IS NULL OR tenant = :tenant)
  AND (:lease IS NULL OR lease = :lease) AND (:owner IS NULL OR lease_owner = :owner)
  AND (:seen_stage IS NULL OR stage = :seen_stage)
  AND (:lease_until IS NULL OR lease_until = :lease_until)
  AND (:deadline_at IS NULL OR deadline_at = :deadline_at)
  AND (NOT :reset OR (flow IS NULL AND steps_left IS NULL AND (unique_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM jobs o
    WHERE {same o jobs} AND o.unique_key = jobs.unique_key
      AND o.state IN ('queued', 'running')))));

-- name: changed_job
SELECT j.kind, j.tenant, j.queue, j.node, j.attempt, j.seq, j.run_at, j.created_at, j.topic, j.previous, j.topic_seq, j.reports, j.flow, j.step
FROM jobs j WHERE j.id = :job_id;

-- name: beat_job
UPDATE jobs SET lease_until = :lease_until
WHERE id = :job_id AND state = 'running' AND kind = :kind AND (:tenant IS NULL OR tenant = :tenant)
  AND (:lease IS NULL OR lease = :lease) AND (:owner IS NULL OR lease_owner = :owner);

-- name: note_job
UPDATE jobs SET seq = seq + 1
WHERE id = :job_id AND kind = :kind AND (:tenant IS NULL OR tenant = :tenant)
  AND (:lease IS NULL OR (lease = :lease AND state = 'running'))
  AND (:owner IS NULL OR (lease_owner = :owner AND state = 'running'));

-- name: noted_job
SELECT j.seq, j.state, j.stage, j.topic, j.attempt FROM jobs j WHERE j.id = :job_id;

-- name: settle_delivery
UPDATE deliveries
SET state = :state, attempt = attempt + 1, tries = tries + 1, lease_until = NULL, due_at = :now + :retry_length,
    reason = :reason, updated_at = :now
WHERE id = :delivery_id AND lease = :lease AND state = 'pending';

-- name: settled_delivery
SELECT d.tries FROM deliveries d WHERE d.id = :delivery_id;

-- name: ensure_endpoint
INSERT INTO endpoints (id, tenant, url, state, reason, created_at, updated_at)
VALUES (:id, :tenant, :url, 'active', '', :now, :now)
ON CONFLICT (id) DO NOTHING;

-- name: insert_delivery
INSERT INTO deliveries (id, tenant, job_id, seq, endpoint_id, url, dialect, state, attempt, tries, lease, due_at, since_at,
                        reason, created_at, updated_at)
VALUES (:id, :tenant, :job_id, :seq, :endpoint_id, :url, :dialect, 'pending', 0, 0, 0, :now, :now, '', :now, :now);

-- Its own answer to a delivery says that it is gone.
-- name: disable_endpoint
UPDATE endpoints SET state = 'disabled', reason = :reason, updated_at = :now WHERE id = :endpoint_id;

-- This process is the only one at the file, so whatever was being sent when the last one ended is not being sent now.
-- name: release_all_deliveries
UPDATE deliveries SET lease_until = NULL WHERE state = 'pending' AND lease_until IS NOT NULL;

-- name: subjects
SELECT d.id, j.kind, j.queue, e.state, e.stage, t.status, t.duration_seconds
FROM deliveries d
JOIN jobs j ON j.id = d.job_id
JOIN job_events e ON e.job_id = d.job_id AND e.seq = d.seq
LEFT JOIN delivery_tries t ON t.delivery_id = d.id AND t.number = d.tries
WHERE d.id IN (SELECT i.value FROM {each ids as i});
