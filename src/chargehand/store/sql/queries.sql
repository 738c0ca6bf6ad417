-- What both databases say in the same words. Mostly reads: they see the last commit and wait for nobody.

-- name: get_job
SELECT {job j}, p.payload, r.result
FROM jobs j
LEFT JOIN job_payloads p ON p.job_id = j.id
LEFT JOIN job_results r ON r.job_id = j.id
WHERE j.id = :job_id AND (CAST(:tenant AS TEXT) IS NULL OR j.tenant = :tenant);

-- A queue and, unless just that is meant, under its name and " @" those parts of it that belong to single nodes.
-- name: list_jobs
SELECT {job j}
FROM jobs j
WHERE (CAST(:tenant AS TEXT) IS NULL OR j.tenant = :tenant)
  AND (CAST(:kind AS TEXT) IS NULL OR j.kind = :kind)
  AND (:any_kind OR j.kind IN (SELECT k.value FROM {each kinds as k}))
  AND (CAST(:queue AS TEXT) IS NULL OR j.queue = :queue
    OR (NOT :exact AND SUBSTR(j.queue, 1, LENGTH(:queue) + 2) = :queue || ' @'))
  AND (:unnamed OR EXISTS (
    SELECT 1 FROM {each names as n}
    WHERE LOWER(SUBSTR(j.queue, LENGTH(j.kind) + LENGTH(j.tenant) + 3, LENGTH(n.value))) = n.value
      AND (:starts OR SUBSTR(j.queue, LENGTH(j.kind) + LENGTH(j.tenant) + 3 + LENGTH(n.value), 2) IN ('', ' @'))))
  AND (CAST(:state AS TEXT) IS NULL OR j.state = :state)
  AND (CAST(:topic AS TEXT) IS NULL OR j.topic = :topic)
  AND (CAST(:before AS TEXT) IS NULL OR j.id < :before)
ORDER BY j.id DESC
LIMIT :limit;

-- A few failed jobs among a million good ones: found by their own index.
-- name: list_stopped_jobs
SELECT {job j}
FROM jobs j
WHERE j.state IN ('failed', 'cancelled')
  AND (CAST(:tenant AS TEXT) IS NULL OR j.tenant = :tenant)
  AND (CAST(:kind AS TEXT) IS NULL OR j.kind = :kind)
  AND (:any_kind OR j.kind IN (SELECT k.value FROM {each kinds as k}))
  AND (CAST(:queue AS TEXT) IS NULL OR j.queue = :queue
    OR (NOT :exact AND SUBSTR(j.queue, 1, LENGTH(:queue) + 2) = :queue || ' @'))
  AND (:unnamed OR EXISTS (
    SELECT 1 FROM {each names as n}
    WHERE LOWER(SUBSTR(j.queue, LENGTH(j.kind) + LENGTH(j.tenant) + 3, LENGTH(n.value))) = n.value
      AND (:starts OR SUBSTR(j.queue, LENGTH(j.kind) + LENGTH(j.tenant) + 3 + LENGTH(n.value), 2) IN ('', ' @'))))
  AND (CAST(:state AS TEXT) IS NULL OR j.state = :state)
  AND (CAST(:topic AS TEXT) IS NULL OR j.topic = :topic)
  AND (CAST(:before AS TEXT) IS NULL OR j.id < :before)
ORDER BY j.id DESC
LIMIT :limit;

-- name: jobs_of_key
SELECT {job j}
FROM jobs j
WHERE j.tenant = :tenant AND j.kind IN (SELECT k.value FROM {each kinds as k}) AND j.idempotency_key = :key
ORDER BY j.id DESC;

-- name: state_of
SELECT j.state FROM jobs j WHERE j.id = :job_id;

-- name: holds
SELECT 1 FROM jobs j WHERE j.id = :job_id AND j.state = 'running' AND j.lease = :lease;

-- name: list_events
SELECT {event e} FROM job_events e WHERE e.job_id = :job_id AND e.seq > :after ORDER BY e.seq LIMIT :limit;

-- name: event_sizes
SELECT LENGTH(e.message) + COALESCE(LENGTH(e.error), 0) + COALESCE(LENGTH(e.data), 0)
FROM job_events e WHERE e.job_id = :job_id AND e.seq > :after ORDER BY e.seq LIMIT :limit;

