// Now: problems, doors by state, the last hour, targets and their slots, what waits longest, workers, recent events.

import { html } from "../dom.js";
import { get, getOr } from "../api.js";
import { DOORS, empty, glyph, head, hrefOf, icon, look, panel, time } from "../parts.js";
import { spark, strips } from "../charts.js";
import { attention } from "../attention.js";
import { clock, now, number, plural, sum } from "../words.js";
import { events } from "../events.js";
import { slotsOf } from "../slots.js";
import { welcome } from "../welcome.js";
import { heldBack } from "./deliveries-endpoints.js";
import { canonical, shapeOf, whereOf } from "./job-words.js";

const SHOWN = 4; // of each short list
const SERVERS = 25; // at most so many are counted: each costs the server a query
const used = (door) =>
  door.waiting || sum(Object.values(door.running)) || sum(door.hour.ended) || sum(door.hour.failed);

export default {
  title: "Now",
  async load(context) {
    const [overview, targets, endpoints, queues, running, workers, servers] = await Promise.all([
      context.whole || get("/engine/overview"),
      getOr("/targets", { targets: [] }),
      getOr("/engine/endpoints?limit=200", { endpoints: [] }),
      getOr("/engine/queues", { queues: [] }),
      get(`/engine/jobs?state=running&limit=${SHOWN}`),
      getOr("/v1/codeq/admin/workers", null),
      getOr(`/api/v1/servers?limit=${SERVERS}`, null),
    ]);
    // An hour without jobs does not mean that there never were any.
    const quiet = !overview.doors.some(used) && !endpoints.endpoints.length;
    const anew = quiet && !(await get("/engine/jobs?limit=1")).jobs.length;
    return {
      anew,
      overview,
      targets: targets.targets,
      endpoints: endpoints.endpoints,
      running: running.jobs,
      queues: queues.queues.map((queue) => ({ ...queue, key: `${queue.kind}/${queue.queue}` })),
      workers: workers && workers.workers.length,
      servers: servers && servers.servers.length,
    };
  },
  view(data, { lines }) {
    const { overview } = data;
    if (data.anew) return welcome(overview, data.targets);
    const wants = attention(data);
    return html`${head({ title: "Now", lede: lede(overview, wants.length) })}
      <div class="wide-rail">
        <div class="stack">
          ${wants.length ? html`<ul class="attn freeze" aria-label="Wants a human">${wants}</ul>` : ""}
          ${board(data)} ${charts(overview)} ${data.targets.length ? slots(data.targets) : ""}
          <div class="cols3 stretch">${oldest(data)} ${queues(data)} ${working(data)}</div>
        </div>
        <div class="rail">${events(lines)}</div>
      </div>`;
  },
};

function lede(overview, wants) {
  const inHand = sum(overview.doors.map((door) => sum(Object.values(door.running))));
  const waits = sum(overview.doors.map((door) => door.waiting));
  const ended = sum(overview.doors.map((door) => sum(door.hour.ended) + sum(door.hour.failed)));
  const human = wants
    ? wants === 1
      ? "One thing wants a human."
      : `${wants} things want a human.`
    : "Nothing wants a human.";
  return `${number(inHand)} in hand, ${number(waits)} waiting, ${number(ended)} finished in the last hour. ${human}`;
}

// doors by state -----------------------------------------------------------------------------------------------------------

const RUNNING = {
  inference: [
    ["loading", "running:loading"],
    ["working", "running:working"],
  ],
  task: [["IN_PROGRESS", ""]],
  provision: [["provisioning", ""]],
  batch: [["running", ""]],
  flow: [["running", ""]],
  job: [["running", ""]],
};
const ENDS = {
  inference: ["queued", "done", "failed"],
  task: ["PENDING", "COMPLETED", "FAILED"],
  provision: ["queued", "succeeded", "failed"],
  batch: ["queued", "succeeded", "failed"],
  flow: ["queued", "succeeded", "failed"],
  job: ["queued", "succeeded", "failed"],
};

const SELDOM = new Set(["batch", "flow", "job"]); // on the board only if there are such jobs

function board(data) {
  const { overview, endpoints } = data;
  const doors = overview.doors.filter(
    (door) => DOORS[door.kind] && (!SELDOM.has(door.kind) || used(door)),
  );
  return html`<section class="panel freeze" aria-label="Jobs by door and state">
    <table class="board">
      <colgroup><col class="h" /><col /><col /><col /><col /><col /></colgroup>
      <tbody>
        ${doors.map((door) => doorRow(door, data))} ${deliveriesRow(overview.deliveries, endpoints)}
      </tbody>
    </table>
  </section>`;
}

