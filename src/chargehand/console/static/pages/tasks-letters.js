// Dead letters: tasks that ran out of attempts. Each can be requeued with all its attempts, or deleted.

import { html } from "../dom.js";
import { ACTIONS, columns, empty, fresh, glyph, id, jobHref, panel, time } from "../parts.js";
import { number, plural, sum } from "../words.js";

const MOST = 1000; // per request, the server's maximum

export function lettersPanel({ letters, only }, query) {
  const total = sum(Object.entries(letters.counts), ([command, count]) => (!only || command === only ? count : 0));
  const here = only ? `/console/tasks/${encodeURIComponent(only)}` : "/console/tasks";
  const rows = letters.tasks.map((task) => row(task));
  const older =
    letters.next && letters.tasks.length < total
      ? html`<a class="btn small" href="${here}?letters=${letters.next}">Older</a>`
      : "";
  const newest = query.get("letters") ? html`<a class="btn small" href="${here}">Newest</a>` : "";
  return panel({
    id: "letters",
    title: "Dead letters",
    sub: html`${number(total)} ${fresh("letters-new")}`,
    end: total ? all(total, only) : "",
    body: rows.length
      ? html`<table class="t cards freeze">
            ${columns("Task", "Id", "Last error", ["Attempts", "num"], ["Died", "num"], ACTIONS)}
            <tbody data-list="letters-new">${rows}</tbody>
          </table>
          ${older || newest ? html`<div class="panel-foot"><span>${number(rows.length)} of ${number(total)}, newest first</span><span class="end">${newest}${older}</span></div>` : ""}`
      : empty(
          "No dead letters",
          "A task whose last attempt is nacked, or whose worker goes silent in it, ends here with its reason.",
        ),
  });
}

function all(total, only) {
  const many =
    total > MOST ? `the newest ${number(MOST)} of ${number(total)} dead letters` : plural(total, "dead letter");
  const count = Math.min(total, MOST);
  const whose = only ? ` of ${only}` : "";
  const requeue = JSON.stringify(only ? { command: only, limit: MOST } : { limit: MOST });
  const purge = JSON.stringify({ command: only || "*", limit: MOST });
  return html`<button class="btn small" type="button" data-act="POST /v1/codeq/admin/dlq/requeue" data-body="${requeue}" data-ask="Give ${many}${whose} all their attempts again?" data-yes="Requeue ${number(count)}" data-done="{count} requeued"><svg class="icon" aria-hidden="true"><use href="#i-retry" /></svg>Requeue all</button>
    <button class="btn small danger" type="button" data-act="POST /v1/codeq/admin/dlq/purge" data-body="${purge}" data-ask="Remove ${many}${whose} for good? Payloads, errors and events are lost." data-yes="Remove ${number(count)}" data-done="{count} removed; those with a callback still to be delivered stay">Discard all</button>`;
}

function row(task) {
  const path = `/v1/codeq/admin/dlq/${task.id}`;
  return html`<tr data-key="${task.id}" data-href="${jobHref(task.id)}" tabindex="-1">
    <td class="c-main"><span class="state s s-dead">${glyph("dead")}<span class="lbl">${task.command}</span></span></td>
    <td class="c-hide">${id(task.id, jobHref(task.id))}</td>
    <td class="clip c-full dim" title="${task.error || ""}">${task.error || "no reason given"}</td>
    <td class="num c-hide" data-l="Attempts">${number(task.attempts || 0)}</td>
    <td class="num dim c-side">${time(task.updatedAt)}</td>
    <td class="acts">
      <button class="btn small" type="button" data-act="POST ${path}/requeue" data-done="Requeued, with all its attempts">Requeue</button>
      <button class="btn small quiet danger" type="button" data-act="DELETE ${path}" data-ask="Remove this dead letter of ${task.command} for good? Its payload, error and events are lost." data-yes="Remove it" data-done="Removed">Discard</button>
    </td>
  </tr>`;
}
