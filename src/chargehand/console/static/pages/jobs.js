// Jobs of all doors in one list, newest first, filtered by door, state, queue, name or key. A search for one job opens it.

import { flag, html } from "../dom.js";
import { get, getJobs, getOr } from "../api.js";
import { DOORS, columns, curl, empty, fresh, glyph, head, hrefOf, icon, id, look, time } from "../parts.js";
import { number, own, sum } from "../words.js";
import { nounOf, shapeOf, tookOf, whereOf, wordOf } from "./job-words.js";

const LIMIT = 50;
const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/i;
const FILTERS = ["kind", "state", "topic", "queue", "q"];

// Chips by door: [word, shape, filter].
const COMMON = [
  ["failed", "failed", { state: "failed" }],
  ["cancelled", "off", { state: "cancelled" }],
];
const CHIPS = {
  "": [
    ["queued", "queued", { state: "queued" }],
    ["running", "working", { state: "running" }],
    ["succeeded", "done", { state: "succeeded" }],
    ...COMMON,
  ],
  inference: [
    ["queued", "queued", { state: "queued" }],
    ["loading", "loading", { topic: "running:loading" }],
    ["working", "working", { topic: "running:working" }],
    ["done", "done", { state: "succeeded" }],
    ...COMMON,
  ],
  task: [
    ["PENDING", "queued", { state: "queued" }],
    ["IN_PROGRESS", "working", { state: "running" }],
    ["COMPLETED", "done", { state: "succeeded" }],
    ["FAILED", "failed", { state: "failed" }],
    ["dead letters", "dead", { topic: "failed:dead" }],
    ["cancelled", "off", { state: "cancelled" }],
  ],
  provision: [
    ["queued", "queued", { state: "queued" }],
    ["provisioning", "working", { state: "running" }],
    ["complete", "done", { state: "succeeded" }],
    ...COMMON,
  ],
};

export default {
  title: "Jobs",
  async load(context) {
    const asked = read(context.query);
    const queues = await getOr("/engine/queues", { queues: [] });
    const found = asked.q ? await seek(asked) : null;
    const page = found || (await getJobs(`/engine/jobs?${apiQuery(asked)}`));
    return {
      asked,
      queues: queues.queues,
      jobs: page.jobs,
      next: page.next,
      why: await reasons(page.jobs, asked, queues.queues),
    };
  },
  view(data, context) {
    const overview = context.overview();
    return html`${head({ title: "Jobs", lede: lede(data) })} ${filters(data)} ${chips(data, overview)} ${table(data, overview)}`;
  },
};

function read(query) {
  const asked = Object.fromEntries(
    FILTERS.concat("cursor", "of").map((name) => [name, (query.get(name) || "").trim()]),
  );
  const slash = asked.of.indexOf("/"); // the selected queue, as kind/name
  if (slash > 0) Object.assign(asked, { kind: asked.of.slice(0, slash), queue: asked.of.slice(slash + 1) });
  return asked;
}

function apiQuery(asked) {
  const query = new URLSearchParams({ limit: LIMIT });
  for (const name of ["kind", "state", "topic", "queue", "cursor"]) if (asked[name]) query.set(name, asked[name]);
  if (asked.q) query.set("name", asked.q);
  return query;
}

// An id, or the key of a single job, opens it; a key that jobs of several doors have gives a list; anything else is the start of a name.
async function seek(asked) {
  if (ULID.test(asked.q)) {
    const job = await getOr(`/engine/jobs/${asked.q.toUpperCase()}`, null);
    if (job) jump(job);
    return { jobs: job ? [job] : [], next: null };
  }
  const page = await get(`/engine/jobs?key=${encodeURIComponent(asked.q.slice(0, 255))}`);
  if (page.jobs.length === 1) jump(page.jobs[0]);
  return page.jobs.length ? page : null;
}

function jump(job) {
  history.replaceState(null, "", hrefOf(job));
  window.dispatchEvent(new PopStateEvent("popstate"));
}

