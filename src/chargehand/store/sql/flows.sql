-- Flows and their steps. Both databases say this in the same words.
-- Whoever changes a step that ends has locked its flow before, so that of two who end steps of a flow one waits for the other.

-- name: insert_flow_steps
INSERT INTO flow_steps (job_id, number, name, step_id, kind, need, waits, met, outcome, run_at, delay)
SELECT r.job_id, r.number, r.name, r.step_id, r.kind, r.need, r.waits, 0, '', r.run_at, r.delay
FROM {rows r(job_id TEXT, number INTEGER, name TEXT, step_id TEXT, kind TEXT, need INTEGER, waits INTEGER, run_at BIGINT, delay BIGINT)}
WHERE TRUE;

-- name: insert_flow_edges
INSERT INTO flow_edges (job_id, number, parents, children)
SELECT r.job_id, r.number, r.parents, r.children FROM {rows r(job_id TEXT, number INTEGER, parents TEXT, children TEXT)} WHERE TRUE;

-- It runs from the start, and nobody has to hold it.
-- name: start_flow
UPDATE jobs
SET state = 'running', stage = 'steps', previous = topic, topic = 'running:steps', topic_seq = seq + 1, seq = seq + 1,
    attempt = attempt + 1, lease_owner = 'its steps', lease_until = :never, waiting_for = '', updated_at = :now,
    steps_left = :steps_left
WHERE id = :job_id AND state = 'queued'
RETURNING {job jobs};

-- name: insert_flow_event
INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message, error, data)
VALUES (:job_id, :seq, :now, :level, :move, :state, :stage, :previous, :attempt, :step, :message, NULL, NULL);

-- name: insert_flow_notes
INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message)
SELECT r.flow, r.seq, :now, r.level, 'note', 'running', r.stage, r.topic, 1, r.name, r.message
FROM {rows r(flow TEXT, seq INTEGER, level TEXT, stage TEXT, topic TEXT, name TEXT, message TEXT)}
WHERE TRUE;

-- name: ended_steps
SELECT s.job_id, s.number, s.name, e.children
FROM {rows r(flow TEXT, place INTEGER)}
CROSS JOIN flow_steps s CROSS JOIN flow_edges e
WHERE s.job_id = r.flow AND s.number = r.place AND e.job_id = r.flow AND e.number = r.place
ORDER BY s.job_id, s.number;

-- name: count_down_steps
UPDATE flow_steps SET waits = waits - r.decided, met = met + r.more
FROM {rows r(flow TEXT, place INTEGER, decided INTEGER, more INTEGER)}
WHERE job_id = r.flow AND number = r.place
RETURNING job_id, number, step_id, kind, need, waits, met, run_at, delay;

-- name: put_outcomes
UPDATE flow_steps SET outcome = r.came_to
FROM {rows r(flow TEXT, place INTEGER, came_to TEXT)}
WHERE job_id = r.flow AND number = r.place;

-- name: release_steps
UPDATE jobs
SET run_at = CASE WHEN r.at > :now THEN r.at ELSE :now END + r.later, waiting_for = '', updated_at = :now
FROM {rows r(step_id TEXT, at BIGINT, later BIGINT)}
WHERE id = r.step_id AND {among id ids} AND state = 'queued' AND waiting_for = 'steps'
RETURNING id, kind, tenant, queue, node, attempt, seq, run_at, updated_at, created_at;

-- name: steps_ended
UPDATE jobs SET steps_left = steps_left - r.count, seq = seq + r.count, updated_at = :now
FROM {rows r(flow TEXT, count INTEGER)}
WHERE id = r.flow AND {among id ids} AND state = 'running'
RETURNING id, seq, stage, topic, steps_left;

-- name: stopped_steps
SELECT s.job_id, s.number, s.name, e.children, s.outcome, j.error
FROM flow_steps s JOIN flow_edges e ON e.job_id = s.job_id AND e.number = s.number LEFT JOIN jobs j ON j.id = s.step_id
WHERE s.job_id IN (SELECT i.value FROM {each ids as i}) AND s.outcome <> ''
ORDER BY s.job_id, s.number;

-- name: count_steps
SELECT s.job_id, COUNT(*) FROM flow_steps s WHERE s.job_id IN (SELECT i.value FROM {each ids as i}) GROUP BY s.job_id;

