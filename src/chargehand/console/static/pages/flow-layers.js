// A flow that is too large to be drawn: its layers, with how many steps of each are in which state.

import { html } from "../dom.js";
import { columns, panel } from "../parts.js";
import { number, percent, plural } from "../words.js";
import { countsOf } from "./flow-graph.js";
import { STEP_STATES, endedOf, told, total } from "./flow-words.js";

const ROWS = 40; // at most; more layers share a row

export function layersPanel({ flow, steps, graph, read }) {
  const all = total(flow.counts);
  if (!graph)
    return panel({
      id: "layers",
      title: "Layers",
      sub: "too large to draw",
      body: html`<div class="panel-body"><p class="why-line" role="status">Reading the steps: ${number(read)} of ${number(all)}.</p></div>`,
    });
  const each = Math.ceil(graph.layers.length / ROWS);
  const rows = [];
  for (let from = 0; from < graph.layers.length; from += each) rows.push([from, graph.layers.slice(from, from + each).flat()]);
  const last = graph.layers.length;
  return panel({
    id: "layers",
    title: "Layers",
    sub: `${plural(all, "step")} in ${plural(last, "layer")}: too large to draw`,
    body: html`<table class="t cards tiles freeze">
      ${columns("Layer", ["Steps", "num"], "Progress", ...STEP_STATES.map(([state]) => [state, "num"]))}
      <tbody>${rows.map(([from, numbers]) => row(from, Math.min(from + each, last), countsOf(steps, numbers)))}</tbody>
    </table>`,
  });
}

function row(from, to, counts) {
  return html`<tr data-key="layer-${from}">
    <td class="c-main nowrap">${to - from > 1 ? `Layers ${number(from + 1)} to ${number(to)}` : `Layer ${number(from + 1)}`}</td>
    <td class="num" data-l="Steps">${number(total(counts))}</td>
    <td class="w6 flow-bar" data-l="Progress">${progress(counts)}</td>
    ${STEP_STATES.map(([state]) => html`<td class="num${counts[state] ? "" : " c-hide"}" data-l="${state}">${counts[state] ? number(counts[state]) : html`<span class="zero">0</span>`}</td>`)}
  </tr>`;
}

const BAR = ["succeeded", "failed", "cancelled", "skipped", "running"];

// A thin bar: what has ended and what runs; the rest is to come.
export function progress(counts) {
  const all = total(counts);
  let x = 0;
  const parts = BAR.filter((state) => counts[state]).map((state) => {
    const wide = (counts[state] / all) * 100;
    x += wide;
    return html`<rect class="fp-${state}" x="${(x - wide).toFixed(2)}%" width="${wide.toFixed(2)}%" height="100%" />`;
  });
  const spoken = all ? `${percent(endedOf(counts) / all)} ended: ${told(counts)}` : "no steps";
  return html`<svg class="bar" role="img" aria-label="${spoken}">${parts}</svg>`;
}
