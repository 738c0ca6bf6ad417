-- Queues: what is due in them, how full they are, what an operator has set. Both databases say this in the same words.

-- name: count_ready
SELECT j.priority, COUNT(*) FROM jobs j
WHERE j.state = 'queued' AND j.queue = :queue AND j.run_at <= :now
GROUP BY j.priority;

-- name: count_stopped
SELECT j.queue, COUNT(*) FROM jobs j
WHERE j.state IN ('failed', 'cancelled') AND (CAST(:tenant AS TEXT) IS NULL OR j.tenant = :tenant) AND j.topic = :topic
GROUP BY j.queue;

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

-- name: queue_settings
SELECT s.paused, s.max_running FROM queue_settings s WHERE s.queue = :queue;
