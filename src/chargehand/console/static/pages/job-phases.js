// Computes a job's timeline from its log: a stretch for every state, an attempt for every claim, and the end.
// Pure: events in, stretches out. Instants are milliseconds.

import { wordOf } from "./job-words.js";

const ENDS = new Set(["succeed", "fail", "cancel", "expire"]);
const MAX_STAGES = 4; // up to so many stages of an engine's job have their own lanes; more share one

// -> { from, to, live, stretches, attempts, end, lanes }
export function phasesOf(job, events, now) {
  const found = { stretches: [], attempts: [], end: null };
  const stages = new Set(
    events.filter((event) => event.state === "running" && event.stage).map((event) => event.stage),
  );
  let open = null;
  let attempt = null;
  for (const event of events) {
    const at = Date.parse(event.at);
    if (event.move === "note") continue;
    if (open) close(found, open, at);
    open = null;
    if (attempt && event.state !== "running") {
      Object.assign(attempt, { to: at, outcome: event.move, error: event.error, message: event.message });
      if (event.move !== "park" && event.state !== "succeeded") breakLast(found, attempt, event);
      attempt = null;
    } else if (job.kind === "provision" && event.move === "advance" && event.stage === "failed")
      breakLast(found, attempt, event);
    if (ENDS.has(event.move)) {
      found.end = {
        at,
        move: event.move,
        state: event.state,
        word: wordOf({ ...job, state: event.state, stage: event.stage }),
        error: event.error,
      };
      continue;
    }
    found.end = null; // it was requeued
    if (event.move === "claim") {
      attempt = { number: event.attempt, from: at, to: null, outcome: "", by: event.message };
      found.attempts.push(attempt);
    }
    open = begin(job, event, at, attempt, stages.size > MAX_STAGES);
  }
  const from = events.length ? Date.parse(events[0].at) : Date.parse(job.created_at);
  const live = open !== null;
  if (live) {
    if (job.state === "queued" && open.lane === "queued" && !open.backoff && job.parked)
      Object.assign(open, { lane: "parked", note: job.parked });
    close(found, { ...open, live: true }, Math.max(now, open.from));
    if (attempt) attempt.to = Math.max(now, attempt.from);
  }
  const seen =
    job.parked &&
    found.stretches.find((each) => each.from === job.parkedFrom && each.lane === "queued" && !each.backoff);
  if (seen) Object.assign(seen, { lane: "parked", note: job.parked });
  splitBackoff(found, Date.parse(job.run_at));
  const to = live ? Math.max(now, from + 1) : found.end ? Math.max(found.end.at, from + 1) : from + 1;
  return { ...found, from, to, live, lanes: lanesOf(job, found) };
}

// The end of the last backoff is known: after it the job waits like any other.
function splitBackoff(found, runAt) {
  const at = found.stretches.map((each) => Boolean(each.backoff)).lastIndexOf(true);
  const stretch = found.stretches[at];
  if (!stretch || !(stretch.from < runAt && runAt < stretch.to)) return;
  const rest = { ...stretch, from: runAt, backoff: false, note: "" };
  const next = found.stretches[at + 1];
  const same = next && next.lane === "queued"; // claimed, but still shown as queued
  if (same) Object.assign(rest, { to: next.to, live: next.live, attempt: next.attempt });
  found.stretches.splice(at, same ? 2 : 1, { ...stretch, to: runAt, live: false }, rest);
}

// The stage at which an attempt failed, not counting the cleanup after it.
function breakLast(found, attempt, event) {
  const last = found.stretches[found.stretches.length - 1];
  if (!last || last.attempt !== attempt || last.lane === "cleaning up") return;
  const evidence = (event.data && event.data.evidence) || {};
  Object.assign(last, { broke: true, error: event.error || event.message, failure: evidence.failure || "" });
}

function begin(job, event, at, attempt, share) {
  const base = { from: at, attempt, note: event.message, stage: event.stage };
  if (event.state === "queued") {
    const lane = event.move === "park" ? "parked" : "queued";
    return { ...base, lane, backoff: event.move === "retry" };
  }
  return { ...base, lane: laneOf(job, event, share), taken: !event.stage };
}

function laneOf(job, event, share) {
  if (job.kind === "inference") return event.stage || "queued";
  if (job.kind === "provision")
    return event.stage ? (event.stage === "provisioning" ? "provisioning" : "cleaning up") : "queued";
  if (job.kind === "task") return "running";
  return share || !event.stage || event.stage === "claimed" ? "running" : event.stage;
}

// Merge consecutive stretches of the same kind: a job that is claimed while it is shown as queued has not changed for its caller.
function close(found, open, to) {
  const last = found.stretches[found.stretches.length - 1];
  if (
    last &&
    last.lane === open.lane &&
    open.lane === "queued" &&
    last.to === open.from &&
    !last.backoff &&
    !last.broke
  ) {
    Object.assign(last, { to, live: open.live, attempt: open.attempt || last.attempt, note: open.note || last.note });
    return;
  }
  found.stretches.push({ ...open, to });
}

const LANES = { inference: ["loading", "working"], task: ["running"], provision: ["provisioning", "cleaning up"] };

function lanesOf(job, { stretches, end }) {
  const used = [...new Set(stretches.map((each) => each.lane))];
  const middle = [
    ...new Set([...(LANES[job.kind] || []), ...used.filter((lane) => lane !== "queued" && lane !== "parked")]),
  ];
  const names = ["queued", ...(used.includes("parked") ? ["parked"] : []), ...(middle.length ? middle : ["running"])];
  const lanes = names.map((lane) => ({
    lane,
    reached: used.includes(lane),
    word: laneWord(job, lane),
    shape: { queued: "queued", parked: "parked", loading: "loading" }[lane] || "working",
  }));
  const shape = end ? { succeeded: "done", failed: "failed", cancelled: "off" }[end.state] : "done";
  const word = end ? end.word : wordOf({ ...job, state: "succeeded" });
  return [...lanes, { lane: "end", word, shape, reached: Boolean(end) }];
}

function laneWord(job, lane) {
  if (lane === "queued") return wordOf({ ...job, state: "queued" });
  if (lane === "running") return wordOf({ ...job, state: "running", stage: "" });
  return lane;
}

// Ticks at round times from the start, four to ten of them: [milliseconds, text].
const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5,
  216e5, 432e5, 864e5,
];

export function ticksOf(span) {
  const step = STEPS.find((each) => span / each <= 9) || 864e5 * Math.ceil(span / 864e5 / 9);
  const ticks = [];
  for (let at = 0; at <= span; at += step) ticks.push([at, tickText(at, step)]);
  return ticks;
}

const NB = "\u00a0";
const two = (value) => String(value).padStart(2, "0");

export function tickText(at, step) {
  if (at === 0 && step < 1000) return "0";
  if (step < 100) return `${at}${NB}ms`;
  if (step < 1000) return `${(at / 1000).toFixed(1)}${NB}s`;
  const s = Math.floor(at / 1000);
  if (step >= 864e5) return `${Math.floor(s / 86400)}${NB}d`;
  if (step >= 36e5) return `${Math.floor(s / 3600)}${NB}h`;
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}`;
  return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}
