-- A queue is four columns: the kind and the tenant, which jobs have already, its name, and the node where there is but one that can
-- finish its jobs. It was one text, `kind/tenant/name`, with ` @` and the 26 characters of the node behind it.

DROP INDEX jobs_queued;
DROP INDEX jobs_running;
DROP INDEX jobs_dead;
DROP INDEX jobs_unique;

ALTER TABLE jobs ADD COLUMN node TEXT NOT NULL DEFAULT '';
UPDATE jobs SET queue = SUBSTR(queue, LENGTH(kind) + LENGTH(tenant) + 3)
WHERE SUBSTR(queue, 1, LENGTH(kind) + LENGTH(tenant) + 2) = kind || '/' || tenant || '/';
UPDATE jobs SET queue = SUBSTR(queue, 1, LENGTH(queue) - 28), node = SUBSTR(queue, LENGTH(queue) - 25)
WHERE kind = 'inference' AND LENGTH(queue) > 28 AND SUBSTR(queue, LENGTH(queue) - 27, 2) = ' @';

-- A claim seeks here once for each priority: what is not due sorts behind what is, so it is never skipped over.
CREATE INDEX jobs_queued ON jobs (kind, tenant, queue, node, priority, run_at, id) WHERE state = 'queued';
CREATE INDEX jobs_running ON jobs (kind, tenant, queue, node, lease_until) WHERE state = 'running';
CREATE INDEX jobs_dead ON jobs (topic, kind, tenant, queue, node, state) WHERE state IN ('failed', 'cancelled');
CREATE UNIQUE INDEX jobs_unique ON jobs (kind, tenant, queue, node, unique_key)
  WHERE unique_key IS NOT NULL AND state IN ('queued', 'running');

ALTER TABLE queue_settings RENAME TO flat_settings;
CREATE TABLE queue_settings (
  kind        TEXT    NOT NULL,
  tenant      TEXT    NOT NULL,
  queue       TEXT    NOT NULL,
  node        TEXT    NOT NULL,
  paused      INTEGER NOT NULL,
  max_running INTEGER,
  PRIMARY KEY (kind, tenant, queue, node)
);
INSERT INTO queue_settings (kind, tenant, queue, node, paused, max_running)
SELECT f.kind, SUBSTR(f.rest, 1, INSTR(f.rest, '/') - 1), SUBSTR(f.rest, INSTR(f.rest, '/') + 1), '', f.paused, f.max_running
FROM (SELECT SUBSTR(queue, 1, INSTR(queue, '/') - 1) AS kind, SUBSTR(queue, INSTR(queue, '/') + 1) AS rest, paused, max_running
      FROM flat_settings) f;
DROP TABLE flat_settings;
UPDATE queue_settings SET queue = SUBSTR(queue, 1, LENGTH(queue) - 28), node = SUBSTR(queue, LENGTH(queue) - 25)
WHERE kind = 'inference' AND LENGTH(queue) > 28 AND SUBSTR(queue, LENGTH(queue) - 27, 2) = ' @';
