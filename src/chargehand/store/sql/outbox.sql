-- Deliveries, their tries, and the endpoints they go to. Both databases say this in the same words.

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

-- Of any endpoint.
-- name: newest_dead_deliveries
SELECT {delivery d}
FROM deliveries d
WHERE d.state = 'dead' AND d.id < :before AND (CAST(:tenant AS TEXT) IS NULL OR d.tenant = :tenant)
ORDER BY d.id DESC
LIMIT :limit;

-- name: dead_deliveries_of_endpoint
SELECT {delivery d}
FROM deliveries d
WHERE d.state = 'dead' AND d.endpoint_id = :endpoint_id
  AND (CAST(:tenant AS TEXT) IS NULL OR d.tenant = :tenant)
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

-- name: get_endpoint
SELECT {endpoint e},
  (SELECT COUNT(*) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = e.id),
  (SELECT COUNT(*) FROM deliveries d WHERE d.state = 'dead' AND d.endpoint_id = e.id),
  (SELECT MIN(d.due_at) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = e.id)
FROM endpoints e
WHERE e.id = :endpoint_id AND (CAST(:tenant AS TEXT) IS NULL OR e.tenant = :tenant);

-- name: list_endpoints
SELECT {endpoint e},
  (SELECT COUNT(*) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = e.id),
  (SELECT COUNT(*) FROM deliveries d WHERE d.state = 'dead' AND d.endpoint_id = e.id),
  (SELECT MIN(d.due_at) FROM deliveries d WHERE d.state = 'pending' AND d.endpoint_id = e.id)
FROM endpoints e
WHERE (CAST(:tenant AS TEXT) IS NULL OR e.tenant = :tenant) AND e.id > :after
ORDER BY e.id
LIMIT :limit;

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
