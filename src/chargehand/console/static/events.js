// Lines of the feed in the terms of each door: a chat is done, a task is completed, a server is provisioned.

import { html } from "./dom.js";
import { empty, fresh, glyph, hrefOf as pageOf, icon, look, panel, time } from "./parts.js";
import { host, length, number, own, since } from "./words.js";

const SHOWN = 24; // as many as fit beside the rest of the page
const SAID = { inference: "job", batch: "batch", task: "task", provision: "server", flow: "flow", job: "job" };
const WORDS = {
  inference: { succeeded: "done" },
  task: { queued: "pending", claimed: "claimed", running: "claimed", succeeded: "completed" },
  provision: { running: "provisioning" },
  flow: { steps: "running" },
};

function wordOf(line) {
  const [, word] = line.type.split(".");
  if (line.kind === "provision" && ["succeeded", "failed", "cancelled"].includes(line.topic)) return "complete";
  return own(WORDS[line.kind] || {}, word) || word;
}

// "job.done", "task.completed", "delivery.delivered", "target.away"
export function nameOf(line) {
  const [what] = line.type.split(".");
  return what === "job" ? `${SAID[line.kind] || "job"}.${line.move === "park" ? "parked" : wordOf(line)}` : line.type;
}

export function describe(line) {
  if (line.type.startsWith("delivery."))
    return `${host(line.url)}, ${line.status ? `${line.status} in ${length(line.seconds)}` : line.message}`;
  if (line.type.startsWith("target.")) return `${line.name}${line.message ? `, ${line.message}` : ""}`;
  return `${line.queue || ""}${line.attempt > 1 ? `, attempt ${line.attempt}` : ""}`;
}

function hrefOf(line) {
  if (line.type.startsWith("delivery.")) return `/console/deliveries/${line.delivery_id}`;
  return line.job_id ? pageOf({ kind: line.kind, id: line.job_id }) : `/console/targets/${encodeURIComponent(line.name)}`;
}

// Notes are shown only in their job's log: a machine sends hundreds about its progress.
function worthShowing(line) {
  return line.move !== "note";
}

export function events(lines) {
  const rows = lines
    .filter(worthShowing)
    .slice(0, SHOWN)
    .map((line) => {
      const name = nameOf(line);
      const as = name.split(".")[1];
      return html`<li class="s s-${look(as)[1]}" data-key="f-${line.at}-${line.delivery_id || line.job_id || line.name}-${line.type}">
      ${glyph(as)}<a class="ev" href="${hrefOf(line)}">${name}</a>${time(line.at)}<span class="d" title="${describe(line)}">${describe(line)}</span></li>`;
    });
  const rate = lines.length > 1 ? lines.length / Math.max(1, since(lines[lines.length - 1].at)) : 0;
  const hold = html`<button class="btn small quiet" type="button" data-hold="feed" aria-pressed="false">${icon("pause")}Hold</button>`;
  return panel({
    id: "events",
    title: "Events",
    sub: html`newest first ${fresh("events-new")}`,
    end: hold,
    body: html`<ol class="feed freeze" id="feed" aria-label="Recent events, newest first" data-list="events-new">${rows}</ol>
      ${rows.length ? "" : empty("Quiet", "What happens on this node shows here.")}
      <div class="panel-foot"><span>of this node</span><span class="end">${rate >= 0.1 ? `about ${rate < 10 ? rate.toFixed(1) : number(Math.round(rate))} per second` : ""}</span></div>`,
  });
}
