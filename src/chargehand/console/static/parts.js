// The small parts of every page: glyphs, states, ids, times, panels.

import { html } from "./dom.js";
import { own, quoted, relative, utc } from "./words.js";

// Which glyph the names of states have, those of each door's API among them.
const GLYPHS = {
  queued: ["queued", "pending"],
  waiting: ["waiting"],
  parked: ["parked", "paused", "held", "retry"],
  loading: ["loading"],
  working: ["running", "working", "claimed", "in_progress", "provisioning"],
  done: ["done", "succeeded", "completed", "complete", "delivered"],
  failed: ["failed", "cancelled"],
  dead: ["dead", "disabled"],
  away: ["away"],
  here: ["here", "up"],
  warn: ["warn"],
  off: ["off", "skipped"],
};
const LOOKS = Object.fromEntries(Object.entries(GLYPHS).flatMap(([shape, words]) => words.map((word) => [word, shape])));

// How a state is shown: [glyph, class].
export function look(word) {
  const shape = own(LOOKS, String(word).toLowerCase()) || "working";
  return [shape, shape === "off" ? "queued" : shape];
}

export function glyph(word, { pulse } = {}) {
  const [shape] = look(word);
  return html`<svg class="g${pulse ? " pulse" : ""}" aria-hidden="true"><use href="#g-${shape}" /></svg>`;
}

export function icon(name) {
  return html`<svg class="icon" aria-hidden="true"><use href="#i-${name}" /></svg>`;
}

export function state(word, { as, pulse } = {}) {
  const [, tone] = look(as || word);
  return html`<span class="state s s-${tone}">${glyph(as || word, { pulse })}<span class="lbl">${word}</span></span>`;
}

export function pill(word, { as } = {}) {
  const [, tone] = look(as || word);
  return html`<span class="pill s s-${tone}">${glyph(as || word)}${word}</span>`;
}

// The first four and last six characters of an id; the title and the copy button have all of it.
export function id(value, href) {
  const face = value.length > 14 ? `${value.slice(0, 4)}…${value.slice(-6)}` : value;
  const text = href ? html`<a href="${href}">${face}</a>` : html`<span>${face}</span>`;
  return html`<span class="id" title="${value}">${text}${copy(value)}</span>`;
}

// Copies the value, or else the text of the element with the id `from`.
export function copy(value, label = "Copy", from = "") {
  return html`<button class="copy" type="button" data-copy="${value}" data-copy-from="${from}" aria-label="${label}" title="${label}"><svg class="i-copy" aria-hidden="true"><use href="#i-copy" /></svg><svg class="i-ok" aria-hidden="true"><use href="#i-check" /></svg></button>`;
}

// `rel`: "bare" for a column, "ago" in a sentence ("3 m ago"), "in" after a word of its own ("for 3 m"), where no room is kept.
export function time(at, rel = "bare") {
  if (!at) return "";
  return html`<time datetime="${at}" title="${utc(at)}" data-rel="${rel}">${relative(at, rel)}</time>`;
}

export function panel({ id: name, title, sub, end, body }) {
  return html`<section class="panel" aria-labelledby="h-${name}" id="p-${name}">
    <div class="panel-head">
      <h2 id="h-${name}">${title}</h2>
      <span class="sub">${sub}</span>
      <div class="end">${end}</div>
    </div>
    ${body}
  </section>`;
}

// The head of a table: for each column its name, or [name, class].
export function columns(...names) {
  const cell = ([name, kind]) => html`<th scope="col" class="${kind}">${name}</th>`;
  return html`<thead><tr>${names.filter(Boolean).map((each) => cell([each].flat()))}</tr></thead>`;
}

export const ACTIONS = html`<span class="sr">Actions</span>`; // the name of a column of buttons

export function fact(name, value) {
  if (value === "" || value === null || value === undefined) return "";
  return html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
}

// The number of new rows of a list on hold, in the head of its panel: dom.js writes it.
export function fresh(name) {
  return html`<b class="fresh" id="${name}" role="status" data-keep></b>`;
}

export function head({ title, lede, crumbs, actions }) {
  return html`<div class="page-head">
    <div>
      ${crumbs}
      <h1>${title}</h1>
      ${lede ? html`<p class="lede">${lede}</p>` : ""}
    </div>
    ${actions ? html`<div class="actions">${actions}</div>` : ""}
  </div>`;
}

export function empty(title, text, command) {
  return html`<div class="empty-note">
    <b>${title}</b>
    <p>${text}</p>
    ${command ? html`<div class="cmd"><code>${command}</code>${copy(command, "Copy the command")}</div>` : ""}
  </div>`;
}

// A request to copy into a terminal. If a token is needed, the command reads it from the environment and never contains it.
export function curl(overview, path, body) {
  const auth = overview && overview.auth ? ` -H "Authorization: Bearer $CHARGEHAND_TOKEN"` : "";
  return `curl -s ${quoted(location.origin + path)}${auth} -d ${quoted(JSON.stringify(body))}`;
}

export function bar(share, label) {
  const per = Math.max(0, Math.min(100, share * 100)).toFixed(1);
  return html`<svg class="bar" role="img" aria-label="${label || `${Math.round(per)} per cent`}"><rect width="${per}%" height="100%" /></svg>`;
}

export const DOORS = {
  inference: { name: "Inference", icon: "target", page: "/console/targets" },
  task: { name: "Tasks", icon: "task", page: "/console/tasks" },
  provision: { name: "Provisioning", icon: "server", page: "/console/servers" },
  batch: { name: "Batches", icon: "jobs", page: "/console/jobs?kind=batch" },
  flow: { name: "Flows", icon: "flow", page: "/console/flows" },
  job: { name: "Engine", icon: "jobs", page: "/console/jobs?kind=job" },
};

export function jobHref(jobId) {
  return `/console/jobs/${encodeURIComponent(jobId)}`;
}

export function flowHref(flowId) {
  return `/console/flows/${encodeURIComponent(flowId)}`;
}

// The page of a job of any kind: a flow has one of its own.
export function hrefOf({ kind, id: jobId }) {
  return kind === "flow" ? flowHref(jobId) : jobHref(jobId);
}
