// The steps of a flow as a list, a page at a time, all or those in one state: what the drawing shows, and for flows that are too large for one.

import { flag, html } from "../dom.js";
import { ACTIONS, columns, empty, fresh, glyph, id, jobHref, look, panel, time } from "../parts.js";
import { number } from "../words.js";
import { canRetry, retryFrom, stepsAfter } from "./flow-acts.js";
import { STEP_STATES, doorOf, shapeOfStep, total, whereIsStep } from "./flow-words.js";

const ROWS = 50;

function asked(query) {
  const at = Math.floor(Number(query.get("cursor"))) || 0;
  return { state: query.get("state") || "", at: Math.max(0, at) };
}

// The numbers of the steps on the display, as far as they are known.
export function shownOf(steps, query) {
  const { state, at } = asked(query);
  if (!state) return Array.from({ length: ROWS }, (_, n) => at + n);
  return steps
    .filter((step) => step.state === state)
    .slice(at, at + ROWS)
    .map((step) => step.number);
}

export function stepsPanel(data, query) {
  const { flow, steps } = data;
  const { state, at } = asked(query);
  const shown = shownOf(steps, query)
    .map((each) => steps[each])
    .filter(Boolean);
  const all = state ? flow.counts[state] || 0 : total(flow.counts);
  const acts = canRetry(flow);
  const list = panel({
    id: "steps",
    title: "Steps",
    sub: html`${all ? `${number(Math.min(at + 1, all))} to ${number(Math.min(at + ROWS, all))} of ${number(all)}` : "none"} ${fresh("steps-new")}`,
    body: html`${
      shown.length
        ? html`<table class="t cards freeze flow-steps">
        ${columns("State", "Step", "Job", "Door", "Where it is, or why it waits", ["Attempt", "num"], ["Since", "num"], [ACTIONS, "acts"])}
        <tbody data-list="steps-new">${shown.map((step) => row(step, data, acts))}</tbody>
      </table>`
        : empty("No step is like that", html`Look at <a class="link" href="${href(flow, "", 0)}">all steps</a>.`)
    } ${all > ROWS ? pages(flow, state, at, all) : ""}`,
  });
  return html`<div class="filters tight"><div class="chips flow-chips" role="group" aria-label="State of the steps">${chips(flow, state)}</div></div> ${list}`;
}

function href(flow, state, at) {
  const query = new URLSearchParams();
  if (state) query.set("state", state);
  if (at) query.set("cursor", at);
  const text = query.toString();
  return `/console/flows/${flow.id}${text ? `?${text}` : ""}`;
}

// All states, also those that no step is in now: nothing moves when one is the first there.
function chips(flow, state) {
  return STEP_STATES.map(([each, shape]) => {
    const on = each === state;
    return html`<a class="chip s s-${look(shape)[1]}" data-key="chip-${each}" href="${href(flow, on ? "" : each, 0)}" ${flag('aria-current="true"', on)}>${glyph(shape)}${each} <span class="n">${number(flow.counts[each] || 0)}</span></a>`;
  });
}

function pages(flow, state, at, all) {
  return html`<div class="panel-foot"><span class="end">
    ${at > 0 ? html`<a class="btn small" href="${href(flow, state, Math.max(0, at - ROWS))}">Before</a>` : ""}
    ${at + ROWS < all ? html`<a class="btn small" href="${href(flow, state, at + ROWS)}">After</a>` : html`<span>the last</span>`}
  </span></div>`;
}

function row(step, data, acts) {
  const shape = shapeOfStep(step);
  const door = doorOf(step.door);
  const where = whereIsStep(step, data.steps);
  const to = jobHref(step.job_id);
  return html`<tr data-href="${to}" data-key="step-${step.number}" tabindex="-1">
    <td class="c-main"><span class="state s s-${look(shape)[1]}">${glyph(shape, { pulse: step.state === "running" })}<span class="lbl">${step.state}</span></span></td>
    <td class="c-2a"><a class="name mono over" href="${to}">${step.name}</a></td>
    <td class="c-hide">${id(step.job_id, to)}</td>
    <td class="c-2b nowrap"><span class="state"><svg class="icon dim" aria-hidden="true"><use href="#i-${door.icon}" /></svg><span class="dim">${door.name}</span></span></td>
    <td class="clip ${where ? "c-full" : "c-hide"} ${step.state === "waiting" || step.state === "queued" ? "why" : "dim"}" title="${where}">${where}</td>
    <td class="num c-hide">${step.attempt || html`<span class="zero">–</span>`}</td>
    <td class="num c-side dim">${time(step.updated_at)}</td>
    <td class="acts">${acts ? retryFrom(data.flow, step, stepsAfter(data.graph, data.steps, step.number), { small: true }) : ""}</td>
  </tr>`;
}
