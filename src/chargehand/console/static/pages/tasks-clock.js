// Subscriptions, which are notified of new tasks, and schedules, which create tasks.

import { html } from "../dom.js";
import { ACTIONS, columns, curl, empty, jobHref, panel, state, time } from "../parts.js";
import { host, number, own } from "../words.js";

const SHOWN = 20;

function foot(list) {
  return list.length > SHOWN
    ? html`<div class="panel-foot"><span>${number(SHOWN)} of ${number(list.length)}</span></div>`
    : "";
}

export function subscriptionsPanel({ subscriptions, only }, overview) {
  if (!subscriptions) return "";
  const command = curl(overview, "/v1/codeq/workers/subscriptions", {
    callbackUrl: "http://127.0.0.1:9000/wake",
    eventTypes: [only || "hello"],
  });
  return panel({
    id: "subscriptions",
    title: "Subscriptions",
    sub: number(subscriptions.length),
    body: subscriptions.length
      ? html`<table class="t cards">
            ${columns("Command", "Rings", ["Expires", "num"], ACTIONS)}
            <tbody>${subscriptions.slice(0, SHOWN).map(subscription)}</tbody>
          </table>
          ${foot(subscriptions)}`
      : empty(
          "Nobody is rung",
          "A worker that does not want to hold a connection says where to ring when there is work.",
          command,
        ),
  });
}

function subscription(each) {
  const names = each.eventTypes.map((type) => (type === "*" ? "any command" : type));
  const how =
    { group: `one of group ${each.groupId}`, hash: "one of all, by the minute", fanout: "every time" }[
      each.deliveryMode
    ] || each.deliveryMode;
  const face = names.length > 2 ? `${names.slice(0, 2).join(", ")} +${names.length - 2}` : names.join(", ");
  return html`<tr data-key="${each.subscriptionId}">
    <td class="c-main"><span class="two"><span class="name" title="${names.join(", ")}">${face}</span><small>of ${each.owner}</small></span></td>
    <td class="c-2a ink2"><span class="two"><span class="over short" title="${each.callbackUrl}">${host(each.callbackUrl)}${new URL(each.callbackUrl).pathname}</span><small>${how}</small></span></td>
    <td class="num dim c-side">${time(each.expiresAt, "ago")}</td>
    <td class="acts">
      <button class="btn small quiet danger" type="button" data-act="DELETE /v1/codeq/workers/subscriptions/${each.subscriptionId}" data-ask="End this subscription? ${host(each.callbackUrl)} is no longer rung." data-yes="End it" data-done="Ended">End</button>
    </td>
  </tr>`;
}

export function schedulesPanel({ schedules, ticks, only }, overview) {
  if (!schedules) return "";
  const command = curl(overview, "/v1/codeq/schedules", {
    name: "nightly",
    cron: "30 2 * * *",
    command: only || "hello",
    payload: {},
  });
  return panel({
    id: "schedules",
    title: "Schedules",
    sub: number(schedules.length),
    body: schedules.length
      ? html`<table class="t cards">
            ${columns("Schedule", "Last run", ["Next", "num"], ACTIONS)}
            <tbody>${schedules.slice(0, SHOWN).map((each) => schedule(each, own(ticks, each.name)))}</tbody>
          </table>
          ${foot(schedules)}`
      : empty(
          "Nothing is created by the clock",
          "A schedule makes a task at every tick, once, on however many nodes.",
          command,
        ),
  });
}

function schedule(each, ticks) {
  const path = `/v1/codeq/schedules/${encodeURIComponent(each.name)}`;
  const turn = each.paused
    ? html`<button class="btn small" type="button" data-act="POST ${path}/resume" data-done="Resumed: it goes on with its next tick">Resume</button>`
    : html`<button class="btn small" type="button" data-act="POST ${path}/pause" data-done="Paused: ticks make no tasks">Pause</button>`;
  return html`<tr data-key="s-${each.name}">
    <td class="c-main"><span class="two"><span class="name">${each.name}</span><small><code>${each.cron}</code> ${each.timezone}</small></span></td>
    <td class="c-2a">${last(each)}</td>
    <td class="num c-side">${next(each, ticks)}</td>
    <td class="acts">
      <button class="btn small" type="button" data-act="POST ${path}/run" data-done="Its task is created">Run now</button>
      ${turn}
      <button class="btn small quiet danger" type="button" data-act="DELETE ${path}" data-ask="Delete the schedule ${each.name}? Its tasks stay." data-yes="Delete it" data-done="Deleted">Delete</button>
    </td>
  </tr>`;
}

function last(each) {
  if (each.lastError) return html`<span title="${each.lastError}">${state("made no task", { as: "failed" })}</span>`;
  if (!each.lastRunAt) return html`<span class="zero">never</span>`;
  return html`<a class="link" href="${jobHref(each.lastTaskId)}">${time(each.lastRunAt, "ago")}</a>`;
}

function next(each, ticks) {
  if (each.paused) return state("paused", { as: "paused" });
  if (!each.nextRunAt) return html`<span class="zero">–</span>`;
  const after = (ticks || []).slice(1);
  return html`<span class="two">${time(each.nextRunAt, "ago")}${after.length ? html`<small>then ${after.map((at, n) => html`${n ? ", " : ""}${time(at, "ago")}`)}</small>` : ""}</span>`;
}
