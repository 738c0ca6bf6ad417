// Servers: a list with the BMC's last facts and the progress of the job; or one server with its steps and its log.

import { html } from "../dom.js";
import { get, getJobs } from "../api.js";
import { readLog } from "../job-log.js";
import { ACTIONS, bar, columns, empty, fact, glyph, head, id, jobHref, panel, pill, state, time } from "../parts.js";
import { host, length, number, plural, quoted, since } from "../words.js";
import { at, dots, stepList, stepsOf, took, word } from "../servers-steps.js";
import { followEnd, log } from "../servers-log.js";
import { factsPanel, jobsPanel } from "../servers-facts.js";

const LOOKED_INTO = 20; // active jobs whose steps are read for the list
const LINES = 1000; // the last lines of the log
const ADD = "chargehand provision server add RACK1-07 --bmc https://10.0.0.7 --user admin --probe";

export default {
  title: "Servers",
  titleOf: (data) => (data.server ? data.server.server_serial : "Servers"),
  load: ({ argument, query }) => (argument ? loadOne(argument, query.get("job")) : loadAll()),
  view: (data) => (data.server ? one(data) : all(data)),
  mount: followEnd,
};

async function loadAll() {
  const [servers, jobs] = await Promise.all([get("/api/v1/servers?limit=500"), getJobs("/api/v1/jobs?limit=500")]);
  const last = new Map();
  for (const job of jobs.jobs) if (!last.has(job.server_serial)) last.set(job.server_serial, job);
  const active = [...last.values()]
    .filter((job) => job.status !== "complete" && job.status !== "queued")
    .slice(0, LOOKED_INTO);
  for (const job of await Promise.all(active.map((each) => get(`/api/v1/jobs/${each.job_id}`))))
    last.set(job.server_serial, job);
  return { servers: servers.servers, more: servers.next, last };
}

async function loadOne(serial, wanted) {
  const name = encodeURIComponent(serial);
  const [server, jobs] = await Promise.all([
    get(`/api/v1/servers/${name}`),
    getJobs(`/api/v1/jobs?server_serial=${name}&limit=50`),
  ]);
  const chosen = wanted || (jobs.jobs[0] && jobs.jobs[0].job_id);
  if (!chosen) return { server, jobs: [], job: null, events: [] };
  const [job, events] = await Promise.all([
    get(`/api/v1/jobs/${encodeURIComponent(chosen)}`),
    readLog(`/api/v1/jobs/${encodeURIComponent(chosen)}/events`),
  ]);
  return { server, jobs: jobs.jobs, job, events };
}

// the list -----------------------------------------------------------------------------------------------------------------

function all({ servers, more, last }) {
  const jobs = servers.map((server) => last.get(server.server_serial)).filter(Boolean);
  const count = (status) => jobs.filter((job) => job.status === status).length;
  const failed = jobs.filter((job) => word(job) === "failed").length;
  const said = [
    [count("provisioning"), "being provisioned"],
    [count("queued"), "queued"],
    [failed, "failed"],
  ]
    .filter(([n]) => n)
    .map(([n, what]) => `${number(n)} ${what}`);
  const lede = servers.length
    ? `${number(servers.length)}${more ? " and more" : ""} known.${said.length ? ` ${said.join(", ")}.` : " None is being provisioned."}`
    : "";
  const body = servers.length
    ? table(servers, last)
    : empty(
        "No server is known",
        "Register one with the address of its BMC and look at what it is. Nothing is changed at the machine by that.",
        ADD,
      );
  return html`${head({ title: "Servers", lede })}
    <div class="stack">${panel({ id: "servers", title: "All servers", sub: servers.length ? `${number(servers.length)}${more ? ", the first" : ""}` : "", body })}</div>`;
}

function table(servers, last) {
  return html`<table class="t cards tiles freeze">
    ${columns("Server", "BMC", ["Model", "hide-l"], "Last job", "Steps", "Step", ["Took", "num"], ["Changed", "num hide-m"], ACTIONS)}
    <tbody>${servers.map((server) => line(server, last.get(server.server_serial)))}</tbody>
  </table>`;
}

