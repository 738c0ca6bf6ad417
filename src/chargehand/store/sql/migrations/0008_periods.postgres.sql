-- What is over does not slow down what is not, and is removed by dropping tables instead of deleting rows. Live jobs and pending
-- deliveries have tables of their own; what is over, and all that jobs leave behind, lies in periods of time: those of the
-- jobs' ids, which begin with it. The rest is what no period was made for, and what outlives its own.

ALTER TABLE jobs RENAME TO old_jobs;
CREATE TABLE jobs (
  id              TEXT    NOT NULL,
  kind            TEXT    NOT NULL,
  tenant          TEXT    NOT NULL,
  queue           TEXT    NOT NULL,
  node            TEXT    NOT NULL,
  state           TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
  stage           TEXT    NOT NULL,
  topic           TEXT    NOT NULL,
  previous        TEXT    NOT NULL,
  topic_seq       INTEGER NOT NULL,
  priority        INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 9),
  run_at          BIGINT  NOT NULL,
  attempt         INTEGER NOT NULL CHECK (attempt >= 0),
  max_attempts    INTEGER NOT NULL CHECK (max_attempts >= 1),
  lease           BIGINT  NOT NULL,
  lease_owner     TEXT,
  lease_until     BIGINT,
  waiting_for     TEXT    NOT NULL,
  error           TEXT,
  failed_step     TEXT,
  idempotency_key TEXT,
  fingerprint     TEXT,
  traceparent     TEXT    NOT NULL,
  tracestate      TEXT    NOT NULL,
  reports         TEXT    NOT NULL,
  metadata        BYTEA,
  deadline_at     BIGINT,
  unique_key      TEXT,
  keep            BIGINT,
  prune_at        BIGINT,
  seq             INTEGER NOT NULL,
  created_at      BIGINT  NOT NULL,
  updated_at      BIGINT  NOT NULL,
  finished_at     BIGINT,
  CHECK ((state = 'running') = (lease_until IS NOT NULL)),
  CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL))
) PARTITION BY LIST (state);
CREATE TABLE jobs_live PARTITION OF jobs FOR VALUES IN ('queued', 'running');
CREATE TABLE jobs_over PARTITION OF jobs FOR VALUES IN ('succeeded', 'failed', 'cancelled') PARTITION BY RANGE (id);
CREATE TABLE jobs_over_rest PARTITION OF jobs_over DEFAULT;
INSERT INTO jobs
SELECT id, kind, tenant, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt, max_attempts, lease,
       lease_owner, lease_until, waiting_for, error, failed_step, idempotency_key, fingerprint, traceparent, tracestate, reports,
       metadata, deadline_at, unique_key, keep, prune_at, seq, created_at, updated_at, finished_at
FROM old_jobs;
DROP TABLE old_jobs;
ALTER TABLE jobs_live ADD PRIMARY KEY (id);
ALTER TABLE jobs_over ADD PRIMARY KEY (id);
CREATE INDEX jobs_tenant ON jobs (tenant, id);

