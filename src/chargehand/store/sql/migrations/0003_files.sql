-- Which stored bytes belong to whom. The bytes themselves lie on disk, under their SHA-256.

CREATE TABLE files (
  id         TEXT   NOT NULL PRIMARY KEY,
  tenant     TEXT   NOT NULL,
  job_id     TEXT,
  name       TEXT   NOT NULL,
  purpose    TEXT   NOT NULL,
  media_type TEXT   NOT NULL,
  size       BIGINT NOT NULL,
  sha256     TEXT   NOT NULL,
  created_at BIGINT NOT NULL
);

CREATE UNIQUE INDEX files_job ON files (job_id, name) WHERE job_id IS NOT NULL;
CREATE INDEX files_uploaded ON files (created_at) WHERE job_id IS NULL;
CREATE INDEX files_listed ON files (tenant, id) WHERE purpose <> '';
CREATE INDEX files_sha256 ON files (sha256);
