-- A flow is a job whose work is other jobs, its steps. A node that does not know that would end a step and leave those after it waiting.

ALTER TABLE jobs ADD COLUMN flow TEXT, ADD COLUMN step INTEGER, ADD COLUMN steps_left INTEGER;
-- Whoever ends jobs looks here for steps among them; where nobody uses flows it is empty.
CREATE INDEX jobs_steps ON jobs_live (id) WHERE flow IS NOT NULL;
CREATE INDEX jobs_over_flow ON jobs_over (flow) WHERE flow IS NOT NULL;
-- A flow runs until its last step has ended; a million may run, beside few other jobs.
CREATE INDEX jobs_flows ON jobs_live (tenant, id) WHERE kind = 'flow' AND state = 'running';

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
) PARTITION BY RANGE (job_id);
CREATE TABLE flow_steps_rest PARTITION OF flow_steps DEFAULT;
CREATE UNIQUE INDEX flow_steps_name ON flow_steps (job_id, name);

-- Which steps come before and after one, as JSON: for a step after ten thousand others that is long, and its counters are written often.
CREATE TABLE flow_edges (
  job_id   TEXT    NOT NULL,
  number   INTEGER NOT NULL,
  parents  TEXT    NOT NULL,
  children TEXT    NOT NULL,
  PRIMARY KEY (job_id, number)
) PARTITION BY RANGE (job_id);
CREATE TABLE flow_edges_rest PARTITION OF flow_edges DEFAULT;
