-- What is too old: a read finds it, then the writer removes it. Both databases say this in the same words.

-- A step goes after its flow: until then it may be needed, by the steps after it and for another try.
-- part: not_of_a_flow
(j.flow IS NULL OR NOT EXISTS (SELECT 1 FROM jobs f WHERE f.id = j.flow))

-- Those whose time of their own, or else this one, was over at an instant.
-- name: prunable_finished
SELECT j.id FROM jobs j
WHERE j.tenant = :tenant AND j.kind = :kind AND j.finished_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
  AND COALESCE(j.prune_at, j.finished_at + :age) <= :before AND {part not_of_a_flow}
LIMIT :limit;

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
WHERE j.finished_at <= :now - :age AND j.prune_at IS NULL AND {part not_of_a_flow}
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
ORDER BY j.finished_at
LIMIT :limit;

-- name: prunable_kept
SELECT j.id FROM jobs j
WHERE j.prune_at <= :now AND {part not_of_a_flow}
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
ORDER BY j.prune_at
LIMIT :limit;

-- One process writes to SQLite: nobody else is about to commit a replay.
-- name: lock_deliveries
SELECT d.id FROM deliveries d WHERE FALSE AND d.job_id IN (SELECT i.value FROM {each ids as i});

-- name: prune_jobs
DELETE FROM jobs AS j
WHERE id IN (SELECT i.value FROM {each ids as i}) AND finished_at <= :now - :age
  AND (prune_at IS NULL OR prune_at <= :now)
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
  AND {part not_of_a_flow}
RETURNING id;

-- Somebody removes finished jobs of theirs now, whatever time they had left.
-- name: purge_jobs
DELETE FROM jobs AS j
WHERE id IN (SELECT i.value FROM {each ids as i}) AND tenant = :tenant AND kind = :kind AND finished_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.job_id = j.id AND d.state = 'pending')
  AND {part not_of_a_flow}
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

-- name: prunable_files
SELECT f.id FROM files f WHERE f.job_id IS NULL AND f.created_at <= :now - :age ORDER BY f.created_at LIMIT :limit;