-- name: last_note
SELECT {event e} FROM job_events e
WHERE e.job_id = :job_id AND e.move = 'note' AND e.step = :step
ORDER BY e.seq DESC
LIMIT 1;

-- Those whose time of their own, or else this one, was over at an instant.
-- name: finished_jobs
SELECT j.id FROM jobs j
WHERE j.tenant = :tenant AND j.kind = :kind AND j.finished_at IS NOT NULL
  AND COALESCE(j.prune_at, j.finished_at + :age) <= :before
LIMIT :limit;

-- name: count_ready
SELECT j.priority, COUNT(*) FROM jobs j
WHERE j.state = 'queued' AND j.queue = :queue AND j.run_at <= :now
GROUP BY j.priority;

-- name: count_stopped
SELECT j.queue, COUNT(*) FROM jobs j
WHERE j.state IN ('failed', 'cancelled') AND (CAST(:tenant AS TEXT) IS NULL OR j.tenant = :tenant) AND j.topic = :topic
GROUP BY j.queue;

-- name: lapsed_jobs
SELECT {job j}
FROM jobs j
WHERE j.state = 'running'
  AND ((CAST(:owner_prefix AS TEXT) = '' AND j.lease_until <= :now)
    OR (:owner_prefix <> '' AND SUBSTR(j.lease_owner, 1, LENGTH(:owner_prefix)) = :owner_prefix))
LIMIT :limit;

-- name: overdue_jobs
SELECT {job j}
FROM jobs j
WHERE j.state IN ('queued', 'running') AND j.deadline_at <= :now
ORDER BY j.deadline_at
LIMIT :limit;

