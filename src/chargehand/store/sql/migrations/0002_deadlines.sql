-- A job may have a deadline. Only those that have one and are not over are ever looked for.

ALTER TABLE jobs ADD COLUMN deadline_at BIGINT;

CREATE INDEX jobs_deadline ON jobs (deadline_at) WHERE state IN ('queued', 'running') AND deadline_at IS NOT NULL;
