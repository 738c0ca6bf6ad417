-- The ground: jobs with their log, the outbox, and what an operator may set.
-- Written once for both databases; the loader turns BLOB into BYTEA and drops WITHOUT ROWID for PostgreSQL.
-- Instants are whole microseconds since the epoch.

-- Small rows only: a move rewrites the row, so what callers send (megabytes, perhaps) lives in tables of its own.
CREATE TABLE jobs (
  id              TEXT    NOT NULL PRIMARY KEY,
  tenant          TEXT    NOT NULL,
  kind            TEXT    NOT NULL,
  queue           TEXT    NOT NULL,
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
  metadata        BLOB,
  seq             INTEGER NOT NULL,
  created_at      BIGINT  NOT NULL,
  updated_at      BIGINT  NOT NULL,
  finished_at     BIGINT,
  CHECK ((state = 'running') = (lease_until IS NOT NULL)),
  CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL))
) WITHOUT ROWID;

-- A claim seeks here once for each priority: what is not due sorts behind what is, so it is never skipped over.
CREATE INDEX jobs_queued ON jobs (queue, priority, run_at, id) WHERE state = 'queued';
CREATE INDEX jobs_running ON jobs (queue, lease_until) WHERE state = 'running';
CREATE INDEX jobs_stopped ON jobs (tenant, id) WHERE state IN ('failed', 'cancelled');
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_tenant ON jobs (tenant, id);
CREATE UNIQUE INDEX jobs_idempotency ON jobs (tenant, kind, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE job_payloads (
  job_id  TEXT NOT NULL PRIMARY KEY,
  payload BLOB NOT NULL
);

CREATE TABLE job_results (
  job_id TEXT NOT NULL PRIMARY KEY,
  result BLOB NOT NULL
);

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
  data     BLOB,
  PRIMARY KEY (job_id, seq)
) WITHOUT ROWID;

-- A row here only for a queue that an operator paused or limited.
CREATE TABLE queue_settings (
  queue       TEXT    NOT NULL PRIMARY KEY,
  paused      INTEGER NOT NULL,
  max_running INTEGER
);

CREATE TABLE endpoints (
  id         TEXT   NOT NULL PRIMARY KEY,
  tenant     TEXT   NOT NULL,
  url        TEXT   NOT NULL,
  state      TEXT   NOT NULL CHECK (state IN ('active', 'paused', 'disabled')),
  reason     TEXT   NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);

CREATE TABLE deliveries (
  id          TEXT    NOT NULL PRIMARY KEY,
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
) WITHOUT ROWID;

CREATE INDEX deliveries_due ON deliveries (endpoint_id, due_at, id) WHERE state = 'pending';
CREATE INDEX deliveries_dead ON deliveries (endpoint_id, id) WHERE state = 'dead';
CREATE INDEX deliveries_endpoint ON deliveries (endpoint_id, id);
CREATE INDEX deliveries_job ON deliveries (job_id);

CREATE TABLE delivery_tries (
  delivery_id      TEXT    NOT NULL,
  number           INTEGER NOT NULL,
  at               BIGINT  NOT NULL,
  status           INTEGER,
  duration_seconds DOUBLE PRECISION NOT NULL,
  error            TEXT    NOT NULL,
  answer           TEXT    NOT NULL,
  PRIMARY KEY (delivery_id, number)
) WITHOUT ROWID;
