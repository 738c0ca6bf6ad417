// Flows, newest first, of all states or one, with how far each is.

import { flag, html } from "../dom.js";
import { get } from "../api.js";
import { columns, curl, empty, flowHref, fresh, glyph, head, id, look, time } from "../parts.js";
import { length, number, since, sum } from "../words.js";
import { progress } from "./flow-layers.js";
import { endedOf, shapeOfFlow, total, wordOfFlow } from "./flow-words.js";
import { FINAL } from "./job-words.js";

const LIMIT = 25;
const AT_ONCE = 8; // flows whose steps are counted anew at each look
const KEPT = 500;
const STATES = [
  ["running", "working"],
  ["succeeded", "done"],
  ["failed", "failed"],
  ["cancelled", "off"],
];

const counted = new Map(); // by flow: the number of its last event, and how many of its steps were in which state then

export default {
  title: "Flows",
  async load(context) {
    const asked = Object.fromEntries(["state", "name", "cursor"].map((name) => [name, context.query.get(name) || ""]));
    const query = new URLSearchParams({ limit: LIMIT });
    for (const [name, value] of Object.entries(asked)) if (value) query.set(name, value);
    const page = await get(`/engine/flows?${query}`);
    await count(page.jobs, context);
    return { asked, flows: page.jobs, next: page.next };
  },
  view(data, context) {
    const overview = context.overview();
    const lede = data.asked.name
      ? html`Named <b>${data.asked.name}</b>, newest first. <a class="link" href="${href(data.asked, { name: "" })}">All</a>`
      : "Jobs that wait for each other, newest first.";
    return html`${head({ title: "Flows", lede })} ${chips(data, overview)} ${table(data, overview)}`;
  },
};

// The list does not count steps. Each end of a step is an event of its flow, so a flow without new ones needs no new count.
async function count(flows, context) {
  const old = flows.filter((flow) => (counted.get(flow.id) || {}).sequence !== flow.sequence);
  const unknown = old.filter((flow) => !counted.has(flow.id));
  const now = [...unknown, ...old.filter((flow) => counted.has(flow.id))].slice(0, Math.max(AT_ONCE, unknown.length));
  await Promise.all(
    now.map(async (flow) => {
      const { sequence, counts } = await get(`/engine/flows/${flow.id}?limit=1`);
      counted.delete(flow.id);
      counted.set(flow.id, { sequence, counts });
    }),
  );
  for (const each of [...counted.keys()].slice(0, Math.max(0, counted.size - KEPT))) counted.delete(each);
  if (now.length < old.length) context.look();
}

function href(asked, changes) {
  const query = new URLSearchParams();
  const next = { ...asked, cursor: "", ...changes };
  for (const [name, value] of Object.entries(next)) if (value) query.set(name, value);
  const text = query.toString();
  return text ? `/console/flows?${text}` : "/console/flows";
}

function chips({ asked, flows }, overview) {
  const door = overview && overview.doors.find((each) => each.kind === "flow");
  const running = door ? sum(Object.values(door.running)) : 0;
  return html`<div class="filters"><div class="chips" role="group" aria-label="State">
    ${STATES.map(([state, shape]) => {
      const on = asked.state === state;
      const many = state === "running" && !asked.name ? html` <span class="n">${number(running)}</span>` : "";
      return html`<a class="chip s s-${look(shape)[1]}" href="${href(asked, { state: on ? "" : state })}" ${flag('aria-current="true"', on)}>${glyph(shape)}${state}${many}</a>`;
    })}
  </div>${flows.length ? fresh("flows-new") : ""}</div>`;
}

function table({ asked, flows, next }, overview) {
  if (!flows.length) return html`<section class="panel" aria-label="Flows">${nothing(asked, overview)}</section>`;
  return html`<section class="panel" aria-label="Flows">
    <table class="t cards freeze">
      ${columns("State", "Flow", "Name", "Steps", "Why it ended so", ["Took", "num"], ["Age", "num"])}
      <tbody data-list="flows-new">${flows.map(row)}</tbody>
    </table>
    <div class="panel-foot">
      <div class="hints"><span><kbd>j</kbd><kbd>k</kbd> move</span><span><kbd>Enter</kbd> open</span><span><kbd>c</kbd> copy id</span></div>
      <span class="end">${asked.cursor ? html`<a class="btn small" href="${href(asked, {})}">Newest</a>` : ""}
        ${next ? html`<a class="btn small" href="${href(asked, { cursor: next })}">Older</a>` : html`<span>${asked.cursor ? "The oldest there is" : `${number(flows.length)} in all`}</span>`}
      </span>
    </div>
  </section>`;
}

function row(flow) {
  const shape = shapeOfFlow(flow);
  const to = flowHref(flow.id);
  const { counts = {} } = counted.get(flow.id) || {};
  const why = FINAL.has(flow.state) ? flow.error || "" : "";
  const took = flow.finished_at ? (Date.parse(flow.finished_at) - Date.parse(flow.created_at)) / 1000 : since(flow.created_at);
  return html`<tr data-href="${to}" data-key="${flow.id}" tabindex="-1">
    <td class="c-main"><span class="state s s-${look(shape)[1]}">${glyph(shape, { pulse: shape === "working" })}<span class="lbl">${wordOfFlow(flow)}</span></span></td>
    <td class="c-hide">${id(flow.id, to)}</td>
    <td class="c-2a"><a class="name over" href="${to}">${flow.name}</a></td>
    <td class="c-full flow-how">${progress(counts)}<span class="nowrap dim">${number(endedOf(counts))} of ${number(total(counts))}</span></td>
    <td class="clip dim ${why ? "c-full" : "c-hide"}" title="${why}">${why}</td>
    <td class="num c-hide">${length(took)}</td>
    <td class="num c-side dim">${time(flow.created_at)}</td>
  </tr>`;
}

function nothing(asked, overview) {
  if (asked.state || asked.name || asked.cursor)
    return empty(
      "No flow is like that",
      html`Take a filter away, or look at <a class="link" href="/console/flows">all flows</a>.`,
    );
  const step = (name, more) => ({ name, door: "engine", body: { queue: "hello", payload: { step: name } }, ...more });
  return empty(
    "No flow yet",
    "Two jobs, of which the second waits for the first; jobs of all doors can be mixed.",
    curl(overview, "/engine/flows", { name: "hello", steps: [step("first"), step("second", { after: ["first"] })] }),
  );
}
