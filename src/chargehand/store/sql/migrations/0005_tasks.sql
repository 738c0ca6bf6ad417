-- A job may be the only live one of its key, and may be kept for a time of its own after its end.

ALTER TABLE jobs ADD COLUMN unique_key TEXT;
ALTER TABLE jobs ADD COLUMN keep BIGINT;
ALTER TABLE jobs ADD COLUMN prune_at BIGINT;

CREATE UNIQUE INDEX jobs_unique ON jobs (tenant, kind, queue, unique_key)
  WHERE unique_key IS NOT NULL AND state IN ('queued', 'running');
-- Dead letters are counted by queue without looking at the jobs.
CREATE INDEX jobs_dead ON jobs (topic, queue, tenant, state) WHERE state IN ('failed', 'cancelled');
CREATE INDEX jobs_prune ON jobs (prune_at) WHERE prune_at IS NOT NULL;
