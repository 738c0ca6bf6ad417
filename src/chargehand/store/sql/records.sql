-- What doors remember besides jobs. Both databases say this in the same words.

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

-- name: list_due_records
SELECT {record r} FROM records r WHERE r.kind = :kind AND r.due_at <= :now ORDER BY r.due_at LIMIT :limit;
