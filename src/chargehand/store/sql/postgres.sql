-- PostgreSQL: a round trip costs more than the work, so operations of one kind travel as arrays in one statement, and the
-- statement writes the events too.

-- name: submit_jobs
WITH n AS (
  SELECT *, :now AS at FROM UNNEST(
    :ids::TEXT[], :queues_kind::TEXT[], :queues_tenant::TEXT[], :queues_queue::TEXT[], :queues_node::TEXT[],
    :payloads::BYTEA[], :priorities::INTEGER[],
    :max_attempts::INTEGER[], :run_ats::BIGINT[], :delays::BIGINT[], :keys::TEXT[], :fingerprints::TEXT[],
    :traceparents::TEXT[], :tracestates::TEXT[], :reports::TEXT[], :metadata::BYTEA[],
    :deadlines::BIGINT[], :unique_keys::TEXT[], :keeps::BIGINT[]
  ) AS n(id, kind, tenant, queue, node, payload, priority, max_attempts, run_at, delay, idempotency_key, fingerprint,
         traceparent, tracestate, reports, metadata, deadline, unique_key, keep)
), inserted AS (
  INSERT INTO jobs (id, kind, tenant, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt,
                    max_attempts, lease, waiting_for, idempotency_key, fingerprint, traceparent, tracestate, reports,
                    metadata, deadline_at, unique_key, keep, seq, created_at, updated_at)
  SELECT n.id, n.kind, n.tenant, n.queue, n.node, 'queued', '', 'queued', '', 1, n.priority,
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

-- name: job_by_key
SELECT j.id, j.fingerprint FROM jobs j
WHERE j.tenant = :tenant AND j.kind = :kind AND j.idempotency_key = :idempotency_key;

-- name: job_by_unique_key
SELECT j.id FROM jobs j
WHERE {same j :} AND j.unique_key = :unique_key
  AND j.state IN ('queued', 'running');

-- Locked, so that two nodes cannot both count the running jobs of a limited queue and both find room. A statement of its own:
-- the next one must see what the other node committed while this one waited.
-- name: lock_queue_settings
SELECT s.kind, s.tenant, s.queue, s.node, s.paused, s.max_running FROM queue_settings s
WHERE EXISTS (SELECT 1 FROM {each queue of queues as q} WHERE {same s q})
ORDER BY s.kind, s.tenant, s.queue, s.node
FOR UPDATE;

-- name: count_running
SELECT q.kind, q.tenant, q.queue, q.node, (SELECT COUNT(*) FROM jobs j WHERE j.state = 'running' AND {same j q})
FROM {each queue of queues as q};

-- Candidates are found without locks, one seek for each queue and priority; then only what is taken is locked. The spare
-- candidates are for those that another node is taking; the last column says whether there may be more behind them. MATERIALIZED keeps the planner from running the locking part
-- more often than LIMIT allows; ANY(ARRAY(…)) tells it that few rows are meant, where it would guess a tenth of the table;
-- `|| ''` keeps it off the index of queued jobs, where it would look for an id from end to end.
-- name: claim_jobs
WITH found AS (
  SELECT c.id, c.priority, c.run_at, q.room,
         ROW_NUMBER() OVER (PARTITION BY q.number ORDER BY c.priority DESC, c.run_at, c.id) AS place
  FROM UNNEST(:queues_kind::TEXT[], :queues_tenant::TEXT[], :queues_queue::TEXT[], :queues_node::TEXT[], :rooms::BIGINT[])
    WITH ORDINALITY AS q(kind, tenant, queue, node, room, number)
  CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p(priority)
  CROSS JOIN LATERAL (
    SELECT j.id, j.priority, j.run_at FROM jobs j
    WHERE j.state = 'queued' AND {same j q} AND j.priority = p.priority AND j.run_at <= :now
    ORDER BY j.run_at, j.id
    LIMIT :limit::INTEGER + :spare::INTEGER
  ) c
), candidates AS MATERIALIZED (
  SELECT f.id FROM found f WHERE f.place <= f.room ORDER BY f.priority DESC, f.run_at, f.id LIMIT :limit::INTEGER + :spare::INTEGER
), picked AS MATERIALIZED (
  SELECT j.id, j.priority, j.run_at FROM jobs j
  WHERE j.id = ANY(ARRAY(SELECT c.id FROM candidates c)) AND j.state || '' = 'queued'
  ORDER BY j.priority DESC, j.run_at, j.id
  LIMIT :limit
  FOR UPDATE SKIP LOCKED
), dealt AS (
  SELECT p.id, s.owner, s.length, s.stage, s.lease_random, s.number, :now AS at
  FROM (SELECT p.id, ROW_NUMBER() OVER (ORDER BY p.priority DESC, p.run_at, p.id) AS number FROM picked p) p
  JOIN UNNEST(:owners::TEXT[], :lengths::BIGINT[], :stages::TEXT[], :lease_randoms::BIGINT[]) WITH ORDINALITY
    AS s(owner, length, stage, lease_random, number)
    ON s.number = p.number
), claimed AS (
  UPDATE jobs
  SET state = 'running', stage = d.stage, attempt = attempt + 1, lease_owner = d.owner,
      lease = (CASE WHEN lease >> 32 = 0 THEN lease ELSE lease >> 32 END + 1 << 32) + d.lease_random,
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
SELECT {job c}, p.payload, c.topic_seq, c.number, k.count
FROM (SELECT COUNT(*) AS count FROM candidates) k
LEFT JOIN claimed c ON TRUE
LEFT JOIN job_payloads p ON p.job_id = c.id
ORDER BY c.number;

-- The one statement that writes every move of a single job; a job stands in it at most once.
-- name: change_jobs
WITH c AS (
  SELECT *, :now AS at FROM UNNEST(
    :job_ids::TEXT[], :moves::TEXT[], :sources::TEXT[], :states::TEXT[], :stages::TEXT[], :topics::TEXT[],
    :visibles::BOOLEAN[], :resets::BOOLEAN[], :deltas::INTEGER[], :delays::BIGINT[], :kepts::BOOLEAN[],
    :waiting_fors::TEXT[], :errors::TEXT[], :failed_steps::TEXT[], :finals::BOOLEAN[], :leases::BIGINT[],
    :lease_untils::BIGINT[], :deadline_ats::BIGINT[], :tenants::TEXT[], :results::BYTEA[], :levels::TEXT[], :steps::TEXT[],
    :messages::TEXT[], :datas::BYTEA[], :owners::TEXT[], :payloads::BYTEA[], :kinds::TEXT[], :seen_stages::TEXT[]
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
  WHERE j.id = c.job_id AND j.id = ANY(:job_ids) AND STRPOS(c.source, j.state) > 0
    AND j.kind = c.kind AND (c.tenant IS NULL OR j.tenant = c.tenant)
    AND (c.lease IS NULL OR j.lease = c.lease) AND (c.owner IS NULL OR j.lease_owner = c.owner)
    AND (c.seen_stage IS NULL OR j.stage = c.seen_stage)
    AND (c.lease_until IS NULL OR j.lease_until = c.lease_until)
    AND (c.deadline_at IS NULL OR j.deadline_at = c.deadline_at)
    AND (NOT c.reset OR j.unique_key IS NULL OR NOT EXISTS (
      SELECT 1 FROM jobs o
      WHERE {same o j} AND o.unique_key = j.unique_key
        AND o.state IN ('queued', 'running')))
  RETURNING j.id, j.kind, j.tenant, j.queue, j.node, j.attempt, j.seq, j.run_at, j.created_at, j.updated_at, j.topic, j.previous,
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
SELECT m.id, m.kind, m.tenant, m.queue, m.node, m.attempt, m.seq, m.run_at, m.created_at, m.updated_at, m.topic, m.topic_seq, m.reports
FROM moved m;

-- name: beat_jobs
UPDATE jobs j SET lease_until = :now + b.length
FROM UNNEST(:job_ids::TEXT[], :leases::BIGINT[], :tenants::TEXT[], :owners::TEXT[], :kinds::TEXT[], :lengths::BIGINT[])
  AS b(job_id, lease, tenant, owner, kind, length)
WHERE j.id = b.job_id AND j.state = 'running' AND j.kind = b.kind AND (b.tenant IS NULL OR j.tenant = b.tenant)
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

-- name: ensure_endpoints
INSERT INTO endpoints (id, tenant, url, state, reason, created_at, updated_at)
SELECT e.id, e.tenant, e.url, 'active', '', :now, :now
FROM UNNEST(:ids::TEXT[], :tenants::TEXT[], :urls::TEXT[]) AS e(id, tenant, url)
ORDER BY e.id
ON CONFLICT (id) DO NOTHING;

-- name: insert_deliveries
INSERT INTO deliveries (id, tenant, job_id, seq, endpoint_id, url, dialect, state, attempt, tries, lease, due_at, since_at,
                        reason, created_at, updated_at)
SELECT d.id, d.tenant, d.job_id, d.seq, d.endpoint_id, d.url, d.dialect, 'pending', 0, 0, 0, d.at, d.at, '', d.at, d.at
FROM (
  SELECT *, :now AS at FROM UNNEST(
    :ids::TEXT[], :tenants::TEXT[], :job_ids::TEXT[], :seqs::INTEGER[], :endpoint_ids::TEXT[], :urls::TEXT[],
    :dialects::TEXT[]) AS d(id, tenant, job_id, seq, endpoint_id, url, dialect)
) d;

-- Differs because several nodes send: SKIP LOCKED, and many endpoints in one round trip.
-- name: take_deliveries
WITH wanted AS (
  SELECT w.endpoint_id, w.count, w.length FROM UNNEST(:endpoint_ids::TEXT[], :counts::INTEGER[], :lengths::BIGINT[])
    AS w(endpoint_id, count, length)
  LEFT JOIN endpoints e ON e.id = w.endpoint_id
  WHERE COALESCE(e.state, 'active') = 'active'
), due AS MATERIALIZED (
  SELECT d.id, w.length FROM wanted w CROSS JOIN LATERAL (
    SELECT d.id FROM deliveries d
    WHERE d.state = 'pending' AND d.endpoint_id = w.endpoint_id AND d.due_at <= :now
      AND (d.lease_until IS NULL OR d.lease_until <= :now)
    ORDER BY d.due_at, d.id
    LIMIT w.count
    FOR UPDATE SKIP LOCKED
  ) d
)
UPDATE deliveries SET lease = lease + 1, lease_until = :now + due.length
FROM due WHERE deliveries.id = due.id
RETURNING deliveries.id, deliveries.lease, deliveries.endpoint_id;

-- name: next_dues
SELECT w.value,
       (SELECT MIN(d.due_at) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = w.value AND d.due_at > :now),
       COALESCE(e.state, 'active')
FROM {each endpoint_ids as w} LEFT JOIN endpoints e ON e.id = w.value;

-- name: settle_deliveries
WITH s AS (
  SELECT *, :now AS at FROM UNNEST(
    :delivery_ids::TEXT[], :leases::BIGINT[], :states::TEXT[], :retry_lengths::BIGINT[], :reasons::TEXT[],
    :statuses::INTEGER[], :durations::DOUBLE PRECISION[], :errors::TEXT[], :answers::TEXT[], :gones::TEXT[]
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

-- Differs because several nodes write: waits for a replay that another one is about to commit; the next statement must see it.
-- name: lock_deliveries
SELECT d.id FROM deliveries d WHERE d.job_id IN (SELECT i.value FROM {each ids as i}) ORDER BY d.id FOR UPDATE;

-- name: now
SELECT :now;

-- name: schema_lock
SELECT m.version FROM schema_migrations m WHERE m.version = 0 FOR UPDATE;
