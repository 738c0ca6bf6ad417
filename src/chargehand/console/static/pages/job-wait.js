// Why a job waits: for which target, since when, its place in the queue, resident models, what happens next, its deadline, possible actions.

import { flag, html } from "../dom.js";
import { copy, curl, flowHref, glyph, jobHref, look, time } from "../parts.js";
import { length, number, own, plural, quoted, since, utc } from "../words.js";
import { slotsOf } from "../slots.js";
import { PARKED, canonical, nounOf } from "./job-words.js";

const SHOWN = 5; // jobs of the queue

// `data`: { job, why, targets, line, paused } when the job last waited. `word` is its state now, if it no longer waits: then the panel
// stays as it was, so that nothing on the page moves.
export function waitPanel(data, overview, word = "") {
  const { job, why } = data;
  const shape = word ? "done" : PARKED.has(why.word) ? "parked" : "queued";
  return html`<section class="panel wait${word ? " past" : ""} s s-${look(shape)[1]}" aria-labelledby="h-wait">
    <div>
      <h2 id="h-wait">${glyph(shape)}${word ? "It waits no longer" : title(data)}</h2>
      <p class="lead">${word ? `It is ${word} now. This is how it was when it waited.` : lead(data)}</p>
      <div class="wait-grid">${why.word === "steps" ? "" : lineOf(data)} ${job.kind === "inference" ? resident(data) : ""}</div>
    </div>
    <div>
      <h3>What happens next</h3>
      <ol class="next">${next(data).map(([strong, rest]) => html`<li><span><b>${strong}</b> ${rest}</span></li>`)}</ol>
      ${word ? "" : could(data, overview)}
    </div>
  </section>`;
}

// The targets that it waits for: unreachable ones that the server's reason names.
function away({ targets, why }) {
  return targets.filter((target) => target.state !== "up" && why.text.includes(target.name));
}

function title(data) {
  const { job, why } = data;
  const missing = away(data);
  const named = missing.length
    ? `Waiting for target ${missing.map((each) => each.name).join(" or ")}`
    : "Waiting for a target";
  const worker = job.kind === "provision" ? "Waiting for a free place" : "Waiting for a worker";
  const titles = {
    target: named,
    model: "Waiting while a model is loaded",
    slot: "Waiting for a slot",
    turn: "Waiting for its turn",
    worker,
    steps: "Waiting for other steps of its flow",
    backoff: `Waiting before attempt ${job.attempt + 1}`,
    run_at: "Not due yet",
    queue: "Its queue is paused",
    "queue paused": "Its queue is paused",
  };
  return own(titles, why.word) || "Waiting";
}

const ordinal = (n) =>
  `${number(n)}${n % 100 > 10 && n % 100 < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] || "th"}`;

function lead(data) {
  const { job, why } = data;
  const missing = away(data);
  const gone = missing.length ? html`Away for ${time(missing[0].since)}. ` : "";
  if (data.why.word === "steps")
    return html`Its turn comes after them. It has waited ${time(job.updated_at, "in")}. <a class="link" href="${flowHref(job.flow)}">See its flow</a>`;
  const place =
    job.position === null || job.position === undefined
      ? ""
      : job.position
        ? `${ordinal(job.position + 1)} in line. `
        : "Next in line. ";
  const broke = job.error && !why.text.includes(job.error) ? html`<br />The last attempt broke: ${job.error}` : "";
  return html`${gone}${place}${sentence(why.text, data)} It has waited ${time(job.updated_at)}.${broke}`;
}

