// Tasks: queues by command, dead letters, workers, subscriptions and schedules; all, or those of the command in the path.

import { html } from "../dom.js";
import { get, getOr } from "../api.js";
import { curl, empty, head, panel } from "../parts.js";
import { number, sum } from "../words.js";
import { commandsOf, queuesPanel } from "./tasks-queues.js";
import { lettersPanel } from "./tasks-letters.js";
import { workersPanel } from "./tasks-workers.js";
import { schedulesPanel, subscriptionsPanel } from "./tasks-clock.js";
import { limits } from "./tasks-limit.js";

const WIRE = "/v1/codeq";
const LETTERS = 20;
const PROGRESS = 8; // tasks whose progress is fetched
const NEXT_RUNS = 5; // schedules for which more than the next run is fetched

export default {
  title: "Tasks",
  titleOf: (data) => data.only || "Tasks",
  async load({ argument, query }) {
    const only = argument.toLowerCase();
    const letters = new URLSearchParams({ limit: LETTERS });
    if (only) letters.set("command", only);
    if (query.get("letters")) letters.set("cursor", query.get("letters"));
    const of = only ? `&queue=${encodeURIComponent(only)}` : "";
    const [queues, running, dead, workers, subscriptions, schedules] = await Promise.all([
      get("/engine/queues"),
      get(`/engine/jobs?kind=task&state=running&limit=100${of}`),
      getOr(`${WIRE}/admin/dlq?${letters}`, null),
      getOr(`${WIRE}/admin/workers`, null),
      getOr(`${WIRE}/workers/subscriptions`, null),
      getOr(`${WIRE}/schedules`, null),
    ]);
    const data = {
      only,
      queues: queues.queues.filter((queue) => queue.kind === "task"),
      running: running.jobs,
      letters: dead,
      workers: workers && workers.workers,
      subscriptions:
        subscriptions &&
        subscriptions.subscriptions.filter(
          (each) => !only || each.eventTypes.some((type) => type === "*" || type.toLowerCase() === only),
        ),
      schedules: schedules && schedules.schedules.filter((each) => !only || each.command.toLowerCase() === only),
    };
    const [progress, ticks] = await Promise.all([progressOf(data.running), only ? ticksOf(data.schedules) : {}]);
    return { ...data, progress, ticks, commands: commandsOf(data) };
  },
  view(data, context) {
    const overview = context.overview();
    const admin = data.letters !== null;
    if (!data.only && !data.commands.length && !(data.workers || []).length && !(data.subscriptions || []).length)
      return nothing(overview);
    return html`${top(data)}
      <div class="stack">
        ${admin ? "" : html`<p class="why-line" role="note">This token may look, but lacks the scope <code>codeq:admin</code>: workers and dead letters are not shown, and nothing can be paused.</p>`}
        ${queuesPanel(data, overview, admin)} ${admin ? lettersPanel(data, context.query) : ""}
        <div class="cols2 c2-late">
          ${workersPanel(data)}
          <div class="stack">${subscriptionsPanel(data, overview)} ${schedulesPanel(data, overview)}</div>
        </div>
      </div>`;
  },
  mount: limits,
};

async function progressOf(running) {
  const told = await Promise.all(running.slice(0, PROGRESS).map((job) => getOr(`${WIRE}/tasks/${job.id}`, null)));
  return Object.fromEntries(told.filter((task) => task && task.progress).map((task) => [task.id, task.progress]));
}

async function ticksOf(schedules) {
  const told = await Promise.all(
    (schedules || [])
      .slice(0, NEXT_RUNS)
      .map((each) => getOr(`${WIRE}/schedules/${encodeURIComponent(each.name)}`, null)),
  );
  return Object.fromEntries(told.filter(Boolean).map((each) => [each.name, each.nextRuns]));
}

function top({ only, commands }) {
  const waiting = sum(commands, (each) => each.ready + each.delayed);
  const running = sum(commands, (each) => each.running);
  const nobody = commands.filter((each) => each.nobody).map((each) => each.command);
  const names =
    nobody.length > 2 ? `${nobody.slice(0, 2).join(", ")} and ${number(nobody.length - 2)} more` : nobody.join(" and ");
  const lede = `${number(waiting)} pending, ${number(running)} in progress.${names ? ` Nobody claims ${names}.` : ""}`;
  if (!only) return head({ title: "Tasks", lede });
  const crumbs = html`<nav class="crumbs" aria-label="Where you are"><a href="/console/tasks">Tasks</a><span aria-hidden="true">/</span><span>${only}</span></nav>`;
  return head({
    title: only,
    crumbs,
    lede,
    actions: html`<a class="btn" href="/console/jobs?kind=task&queue=${encodeURIComponent(only)}">All its tasks</a>`,
  });
}

function nothing(overview) {
  const create = curl(overview, "/v1/codeq/tasks", { command: "hello", payload: { name: "Ada" } });
  return html`${head({ title: "Tasks", lede: "Producers create tasks, workers in any language claim them." })}
    <div class="stack">
      ${panel({
        id: "none",
        title: "Nothing stands in any queue",
        sub: "a command makes its queue by being used; finished tasks are under Jobs",
        body: html`${empty("A worker, in a terminal of its own", "Any executable will do: the payload is on its stdin, the result on its stdout.", `chargehand worker --url ${location.origin} --command hello -- cat`)}
          ${empty("A task for it", "It is on disk when this is answered, and is done a moment later.", create)}`,
      })}
    </div>`;
}
