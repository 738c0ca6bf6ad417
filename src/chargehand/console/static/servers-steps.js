// The steps of a provisioning job in order: the server's, and between them the machine's.

import { html } from "./dom.js";
import { bar, glyph } from "./parts.js";
import { length, since } from "./words.js";

const ORDER = [
  "build-media",
  "discover",
  "mount-maintenance",
  "mount-task",
  "boot-override",
  "reset",
  "poll",
  "wait",
  "eject",
  "clear-override",
  "final-reset",
];
// The step at which a job failed, by the prefix of its error key.
const FAILED_AT = [
  ["iso.", 0],
  ["redfish.discover", 1],
  ["redfish.mount.maintenance", 2],
  ["redfish.mount.task", 3],
  ["redfish.boot-override", 4],
  ["redfish.reset", 5],
  ["redfish.poll", 6],
  ["cleanup.unmount", 8],
  ["cleanup.reset", 10],
];
const WAIT = ORDER.indexOf("wait");

export function stepsOf(job) {
  const begun = job.progress.steps;
  const ofMachine = begun.some((step) => step.where === "machine");
  const shown = begun.filter((step) => step.step !== "wait" || !ofMachine);
  const names = new Set(begun.map((step) => step.step));
  const over = job.status === "complete" || job.status === "failed" || job.status === "succeeded";
  const todo =
    over && job.status === "complete"
      ? []
      : ORDER.filter((name) => !names.has(name)).map((name) => ({ step: name, todo: true }));
  return [...shown.map((step) => ({ ...step, how: how(step, job) })), ...todo];
}

function how(step, job) {
  const failed = !step.ok || (job.failure && job.failure.unit === step.step);
  if (failed) return "failed";
  if (step.ended_at) return "done";
  return job.status === "provisioning" || step.where === "controller" ? "now" : "done";
}

export function stepList(job, events) {
  const said = new Map();
  for (const event of events)
    if (event.kind === "step" && event.data && event.data.step) said.set(event.data.step, event.message);
  return html`<ol class="steps freeze">${stepsOf(job).map((step) => row(step, said.get(step.step) || step.message || "", job))}</ol>`;
}

function row(step, text, job) {
  const key = `st-${step.step}`;
  if (step.todo)
    return html`<li class="step is-todo s s-queued" data-key="${key}">${glyph("queued")}<span><code>${step.step}</code></span><span class="e"></span></li>`;
  const took = step.seconds === null ? `${length(since(step.began_at))} so far` : length(step.seconds);
  const what = html`<span title="${text}"><code${step.how === "now" ? html` class="strong"` : ""}>${step.step}</code> <span class="dim small">${text}</span></span>`;
  if (step.how === "failed")
    return html`<li class="step s s-failed" data-key="${key}">${glyph("failed")}${what}<span class="e">${step.seconds === null ? "" : took}</span></li>`;
  if (step.how === "done")
    return html`<li class="step is-done s s-done" data-key="${key}">${glyph("done")}${what}<span class="e">${step.seconds === null ? "" : took}</span></li>`;
  return html`<li class="step is-now s s-working" aria-current="step" data-key="${key}">${glyph("working", { pulse: true })}${what}<span class="e">${took}</span>${more(step, job)}</li>`;
}

function more(step, job) {
  const trouble = job.progress.trouble ? html`<span>${job.progress.trouble}</span>` : "";
  if (step.percent === null || step.percent === undefined)
    return trouble ? html`<div class="more">${trouble}</div>` : "";
  return html`<div class="more">${bar(step.percent / 100)}<span>${Math.round(step.percent)}\u00a0%</span>${trouble}</div>`;
}

// small progress ------------------------------------------------------------------------------------------------------------

export function at(job) {
  if (job.status === "queued") return { place: -1, name: "" };
  if (job.outcome === "failed" || job.status === "failed") {
    const found = FAILED_AT.find(([begin]) => (job.failed_step || "").startsWith(begin));
    return { place: found ? found[1] : WAIT, name: job.failed_step || "", failed: true };
  }
  if (job.outcome === "cancelled") return { place: -1, name: "cancelled" };
  if (job.status === "complete") return { place: ORDER.length, name: "" };
  const step = job.progress ? job.progress.step : "";
  const place = ORDER.indexOf(step);
  return { place: place < 0 ? WAIT : place, name: step };
}

export function dots(job) {
  const { place, failed } = at(job);
  const label =
    place < 0
      ? "not begun"
      : place >= ORDER.length
        ? "all steps taken"
        : `step ${place + 1} of ${ORDER.length}${failed ? ", failed" : ""}`;
  return html`<span class="dots" role="img" aria-label="${label}">${ORDER.map((_, n) => html`<i class="${n < place ? "y" : n === place ? (failed ? "x" : "n") : ""}"></i>`)}</span>`;
}

// The result of a job, if its status says only that it is over.
export function word(job) {
  return job.status === "complete" ? job.outcome || "complete" : job.status;
}

export function took(job) {
  if (job.status === "queued") return "";
  return length(
    (job.finished_at ? Date.parse(job.finished_at) - Date.parse(job.created_at) : since(job.created_at) * 1000) / 1000,
  );
}
