// Queues by command: their tasks, their workers, and pause and limit.

import { html } from "../dom.js";
import { ACTIONS, columns, glyph, look, panel, time } from "../parts.js";
import { number, plural, since, sum } from "../words.js";

export const HERE_SECONDS = 60; // a worker that sent no request for longer is away
const NOBODY_SECONDS = 60; // as on Now: how long the oldest task may wait without workers before that is a problem

const NUMBERS = ["Ready", "Delayed", "IN_PROGRESS", "Dead", "Oldest", "Limit"];

// One row for each known command: a queue exists only while it holds tasks.
export function commandsOf({ only, queues, letters, workers, schedules }) {
  const found = new Map();
  const of = (command) => {
    if (!found.has(command))
      found.set(command, {
        command,
        ready: 0,
        delayed: 0,
        running: 0,
        dead: 0,
        oldest_at: null,
        paused: false,
        max_running: null,
        workers: [],
      });
    return found.get(command);
  };
  for (const queue of queues) Object.assign(of(queue.queue), queue);
  for (const [command, dead] of Object.entries((letters && letters.counts) || {})) of(command).dead = dead;
  for (const schedule of schedules || []) of(schedule.command.toLowerCase());
  for (const worker of workers || []) for (const asked of worker.commands) if (asked.command !== "*") of(asked.command);
  if (only) of(only);
  for (const each of found.values()) {
    each.workers = (workers || []).flatMap((worker) =>
      worker.commands.filter((asked) => asked.command === "*" || asked.command === each.command),
    );
    each.nobody = Boolean(
      workers &&
      each.ready &&
      !each.running &&
      !each.paused &&
      !each.workers.some(here) &&
      each.oldest_at &&
      since(each.oldest_at) > NOBODY_SECONDS,
    );
  }
  const all = [...found.values()].sort((a, b) => a.command.localeCompare(b.command));
  return only ? all.filter((each) => each.command === only) : all;
}

export function here(asked) {
  return asked.waiting > 0 || since(asked.lastClaimAt) < HERE_SECONDS;
}

export function queuesPanel({ commands, workers, only }, overview, admin) {
  const door = overview && overview.doors.find((each) => each.kind === "task");
  const hour =
    door && !only
      ? `${number(sum(door.hour.ended))} completed, ${number(sum(door.hour.failed))} failed in the last hour`
      : "";
  return panel({
    id: "queues",
    title: only ? "Queue" : "Queues",
    sub: only ? "" : number(commands.length),
    end: html`<span>${hour}</span>`,
    body: html`<table class="t cards tiles freeze">
      ${columns("Command", ...NUMBERS.map((name) => [name, "num"]), ["Workers", "who-col"], ACTIONS)}
      <tbody>${commands.map((each) => row(each, workers !== null, admin))}</tbody>
    </table>`,
  });
}

function figure(value) {
  return value ? number(value) : html`<span class="zero">0</span>`;
}

function row(each, known, admin) {
  const href = `/console/tasks/${encodeURIComponent(each.command)}`;
  return html`<tr data-key="q-${each.command}" data-href="${href}" tabindex="-1">
    <td class="c-full"><a class="name over" href="${href}">${each.command}</a></td>
    <td class="num" data-l="Ready">${figure(each.ready)}</td>
    <td class="num" data-l="Delayed">${figure(each.delayed)}</td>
    <td class="num" data-l="IN_PROGRESS">${figure(each.running)}</td>
    <td class="num" data-l="Dead">${each.dead ? html`<span class="state ink s s-dead">${glyph("dead")}${number(each.dead)}</span>` : known ? figure(0) : html`<span class="zero">–</span>`}</td>
    <td class="num" data-l="Oldest">${each.ready && each.oldest_at ? time(each.oldest_at) : html`<span class="zero">–</span>`}</td>
    <td class="num" data-l="Limit">${each.max_running === null ? html`<span class="zero">none</span>` : number(each.max_running)}</td>
    <td data-l="Workers" class="nowrap w6">${who(each, known)}</td>
    <td class="acts">${admin ? acts(each) : ""}</td>
  </tr>`;
}

function who(each, known) {
  const said = (as, text) =>
    html`<span class="state s s-${look(as)[1]}">${glyph(as)}<span class="lbl">${text}</span></span>`;
  if (each.paused) return said("paused", "paused by hand");
  if (!known) return html`<span class="zero">–</span>`;
  const now = each.workers.filter(here);
  if (now.length) {
    const waiting = sum(now, (asked) => asked.waiting);
    return said("here", `${plural(now.length, "worker")}${waiting ? `, ${number(waiting)} waiting` : ""}`);
  }
  if (each.running) return said("working", `busy with ${number(each.running)}`);
  const last = each.workers
    .map((asked) => asked.lastClaimAt)
    .sort()
    .pop();
  if (last) return said("away", html`none for ${time(last, "in")}`);
  return said(each.ready ? "warn" : "off", "none seen");
}

function acts(each) {
  const path = `/v1/codeq/admin/queues/${encodeURIComponent(each.command)}`;
  const limit = html`<button class="btn small quiet" type="button" data-limit="${each.command}" data-now="${each.max_running === null ? "" : each.max_running}">Limit</button>`;
  if (each.paused)
    return html`${limit} <button class="btn small" type="button" data-act="PUT ${path}" data-body='{"paused": false}' data-done="Resumed">Resume</button>`;
  return html`${limit} <button class="btn small" type="button" data-act="PUT ${path}" data-body='{"paused": true}' data-done="Paused: what is in progress goes on">Pause</button>`;
}
