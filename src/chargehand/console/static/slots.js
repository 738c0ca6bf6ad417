// The models in a target's memory: one box for each slot.

import { html } from "./dom.js";
import { bar, glyph, look } from "./parts.js";
import { bytes, plural } from "./words.js";

// `act(model)` returns the actions for a resident model, if the page offers any.
export function slotsOf(target, act = () => "") {
  if (target.state !== "up") return Array.from({ length: target.slots }, (_, n) => unknown(n));
  const loading = target.loading.filter((model) => !target.resident.some((each) => each.model === model));
  const boxes = [
    ...target.resident.map((each) => resident(target, each, act)),
    ...loading.map((model) => coming(target, model)),
  ];
  while (boxes.length < target.slots) boxes.push(free());
  return boxes;
}

function box(key, kind, as, name, end, lines, pulse) {
  return html`<div class="slot${kind ? ` ${kind}` : ""}" data-key="${key}">
    <div class="m s s-${look(as)[1]}">${glyph(as, { pulse })}<b title="${name}">${name.replace(/:latest$/, "")}</b><span class="end">${end}</span></div>
    ${lines}
  </div>`;
}

function resident(target, each, act) {
  const busy = each.in_flight > 0;
  const what = busy ? `${plural(each.in_flight, "request")}, ${target.parallel} at once at most` : "resident, idle";
  const requests = busy
    ? bar(each.in_flight / target.parallel, `${each.in_flight} of ${target.parallel} requests`)
    : "";
  const sub = each.closing ? `takes no new work: ${each.closing}` : what;
  const lines = html`${requests}<div class="sub" title="${sub}">${sub}</div>${act(each)}`;
  return box(
    `${target.name}/${each.model}`,
    "",
    busy ? "working" : "queued",
    each.model,
    each.size ? bytes(each.size) : "",
    lines,
    busy,
  );
}

function coming(target, model) {
  return box(`${target.name}/${model}`, "", "loading", model, "", html`<div class="sub">loading</div>`);
}

function free() {
  return box("", "free", "off", "free", "", html`<div class="sub">takes any model that fits</div>`);
}

function unknown(n) {
  return box("", "ghost", "away", `slot ${n + 1}`, "", html`<div class="sub">not known while it is away</div>`);
}
