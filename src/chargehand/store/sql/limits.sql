-- Limits of queues: what runs, what was started lately, whose turn it is. Only claims of limited queues ask.

-- name: running_in
SELECT COUNT(*) FROM jobs j WHERE j.state = 'running' AND {same j :};

-- Counted up to the rate, with the oldest of these: when that is too old to count, another one may start.
-- name: recent_starts
SELECT COUNT(*), MIN(r.at) FROM (
  SELECT s.at FROM limit_starts s WHERE {same s :} AND s.at > :now - :length ORDER BY s.at DESC LIMIT :count) r;

-- name: last_turn
SELECT s.key_turn FROM queue_settings s WHERE {same s :};

-- name: set_turn
UPDATE queue_settings SET key_turn = :turn WHERE {same queue_settings :};

-- part: running_of_key
(SELECT COUNT(*) FROM (
    SELECT 1 FROM jobs j WHERE j.state = 'running' AND j.limit_key <> '' AND {same j :} AND j.limit_key = k.limit_key LIMIT :most) r)

-- part: starts_of_key
(SELECT s.at FROM limit_starts s
    WHERE {same s :} AND s.limit_key = k.limit_key AND s.at > :now - :length ORDER BY s.at DESC LIMIT :count)

-- The keys with queued jobs behind `after`, up to `last` if there is one: a seek for each, and what of its limits is used up.
-- name: ready_keys
WITH RECURSIVE k(limit_key) AS (
  SELECT (SELECT MIN(j.limit_key) FROM jobs j WHERE j.state = 'queued' AND j.limit_key <> '' AND {same j :} AND j.limit_key > :after)
  UNION ALL
  SELECT (SELECT MIN(j.limit_key) FROM jobs j WHERE j.state = 'queued' AND j.limit_key <> '' AND {same j :} AND j.limit_key > k.limit_key)
  FROM k WHERE k.limit_key IS NOT NULL
)
SELECT k.limit_key, {part running_of_key}, (SELECT COUNT(*) FROM {part starts_of_key} r), (SELECT MIN(r.at) FROM {part starts_of_key} r)
FROM (SELECT k.limit_key FROM k WHERE k.limit_key IS NOT NULL LIMIT :limit) k
WHERE CAST(:last AS TEXT) = '' OR k.limit_key <= :last;

-- name: state_of_key
SELECT k.limit_key, {part running_of_key}, (SELECT COUNT(*) FROM {part starts_of_key} r), (SELECT MIN(r.at) FROM {part starts_of_key} r)
FROM (SELECT CAST(:limit_key AS TEXT) AS limit_key) k;

-- name: drop_starts
DELETE FROM limit_starts WHERE {same limit_starts :} AND at <= :now - :length;
