// One job of any door: timeline, why it waits, input and output, attempts, deliveries, files, log.

import { $, html, morph } from "../dom.js";
import { get, getJobs, getOr } from "../api.js";
import { readLog } from "../job-log.js";
import { DOORS, copy, fact, flowHref, head, icon, panel, pill, time } from "../parts.js";
import { clock, now, number } from "../words.js";
import { wordOfFlow } from "./flow-words.js";
import { actions } from "./job-acts.js";
import { artifacts, attempts, deliveries, download } from "./job-aside.js";
import { conversation, drawImages } from "./job-chat.js";
import { eventTable, saveLines } from "./job-events.js";
import { jsonFold } from "./job-json.js";
import { follow } from "./job-live.js";
import { phasesOf } from "./job-phases.js";
import { steps } from "./job-steps.js";
import { timeline, totals } from "./job-timeline.js";
import { waitPanel } from "./job-wait.js";
import { FINAL, PARKED, nounOf, shapeOf, wordOf } from "./job-words.js";

const LINE = 100; // a longer queue is not shown job by job
const DOOR_PATHS = { inference: "/jobs/", provision: "/api/v1/jobs/", task: "/v1/codeq/tasks/" };

let latest = null; // the data on the page
let waited = null; // the data when it last waited, for as long as the page is open

export default {
  title: "Job",
  titleOf: ({ job }) => `${job.queue}, ${wordOf(job)}`,
  async load(context) {
    const id = context.argument.toUpperCase();
    const job = await get(`/engine/jobs/${encodeURIComponent(id)}`);
    if (job.kind === "flow") jump(flowHref(job.id)); // it has a page of its own
    const queued = job.state === "queued" || (job.state === "running" && wordOf(job) === "queued");
    const [door, events, told, flow, around] = await Promise.all([
      DOOR_PATHS[job.kind] ? getOr(`${DOOR_PATHS[job.kind]}${job.id}`, null) : null,
      readLog(`/engine/jobs/${job.id}/events`, job.sequence),
      getOr(`/engine/deliveries?job=${job.id}&limit=100`, { deliveries: [] }),
      job.flow ? getOr(`/engine/flows/${job.flow}?first=${job.step}&limit=1`, null) : null,
      queued ? surroundings(job) : {},
    ]);
    const live = job.kind === "inference" && door;
    const why = { word: (live ? door.waiting_for : job.waiting_for) || "", text: (live && door.waiting) || "" };
    if (around.paused) why.word = "queue";
    if (waited && (waited.job.id !== job.id || waited.visit !== context)) waited = null;
    const same = waited && (!queued || waited.job.updated_at === job.updated_at) ? waited : null; // it still waits, or has just stopped
    // For the lanes: parked is a reason, not a state. A stretch once drawn as parked stays so while the page is open.
    job.parked = PARKED.has(why.word) ? why.text || "its queue is paused" : same ? same.job.parked : "";
    if (same) job.parkedFrom = same.job.parkedFrom || Date.parse(same.job.updated_at);
    if (queued && !around.line && waited) around.line = waited.line; // it was claimed, but is still shown as queued
    latest = {
      job,
      door,
      events,
      deliveries: told.deliveries,
      flow,
      queued,
      why,
      targets: [],
      line: null,
      paused: null,
      ...around,
    };
    if (queued) waited = { ...latest, visit: context };
    return latest;
  },
  view(data, context) {
    const { job, door, events } = data;
    const overview = context.overview();
    const phases = phasesOf(job, events, now());
    const rail = [attempts(job, door, phases), deliveries(data.deliveries), artifacts(job, filesOf(data))];
    return html`${top(data, overview)}
      <div class="stack">
        ${data.queued ? waitPanel(data, overview) : waited ? waitPanel(waited, overview, wordOf(job)) : ""}
        ${timePanel(data, phases)} ${facts(data)}
        <div class="wide-rail keep-rail">
          <div class="stack">${content(data)} ${eventTable(job, events)}</div>
          <div class="stack">${rail}</div>
        </div>
      </div>`;
  },
  mount(main, context) {
    const id = context.argument.toUpperCase();
    const mine = () => latest !== null && latest.job.id === id;
    const ended = () => !mine() || FINAL.has(latest.job.state);
    const redraw = () => mine() && $("#tl-body", main) && morph($("#tl-body", main), drawn(latest));
    const beat = setInterval(() => {
      if (!ended()) redraw();
      drawImages(main);
    }, 1000);
    const click = (event) => mine() && onClick(event, context);
    main.addEventListener("click", click);
    window.addEventListener("resize", redraw);
    redraw(); // now that its width is known
    drawImages(main);
    const unfollow = follow(id, main, context, () =>
      ended() || latest.job.kind !== "inference" ? null : latest.job.sequence,
    );
    return () => {
      clearInterval(beat);
      unfollow();
      main.removeEventListener("click", click);
      window.removeEventListener("resize", redraw);
    };
  },
};