-- name: list_steps
SELECT {job j}, s.number, s.name, s.outcome, s.need, e.parents, NULL
FROM flow_steps s JOIN flow_edges e ON e.job_id = s.job_id AND e.number = s.number JOIN jobs j ON j.id = s.step_id
WHERE s.job_id = :job_id AND s.number >= :first
ORDER BY s.number
LIMIT :limit;

-- name: count_steps_by_state
SELECT j.kind, CASE WHEN s.outcome = 'skipped' THEN 'skipped' WHEN j.state = 'queued' AND j.waiting_for = 'steps' THEN 'waiting' ELSE j.state END,
       COUNT(*)
FROM flow_steps s JOIN jobs j ON j.id = s.step_id
WHERE s.job_id = :job_id
GROUP BY 1, 2;

-- name: list_named_steps
SELECT {job j}, s.number, s.name, s.outcome, s.need, '[]', r.result
FROM flow_steps s JOIN jobs j ON j.id = s.step_id LEFT JOIN job_results r ON r.job_id = s.step_id
WHERE s.job_id = :job_id AND s.name IN (SELECT n.value FROM {each names as n});

-- name: lengths_of_results
SELECT s.name, COALESCE(LENGTH(r.result), 0)
FROM flow_steps s LEFT JOIN job_results r ON r.job_id = s.step_id
WHERE s.job_id = :job_id AND s.name IN (SELECT n.value FROM {each names as n})
ORDER BY s.number;

-- Each is sought by its id: in a join PostgreSQL would take few jobs to be queued, and look for each of them among all steps.
-- name: waiting_steps
SELECT s.step_id, s.kind
FROM flow_steps s
WHERE s.job_id = :job_id AND (SELECT j.waiting_for FROM jobs j WHERE j.id = s.step_id AND j.state IN ('queued', 'running')) = 'steps'
ORDER BY s.number;

-- name: all_flow_steps
SELECT s.number, s.name, s.step_id, e.parents, e.children, s.need, s.outcome
FROM flow_steps s JOIN flow_edges e ON e.job_id = s.job_id AND e.number = s.number WHERE s.job_id = :job_id ORDER BY s.number;

-- name: prune_flow_steps
DELETE FROM flow_steps WHERE job_id IN (SELECT i.value FROM {each ids as i});

-- name: prune_flow_edges
DELETE FROM flow_edges WHERE job_id IN (SELECT i.value FROM {each ids as i});

-- What is tried again starts as if it were new, but for its number of claims: leases grow. Deliveries that are under way stay.
-- part: again
state = 'queued', stage = '', attempt = 0, deadline_at = NULL, lease_owner = NULL, lease_until = NULL, error = NULL,
    failed_step = NULL, finished_at = NULL, prune_at = NULL, seq = seq + 1, previous = topic, topic = 'queued',
    topic_seq = seq + 1, updated_at = :now

-- name: retry_flow
UPDATE jobs SET {part again}, run_at = :now, waiting_for = '', steps_left = 0
WHERE id = :job_id AND tenant = :tenant AND kind = 'flow' AND seq = :seq AND state IN ('failed', 'cancelled')
RETURNING {job jobs};

-- name: retry_steps
UPDATE jobs SET {part again}, run_at = CASE WHEN r.waits > 0 THEN :never ELSE :now END, waiting_for = CASE WHEN r.waits > 0 THEN 'steps' ELSE '' END
FROM {rows r(step_id TEXT, waits INTEGER)}
WHERE id = r.step_id AND {among id ids} AND state IN ('succeeded', 'failed', 'cancelled')
RETURNING {job jobs};

-- name: reset_steps
UPDATE flow_steps SET waits = r.left_over, met = r.so_far, outcome = ''
FROM {rows r(flow TEXT, place INTEGER, left_over INTEGER, so_far INTEGER)}
WHERE job_id = r.flow AND number = r.place;

-- name: insert_retry_events
INSERT INTO job_events (job_id, seq, at, level, move, state, stage, previous, attempt, step, message)
SELECT r.step_id, r.seq, :now, 'info', 'requeue', 'queued', '', r.previous, 0, '', r.message
FROM {rows r(step_id TEXT, seq INTEGER, previous TEXT, message TEXT)}
WHERE TRUE;