// Capitalize the server's reason, unless it begins with a name.
function sentence(text, { job, targets }) {
  if (!text) return "";
  const first = text.split(" ")[0];
  const named = sameModel(first, job.queue) || targets.some((target) => target.name === first);
  return `${named ? text : text.charAt(0).toUpperCase() + text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

// the queue ----------------------------------------------------------------------------------------------------------------

// In the order of claims: by priority, then by age. Shown in order only if the whole queue is known.
function lineOf({ job, line }) {
  if (!line)
    return html`<div><h3>Line of the ${nounOf(job.kind)}</h3><p class="lead small">${job.position === null ? "" : `${number(job.position)} before it.`}</p></div>`;
  const at = line.findIndex((each) => each.id === job.id);
  const from = Math.max(0, Math.min(at - SHOWN + 2, line.length - SHOWN));
  const shown = line.slice(from, from + SHOWN);
  const hidden = line.length - shown.length;
  return html`<div>
    <h3>Line for ${job.queue}</h3>
    <ol class="line">${shown.map(
      (each, n) => html`<li data-key="l-${each.id}" ${flag('aria-current="true"', each.id === job.id)}>
      <span class="p">${number(from + n + 1)}</span>
      <span>${each.id === job.id ? html`<b class="strong">this job</b>` : html`<a class="strong" href="${jobHref(each.id)}">${each.id.slice(0, 4)}…${each.id.slice(-6)}</a>`}</span>
      <span class="${each.id === job.id ? "ink2" : "dim"} small">priority ${each.priority}, came ${time(each.created_at, "ago")}</span>
    </li>`,
    )}</ol>
    ${hidden ? html`<p class="dim small wait-note">and ${number(hidden)} more</p>` : ""}
  </div>`;
}

// All targets that may have the model, reachable or not, so that nothing moves when one comes back.
function resident(data) {
  const { job, targets } = data;
  const having = targets.filter((target) => target.installed.some((each) => sameModel(each, job.queue)));
  const shown = (having.length ? having : away(data).length ? away(data) : targets).slice(0, 2);
  if (!shown.length) return "";
  const parts = shown.map(
    (target) => html`<h3>Resident on ${target.name}${target.state === "up" ? "" : " when last seen"}</h3>
    <div class="line gap">${slotsOf(target)}</div>`,
  );
  return html`<div>${parts}</div>`;
}

// what is next -------------------------------------------------------------------------------------------------------------

function next(data) {
  const { job, why, targets } = data;
  const steps = [];
  const model = job.queue;
  const due = -since(job.run_at);
  if (why.word === "steps") steps.push(["The steps before it end,", "as it asks for; else it is skipped."]);
  if (due > 0) steps.push([`It is due in ${length(due)}`, html`at ${utc(job.run_at)}.`]);
  if (data.paused) steps.push(["Somebody resumes the queue.", "Nothing is taken from it until then."]);
  const missing = away(data);
  if (missing.length)
    steps.push([
      `${missing.map((each) => each.name).join(" or ")} comes back.`,
      "It is asked again and again; nobody has to press anything.",
    ]);
  else if (why.word === "target")
    steps.push([
      `A target has ${model}.`,
      targets.length ? "Put the model on one of them, or add a target that has it." : "Add one to the settings.",
    ]);
  if (job.position)
    steps.push([`${plural(job.position, "job goes", "jobs go")} first`, `of the same ${nounOf(job.kind)}.`]);
  steps.push(...taken(data));
  if (job.deadline_at)
    steps.push([
      `Or it gives up ${since(job.deadline_at) < 0 ? `in ${length(-since(job.deadline_at))}` : "now"}`,
      `at ${utc(job.deadline_at)}, and fails because its deadline passed.`,
    ]);
  else steps.push(["It does not give up:", "it has no deadline, and waiting costs no attempt."]);
  return steps;
}

function taken({ job, why, targets }) {
  const attempt = `attempt ${job.attempt + 1} of ${job.max_attempts}`;
  if (job.kind === "inference") {
    const here = targets.some(
      (target) => target.state === "up" && target.resident.some((each) => sameModel(each.model, job.queue)),
    );
    if (here && why.word === "turn")
      return [["A request ends,", `and this job takes its place on ${job.queue}: ${attempt}.`]];
    return [[`${job.queue} is loaded`, `if it is not in memory then, and the job works: ${attempt}.`]];
  }
  if (job.kind === "provision") return [["The server's steps begin:", "media are built and mounted, then it boots."]];
  return [["A worker claims it", `and works on it: ${attempt}.`]];
}

function sameModel(a, b) {
  return canonical(a) === canonical(b);
}

// Possible actions.
function could({ job, why, paused }, overview) {
  if (paused) {
    const path = `/engine/queues/${job.kind}/${encodeURIComponent(job.queue)}`;
    return html`<div class="actions wait-acts"><button class="btn primary" type="button" data-act="PUT ${path}"
      data-body="${JSON.stringify({ paused: false, max_running: paused.max_running })}" data-done="The queue goes on">Resume the queue</button></div>`;
  }
  if (job.kind === "task" && why.word === "worker")
    return command(
      "A worker for it:",
      `chargehand worker --url ${location.origin} --command ${quoted(job.queue)} -- ./your-program`,
    );
  if (job.kind === "job" && why.word === "worker")
    return command("To take it:", curl(overview, "/engine/claims", { queues: [job.queue] }));
  return "";
}

function command(text, line) {
  return html`<div class="wait-acts"><p class="dim small">${text}</p><div class="cmd"><code>${line}</code>${copy(line, "Copy the command")}</div></div>`;
}
