-- Queues: what is due in them, how full they are, what an operator has set. Both databases say this in the same words.

-- part: settings
s.kind, s.tenant, s.queue, s.node, s.paused, s.max_running, s.rate_count, s.rate_length, s.key_max_running, s.key_rate_count,
  s.key_rate_length

-- name: count_stopped
SELECT j.kind, j.tenant, j.queue, j.node, COUNT(*) FROM jobs j
WHERE j.state IN ('failed', 'cancelled') AND j.topic = :topic
GROUP BY j.kind, j.tenant, j.queue, j.node;

-- name: due_queues
SELECT q.kind, q.tenant, q.queue, q.node,
  (SELECT COALESCE(SUM((SELECT COUNT(*) FROM (
      SELECT 1 FROM jobs j
      WHERE j.state = 'queued' AND {same j q} AND j.priority = p.column1 AND j.run_at <= :now LIMIT :bound) d)), 0)
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  (SELECT MIN((SELECT MIN(j.run_at) FROM jobs j
      WHERE j.state = 'queued' AND {same j q} AND j.priority = p.column1 AND j.run_at > :now))
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p)
FROM {each queue of queues as q}
WHERE NOT EXISTS (
  SELECT 1 FROM queue_settings s
  WHERE {same s q}
    AND (s.paused = 1
      OR s.max_running <= (SELECT COUNT(*) FROM jobs j WHERE j.state = 'running' AND {same j s})));

-- One seek to find each queue, one for each of its priorities, two more for each that has a job: the first one tells most.
-- The next queue is what comes behind a priority that no job has: SQLite seeks with >= and would read all jobs of this one. `|| ''`
-- has it seek by all the columns, where it would use the first alone if it were compared with columns of a table.
-- name: queue_heads
WITH RECURSIVE queues(kind, tenant, queue, node) AS (
  SELECT j.kind, j.tenant, j.queue, j.node FROM jobs j WHERE j.id = (
    SELECT f.id FROM jobs f
    WHERE f.state = 'queued' AND f.kind = :kind AND f.tenant >= COALESCE(CAST(:tenant AS TEXT), '')
    ORDER BY f.tenant, f.queue, f.node
    LIMIT 1)
  UNION ALL
  SELECT j.kind, j.tenant, j.queue, j.node FROM queues q CROSS JOIN jobs j WHERE j.id = (
    SELECT f.id FROM jobs f
    WHERE f.state = 'queued' AND f.kind = :kind
      AND (f.tenant, f.queue, f.node, f.priority) > (q.tenant || '', q.queue || '', q.node || '', 10)
    ORDER BY f.tenant, f.queue, f.node, f.priority
    LIMIT 1) AND (CAST(:tenant AS TEXT) IS NULL OR q.tenant = :tenant)
), lanes AS MATERIALIZED (
  SELECT q.kind, q.tenant, q.queue, q.node, p.column1 AS priority,
    (SELECT MIN(j.run_at) FROM jobs j WHERE j.state = 'queued' AND {same j q} AND j.priority = p.column1) AS first_at
  FROM queues q CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p
  WHERE CAST(:tenant AS TEXT) IS NULL OR q.tenant = :tenant
)
SELECT l.kind, l.tenant, l.queue, l.node,
  CASE WHEN EXISTS (
    SELECT 1 FROM queue_settings s
    WHERE {same s l}
      AND (s.paused = 1
        OR s.max_running <= (SELECT COUNT(*) FROM jobs j WHERE j.state = 'running' AND {same j s})))
  THEN 0 ELSE SUM(CASE WHEN l.first_at > :now THEN 0 ELSE (
    SELECT COUNT(*) FROM (
      SELECT 1 FROM jobs j
      WHERE j.state = 'queued' AND {same j l} AND j.priority = l.priority AND j.run_at <= :now LIMIT :bound) d) END) END,
  MAX(CASE WHEN l.first_at <= :now THEN l.priority ELSE -1 END),
  MIN(CASE WHEN l.first_at <= :now THEN l.first_at END),
  MIN(CASE WHEN l.first_at > :now THEN l.first_at ELSE (
    SELECT MIN(j.run_at) FROM jobs j
    WHERE j.state = 'queued' AND {same j l} AND j.priority = l.priority AND j.run_at > :now) END)
FROM lanes l
WHERE l.first_at IS NOT NULL
GROUP BY l.kind, l.tenant, l.queue, l.node
ORDER BY l.kind, l.tenant, l.queue, l.node;

-- A few seeks for each priority. Whether a job was put in for later stands in its row, so only the newest are looked at.
-- name: pulse
SELECT
  (SELECT COALESCE(SUM((SELECT COUNT(*) FROM (
      SELECT 1 FROM jobs j
      WHERE j.state = 'queued' AND {same j :} AND j.priority = p.column1 AND j.run_at <= :now LIMIT :bound) d)), 0)
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  (SELECT MIN((SELECT MIN(j.run_at) FROM jobs j
      WHERE j.state = 'queued' AND {same j :} AND j.priority = p.column1 AND j.run_at <= :now))
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  (SELECT MAX((SELECT MAX(j.run_at) FROM jobs j
      WHERE j.state = 'queued' AND {same j :} AND j.priority = p.column1 AND j.run_at <= :now))
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  EXISTS (
    SELECT 1 FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p
    WHERE EXISTS (
      SELECT 1 FROM (
        SELECT j.run_at, j.updated_at FROM jobs j
        WHERE j.state = 'queued' AND {same j :} AND j.priority = p.column1 AND j.run_at > :since AND j.run_at <= :now
        ORDER BY j.run_at DESC
        LIMIT 1000) d
      WHERE d.run_at > d.updated_at)),
  (SELECT MIN((SELECT MIN(j.run_at) FROM jobs j
      WHERE j.state = 'queued' AND {same j :} AND j.priority = p.column1 AND j.run_at > :now))
   FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS p),
  (SELECT s.paused FROM queue_settings s WHERE {same s :}),
  :now;

-- Queued jobs by priority, in the order of their index; then the running ones.
-- name: count_queues
SELECT j.kind, j.tenant, j.queue, j.priority, SUM(CASE WHEN j.run_at <= :now THEN 1 ELSE 0 END),
       SUM(CASE WHEN j.run_at <= :now THEN 0 ELSE 1 END), 0, MIN(CASE WHEN j.run_at <= :now THEN j.run_at END)
FROM jobs j WHERE j.state = 'queued'
GROUP BY j.kind, j.tenant, j.queue, j.node, j.priority
UNION ALL
SELECT j.kind, j.tenant, j.queue, 0, 0, 0, COUNT(*), NULL
FROM jobs j WHERE j.state = 'running'
GROUP BY j.kind, j.tenant, j.queue
ORDER BY 1, 2, 3;

-- name: count_topics
SELECT j.tenant, j.kind, j.topic, COUNT(*) FROM jobs j WHERE j.state = 'running' GROUP BY j.tenant, j.kind, j.topic;

-- name: list_queue_settings
SELECT {part settings} FROM queue_settings s
ORDER BY s.kind, s.tenant, s.queue, s.node;

-- name: set_queue
INSERT INTO queue_settings (kind, tenant, queue, node, paused, max_running, rate_count, rate_length, key_max_running, key_rate_count,
                            key_rate_length)
VALUES (:kind, :tenant, :queue, :node, :paused, :max_running, :rate_count, :rate_length, :key_max_running, :key_rate_count,
        :key_rate_length)
ON CONFLICT (kind, tenant, queue, node) DO UPDATE
SET paused = excluded.paused, max_running = excluded.max_running, rate_count = excluded.rate_count, rate_length = excluded.rate_length,
    key_max_running = excluded.key_max_running, key_rate_count = excluded.key_rate_count, key_rate_length = excluded.key_rate_length;

-- name: unset_queue
DELETE FROM queue_settings WHERE {same queue_settings :};

-- name: queue_settings
SELECT {part settings} FROM queue_settings s WHERE {same s :};