function line(server, job) {
  const serial = server.server_serial;
  const href = `/console/servers/${encodeURIComponent(serial)}`;
  const facts = server.probe && server.probe.facts;
  const none = html`<span class="zero">–</span>`;
  const unless = (there) => (there ? "" : " c-hide"); // on a card, empty fields are hidden
  const step = job ? stepNow(job) : "";
  return html`<tr data-href="${href}" data-key="srv-${serial}" tabindex="-1">
    <td class="c-main"><span class="two"><a class="name" href="${href}">${serial}</a><small>${host(server.bmc_address)}</small></span></td>
    <td class="c-side">${bmc(server.probe)}</td>
    <td data-l="Model" class="ink2 hide-l w6${unless(facts)}">${facts ? [facts.manufacturer, facts.model].filter(Boolean).join(" ") || facts.vendor : none}</td>
    <td data-l="Last job" class="w3">${job ? state(word(job), { pulse: job.status === "provisioning" }) : html`<span class="dim small">never provisioned</span>`}</td>
    <td data-l="Steps" class="w3${unless(job)}">${job ? dots(job) : none}</td>
    <td data-l="Step" class="w6${unless(step)}">${step || none}</td>
    <td data-l="Took" class="num${unless(job)}">${(job && took(job)) || none}</td>
    <td data-l="Changed" class="num dim hide-m">${time(job ? job.updated_at : server.updated_at)}</td>
    <td class="acts">${acts(server, job)}</td>
  </tr>`;
}

function bmc(probe) {
  if (!probe) return state("not probed", { as: "queued" });
  return html`<span class="two">${state(probe.ok ? "answers" : "no answer", { as: probe.ok ? "here" : "away" })}<small>${time(probe.at, "ago")}</small></span>`;
}

function stepNow(job) {
  const { name, failed } = at(job);
  if (job.status === "queued")
    return html`<span class="small">${job.waiting_for ? `waits for ${job.waiting_for}` : "waits for its turn"}</span>`;
  if (!name) return "";
  const now = job.progress && !failed ? job.progress.steps.find((step) => step.step === name) : null;
  const percent =
    now && now.percent !== null
      ? html`<span class="progress">${bar(now.percent / 100)}<span>${Math.round(now.percent)}\u00a0%</span></span>`
      : "";
  return html`<span class="two nowrap"><code>${name}</code>${percent}</span>`;
}

function acts(server, job) {
  return html`${job && job.status !== "complete" ? cancel(job, "small") : ""}${job && retryable(job) ? retry(job, "small") : ""}${probe(server, "small")}`;
}

// actions ------------------------------------------------------------------------------------------------------------------

function probe(server, size) {
  const serial = server.server_serial;
  return html`<button class="btn ${size}" type="button" data-act="POST /api/v1/servers/${encodeURIComponent(serial)}/probe" data-done="Asked the BMC of ${serial}" aria-label="Probe ${serial}">Probe</button>`;
}

function cancel(job, size) {
  const question = `Cancel the job on ${job.server_serial}? Its media are ejected. A machine that is at work already may be left half written.`;
  return html`<button class="btn ${size} danger" type="button" data-act="POST /api/v1/jobs/${job.job_id}/cancel" data-ask="${question}" data-yes="Cancel the job" data-done="Cancelled" aria-label="Cancel the job on ${job.server_serial}">Cancel</button>`;
}

function retryable(job) {
  return job.status === "complete" && (job.outcome === "failed" || job.outcome === "cancelled");
}

function retry(job, size) {
  const question = `Start again on ${job.server_serial}, from the beginning? ${job.recipe && job.recipe.wipe ? "The recipe wipes its disk." : "The machine is booted anew, and its disk written by the recipe."}`;
  return html`<button class="btn ${size}" type="button" data-act="POST /api/v1/jobs/${job.job_id}/retry" data-ask="${question}" data-yes="Start again" data-done="Queued again" aria-label="Retry the job on ${job.server_serial}">Retry</button>`;
}

function forget(server) {
  const serial = server.server_serial;
  return html`<button class="btn danger" type="button" data-act="DELETE /api/v1/servers/${encodeURIComponent(serial)}" data-go="/console/servers"
    data-ask="Forget ${serial}? Its BMC's address and password are lost here. The machine is left as it is." data-yes="Forget it" data-done="Forgot ${serial}">Forget</button>`;
}

