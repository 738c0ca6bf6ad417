// One flow: its drawing, or if it is too large its layers; its steps and its log. Live: every change in the feed reads it anew.

import { html } from "../dom.js";
import { readLog } from "../job-log.js";
import { copy, fact, head, panel, pill, time } from "../parts.js";
import { length, number, percent, plural } from "../words.js";
import { flowActions } from "./flow-acts.js";
import { readFlow } from "./flow-data.js";
import { drawing, walk } from "./flow-drawing.js";
import { layersPanel, progress } from "./flow-layers.js";
import { shownOf, stepsPanel } from "./flow-steps.js";
import { endedOf, shapeOfFlow, total, wordOfFlow } from "./flow-words.js";
import { eventTable, saveLines } from "./job-events.js";
import { jsonFold } from "./job-json.js";

let latest = null; // the data on the page

export default {
  title: "Flow",
  titleOf: ({ flow }) => `${flow.name}, ${wordOfFlow(flow)}`,
  async load(context) {
    const id = context.argument.toUpperCase();
    const known = latest && latest.flow.id === id ? latest.steps : [];
    const data = await readFlow(id, shownOf(known, context.query));
    const events = await readLog(`/engine/flows/${data.flow.id}/events`, data.flow.sequence);
    if (data.behind) context.look();
    latest = { ...data, events };
    return latest;
  },
  view(data, context) {
    const { flow, events } = data;
    return html`${top(data)}
      <div class="stack">
        ${facts(data)} ${data.drawable ? drawing(data) : layersPanel(data)} ${stepsPanel(data, context.query)}
        ${eventTable(flow, events, { shapeOfNote })}
      </div>`;
  },
  mount(main) {
    const click = (event) => latest && event.target.closest("[data-lines]") && saveLines(latest.flow, latest.events);
    const key = (event) => latest && walk(event, latest);
    main.addEventListener("click", click);
    main.addEventListener("keydown", key);
    return () => {
      main.removeEventListener("click", click);
      main.removeEventListener("keydown", key);
    };
  },
};

// In a flow's log a note is the end of a step.
function shapeOfNote(event) {
  return { succeeded: "done", failed: "failed", cancelled: "off", skipped: "off" }[event.message] || "off";
}

function top(data) {
  const { flow } = data;
  const [born, chance] = [flow.id.slice(0, 10), flow.id.slice(10)]; // the parts of a ULID
  const id = html`<span class="id"><span class="pre">${born}</span>${chance}${copy(flow.id, "Copy flow id")}</span>`;
  return head({
    crumbs: html`<nav class="crumbs" aria-label="Where"><a href="/console/flows">Flows</a><span aria-hidden="true">/</span>${id}</nav>`,
    title: html`<span class="job-title">${flow.name} <span class="dim">flow</span> ${pill(wordOfFlow(flow), { as: shapeOfFlow(flow) })}</span>`,
    actions: flowActions(data),
  });
}

function facts({ flow }) {
  const all = total(flow.counts);
  const ended = endedOf(flow.counts);
  const took = flow.finished_at ? (Date.parse(flow.finished_at) - Date.parse(flow.created_at)) / 1000 : null;
  return panel({
    id: "progress",
    title: "Progress",
    sub: `${number(ended)} of ${plural(all, "step")} ended, ${percent(all ? ended / all : 0)}`,
    body: html`<div class="panel-body flow-facts">${progress(flow.counts)}<dl class="facts">
      ${fact("Name", html`<a class="link" href="/console/flows?name=${encodeURIComponent(flow.name)}">${flow.name}</a>`)}
      ${fact("Accepted", time(flow.created_at, "ago"))}
      ${fact("Last change", flow.finished_at ? "" : time(flow.updated_at, "ago"))}
      ${fact("Ended", flow.finished_at ? time(flow.finished_at, "ago") : "")}
      ${fact("Took", took === null ? "" : length(took))}
      ${fact("Idempotency key", flow.idempotency_key ? html`<code>${flow.idempotency_key}</code>${copy(flow.idempotency_key, "Copy the key")}` : "")}
      ${fact("Error", flow.error && flow.finished_at ? html`<span class="bad-t">${flow.error}</span>` : "")}
    </dl></div>
    ${flow.metadata ? jsonFold("metadata", "Metadata", flow.metadata) : ""}`,
  });
}
