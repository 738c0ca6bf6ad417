// Actions for a flow: cancel it, run again what did not succeed, or a step and all that come after it. Each says first what it will do.

import { html } from "../dom.js";
import { icon } from "../parts.js";
import { number, plural } from "../words.js";
import { allAfter } from "./flow-graph.js";
import { FINAL } from "./job-words.js";

const WIPES = " Some of them install machines, which may wipe disks.";

export function canRetry(flow) {
  return ["failed", "cancelled"].includes(flow.state);
}

export function flowActions(data) {
  const { flow } = data;
  if (canRetry(flow)) return retryAll(data);
  return FINAL.has(flow.state) || flow.stage === "cancelling" ? "" : cancel(data);
}

function cancel({ flow }) {
  const { waiting = 0, queued = 0, running = 0 } = flow.counts;
  const parts = [
    waiting + queued ? `${plural(waiting + queued, "step that has", "steps that have")} not begun never will` : "",
    running ? `${plural(running, "step")} at work ${running === 1 ? "is" : "are"} told to stop` : "",
  ].filter(Boolean);
  const lost = parts.length ? `${sentence(parts.join(", and "))} What ended keeps its result.` : "";
  return html`<button class="btn danger" type="button" data-act="POST /engine/flows/${flow.id}/cancel" data-ask="Cancel the flow ${flow.name}? ${lost}" data-yes="Cancel it" data-done="Cancelled: steps at work are told to stop">${icon("stop")}Cancel flow</button>`;
}

function retryAll({ flow, steps }) {
  const { failed = 0, cancelled = 0, skipped = 0, succeeded = 0 } = flow.counts;
  const open = failed + cancelled + skipped;
  const wipes = steps.some((step) => step.state !== "succeeded" && step.door === "provisioning") ? WIPES : "";
  const kept = succeeded ? " Steps before them keep their results." : "";
  return html`<button class="btn" type="button" data-act="POST /engine/flows/${flow.id}/retry" data-body="{}" data-ask="Retry the flow ${flow.name}? ${number(open)} of its steps did not succeed: they run again, and so does all that comes after them.${kept}${wipes}" data-yes="Retry" data-done="It goes on">${icon("retry")}Retry</button>`;
}

// `after`: the steps that come after it, if they are known.
export function retryFrom(flow, step, after, { small = false } = {}) {
  const many = after === null ? "and all that come after it" : after.length ? `and ${plural(after.length, "step")} after it` : "";
  const wipes = [step, ...(after || [])].some((each) => each.door === "provisioning") ? WIPES : "";
  const ask = `Run ${step.name} ${many}${many ? " " : ""}again? Results of ${many ? "these steps" : "it"} are dropped, those of the other steps of ${flow.name} are kept.${wipes}`;
  return html`<button class="btn${small ? " small quiet" : ""}" type="button" data-act="POST /engine/flows/${flow.id}/retry" data-body="${JSON.stringify({ from: step.name })}" data-ask="${ask}" data-yes="Retry from here" data-done="It goes on from ${step.name}">${small ? "" : icon("retry")}Retry from here</button>`;
}

// The steps after one, kept by graph: a page of steps asks for each of its rows.
const known = new WeakMap();
export function stepsAfter(graph, steps, at) {
  if (!graph) return null;
  if (!known.has(graph)) known.set(graph, new Map());
  const found = known.get(graph);
  if (!found.has(at)) found.set(at, [...allAfter(graph, at)]);
  return found.get(at).map((each) => steps[each]);
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
