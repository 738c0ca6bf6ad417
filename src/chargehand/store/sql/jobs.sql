-- Jobs and their logs, read. Both databases say this in the same words.

-- name: get_job
SELECT {job j}, p.payload, r.result
FROM jobs j
LEFT JOIN job_payloads p ON p.job_id = j.id
LEFT JOIN job_results r ON r.job_id = j.id
WHERE j.id = :job_id AND (CAST(:tenant AS TEXT) IS NULL OR j.tenant = :tenant);

-- Without what the job carries, which may be megabytes.
-- name: get_job_row
SELECT {job j} FROM jobs j WHERE j.id = :job_id AND (CAST(:tenant AS TEXT) IS NULL OR j.tenant = :tenant);

-- What a JobFilter asks of a job, beside the tenant and the range of ids.
-- part: job_filter
(CAST(:kind AS TEXT) IS NULL OR j.kind = :kind)
  AND (:any_kind OR j.kind IN (SELECT k.value FROM {each kinds as k}))
  AND (CAST(:queue AS TEXT) IS NULL OR j.queue = :queue)
  AND (:unnamed OR EXISTS (
    SELECT 1 FROM {each names as n}
    WHERE LOWER(SUBSTR(j.queue, 1, LENGTH(n.value))) = n.value AND (:starts OR LENGTH(j.queue) = LENGTH(n.value))))
  AND (CAST(:state AS TEXT) IS NULL OR j.state = :state)
  AND (:any_topic OR j.topic IN (SELECT t.value FROM {each topics as t}))
  AND (CAST(:text AS TEXT) IS NULL OR j.error LIKE :text ESCAPE '!' OR LOWER(j.error) LIKE :text_lower ESCAPE '!')

-- Tenant and id are compared and ordered together, as they stand in the indexes for this. So no other index will do: that of ids alone
-- would be read from end to end for a tenant with few jobs. The ids alone besides tell PostgreSQL which tables cannot have any.
-- part: newest_of_tenant
(j.tenant, j.id) >= (:tenant, :first) AND (j.tenant, j.id) < (:tenant, :before) AND j.id >= :first AND j.id < :before
  AND j.created_at >= :since AND j.created_at < :until
ORDER BY j.tenant DESC, j.id DESC

-- No more jobs than `searched` are read, whether or not the filter lets them through; fewer where the page is full before.
-- part: page
LIMIT :searched) j WHERE {part job_filter} ORDER BY j.tenant DESC, j.id DESC LIMIT :limit

-- name: list_jobs
SELECT {job j} FROM (SELECT {job j} FROM jobs j WHERE {part newest_of_tenant} {part page};

-- The last of those that a search may read.
-- name: end_of_list_jobs
SELECT {job e} FROM jobs e WHERE e.id = (
  SELECT j.id FROM jobs j WHERE {part newest_of_tenant} LIMIT 1 OFFSET :skip);

-- A few failed jobs among a million good ones have their own index.
-- name: list_stopped_jobs
SELECT {job j} FROM (SELECT {job j} FROM jobs j WHERE j.state IN ('failed', 'cancelled') AND {part newest_of_tenant} {part page};

-- name: end_of_list_stopped_jobs
SELECT {job e} FROM jobs e WHERE e.id = (
  SELECT j.id FROM jobs j WHERE j.state IN ('failed', 'cancelled') AND {part newest_of_tenant} LIMIT 1 OFFSET :skip);

-- All running jobs but flows are read and sorted, for they are few: `|| ''` keeps the databases off the indexes that have the order.
-- part: running_of_tenant
j.state = 'running' AND j.tenant || '' = :tenant AND j.id || '' >= :first AND j.id || '' < :before
  AND j.created_at >= :since AND j.created_at < :until AND {part job_filter}

-- Flows run until their last step has ended: there may be a million. They are read off an index of their own until the page is full.
-- name: list_running_jobs
SELECT {job j} FROM (
  SELECT {job j} FROM jobs j WHERE j.kind < 'flow' AND {part running_of_tenant}
  UNION ALL
  SELECT {job j} FROM jobs j WHERE j.kind > 'flow' AND {part running_of_tenant}
  UNION ALL
  SELECT {job j} FROM (
    SELECT {job j} FROM jobs j
    WHERE (CAST(:kind AS TEXT) IS NULL OR :kind = 'flow') AND {part job_filter}
      AND j.kind = 'flow' AND j.state = 'running' AND {part newest_of_tenant}
    LIMIT :limit
  ) j
) j
ORDER BY j.id || '' DESC
LIMIT :limit;

-- What waits or runs in a queue, in no order: a seek for each.
-- name: list_live_jobs
SELECT {job j} FROM jobs j WHERE j.state = 'queued' AND j.kind = :kind AND j.tenant = :tenant AND j.queue = :queue
UNION ALL
SELECT {job j} FROM jobs j WHERE j.state = 'running' AND j.kind = :kind AND j.tenant = :tenant AND j.queue = :queue
LIMIT :limit;

-- By an idempotency key, or by the id of a job or of a delivery: three seeks.
-- name: find_jobs
SELECT {job j}
FROM jobs j
WHERE j.tenant = :tenant AND j.kind IN (SELECT k.value FROM {each kinds as k}) AND j.id IN (
  SELECT CAST(:id AS TEXT)
  UNION SELECT d.job_id FROM deliveries d WHERE d.id = :id
  UNION SELECT o.id FROM jobs o WHERE o.tenant = :tenant AND o.kind IN (SELECT k.value FROM {each kinds as k}) AND o.idempotency_key = :key)
ORDER BY j.id DESC;

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

-- part: lapsed
j.state = 'running' AND ((CAST(:owner_prefix AS TEXT) = '' AND j.lease_until <= :now)
  OR (:owner_prefix <> '' AND SUBSTR(j.lease_owner, 1, LENGTH(:owner_prefix)) = :owner_prefix))

-- Nobody holds a flow: the leases of all others are read.
-- name: list_lapsed_jobs
SELECT {job j} FROM jobs j WHERE j.kind < 'flow' AND {part lapsed}
UNION ALL
SELECT {job j} FROM jobs j WHERE j.kind > 'flow' AND {part lapsed}
LIMIT :limit;

-- name: list_overdue_jobs
SELECT {job j}
FROM jobs j
WHERE j.state IN ('queued', 'running') AND j.deadline_at <= :now
ORDER BY j.deadline_at
LIMIT :limit;

-- Two seeks into the index of queued jobs, each counted up to the bound.
-- name: position
SELECT (SELECT COUNT(*) FROM (
    SELECT 1 FROM jobs a WHERE a.state = 'queued' AND {same a j} AND a.priority > j.priority LIMIT :bound) above)
  + (SELECT COUNT(*) FROM (
    SELECT 1 FROM jobs a
    WHERE a.state = 'queued' AND {same a j} AND a.priority = j.priority AND (a.run_at, a.id) < (j.run_at, j.id)
    LIMIT :bound) before)
FROM jobs j WHERE j.id = :job_id AND j.state = 'queued';

-- name: newest_job
SELECT MAX(j.id) FROM jobs j;
