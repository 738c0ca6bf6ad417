// Workers: those that hold a task now, and those that recently asked for one.

import { html } from "../dom.js";
import { bar, columns, empty, glyph, jobHref, look, panel, time } from "../parts.js";
import { number, own, plural, quoted, since } from "../words.js";
import { HERE_SECONDS, here } from "./tasks-queues.js";

const SHOWN = 12;
const NAMED = 2; // commands of an idle worker

export function workersPanel({ running, workers, progress, only }) {
  const known = Object.fromEntries((workers || []).map((each) => [each.workerId, each]));
  const busy = running.map((job) => holding(job, own(known, job.lease_owner), progress[job.id]));
  const holders = new Set(running.map((job) => job.lease_owner));
  const idle = (workers || []).filter(
    (each) =>
      !holders.has(each.workerId) &&
      (!only || each.commands.some((asked) => asked.command === only || asked.command === "*")),
  );
  const rows = [...busy, ...idle.map((each) => waiting(each, only))];
  const seen = (workers || []).filter((each) => since(each.lastSeenAt) < HERE_SECONDS).length;
  const rest = rows.length - SHOWN;
  return panel({
    id: "workers",
    title: "Workers",
    sub: workers ? `${number(seen)} seen in the last minute` : "",
    body: rows.length
      ? html`<table class="t cards tiles freeze">
            ${columns("Worker", "Holds", "Progress", "Lease", ["Seen", "num"])}
            <tbody>${rows.slice(0, SHOWN)}</tbody>
          </table>
          <div class="panel-foot"><span>${rest > 0 ? `${number(SHOWN)} of ${number(rows.length)}, those at work first. ` : ""}A worker is its token's name. Those without a task: as seen at this node.</span></div>`
      : !workers
        ? empty("Nothing is in progress", "Who waits for work is shown to administrators.")
        : empty(
            "No worker was seen in the last hour",
            "Workers need not register: whoever claims shows here.",
            `chargehand worker --url ${location.origin} --command ${quoted(only || "hello")} -- cat`,
          ),
  });
}

function holding(job, worker, said) {
  const lapsed = job.lease_until && since(job.lease_until) > 0;
  const word = lapsed ? "away" : "here";
  const percent = said && typeof said.percent === "number" ? said.percent : null;
  const none = html`<span class="zero">–</span>`;
  return html`<tr data-key="w-${job.id}" data-href="${jobHref(job.id)}" tabindex="-1">
    <td class="c-main"><span class="state s s-${look(word)[1]}">${glyph(word)}<span class="lbl">${job.lease_owner || "somebody"}</span></span></td>
    <td data-l="Holds" class="nowrap w6"><a class="link" href="${jobHref(job.id)}">${job.queue}</a></td>
    <td data-l="Progress" class="w3">${percent === null ? none : html`<div class="progress">${bar(percent / 100, `${Math.round(percent)} per cent`)}<span class="right">${Math.round(percent)}\u00a0%</span></div>`}</td>
    <td data-l="Lease" class="w3 nowrap">${job.lease_until ? (lapsed ? "has lapsed" : html`lapses ${time(job.lease_until, "ago")}`) : none}</td>
    <td class="num dim c-side">${worker ? time(worker.lastSeenAt) : none}</td>
  </tr>`;
}

function waiting(worker, only) {
  const word = since(worker.lastSeenAt) < HERE_SECONDS ? "here" : "away";
  const asked = worker.commands.filter(here).map((each) => (each.command === "*" ? "any command" : each.command));
  const names =
    asked.length > NAMED
      ? `${asked.slice(0, NAMED).join(", ")} and ${plural(asked.length - NAMED, "other")}`
      : asked.join(", ");
  const open = worker.commands.some((each) => each.waiting);
  const none = only ? "no task of this command" : "nothing";
  const what = word === "here" && names ? `${open ? "waits for" : "asks for"} ${names}` : none;
  return html`<tr data-key="w-${worker.workerId}">
    <td class="c-main"><span class="state s s-${look(word)[1]}">${glyph(word)}<span class="lbl">${worker.workerId}</span></span></td>
    <td data-l="Holds" class="w6 ink2">${what}${worker.allTenants ? ", of every tenant" : ""}</td>
    <td data-l="Progress" class="w3 c-hide"><span class="zero">–</span></td>
    <td data-l="Lease" class="w3 c-hide"><span class="zero">–</span></td>
    <td class="num dim c-side">${time(worker.lastSeenAt)}</td>
  </tr>`;
}