-- A claim seeks here once for each priority: what is not due sorts behind what is, so it is never skipped over.
CREATE INDEX jobs_queued ON jobs_live (kind, tenant, queue, node, priority, run_at, id) WHERE state = 'queued';
CREATE INDEX jobs_running ON jobs_live (kind, tenant, queue, node, lease_until) WHERE state = 'running';
CREATE INDEX jobs_deadline ON jobs_live (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE UNIQUE INDEX jobs_unique ON jobs_live (kind, tenant, queue, node, unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX jobs_stopped ON jobs_over (tenant, id) WHERE state IN ('failed', 'cancelled');
CREATE INDEX jobs_ended ON jobs_over (finished_at);
CREATE INDEX jobs_dead ON jobs_over (topic, kind, tenant, queue, node, state) WHERE state IN ('failed', 'cancelled');
CREATE INDEX jobs_prune ON jobs_over (prune_at) WHERE prune_at IS NOT NULL;

-- No index goes over several tables, so which key has been used stands in a table of its own.
CREATE TABLE job_keys (
  tenant          TEXT NOT NULL,
  kind            TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  job_id          TEXT NOT NULL,
  fingerprint     TEXT
);
INSERT INTO job_keys SELECT tenant, kind, idempotency_key, id, fingerprint FROM jobs WHERE idempotency_key IS NOT NULL;
ALTER TABLE job_keys ADD PRIMARY KEY (tenant, kind, idempotency_key);
CREATE INDEX job_keys_job ON job_keys (job_id);

ALTER TABLE job_payloads RENAME TO old_job_payloads;
CREATE TABLE job_payloads (job_id TEXT NOT NULL, payload BYTEA NOT NULL) PARTITION BY RANGE (job_id);
CREATE TABLE job_payloads_rest PARTITION OF job_payloads DEFAULT;
INSERT INTO job_payloads SELECT job_id, payload FROM old_job_payloads;
DROP TABLE old_job_payloads;
ALTER TABLE job_payloads ADD PRIMARY KEY (job_id);

ALTER TABLE job_results RENAME TO old_job_results;
CREATE TABLE job_results (job_id TEXT NOT NULL, result BYTEA NOT NULL) PARTITION BY RANGE (job_id);
CREATE TABLE job_results_rest PARTITION OF job_results DEFAULT;
INSERT INTO job_results SELECT job_id, result FROM old_job_results;
DROP TABLE old_job_results;
ALTER TABLE job_results ADD PRIMARY KEY (job_id);

ALTER TABLE job_events RENAME TO old_job_events;
CREATE TABLE job_events (
  job_id   TEXT    NOT NULL,
  seq      INTEGER NOT NULL,
  at       BIGINT  NOT NULL,
  level    TEXT    NOT NULL,
  move     TEXT    NOT NULL,
  state    TEXT    NOT NULL,
  stage    TEXT    NOT NULL,
  previous TEXT    NOT NULL,
  attempt  INTEGER NOT NULL,
  step     TEXT    NOT NULL,
  message  TEXT    NOT NULL,
  error    TEXT,
  data     BYTEA
) PARTITION BY RANGE (job_id);
CREATE TABLE job_events_rest PARTITION OF job_events DEFAULT;
INSERT INTO job_events
SELECT job_id, seq, at, level, move, state, stage, previous, attempt, step, message, error, data FROM old_job_events;
DROP TABLE old_job_events;
ALTER TABLE job_events ADD PRIMARY KEY (job_id, seq);

ALTER TABLE deliveries RENAME TO old_deliveries;
CREATE TABLE deliveries (
  id          TEXT    NOT NULL,
  tenant      TEXT    NOT NULL,
  job_id      TEXT    NOT NULL,
  seq         INTEGER NOT NULL,
  endpoint_id TEXT    NOT NULL,
  url         TEXT    NOT NULL,
  dialect     TEXT    NOT NULL,
  state       TEXT    NOT NULL CHECK (state IN ('pending', 'delivered', 'dead')),
  attempt     INTEGER NOT NULL,
  tries       INTEGER NOT NULL,
  lease       BIGINT  NOT NULL,
  lease_until BIGINT,
  due_at      BIGINT  NOT NULL,
  since_at    BIGINT  NOT NULL,
  reason      TEXT    NOT NULL,
  created_at  BIGINT  NOT NULL,
  updated_at  BIGINT  NOT NULL
) PARTITION BY LIST (state);
CREATE TABLE deliveries_pending PARTITION OF deliveries FOR VALUES IN ('pending');
CREATE TABLE deliveries_over PARTITION OF deliveries FOR VALUES IN ('delivered', 'dead') PARTITION BY RANGE (job_id);
CREATE TABLE deliveries_over_rest PARTITION OF deliveries_over DEFAULT;
INSERT INTO deliveries
SELECT id, tenant, job_id, seq, endpoint_id, url, dialect, state, attempt, tries, lease, lease_until, due_at, since_at, reason,
       created_at, updated_at
FROM old_deliveries;
DROP TABLE old_deliveries;
ALTER TABLE deliveries_pending ADD PRIMARY KEY (id);
ALTER TABLE deliveries_over ADD PRIMARY KEY (id, job_id);
CREATE INDEX deliveries_endpoint ON deliveries (endpoint_id, id);
CREATE INDEX deliveries_job ON deliveries (job_id);
CREATE INDEX deliveries_due ON deliveries_pending (endpoint_id, due_at, id);
CREATE INDEX deliveries_dead ON deliveries_over (endpoint_id, id) WHERE state = 'dead';

ALTER TABLE delivery_tries RENAME TO old_delivery_tries;
CREATE TABLE delivery_tries (
  job_id           TEXT    NOT NULL,
  delivery_id      TEXT    NOT NULL,
  number           INTEGER NOT NULL,
  at               BIGINT  NOT NULL,
  status           INTEGER,
  duration_seconds DOUBLE PRECISION NOT NULL,
  error            TEXT    NOT NULL,
  answer           TEXT    NOT NULL
) PARTITION BY RANGE (job_id);
CREATE TABLE delivery_tries_rest PARTITION OF delivery_tries DEFAULT;
INSERT INTO delivery_tries
SELECT d.job_id, t.delivery_id, t.number, t.at, t.status, t.duration_seconds, t.error, t.answer
FROM old_delivery_tries t JOIN deliveries d ON d.id = t.delivery_id;
DROP TABLE old_delivery_tries;
ALTER TABLE delivery_tries ADD PRIMARY KEY (delivery_id, number, job_id);

-- The periods whose tables are there.
CREATE TABLE periods (
  first_id TEXT NOT NULL PRIMARY KEY,
  until_id TEXT NOT NULL
);
