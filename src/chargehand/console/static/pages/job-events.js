// The log of a job, newest first, and as lines of JSON to copy.

import { html } from "../dom.js";
import { columns, empty, fresh, glyph, look, panel } from "../parts.js";
import { clock, number, utc } from "../words.js";
import { save } from "./job-aside.js";
import { tickText } from "./job-phases.js";

const SHOWN = 200;

// `shapeOfNote`: the glyph of a note, where its job knows better.
export function eventTable(job, events, { shapeOfNote } = {}) {
  const from = Date.parse(job.created_at);
  const rows = events
    .slice(-SHOWN)
    .reverse()
    .map((event) => row(event, from, event.move === "note" && shapeOfNote ? shapeOfNote(event) : shapeOf(event)));
  const hidden = events.length - rows.length;
  const whole = !events.length || events[0].sequence === 1;
  return panel({
    id: "events",
    title: "Events",
    sub: html`${whole ? "" : "the last "}${number(events.length)}, newest first ${fresh("log-new")}`,
    end: html`<button class="btn small" type="button" data-lines>As JSON lines</button>`,
    body: rows.length
      ? html`<table class="t cards">
        ${columns(["Sequence", "num fit hide-m"], ["Event", "fit"], "What happened", ["From start", "num hide-m"], ["At", "num"])}
        <tbody data-list="log-new">${rows}</tbody>
      </table>${hidden ? html`<div class="panel-foot">${number(hidden)} earlier ones are in the JSON lines</div>` : ""}`
      : empty("No events", "The log of this job is gone."),
  });
}

const SHAPES = {
  submit: "queued",
  requeue: "queued",
  park: "parked",
  retry: "failed",
  succeed: "done",
  fail: "failed",
  expire: "failed",
  cancel: "off",
};

function shapeOf(event) {
  if (event.move === "note") return event.level === "warn" || event.level === "error" ? "warn" : "off";
  return (
    SHAPES[event.move] ||
    (event.stage === "loading" ? "loading" : event.stage || event.move === "advance" ? "working" : "queued")
  );
}

function row(event, from, shape) {
  const [word, text] = [wordOf(event), said(event)];
  return html`<tr data-key="e-${event.sequence}">
    <td class="num mono dim c-hide hide-m">${number(event.sequence)}</td>
    <td class="c-main"><span class="state s s-${look(shape)[1]}">${glyph(shape)}<span class="lbl">${word}</span></span></td>
    <td class="${text ? "c-full" : "c-hide"} ink2 wrap">${text}</td>
    <td class="num dim c-hide hide-m">+${fromStart(Date.parse(event.at) - from)}</td>
    <td class="num dim c-side"><time datetime="${event.at}" title="${utc(event.at)}">${clock(event.at)}</time></td>
  </tr>`;
}

// The move, and the new state if that adds information.
function wordOf(event) {
  if (event.move === "note") return event.step || "note";
  return event.stage && event.stage !== "claimed" ? `${event.move}, ${event.stage}` : event.move;
}

function said(event) {
  const percent =
    event.data && typeof event.data.percent === "number" && !event.message.includes("%")
      ? `${Math.round(event.data.percent)}\u00a0%`
      : "";
  const message = event.message || (event.move === "submit" ? "accepted" : event.error || "");
  const error = event.error && !message.includes(event.error) ? event.error : "";
  return [percent, message, error].filter(Boolean).join(" · ");
}

function fromStart(ms) {
  return ms < 1000 ? `${ms}\u00a0ms` : ms < 10_000 ? `${(ms / 1000).toFixed(1)}\u00a0s` : tickText(ms, 1000);
}

export function saveLines(job, events) {
  const lines = events.map((event) => `${JSON.stringify(event)}\n`).join("");
  save(new Blob([lines], { type: "application/x-ndjson" }), `${job.id}-events.ndjson`);
}
