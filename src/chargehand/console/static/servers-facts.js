// Facts about a server from the last probe of its BMC, and its jobs.

import { html } from "./dom.js";
import { columns, copy, empty, panel, state, time } from "./parts.js";
import { host } from "./words.js";
import { took, word } from "./servers-steps.js";

function pair(name, value) {
  return value ? html`<dt>${name}</dt><dd>${value}</dd>` : "";
}

export function factsPanel(server) {
  const { probe } = server;
  const facts = probe && probe.facts;
  const labels = Object.entries(server.labels).map(([name, value]) => html`<span class="tag">${name}=${value}</span> `);
  const tls = server.bmc_address.startsWith("https:")
    ? { verify: "certificate checked", insecure: "certificate not checked" }[server.tls] || "certificate pinned"
    : "none";
  const body = html`<div class="panel-body"><dl class="kv">
    <dt>BMC</dt><dd>${probe ? state(probe.ok ? "answers" : "no answer", { as: probe.ok ? "here" : "away" }) : state("not probed", { as: "queued" })}</dd>
    ${probe && !probe.ok ? pair("What is wrong", probe.problem) : ""}
    <dt>Address</dt><dd>${host(server.bmc_address)} ${copy(server.bmc_address, "Copy the address")}</dd>
    ${pair("User", server.bmc_username && `${server.bmc_username}${server.has_password ? ", with a password" : ", without a password"}`)}
    <dt>TLS</dt><dd>${tls}</dd>
    ${facts ? found(facts) : ""}
    ${labels.length ? pair("Labels", labels) : ""}
  </dl></div>`;
  const when = probe ? html`probed ${time(probe.at, "ago")}` : "never probed";
  return panel({ id: "facts", title: "What it is", sub: when, body });
}

function found(facts) {
  const drives = facts.slots.map((slot) => `${slot.name} (${slot.kind})`).join(", ");
  return html`${pair("Vendor", [facts.manufacturer, facts.model].filter(Boolean).join(" ") || facts.vendor)}
    ${pair("Serial", facts.serial)} ${pair("UUID", facts.uuid && html`<code>${facts.uuid}</code>`)}
    ${pair("Power", `${facts.power}, when it was probed`)} ${pair("Firmware", facts.bios_version)} ${pair("Redfish", facts.redfish_version)}
    ${pair("Virtual drives", drives || "none: it cannot be provisioned")} ${pair("Boots from", facts.boot_targets.join(", "))}`;
}

export function jobsPanel(jobs, shown, server) {
  const href = (job) => `/console/servers/${encodeURIComponent(server.server_serial)}?job=${job.job_id}`;
  const rows = jobs.map((job) => {
    return html`<tr data-href="${href(job)}" data-key="j-${job.job_id}" tabindex="-1" ${shown && shown.job_id === job.job_id ? html`aria-current="true"` : ""}>
      <td class="c-main"><a class="name" href="${href(job)}">${job.task_target}</a></td>
      <td class="c-side">${state(word(job), { pulse: job.status === "provisioning" })}</td>
      <td class="c-2a small">${job.failed_step ? html`<code>${job.failed_step}</code>` : ""}</td>
      <td class="num c-hide">${took(job)}</td>
      <td class="num dim c-2b">${time(job.created_at)}</td>
    </tr>`;
  });
  const body = jobs.length
    ? html`<table class="t cards">${columns("Task", "State", "Failed at", ["Took", "num"], ["Age", "num"])}<tbody>${rows}</tbody></table>`
    : empty("No jobs yet", "What is submitted for this server shows here.");
  return panel({ id: "jobs", title: "Its jobs", sub: jobs.length === 50 ? "the last 50" : "", body });
}
