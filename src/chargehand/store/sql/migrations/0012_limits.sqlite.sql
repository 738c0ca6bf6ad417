-- Limits of a queue beside how many run at once: how many start in a time, and both for each key of its jobs.

ALTER TABLE jobs ADD COLUMN limit_key TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_keyed ON jobs (kind, tenant, queue, node, state, limit_key, priority, run_at, id) WHERE limit_key <> '';

ALTER TABLE queue_settings ADD COLUMN rate_count INTEGER;
ALTER TABLE queue_settings ADD COLUMN rate_length BIGINT;
ALTER TABLE queue_settings ADD COLUMN key_max_running INTEGER;
ALTER TABLE queue_settings ADD COLUMN key_rate_count INTEGER;
ALTER TABLE queue_settings ADD COLUMN key_rate_length BIGINT;
-- The key that was served last: the next one in their order has the next turn.
ALTER TABLE queue_settings ADD COLUMN key_turn TEXT NOT NULL DEFAULT '';

-- When jobs of queues with a rate were started, for as long as that counts.
CREATE TABLE limit_starts (
  kind      TEXT   NOT NULL,
  tenant    TEXT   NOT NULL,
  queue     TEXT   NOT NULL,
  node      TEXT   NOT NULL,
  limit_key TEXT   NOT NULL,
  at        BIGINT NOT NULL
);
CREATE INDEX limit_starts_at ON limit_starts (kind, tenant, queue, node, at);
CREATE INDEX limit_starts_key ON limit_starts (kind, tenant, queue, node, limit_key, at);