// The workers of a door. What the token may not read is not counted.
const BEHIND = {
  inference: (_, { targets }) =>
    `${targets.filter((target) => target.state === "up").length} of ${plural(targets.length, "target")} here`,
  task: (_, { workers }) => (workers === null ? "workers pull" : `${plural(workers, "worker")} seen`),
  provision: (door, { servers }) =>
    servers === null
      ? "over Redfish"
      : `${number(sum(Object.values(door.running)))} of ${servers === SERVERS ? `${SERVERS}+ servers` : plural(servers, "server")} busy`,
  batch: () => "of prompts",
  flow: () => "of many jobs",
  job: () => "your own queues",
};

function doorRow(door, data) {
  const { name, icon: shape, page } = DOORS[door.kind];
  const [queued, done, failed] = ENDS[door.kind];
  const more = BEHIND[door.kind](door, data);
  const cells = RUNNING[door.kind].map(([word, topic]) => {
    const count = topic ? door.running[topic] || 0 : sum(Object.values(door.running));
    const past = topic && word === "loading" ? [] : door.hour.running;
    return stat(word, word, count, past, "", link(door.kind, "running"));
  });
  while (cells.length < 2) cells.push(html`<td></td>`);
  return html`<tr data-key="door-${door.kind}">
    <th scope="row"><a href="${page}"><span class="door">${icon(shape)}${name}</span><small>${more}</small></a></th>
    ${stat("queued", queued, door.waiting, door.hour.waiting, oldestOf(door.oldest_at), link(door.kind, "queued"))}
    ${cells}
    ${stat("done", done, sum(door.hour.ended), door.hour.ended, "1\u00a0h", link(door.kind, "succeeded"))}
    ${stat("failed", failed, sum(door.hour.failed), door.hour.failed, "1\u00a0h", link(door.kind, "failed"))}
  </tr>`;
}

function deliveriesRow(deliveries, endpoints) {
  const held = sum(endpoints.filter(heldBack), (each) => each.pending);
  return html`<tr data-key="door-deliveries">
    <th scope="row"><a href="/console/deliveries"><span class="door">${icon("deliver")}Deliveries</span><small>${plural(deliveries.endpoints, "endpoint")}</small></a></th>
    ${stat("queued", "pending", deliveries.pending, [], oldestOf(deliveries.oldest_due_at), "/console/deliveries?state=pending")}
    ${stat("working", "in flight", deliveries.in_flight, [], "", "/console/deliveries?state=pending")}
    ${stat("parked", "held", held, [], "", "/console/deliveries")}
    ${stat("done", "delivered", sum(deliveries.hour.ended), deliveries.hour.ended, "1\u00a0h", "/console/deliveries?state=delivered")}
    ${stat("dead", "dead", deliveries.dead, deliveries.hour.failed, "", "/console/deliveries?state=dead")}
  </tr>`;
}

function oldestOf(at) {
  return at ? html`<span title="the oldest"><span class="sr">the oldest for </span>${time(at, "in")}</span>` : "";
}

function link(kind, state) {
  return kind === "flow" ? `/console/flows?state=${state}` : `/console/jobs?kind=${kind}&state=${state}`;
}

function stat(as, word, value, values, note, href) {
  const [, tone] = look(as);
  return html`<td><a class="stat s s-${value ? tone : "queued nil"}" href="${href}">
    <span class="k">${glyph(as)}${word}<small>${note}</small></span>
    <span class="v" ${typeof note === "string" && note ? html`data-u="${note}"` : ""}>${number(value)}</span>
    ${values.length && values.some(Boolean) ? spark(values, tone) : ""}
  </a></td>`;
}

// the last hour ------------------------------------------------------------------------------------------------------------

function charts(overview) {
  const doors = overview.doors.filter((door) => DOORS[door.kind] && !SELDOM.has(door.kind));
  const minutes = [60, 45, 30, 15].map((m) => clock(now() - m * 60000).slice(0, 5)).concat("now");
  const done = doors.map((door) => ({
    label: DOORS[door.kind].name,
    unit: "/min",
    values: door.hour.ended,
    down: door.hour.failed,
  }));
  const depth = doors.map((door) => ({
    label: DOORS[door.kind].name,
    unit: "waiting",
    values: [...door.hour.waiting.slice(0, -1), door.waiting],
  }));
  const spoken = (rows, what) =>
    `${what} in the last hour: ${rows.map((row) => `${row.label} at most ${Math.max(...row.values)}, now ${row.values[row.values.length - 1]}`).join("; ")}`;
  return html`<div class="cols2">
    ${panel({
      id: "throughput",
      title: "Throughput",
      sub: html`<span data-when>last hour</span>`,
      end: html`<span class="legend"><span><i></i>finished</span><span><i class="bad"></i>failed, below the line</span></span>`,
      body: strips({ rows: done, kind: "bars", minutes, label: spoken(done, "Jobs finished per minute") }),
    })}
    ${panel({
      id: "depth",
      title: "Queue depth",
      sub: html`<span data-when>last hour</span>`,
      end: html`<span class="dim small">each row on its own scale</span>`,
      body: strips({ rows: depth, kind: "steps", minutes, label: spoken(depth, "Jobs waiting") }),
    })}
  </div>`;
}