function jump(href) {
  history.replaceState(null, "", href);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

// The context of a waiting job: its queue, whether that is paused, and the targets.
async function surroundings(job) {
  const name = encodeURIComponent(job.queue);
  const [line, queues, targets] = await Promise.all([
    getJobs(`/engine/jobs?kind=${job.kind}&queue=${name}&state=queued&limit=${LINE}`),
    getOr("/engine/queues", { queues: [] }),
    job.kind === "inference" ? getOr("/targets", { targets: [] }) : { targets: [] },
  ]);
  const queue = queues.queues.find((each) => each.kind === job.kind && each.queue === job.queue);
  const whole = !line.next && line.jobs.some((each) => each.id === job.id);
  const order = (a, b) =>
    b.priority - a.priority || Date.parse(a.run_at) - Date.parse(b.run_at) || (a.id < b.id ? -1 : 1);
  return {
    line: whole ? line.jobs.sort(order) : null,
    paused: queue && queue.paused ? queue : null,
    targets: targets.targets,
  };
}

// the parts ----------------------------------------------------------------------------------------------------------------

function top(data, overview) {
  const { job, door, why, flow } = data;
  const shape = shapeOf(job, why.word);
  const word = wordOf(job);
  const shown = shape === "parked" ? `${word}, parked` : shape === "dead" ? `${word}, dead letter` : word;
  const [born, chance] = [job.id.slice(0, 10), job.id.slice(10)]; // the parts of a ULID
  const id = html`<span class="id"><span class="pre">${born}</span>${chance}${copy(job.id, "Copy job id")}</span>`;
  return head({
    crumbs: html`<nav class="crumbs" aria-label="Where"><a href="/console/jobs">Jobs</a><span aria-hidden="true">/</span>${id}</nav>`,
    title: html`<span class="job-title">${job.queue} <span class="dim">${nounOf(job.kind)}</span> ${pill(shown, { as: shape })}</span>`,
    lede: flow && flow.steps.length ? stepOf(flow) : "",
    actions: actions(job, door, overview, flow),
  });
}

function stepOf(flow) {
  return html`Step <b>${flow.steps[0].name}</b> of the flow <a href="${flowHref(flow.id)}">${flow.name}</a>, which is ${wordOfFlow(flow)}.`;
}

// The width of the timeline: its current one, or before it exists, the expected one.
function room() {
  const there = $("#tl-body");
  return (there ? there.clientWidth : Math.max(320, $("#main").clientWidth - 64)) - 32;
}

function drawn({ job, events, deliveries: told }) {
  return timeline(phasesOf(job, events, now()), told, room());
}

function timePanel(data, phases) {
  const until = phases.live ? "now" : `${clock(phases.to)} UTC`;
  return panel({
    id: "timeline",
    title: "Timeline",
    sub: `${clock(phases.from)} ${phases.live ? "UTC " : ""}to ${until}`,
    end: totals(phases),
    body: html`<div id="tl-body">${drawn(data)}</div>`,
  });
}

function facts({ job, door }) {
  const evidence = (door && door.evidence) || {};
  const { name, icon: shape } = DOORS[job.kind] || { name: job.kind, icon: "jobs" };
  const tokens = [
    evidence.prompt_tokens ? `${number(evidence.prompt_tokens)} in` : "",
    evidence.tokens ? `${number(evidence.tokens)} out` : "",
  ]
    .filter(Boolean)
    .join(", ");
  const noun = nounOf(job.kind);
  const said = (door && door.progress && door.progress.updatedAt && door.progress) || null;
  return html`<section class="panel" aria-label="Facts"><div class="panel-body"><dl class="facts">
    ${fact("Door", html`${icon(shape)}${name}`)}
    ${fact(`${noun.charAt(0).toUpperCase()}${noun.slice(1)}`, html`<a class="link" href="/console/jobs?kind=${job.kind}&queue=${encodeURIComponent(job.queue)}">${job.queue}</a>`)}
    ${fact("Target", evidence.target ? html`<a class="link" href="/console/targets">${evidence.target}</a>` : "")}
    ${fact("For", door && door.task_target)}
    ${fact("Worker", job.lease_owner && !job.lease_owner.startsWith("@") ? job.lease_owner : "")}
    ${fact("Lease", job.lease_until && job.lease_owner && !job.lease_owner.startsWith("@") ? html`ends ${time(job.lease_until, "ago")}` : "")}
    ${fact("Progress", said ? [said.percent === undefined ? "" : `${Math.round(said.percent)}\u00a0%`, said.message].filter(Boolean).join(" · ") : "")}
    ${fact("Priority", number(job.priority))}
    ${fact("Attempt", job.attempt ? `${number(job.attempt)} of ${number(job.max_attempts)}` : `none yet, of ${number(job.max_attempts)}`)}
    ${fact("Tokens", tokens)}
    ${fact("Deadline", job.deadline_at ? time(job.deadline_at, "ago") : "")}
    ${fact("Idempotency key", job.idempotency_key ? html`<code>${job.idempotency_key}</code>${copy(job.idempotency_key, "Copy the key")}` : "")}
    ${fact("Accepted", time(job.created_at, "ago"))}
    ${fact("Ended", job.finished_at ? time(job.finished_at, "ago") : "")}
    ${fact("Error", job.error && FINAL.has(job.state) ? html`<span class="bad-t">${job.error}</span>` : "")}
  </dl></div></section>`;
}

function content(data) {
  const { job, door } = data;
  if (job.kind === "inference" && door) return conversation(job, { ...door, finished: FINAL.has(job.state) });
  if (job.kind === "provision") {
    if (!door)
      return panel({
        id: "steps",
        title: "Steps",
        body: html`<div class="nothing small-n"><p>The steps need a token with the scope provision:read.</p></div>`,
      });
    return html`${steps(job, door, data.events)} ${panel({
      id: "content",
      title: "Recipe",
      sub: "without what may hold secrets",
      body: html`${jsonFold("recipe", "Recipe", door.recipe, { open: true })}
      ${Object.keys(door.metadata || {}).length ? jsonFold("metadata", "Metadata", door.metadata) : ""}`,
    })}`;
  }
  return panel({
    id: "content",
    title: "Payload and result",
    body: html`${jsonFold("payload", "Payload", job.payload, { open: true })}
      ${job.state === "succeeded" || job.result !== null ? jsonFold("result", "Result", job.result, { open: true }) : ""}
      ${job.metadata && job.kind !== "task" ? jsonFold("metadata", "Metadata", job.metadata) : ""}`,
  });
}

// The final event of a task names its files; those stored here are fetched from its door.
function filesOf({ job, door, events }) {
  if (job.kind === "inference") return (door && door.artifacts) || [];
  if (job.kind !== "task") return [];
  const end = [...events].reverse().find((event) => event.data && Array.isArray(event.data.artifacts));
  return end ? end.data.artifacts : [];
}

async function onClick(event, context) {
  const { job, events } = latest;
  if (event.target.closest("[data-lines]")) return saveLines(job, events);
  const link = event.target.closest("a[data-download]");
  const url = link && new URL(link.href);
  if (!link || (url.origin !== location.origin && !url.pathname.startsWith(`/v1/codeq/tasks/${job.id}/`))) return;
  event.preventDefault();
  try {
    await download(url.pathname, link.dataset.download);
  } catch (error) {
    context.say(error.message);
  }
}