// Why a queued job waits, if the engine knows no reason: its queue is paused, or its door knows more.
async function reasons(jobs, asked, queues) {
  const waiting = jobs.filter((job) => job.state === "queued");
  const paused = new Set(queues.filter((queue) => queue.paused).map((queue) => `${queue.kind}/${queue.queue}`));
  const why = new Map(waiting.filter((job) => paused.has(`${job.kind}/${job.queue}`)).map((job) => [job.id, "queue"]));
  if (!waiting.some((job) => job.kind === "inference")) return why;
  const cursor = asked.cursor ? `&cursor=${asked.cursor}` : "";
  const page = await getOr(`/jobs?state=queued&limit=200${cursor}`, { jobs: [] });
  return new Map([...page.jobs.map((job) => [job.id, job.waiting_for]), ...why]);
}

function href(asked, changes) {
  const query = new URLSearchParams();
  const next = { ...asked, of: "", cursor: "", ...changes };
  for (const name of FILTERS.concat("cursor")) if (next[name]) query.set(name, next[name]);
  const text = query.toString();
  return text ? `/console/jobs?${text}` : "/console/jobs";
}

function lede({ asked, jobs }) {
  if (asked.q) return jobs.length ? `Found for “${asked.q}”, newest first.` : `Nothing found for “${asked.q}”.`;
  return asked.queue
    ? html`Of the ${nounOf(asked.kind || "job")} <b>${asked.queue}</b>, newest first. <a class="link" href="${href(asked, { queue: "" })}">All</a>`
    : "";
}

// filters ------------------------------------------------------------------------------------------------------------------

function filters({ asked, queues }) {
  const doors = Object.entries(DOORS).filter(([kind]) => kind !== "flow"); // these have a page of their own
  const kinds = [["", "All doors", ""], ...doors.map(([kind, door]) => [kind, door.name, door.icon])];
  const picked = asked.queue ? `${asked.kind || "job"}/${asked.queue}` : "";
  const values = queues
    .filter((each) => !asked.kind || each.kind === asked.kind)
    .map((each) => `${each.kind}/${each.queue}`)
    .slice(0, 200);
  if (picked && !values.includes(picked)) values.unshift(picked);
  const tab = ([kind, name, shape]) => {
    const to = href(asked, { kind, queue: "", state: kind === asked.kind ? asked.state : "", topic: "" });
    return html`<a href="${to}" ${flag('aria-current="true"', kind === asked.kind)}>${shape ? icon(shape) : ""}${name}</a>`;
  };
  return html`<form class="filters" action="/console/jobs" method="get" data-auto>
    <div class="seg" role="group" aria-label="Door">
      ${kinds.map(tab)}
    </div>
    ${asked.kind && !picked ? html`<input type="hidden" name="kind" value="${asked.kind}" />` : ""}
    ${asked.state ? html`<input type="hidden" name="state" value="${asked.state}" />` : ""}
    <select class="select" name="of" aria-label="Queue, model or command">
      <option value="" ${flag("selected", !picked)}>Any queue, model, command</option>
      ${values.map((value) => html`<option value="${value}" ${flag("selected", value === picked)}>${value.slice(value.indexOf("/") + 1)}</option>`)}
    </select>
    <div class="find">
      ${icon("search")}<input type="search" name="q" value="${asked.q}" placeholder="Name, key, id" aria-label="Start of a name, an idempotency key, or an id" />
    </div>
  </form>`;
}

function chips({ asked, jobs }, overview) {
  const doors = overview ? overview.doors.filter((door) => !asked.kind || door.kind === asked.kind) : [];
  const list = own(CHIPS, asked.kind) || CHIPS[""];
  return html`<div class="filters"><div class="chips" role="group" aria-label="State">
    ${list.map(([word, shape, by]) => {
      const on = Object.entries(by).every(([name, value]) => asked[name] === value);
      const to = href(asked, on ? { state: "", topic: "" } : { state: "", topic: "", ...by });
      const many = asked.queue || asked.q ? null : countOf(by, doors);
      return html`<a class="chip s s-${look(shape)[1]}" href="${to}" ${flag('aria-current="true"', on)}>${glyph(shape)}${word}${
        many === null ? "" : html` <span class="n">${number(many)}</span>`
      }</a>`;
    })}
  </div>${jobs.length ? fresh("jobs-new") : ""}</div>`;
}

