-- A flow is a job whose work is other jobs, its steps. A node that does not know that would end a step and leave those after it waiting.

ALTER TABLE jobs ADD COLUMN flow TEXT;
ALTER TABLE jobs ADD COLUMN step INTEGER;
ALTER TABLE jobs ADD COLUMN steps_left INTEGER;
-- A flow runs until its last step has ended; a million may run, beside few other jobs.
CREATE INDEX jobs_flows ON jobs (tenant, id) WHERE kind = 'flow' AND state = 'running';

-- The steps of the flow `job_id`. A step starts when `met` of its edges reached `need`; `waits` are those that nothing is known of yet.
CREATE TABLE flow_steps (
  job_id   TEXT    NOT NULL,
  number   INTEGER NOT NULL,
  name     TEXT    NOT NULL,
  step_id  TEXT    NOT NULL,
  kind     TEXT    NOT NULL,
  need     INTEGER NOT NULL,
  waits    INTEGER NOT NULL,
  met      INTEGER NOT NULL,
  outcome  TEXT    NOT NULL,
  run_at   BIGINT  NOT NULL,
  delay    BIGINT  NOT NULL,
  PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX flow_steps_name ON flow_steps (job_id, name);

-- Which steps come before and after one, as JSON: for a step after ten thousand others that is long, and its counters are written often.
CREATE TABLE flow_edges (
  job_id   TEXT    NOT NULL,
  number   INTEGER NOT NULL,
  parents  TEXT    NOT NULL,
  children TEXT    NOT NULL,
  PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