-- name: due_queues
SELECT q.value,
  (SELECT COALESCE(SUM((SELECT COUNT(*) FROM (
      SELECT 1 FROM jobs j
      WHERE j.state = 'queued' AND j.queue = q.value AND j.priority = p.column1 AND j.run_at <= :now LIMIT :bound) d)), 0)
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  (SELECT MIN((SELECT MIN(j.run_at) FROM jobs j
      WHERE j.state = 'queued' AND j.queue = q.value AND j.priority = p.column1 AND j.run_at > :now))
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p)
FROM {each queues as q}
WHERE NOT EXISTS (
  SELECT 1 FROM queue_settings s
  WHERE s.queue = q.value
    AND (s.paused = 1
      OR s.max_running <= (SELECT COUNT(*) FROM jobs j WHERE j.state = 'running' AND j.queue = s.queue)));

-- One seek to find each queue, one for each of its priorities, two more for each that has a job: the first one tells most.
-- name: queue_heads
WITH RECURSIVE names(queue) AS (
  SELECT MIN(j.queue) FROM jobs j WHERE j.state = 'queued' AND j.queue >= :prefix
  UNION ALL
  SELECT (SELECT MIN(j.queue) FROM jobs j WHERE j.state = 'queued' AND j.queue > n.queue)
  FROM names n WHERE SUBSTR(n.queue, 1, LENGTH(:prefix)) = :prefix
), lanes AS MATERIALIZED (
  SELECT n.queue, p.column1 AS priority,
    (SELECT MIN(j.run_at) FROM jobs j WHERE j.state = 'queued' AND j.queue = n.queue AND j.priority = p.column1) AS first_at
  FROM names n CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p
  WHERE SUBSTR(n.queue, 1, LENGTH(:prefix)) = :prefix
)
SELECT l.queue,
  CASE WHEN EXISTS (
    SELECT 1 FROM queue_settings s
    WHERE s.queue = l.queue
      AND (s.paused = 1
        OR s.max_running <= (SELECT COUNT(*) FROM jobs j WHERE j.state = 'running' AND j.queue = s.queue)))
  THEN 0 ELSE SUM(CASE WHEN l.first_at > :now THEN 0 ELSE (
    SELECT COUNT(*) FROM (
      SELECT 1 FROM jobs j
      WHERE j.state = 'queued' AND j.queue = l.queue AND j.priority = l.priority AND j.run_at <= :now LIMIT :bound) d) END) END,
  MAX(CASE WHEN l.first_at <= :now THEN l.priority ELSE -1 END),
  MIN(CASE WHEN l.first_at <= :now THEN l.first_at END),
  MIN(CASE WHEN l.first_at > :now THEN l.first_at ELSE (
    SELECT MIN(j.run_at) FROM jobs j
    WHERE j.state = 'queued' AND j.queue = l.queue AND j.priority = l.priority AND j.run_at > :now) END)
FROM lanes l
WHERE l.first_at IS NOT NULL
GROUP BY l.queue
ORDER BY l.queue;

-- A few seeks for each priority. Whether a job was put in for later stands in its row, so only the newest are looked at.
-- name: pulse
SELECT
  (SELECT COALESCE(SUM((SELECT COUNT(*) FROM (
      SELECT 1 FROM jobs j
      WHERE j.state = 'queued' AND j.queue = :queue AND j.priority = p.column1 AND j.run_at <= :now LIMIT :bound) d)), 0)
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  (SELECT MIN((SELECT MIN(j.run_at) FROM jobs j
      WHERE j.state = 'queued' AND j.queue = :queue AND j.priority = p.column1 AND j.run_at <= :now))
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  (SELECT MAX((SELECT MAX(j.run_at) FROM jobs j
      WHERE j.state = 'queued' AND j.queue = :queue AND j.priority = p.column1 AND j.run_at <= :now))
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  EXISTS (
    SELECT 1 FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p
    WHERE EXISTS (
      SELECT 1 FROM (
        SELECT j.run_at, j.updated_at FROM jobs j
        WHERE j.state = 'queued' AND j.queue = :queue AND j.priority = p.column1 AND j.run_at > :since AND j.run_at <= :now
        ORDER BY j.run_at DESC
        LIMIT 1000) d
      WHERE d.run_at > d.updated_at)),
  (SELECT MIN((SELECT MIN(j.run_at) FROM jobs j
      WHERE j.state = 'queued' AND j.queue = :queue AND j.priority = p.column1 AND j.run_at > :now))
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  (SELECT s.paused FROM queue_settings s WHERE s.queue = :queue),
  :now;

-- name: count_queues
SELECT c.queue, SUM(c.ready), SUM(c.queued - c.ready), SUM(c.running), MIN(c.ready_at)
FROM (
  SELECT j.queue, CASE WHEN j.run_at <= :now THEN 1 ELSE 0 END AS ready, 1 AS queued, 0 AS running,
         CASE WHEN j.run_at <= :now THEN j.run_at END AS ready_at
  FROM jobs j WHERE j.state = 'queued'
  UNION ALL
  SELECT j.queue, 0, 0, 1, NULL FROM jobs j WHERE j.state = 'running'
) c
WHERE SUBSTR(c.queue, 1, LENGTH(CAST(:prefix AS TEXT))) = :prefix
GROUP BY c.queue
ORDER BY c.queue;

-- name: count_topics
SELECT j.tenant, j.kind, j.topic, COUNT(*) FROM jobs j WHERE j.state = 'running' GROUP BY j.tenant, j.kind, j.topic;

-- name: list_queue_settings
SELECT s.queue, s.paused, s.max_running FROM queue_settings s ORDER BY s.queue;

-- name: set_queue
INSERT INTO queue_settings (queue, paused, max_running) VALUES (:queue, :paused, :max_running)
ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused, max_running = excluded.max_running;

-- name: unset_queue
DELETE FROM queue_settings WHERE queue = :queue;

-- Two seeks into the index of queued jobs, each counted up to the bound.
-- name: position
SELECT (SELECT COUNT(*) FROM (
    SELECT 1 FROM jobs a WHERE a.state = 'queued' AND a.queue = j.queue AND a.priority > j.priority LIMIT :bound) above)
  + (SELECT COUNT(*) FROM (
    SELECT 1 FROM jobs a
    WHERE a.state = 'queued' AND a.queue = j.queue AND a.priority = j.priority AND (a.run_at, a.id) < (j.run_at, j.id)
    LIMIT :bound) before)
FROM jobs j WHERE j.id = :job_id AND j.state = 'queued';

-- name: outgoing
SELECT {delivery d}, {job j}, r.result, {event e}
FROM deliveries d
JOIN jobs j ON j.id = d.job_id
JOIN job_events e ON e.job_id = d.job_id AND e.seq = d.seq
LEFT JOIN job_results r ON r.job_id = d.job_id
WHERE d.id IN (SELECT i.value FROM {each ids as i})
ORDER BY d.id;

-- One seek for each endpoint that has something pending, however much that is.
-- name: due_endpoints
WITH RECURSIVE busy(id) AS (
  SELECT MIN(d.endpoint_id) FROM deliveries d WHERE d.state = 'pending'
  UNION ALL
  SELECT (SELECT MIN(d.endpoint_id) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id > busy.id)
  FROM busy WHERE busy.id IS NOT NULL
)
SELECT busy.id, (SELECT MIN(d.due_at) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = busy.id)
FROM busy
LEFT JOIN endpoints e ON e.id = busy.id
WHERE busy.id IS NOT NULL AND COALESCE(e.state, 'active') = 'active'
LIMIT :limit;

-- name: get_delivery
SELECT {delivery d} FROM deliveries d
WHERE d.id = :delivery_id AND (CAST(:tenant AS TEXT) IS NULL OR d.tenant = :tenant);

-- name: list_tries
SELECT {try t} FROM delivery_tries t WHERE t.delivery_id = :delivery_id ORDER BY t.number DESC LIMIT 200;

-- name: list_deliveries
SELECT {delivery d}
FROM deliveries d
WHERE (CAST(:tenant AS TEXT) IS NULL OR d.tenant = :tenant)
  AND (CAST(:endpoint_id AS TEXT) IS NULL OR d.endpoint_id = :endpoint_id)
  AND (CAST(:state AS TEXT) IS NULL OR d.state = :state)
  AND (CAST(:before AS TEXT) IS NULL OR d.id < :before)
ORDER BY d.id DESC
LIMIT :limit;

-- name: list_dead_deliveries
SELECT {delivery d}
FROM deliveries d
WHERE d.state = 'dead'
  AND (CAST(:tenant AS TEXT) IS NULL OR d.tenant = :tenant)
  AND (CAST(:endpoint_id AS TEXT) IS NULL OR d.endpoint_id = :endpoint_id)
  AND (CAST(:before AS TEXT) IS NULL OR d.id < :before)
ORDER BY d.id DESC
LIMIT :limit;

-- name: list_deliveries_of_job
SELECT {delivery d}
FROM deliveries d
WHERE d.job_id = :job_id
  AND (CAST(:tenant AS TEXT) IS NULL OR d.tenant = :tenant)
  AND (CAST(:state AS TEXT) IS NULL OR d.state = :state)
  AND (CAST(:before AS TEXT) IS NULL OR d.id < :before)
ORDER BY d.id DESC
LIMIT :limit;

-- name: told
SELECT d.id, j.kind, j.queue, e.state, e.stage, t.status, t.duration_seconds
FROM deliveries d
JOIN jobs j ON j.id = d.job_id
JOIN job_events e ON e.job_id = d.job_id AND e.seq = d.seq
LEFT JOIN delivery_tries t ON t.delivery_id = d.id AND t.number = d.tries
WHERE d.id IN (SELECT i.value FROM {each ids as i});

-- name: get_endpoint
SELECT {endpoint e} FROM endpoints e
WHERE e.id = :endpoint_id AND (CAST(:tenant AS TEXT) IS NULL OR e.tenant = :tenant);

-- name: list_endpoints
SELECT {endpoint e} FROM endpoints e
WHERE (CAST(:tenant AS TEXT) IS NULL OR e.tenant = :tenant) AND e.id > :after
ORDER BY e.id
LIMIT :limit;

-- name: count_endpoints
SELECT i.value,
  (SELECT COUNT(*) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = i.value),
  (SELECT COUNT(*) FROM deliveries d WHERE d.state = 'dead' AND d.endpoint_id = i.value),
  (SELECT MIN(d.due_at) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = i.value)
FROM {each ids as i};

-- name: set_endpoint
UPDATE endpoints SET state = :state, reason = :reason, updated_at = :now
WHERE id = :endpoint_id AND tenant = :tenant
RETURNING id;

-- name: take_deliveries
UPDATE deliveries SET lease = lease + 1, lease_until = :now + :lease_length
WHERE id IN (
  SELECT d.id FROM deliveries d
  WHERE d.state = 'pending' AND d.endpoint_id = :endpoint_id AND d.due_at <= :now
    AND (d.lease_until IS NULL OR d.lease_until <= :now)
  ORDER BY d.due_at, d.id
  LIMIT :limit)
RETURNING id, lease;

-- name: endpoint_state
SELECT e.state FROM endpoints e WHERE e.id = :endpoint_id;

-- name: next_due
SELECT MIN(d.due_at) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = :endpoint_id AND d.due_at > :now;

-- name: release_delivery
UPDATE deliveries SET lease_until = NULL WHERE id = :delivery_id AND lease = :lease AND state = 'pending';

-- name: settle_delivery
UPDATE deliveries
SET state = :state, attempt = attempt + 1, tries = tries + 1, lease_until = NULL, due_at = :now + :retry_length,
    reason = :reason, updated_at = :now
WHERE id = :delivery_id AND lease = :lease AND state = 'pending'
RETURNING tries;

-- name: insert_try
INSERT INTO delivery_tries (delivery_id, number, at, status, duration_seconds, error, answer)
VALUES (:delivery_id, :number, :now, :status, :duration_seconds, :error, :answer);

-- name: replay_delivery
UPDATE deliveries
SET state = 'pending', attempt = 0, lease = lease + 1, lease_until = NULL, due_at = :now, since_at = :now,
    reason = 'replayed', updated_at = :now
WHERE id = :delivery_id AND tenant = :tenant AND state <> 'pending'
RETURNING endpoint_id;

-- name: replay_endpoint
UPDATE deliveries
SET state = 'pending', attempt = 0, lease = lease + 1, lease_until = NULL, due_at = :now, since_at = :now,
    reason = 'replayed', updated_at = :now
WHERE id IN (
  SELECT d.id FROM deliveries d
  WHERE d.state = 'dead' AND d.endpoint_id = :endpoint_id AND d.tenant = :tenant ORDER BY d.id LIMIT :limit)
RETURNING id;

-- name: overdue_deliveries
SELECT d.id FROM deliveries d
WHERE d.state = 'pending' AND d.since_at <= :now - :age AND (d.lease_until IS NULL OR d.lease_until <= :now)
LIMIT :limit;

-- name: give_up_deliveries
UPDATE deliveries SET state = 'dead', reason = :reason, updated_at = :now
WHERE state = 'pending' AND (lease_until IS NULL OR lease_until <= :now) AND id IN (SELECT i.value FROM {each ids as i})
RETURNING id;

-- name: prunable_jobs
SELECT j.id FROM jobs j
WHERE j.finished_at <= :now - :age AND j.prune_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
ORDER BY j.finished_at
LIMIT :limit;

-- name: prunable_kept
SELECT j.id FROM jobs j
WHERE j.prune_at <= :now
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
ORDER BY j.prune_at
LIMIT :limit;

-- name: prune_jobs
DELETE FROM jobs
WHERE id IN (SELECT i.value FROM {each ids as i}) AND finished_at <= :now - :age
  AND (prune_at IS NULL OR prune_at <= :now)
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = jobs.id AND d.state = 'pending')
RETURNING id;

-- Somebody removes finished jobs of theirs now, whatever time they had left.
-- name: purge_jobs
DELETE FROM jobs
WHERE id IN (SELECT i.value FROM {each ids as i}) AND tenant = :tenant AND kind = :kind AND finished_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = jobs.id AND d.state = 'pending')
RETURNING id;

-- name: prune_tries
DELETE FROM delivery_tries
WHERE delivery_id IN (SELECT d.id FROM deliveries d WHERE d.job_id IN (SELECT i.value FROM {each ids as i}));

-- name: prune_deliveries
DELETE FROM deliveries WHERE job_id IN (SELECT i.value FROM {each ids as i});

-- name: prune_events
DELETE FROM job_events WHERE job_id IN (SELECT i.value FROM {each ids as i});

-- name: prune_payloads
DELETE FROM job_payloads WHERE job_id IN (SELECT i.value FROM {each ids as i});

-- name: prune_results
DELETE FROM job_results WHERE job_id IN (SELECT i.value FROM {each ids as i});

-- name: prune_job_files
DELETE FROM files WHERE job_id IN (SELECT i.value FROM {each ids as i});

-- name: prune_endpoints
DELETE FROM endpoints
WHERE state = 'active' AND updated_at <= :now - :age
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = endpoints.id);

-- The later file of that name in a job wins; its id stays, so that who knows the file by it gets the later one.
-- name: put_file
INSERT INTO files (id, tenant, job_id, name, purpose, media_type, size, sha256, created_at)
VALUES (:id, :tenant, :job_id, :name, :purpose, :media_type, :size, :sha256, :now)
ON CONFLICT (job_id, name) WHERE job_id IS NOT NULL DO UPDATE
SET purpose = excluded.purpose, media_type = excluded.media_type, size = excluded.size, sha256 = excluded.sha256,
    created_at = excluded.created_at
RETURNING {file files};

-- name: drop_files
DELETE FROM files
WHERE id IN (SELECT i.value FROM {each ids as i}) AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
RETURNING id;

-- name: get_file
SELECT {file f} FROM files f WHERE f.id = :file_id AND (CAST(:tenant AS TEXT) IS NULL OR f.tenant = :tenant);

-- name: job_files
SELECT {file f} FROM files f WHERE f.job_id = :job_id ORDER BY f.id;

-- name: job_file
SELECT {file f} FROM files f WHERE f.job_id = :job_id AND f.name = :name;

-- name: list_files
SELECT {file f}
FROM files f
WHERE f.tenant = :tenant AND f.purpose <> ''
  AND (CAST(:purpose AS TEXT) IS NULL OR f.purpose = :purpose)
  AND (CAST(:before AS TEXT) IS NULL OR f.id < :before)
ORDER BY f.id DESC
LIMIT :limit;

-- name: blobs_in_use
SELECT DISTINCT f.sha256 FROM files f WHERE f.sha256 IN (SELECT i.value FROM {each ids as i});

-- name: prunable_files
SELECT f.id FROM files f WHERE f.job_id IS NULL AND f.created_at <= :now - :age ORDER BY f.created_at LIMIT :limit;

-- Makes the record, or changes it whatever its version is; expected 0 is no record's version, so then it only makes one.
-- name: put_record
INSERT INTO records (kind, tenant, name, body, version, due_at, created_at, updated_at)
VALUES (:kind, :tenant, :name, :body, 1, :due_at, :now, :now)
ON CONFLICT (kind, tenant, name) DO UPDATE
SET body = excluded.body, version = records.version + 1, due_at = excluded.due_at, updated_at = excluded.updated_at
WHERE CAST(:expected AS BIGINT) IS NULL
RETURNING {record records};

-- name: change_record
UPDATE records SET body = :body, version = version + 1, due_at = :due_at, updated_at = :now
WHERE kind = :kind AND tenant = :tenant AND name = :name AND version = :expected
RETURNING {record records};

-- name: drop_record
DELETE FROM records
WHERE kind = :kind AND tenant = :tenant AND name = :name
  AND (CAST(:expected AS BIGINT) IS NULL OR version = :expected)
RETURNING name;

-- name: get_record
SELECT {record r} FROM records r WHERE r.kind = :kind AND r.tenant = :tenant AND r.name = :name;

-- name: list_records
SELECT {record r} FROM records r WHERE r.kind = :kind ORDER BY r.tenant, r.name LIMIT :limit;

-- name: list_records_of_tenant
SELECT {record r} FROM records r
WHERE r.kind = :kind AND r.tenant = :tenant AND r.name > :after
ORDER BY r.name
LIMIT :limit;

-- name: due_records
SELECT {record r} FROM records r WHERE r.kind = :kind AND r.due_at <= :now ORDER BY r.due_at LIMIT :limit;

-- name: schema_version
SELECT COALESCE(MAX(m.version), 0) FROM schema_migrations m;

-- name: newest_job
SELECT MAX(j.id) FROM jobs j;

-- name: record_migration
INSERT INTO schema_migrations (version, name, applied_at) VALUES (:version, :name, :now);

-- name: queue_settings
SELECT s.paused, s.max_running FROM queue_settings s WHERE s.queue = :queue;
