-- Files: whose bytes they are. The bytes lie on disk. Both databases say this in the same words.

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

-- name: list_files_of_job
SELECT {file f} FROM files f
WHERE f.job_id = :job_id AND (CAST(:name AS TEXT) IS NULL OR f.name = :name)
ORDER BY f.id;

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
