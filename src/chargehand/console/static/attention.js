// Problems that need a human: each line says what is wrong and what it blocks, and links to where it can be fixed.

import { html } from "./dom.js";
import { glyph, look, time } from "./parts.js";
import { host, length, plural, since, sum } from "./words.js";
import { canonical } from "./pages/job-words.js";

const NOBODY_SECONDS = 60; // a queue without workers is a problem when its oldest job has waited so long

export function attention({ targets, endpoints, queues, overview }) {
  return [...breakers(endpoints), ...deadLetters(overview, endpoints), ...away(targets, queues), ...unclaimed(queues)];
}

// A time that goes on stands last, without a full stop: nothing behind it moves when it gets longer.
function row(key, as, title, what, href) {
  return html`<li class="s s-${look(as)[1]}" data-key="a-${key}">${glyph(as)}<b>${title}</b><span class="what">${what}</span><a class="btn small" href="${href}">Open</a></li>`;
}

function breakers(endpoints) {
  return endpoints
    .filter((each) => each.state === "disabled" || each.breaker === "open")
    .map((each) => {
      const why =
        each.state === "disabled"
          ? "It answered that it is gone (410)."
          : each.breaker_until
            ? html`Tried again ${time(each.breaker_until, "ago")}`
            : "";
      const title = each.state === "disabled" ? `${host(each.url)} is gone` : `${host(each.url)} is left alone`;
      return row(
        each.id,
        "failed",
        title,
        html`${plural(each.pending, "delivery held", "deliveries held")}, ${each.dead} dead. ${why}`,
        `/console/deliveries?endpoint=${each.id}`,
      );
    });
}

function deadLetters(overview, endpoints) {
  const dead = endpoints.filter((each) => each.dead && each.state === "active" && each.breaker !== "open");
  if (!dead.length) return [];
  const count = sum(dead, (each) => each.dead);
  return [
    row(
      "dead",
      "dead",
      plural(count, "dead delivery", "dead deliveries"),
      `${dead
        .slice(0, 3)
        .map((each) => host(each.url))
        .join(", ")}${dead.length > 3 ? " and others" : ""}.`,
      "/console/deliveries?state=dead",
    ),
  ];
}

// An unreachable target that no job waits for is no problem: a laptop may sleep.
function away(targets, queues) {
  return targets
    .filter((target) => target.state !== "up")
    .map((target) => {
      const models = new Set(target.installed);
      const waits = queues.filter(
        (queue) =>
          queue.kind === "inference" && queue.ready && (models.size === 0 || models.has(canonical(queue.queue))),
      );
      const count = sum(waits, (queue) => queue.ready);
      if (!count) return "";
      const what = html`${plural(count, "job waits", "jobs wait")} for its models. ${target.problem || "It does not answer"}, for ${time(target.since, "in")}`;
      return row(
        `t-${target.name}`,
        "parked",
        `Target ${target.name} is away`,
        what,
        `/console/targets/${encodeURIComponent(target.name)}`,
      );
    })
    .filter(Boolean);
}

function unclaimed(queues) {
  return queues
    .filter(
      (queue) =>
        queue.kind !== "inference" &&
        queue.ready &&
        !queue.running &&
        !queue.paused &&
        queue.oldest_at &&
        since(queue.oldest_at) > NOBODY_SECONDS,
    )
    .slice(0, 5)
    .map((queue) =>
      row(
        `q-${queue.kind}-${queue.queue}`,
        "warn",
        `Nobody claims ${queue.queue}`,
        `${plural(queue.ready, "job")} waiting, the oldest for ${length(since(queue.oldest_at))}.`,
        queue.kind === "task" ? "/console/tasks" : `/console/jobs?kind=${queue.kind}&state=queued`,
      ),
    );
}
