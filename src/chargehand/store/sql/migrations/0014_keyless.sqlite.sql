-- Where keys are limited the jobs without one are found however many of keys that may not start stand before them.
-- oldest: 12

CREATE INDEX jobs_keyless ON jobs (kind, tenant, queue, node, priority, run_at, id) WHERE state = 'queued' AND limit_key = '';