// targets ------------------------------------------------------------------------------------------------------------------

function slots(targets) {
  return panel({
    id: "targets",
    title: "Targets",
    sub: plural(targets.filter((t) => t.state === "up").length, "is here", "are here"),
    end: html`<a href="/console/targets">All targets</a>`,
    body: html`<div class="freeze">${targets.slice(0, 8).map(
      (target) => html`<div class="tgt" data-key="t-${target.name}">
      <div class="who">
        <b class="s s-${target.state === "up" ? "here" : "away"}">${glyph(target.state === "up" ? "here" : "away")}<a href="/console/targets">${target.name}</a></b>
        <small>${target.state === "up" ? "here" : "away"} for ${time(target.since, "in")}</small>
      </div>
      ${slotsOf(target)}
    </div>`,
    )}</div>`,
  });
}

// three short lists --------------------------------------------------------------------------------------------------------

function mark(word, options) {
  return html`<span class="s s-${look(word)[1]}">${glyph(word, options)}</span>`;
}

// Why the oldest job of a queue is not claimed, as far as queues and targets show. The job's own page says more.
function reason(queue, targets) {
  if (queue.paused) return "queue";
  if (queue.kind !== "inference")
    return queue.max_running !== null && queue.running >= queue.max_running ? "turn" : "worker";
  const model = canonical(queue.queue);
  const here = targets.filter((target) => target.state === "up" && target.installed.includes(model));
  if (!here.length) return "target";
  if (here.some((target) => target.loading.includes(model))) return "model";
  return here.some((target) => target.resident.some((each) => each.model === model)) ? "turn" : "slot";
}

function href(queue, state = "") {
  return `/console/jobs?kind=${queue.kind}${state ? `&state=${state}` : ""}&queue=${encodeURIComponent(queue.queue)}`;
}

function oldest({ queues: all, targets }) {
  const due = all.filter((queue) => queue.oldest_at).sort((a, b) => Date.parse(a.oldest_at) - Date.parse(b.oldest_at));
  const rows = due.slice(0, SHOWN).map((queue) => {
    const job = { kind: queue.kind, state: "queued", run_at: queue.oldest_at, waiting_for: reason(queue, targets) };
    const why = `${queue.ready > 1 ? `${number(queue.ready)} jobs · ` : ""}${whereOf(job)[0]}`;
    return html`<li data-key="w-${queue.key}">${mark(shapeOf(job))}
      <span class="t1"><a href="${href(queue, "queued")}">${queue.queue}</a></span><span class="e">${time(queue.oldest_at)}</span>
      <span class="t2" title="${why}">${why}</span></li>`;
  });
  const later = sum(all.map((queue) => queue.delayed));
  return panel({
    id: "oldest",
    title: "Waiting longest",
    end: html`<a href="/console/jobs?state=queued">All waiting</a>`,
    body: rows.length
      ? html`<ul class="rows freeze">${rows}</ul>`
      : empty(
          "Nothing waits",
          later
            ? `${plural(later, "job is", "jobs are")} not due yet; all others have been taken.`
            : "Every job that came has been taken.",
        ),
  });
}

function queues({ queues: all }) {
  const busy = all
    .filter((queue) => queue.running || queue.ready || queue.paused)
    .sort((a, b) => b.ready + b.running - a.ready - a.running)
    .slice(0, SHOWN);
  const shape = (queue) => (queue.paused ? "paused" : queue.running ? "working" : "queued");
  const rows = busy.map(
    (queue) => html`<li data-key="q-${queue.key}">${mark(shape(queue))}
    <span class="t1"><a href="${href(queue)}">${queue.queue}</a></span>
    <span class="e">${number(queue.running)} at work</span>
    <span class="t2">${queue.paused ? "paused, " : ""}${number(queue.ready)} ready${queue.delayed ? `, ${number(queue.delayed)} not due yet` : ""}</span></li>`,
  );
  return panel({
    id: "queues",
    title: "Busy queues",
    end: html`<a href="/console/tasks">All queues</a>`,
    body: rows.length
      ? html`<ul class="rows freeze">${rows}</ul>`
      : empty("All queues are empty", "A queue shows here while something is in it."),
  });
}

function working({ running }) {
  const rows = running.map(
    (job) => html`<li data-key="r-${job.id}">${mark(job.stage || "working", { pulse: true })}
    <span class="t1"><a href="${hrefOf(job)}">${job.queue}</a></span><span class="e">${time(job.updated_at)}</span>
    <span class="t2">${job.stage || "running"}${job.lease_owner && !job.lease_owner.startsWith("@") ? ` by ${job.lease_owner}` : ""}</span></li>`,
  );
  return panel({
    id: "working",
    title: "In hand",
    end: html`<a href="/console/jobs?state=running">All in hand</a>`,
    body: rows.length
      ? html`<ul class="rows freeze">${rows}</ul>`
      : empty("Nothing runs", "Jobs show here while somebody works on them."),
  });
}
