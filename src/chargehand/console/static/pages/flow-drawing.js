// The drawing of a flow: a box for each step, a link to its job, and the edges between them. On a narrow screen the list of steps takes its place.

import { html } from "../dom.js";
import { jobHref, look, panel } from "../parts.js";
import { plural } from "../words.js";
import { doorOf, shapeOfStep, told, whereIsStep } from "./flow-words.js";
import { HEIGHT, layoutOf } from "./flow-layout.js";

const MONO = 7.3; // approximate widths of letters
const SANS = 5.9;
const MARGIN = 3; // for the focus ring

const layouts = new WeakMap(); // by graph: a flow's never changes

function layout(graph, steps) {
  if (!layouts.has(graph)) {
    const longest = Math.max(...steps.map((step) => step.name.length));
    const wide = Math.round(Math.max(160, Math.min(248, longest * MONO + 48)));
    layouts.set(graph, { ...layoutOf(graph, wide), wide });
  }
  return layouts.get(graph);
}

export function drawing({ flow, steps, graph }) {
  const { wide, width, height, boxes, lines } = layout(graph, steps);
  const kinds = new Set(lines.map((line) => line.on));
  return html`<div class="flow-drawn">${panel({
    id: "drawing",
    title: "Drawing",
    sub: `${plural(steps.length, "step")} in ${plural(graph.layers.length, "layer")}`,
    end: html`<span class="flow-legend">${LEGEND.filter(([on]) => kinds.has(on) || on === "succeeded").map(legend)}</span>`,
    body: html`<div class="flow-scroll">
      <svg class="flow-graph freeze" data-graph width="${width + 2 * MARGIN}" height="${height + 2 * MARGIN}" role="group" aria-label="${spoken(flow, steps, graph)}">
        <g transform="translate(${MARGIN} ${MARGIN})">
          <g aria-hidden="true">${lines.map((line) => html`<path class="fe fe-${line.on}" d="${line.d}" />`)}
            ${lines.map((line) => (line.head ? html`<path class="fh fh-${line.on}" d="${line.head}" />` : ""))}</g>
          ${boxes.map((box, n) => boxOf(box, steps, wide, n === 0))}
        </g>
      </svg>
    </div>`,
  })}</div>`;
}

const LEGEND = [
  ["succeeded", "if it succeeded"],
  ["failed", "if it failed"],
  ["finished", "however it ended"],
];

function legend([on, text]) {
  return html`<span><svg width="26" height="8" aria-hidden="true"><path class="fe fe-${on}" d="M1 4H25" /></svg>${text}</span>`;
}

function cut(text, room, letter) {
  const most = Math.floor(room / letter);
  return text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text;
}

// Only the first box is in the order of the Tab key: the arrow keys go from box to box.
function boxOf({ step: number, x, y }, steps, wide, first) {
  const step = steps[number];
  const shape = shapeOfStep(step);
  const door = doorOf(step.door).name;
  const where = whereIsStep(step, steps);
  const room = wide - 42; // what is wider is clipped
  const all = [step.name, step.state, door, where].filter(Boolean).join(", ");
  return html`<a class="fb s s-${look(shape)[1]} fb-${step.state}" data-key="fb-${number}" data-box="${number}" href="${jobHref(step.job_id)}" tabindex="${first ? 0 : -1}" aria-label="${all}">
    <title>${all}</title>
    <rect class="fb-r" x="${x + 0.5}" y="${y + 0.5}" width="${wide - 1}" height="${HEIGHT - 1}" rx="6" />
    <use class="g${step.state === "running" ? " pulse" : ""}" href="#g-${shape}" x="${x + 12}" y="${y + 10}" width="12" height="12" />
    <svg x="${x + 32}" y="${y}" width="${room}" height="${HEIGHT}">
      <text class="fb-n" y="20">${cut(step.name, room, MONO)}</text>
      <text class="fb-s" y="38">${step.state}</text>
      <text class="fb-d" x="${room - 2}" y="38" text-anchor="end">${door}</text>
      <text class="fb-d" y="55">${cut(where.replace(/^waits /, ""), room, SANS)}</text>
    </svg>
  </a>`;
}

function spoken(flow, steps, graph) {
  return `Drawing of ${plural(steps.length, "step")} in ${plural(graph.layers.length, "layer")}: ${told(flow.counts)}. The arrow keys go from step to step; all are listed below.`;
}

// Arrow keys: to the right and the left along the edges, up and down within the layer.
export function walk(event, { graph, steps }) {
  const box = event.target.closest && event.target.closest("[data-box]");
  if (!box || !graph || event.metaKey || event.ctrlKey || event.altKey) return;
  const number = Number(box.dataset.box);
  const { boxes } = layout(graph, steps);
  const layer = boxes.filter((each) => graph.layer[each.step] === graph.layer[number]).sort((a, b) => a.y - b.y);
  const at = layer.findIndex((each) => each.step === number);
  const next = {
    ArrowRight: () => (graph.children[number][0] || {}).step,
    ArrowLeft: () => (graph.parents[number][0] || {}).step,
    ArrowDown: () => (layer[at + 1] || {}).step,
    ArrowUp: () => (layer[at - 1] || {}).step,
  }[event.key];
  if (!next) return;
  event.preventDefault();
  const to = document.querySelector(`[data-box="${next()}"]`);
  if (!to) return;
  to.focus({ preventScroll: true });
  to.scrollIntoView({ block: "nearest", inline: "nearest" });
}
