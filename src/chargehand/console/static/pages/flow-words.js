// A flow and its steps in words: which glyph, what a step waits for, how many stand where.

import { plural, own, sum } from "../words.js";
import { PARKED, whereOf } from "./job-words.js";

// The states of a step, in the order in which one goes through them, with the glyph of each.
export const STEP_STATES = [
  ["succeeded", "done"],
  ["running", "working"],
  ["queued", "queued"],
  ["waiting", "waiting"],
  ["failed", "failed"],
  ["cancelled", "off"],
  ["skipped", "off"],
];
const SHAPES = Object.fromEntries(STEP_STATES);
const ENDED = new Set(["succeeded", "failed", "cancelled", "skipped"]);
// A door as a step names it: its name, its icon, and the kind of its jobs.
const DOORS = {
  engine: ["Engine", "jobs", "job"],
  tasks: ["Tasks", "task", "task"],
  inference: ["Inference", "target", "inference"],
  provisioning: ["Provisioning", "server", "provision"],
};

export function doorOf(door) {
  const [name, icon, kind] = own(DOORS, door) || [door, "jobs", door];
  return { name, icon, kind };
}

export function hasEnded(step) {
  return ENDED.has(step.state);
}

export function shapeOfStep(step) {
  if (step.state === "queued" && PARKED.has(step.waiting_for)) return "parked";
  return own(SHAPES, step.state) || "working";
}

export function wordOfFlow(flow) {
  return flow.state === "running" && flow.stage === "cancelling" ? "cancelling" : flow.state;
}

export function shapeOfFlow(flow) {
  return flow.state === "cancelled" ? "off" : own(SHAPES, flow.state) || "working";
}

export function total(counts) {
  return sum(Object.values(counts));
}

export function endedOf(counts) {
  return sum([...ENDED], (state) => counts[state] || 0);
}

// "3 succeeded, 1 running"
export function told(counts) {
  return STEP_STATES.filter(([state]) => counts[state])
    .map(([state]) => `${counts[state].toLocaleString("en")} ${state}`)
    .join(", ");
}

const HOW = { failed: " to fail", finished: " to end" };
const NAMED = 2; // of the steps that one waits for

// "test, lint to fail and 3 more": those that have not ended yet.
function waitedFor(step, steps) {
  const open = step.after.filter((edge) => steps[edge.step] && !hasEnded(steps[edge.step]));
  const shown = open.slice(0, NAMED).map((edge) => `${steps[edge.step].name}${HOW[edge.on] || ""}`);
  const rest = open.length - shown.length;
  const names = shown.join(step.need === "any" ? " or " : ", ");
  return rest ? `${names}${step.need === "any" ? " or" : ""} and ${plural(rest, "more", "more")}` : names;
}

// One line on where a step is, or why it waits, or why it ended so.
export function whereIsStep(step, steps) {
  if (step.state === "waiting") {
    const names = waitedFor(step, steps);
    return names ? `waits for ${names}` : "waits for other steps";
  }
  const job = { ...step, kind: doorOf(step.door).kind, run_at: null, lease_owner: null };
  if (step.state === "skipped") return (step.error || "").replace(/^skipped: /, "");
  if (step.state === "running" && step.attempt > 1)
    return [whereOf(job)[0], `attempt ${step.attempt}`].filter(Boolean).join(" · ");
  return whereOf(job)[0];
}