// one server ---------------------------------------------------------------------------------------------------------------

function one({ server, jobs, job, events }) {
  const crumbs = html`<nav class="crumbs" aria-label="Path"><a href="/console/servers">Servers</a><span>/</span></nav>`;
  const facts = server.probe && server.probe.facts;
  const lede = [facts && [facts.manufacturer, facts.model].filter(Boolean).join(" "), host(server.bmc_address)]
    .filter(Boolean)
    .join(", ");
  const submit = `chargehand provision submit ${quoted(server.server_serial)} recipe.json --watch`;
  return html`${head({ title: server.server_serial, lede, crumbs, actions: html`${probe(server, "")}${forget(server)}` })}
    <div class="stack">
      ${job ? html`${jobHead(job, jobs)}<div class="cols2 stretch">${stepsPanel(job, events)}${logPanel(job, events)}</div>` : panel({ id: "job", title: "Jobs", body: empty("Never provisioned", "Submit a recipe for it.", submit) })}
      <div class="cols2 stretch">${factsPanel(server)}${jobsPanel(jobs, job, server)}</div>
    </div>`;
}

function jobHead(job, jobs) {
  const newest = jobs[0] && jobs[0].job_id === job.job_id;
  const title = job.status === "complete" ? (newest ? "Last job" : "Earlier job") : "Current job";
  const recipe = job.recipe;
  const gives = Object.entries(job.deadlines)[0];
  return html`<section class="panel" aria-labelledby="h-job">
    <div class="panel-head">
      <h2 id="h-job">${title}</h2>${pill(word(job))}<span class="sub">${job.attempt > 1 ? `started ${plural(job.attempt, "time")}` : ""}</span>
      <div class="end"><a class="btn small" href="${jobHref(job.job_id)}">Open job</a>${job.status !== "complete" ? cancel(job, "small") : ""}${retryable(job) && newest ? retry(job, "small") : ""}</div>
    </div>
    <div class="panel-body"><dl class="facts">
      ${fact("Job", id(job.job_id, jobHref(job.job_id)))}
      ${fact("Task", job.task_target)}
      ${fact("Image", recipe.oci_url || recipe.image_url)}
      ${fact("Disk", recipe.target_disk)}
      ${fact("Host name", recipe.hostname)}
      ${fact("Machine heard", job.progress.heard_at && time(job.progress.heard_at, "ago"))}
      ${fact("Started", time(job.created_at, "ago"))}
      ${fact(job.finished_at ? "Took" : "So far", took(job))}
      ${fact("Gives up", gives && time(gives[1], "ago"))}
    </dl>${failure(job)}${job.warnings.map((text) => html`<p class="why-line s s-warn">${glyph("warn")} ${text}</p>`)}</div>
  </section>`;
}

function failure(job) {
  if (job.failure) {
    const { failed_step: step, message, meaning, advice } = job.failure;
    return html`<p class="why-line"><b>Failed at</b> <code>${step}</code>: ${message}. ${meaning ? `That means ${meaning}` : ""}${advice ? `: ${advice}.` : ""}</p>`;
  }
  return job.error ? html`<p class="why-line"><b>Why</b> ${job.error}</p>` : "";
}

function stepsPanel(job, events) {
  const steps = stepsOf(job);
  const left = steps.filter((step) => step.todo).length;
  const sub = job.status === "queued" ? "not begun" : `${took(job)}${job.finished_at ? " in all" : " so far"}`;
  return panel({
    id: "steps",
    title: "Steps",
    sub,
    end: html`<span>${left ? `${plural(left, "step")} to come, and the machine's own` : ""}</span>`,
    body: stepList(job, events),
  });
}

function logPanel(job, events) {
  const tail = job.progress.log_tail.trimEnd();
  const heard = job.progress.heard_at ? `, as it was ${length(since(job.progress.heard_at))} ago` : "";
  return panel({
    id: "log",
    title: "Log",
    sub: job.status === "complete" ? "" : "follows the end",
    body: html`${log(events.slice(-LINES))}${tail ? html`<details class="tail"><summary>The end of the machine's own log${heard}</summary><pre class="code wrap" tabindex="0">${tail}</pre></details>` : ""}`,
  });
}