// Only jobs in the queues are counted, not those that ended.
function countOf(by, doors) {
  if (by.state === "queued") return sum(doors, (door) => door.waiting);
  if (by.state === "running") return sum(doors, (door) => sum(Object.values(door.running)));
  if (by.topic && by.topic.startsWith("running:")) return sum(doors, (door) => door.running[by.topic] || 0);
  return null;
}

// the list -----------------------------------------------------------------------------------------------------------------

function table({ asked, jobs, next, why }, overview) {
  if (!jobs.length)
    return html`<section class="panel" aria-label="Jobs">${next ? further(asked, next) : nothing(asked, overview)}</section>`;
  return html`<section class="panel" aria-label="Jobs">
    <table class="t cards freeze">
      ${columns("State", "Job", "What", "Where it is, or why it waits", ["Attempt", "num"], ["Took", "num"], ["Age", "num"])}
      <tbody data-list="jobs-new">${jobs.map((job) => row(job, why.get(job.id)))}</tbody>
    </table>
    <div class="panel-foot">
      <div class="hints"><span><kbd>j</kbd><kbd>k</kbd> move</span><span><kbd>Enter</kbd> open</span><span><kbd>c</kbd> copy id</span><span><kbd>/</kbd> find</span></div>
      <span class="end">${asked.cursor ? html`<a class="btn small" href="${href(asked, {})}">Newest</a>` : ""}
        ${next ? html`<a class="btn small" href="${href(asked, { cursor: next })}">Older</a>` : html`<span>${asked.cursor ? "The oldest there is" : `${number(jobs.length)} in all`}</span>`}
      </span>
    </div>
  </section>`;
}

function row(job, waitingFor = job.waiting_for) {
  const shape = shapeOf(job, waitingFor);
  const [where, waits] = whereOf(job, waitingFor);
  const door = DOORS[job.kind] || { name: job.kind, icon: "jobs" };
  const moving = job.state === "running" && shape === "working";
  return html`<tr data-href="${hrefOf(job)}" data-key="${job.id}" tabindex="-1">
    <td class="c-main"><span class="state s s-${look(shape)[1]}">${glyph(shape, { pulse: moving })}<span class="lbl">${wordOf(job)}</span></span></td>
    <td class="c-hide">${id(job.id, hrefOf(job))}</td>
    <td class="c-2a"><span class="state"><svg class="icon dim" role="img" aria-label="${door.name}"><use href="#i-${door.icon}" /></svg><a class="name over" href="${hrefOf(job)}">${
      job.queue
    }</a> <span class="dim small hide-m">${nounOf(job.kind)}</span></span></td>
    <td class="clip ${where ? "c-full" : "c-hide"} ${waits ? "why" : "dim"}" title="${where}">${where}</td>
    <td class="num c-hide">${job.attempt || html`<span class="zero">–</span>`}</td>
    <td class="num c-hide">${tookOf(job) || html`<span class="zero">–</span>`}</td>
    <td class="num c-side dim">${time(job.created_at)}</td>
  </tr>`;
}

const COMMANDS = {
  inference: (overview) =>
    curl(overview, "/jobs", { model: "smollm2:135m", messages: [{ role: "user", content: "Hello" }] }),
  task: (overview) => curl(overview, "/v1/codeq/tasks", { command: "hello", payload: { name: "world" } }),
  provision: () => "chargehand provision submit --help",
  job: (overview) => curl(overview, "/engine/jobs", { queue: "hello", payload: { name: "world" } }),
};

function further(asked, next) {
  return empty(
    "Not found yet",
    html`None of the jobs that were searched is like that. <a class="btn small" href="${href(asked, { cursor: next })}">Search older ones</a>`,
  );
}

function nothing(asked, overview) {
  const filtered = asked.state || asked.topic || asked.queue || asked.q || asked.cursor;
  if (filtered)
    return empty(
      "No job is like that",
      html`Take a filter away, or look at <a class="link" href="/console/jobs">all jobs</a>.`,
    );
  return empty(
    "No job yet",
    "Submit one and it shows here at once.",
    (own(COMMANDS, asked.kind) || COMMANDS.inference)(overview),
  );
}
