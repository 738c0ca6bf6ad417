// Where the boxes and edges of a drawn flow are. Computed once for a flow: states do not move anything. Pure.
//
// An edge over several layers goes through the layers between in a lane of its own, so that it crosses no box; edges from the same step for
// the same reason share their lane. Steps are ordered in their layer by the middle of what they are connected with.

import { sum } from "../words.js";

export const HEIGHT = 66; // of a box
const LANE = 10; // the height of an edge that passes a layer
const BETWEEN = 14; // two boxes of a layer
const GAP = 48; // two layers
const SWEEPS = 4;
const PORTS = { succeeded: 0, failed: 14, finished: -14 }; // each kind of edge has its place at a box

const MAX_STEPS = 200;
const MAX_LAYERS = 60;
const MAX_ABREAST = 40; // in one layer
const MAX_LINKS = 1500;

export function canDraw(graph) {
  if (graph.layer.length > MAX_STEPS || graph.layers.length > MAX_LAYERS) return false;
  if (Math.max(...graph.layers.map((layer) => layer.length)) > MAX_ABREAST) return false;
  return sum(graph.parents, (edges) => edges.length) <= MAX_LINKS && columnsOf(graph).links.length <= MAX_LINKS;
}

// -> { width, height, boxes, lines }. A box is { step, x, y } by its top left corner, a line is { from, on, d, head }.
export function layoutOf(graph, wide) {
  const { columns, links } = columnsOf(graph);
  order(columns);
  place(columns);
  const nodes = columns.flat();
  const top = Math.min(...nodes.map((node) => node.y - tall(node) / 2));
  for (const node of nodes) Object.assign(node, { x: node.layer * (wide + GAP), y: Math.round(node.y - top) });
  return {
    width: columns.length * (wide + GAP) - GAP,
    height: Math.max(...nodes.map((node) => node.y + tall(node) / 2)),
    boxes: nodes.filter((node) => node.step !== null).map(({ step, x, y }) => ({ step, x, y: y - HEIGHT / 2 })),
    lines: links.map((link) => lineOf(link, wide)),
  };
}

const tall = (node) => (node.step === null ? LANE : HEIGHT);

function columnsOf({ parents, layer, layers }) {
  const node = (at, step) => ({ layer: at, step, ins: [], outs: [], y: 0 });
  const boxes = layer.map((at, number) => node(at, number));
  const columns = layers.map((numbers) => numbers.map((number) => boxes[number]));
  const links = [];
  const lanes = new Map();
  const connect = (from, to, on, source) => {
    from.outs.push(to);
    to.ins.push(from);
    links.push({ from, to, on, source });
  };
  parents.forEach((edges, number) => {
    for (const { step, on } of edges) {
      let last = boxes[step];
      for (let at = layer[step] + 1; at < layer[number]; at++) {
        const key = `${step} ${on} ${at}`;
        if (!lanes.has(key)) {
          lanes.set(key, node(at, null));
          columns[at].push(lanes.get(key));
          connect(last, lanes.get(key), on, step);
        }
        last = lanes.get(key);
      }
      connect(last, boxes[number], on, step);
    }
  });
  return { columns, links };
}

function order(columns) {
  const number = (column) => column.forEach((node, at) => (node.at = at));
  const sort = (column, side) => {
    const middle = (node) => (node[side].length ? sum(node[side], (each) => each.at) / node[side].length : node.at);
    const wanted = new Map(column.map((node) => [node, middle(node)]));
    column.sort((a, b) => wanted.get(a) - wanted.get(b) || a.at - b.at);
    number(column);
  };
  columns.forEach(number);
  for (let n = 0; n < SWEEPS; n++) {
    for (const column of columns) sort(column, "ins");
    if (n < SWEEPS - 1) for (const column of [...columns].reverse()) sort(column, "outs");
  }
}

// The middle of each node near the middle of its neighbours, without overlap.
function place(columns) {
  for (const column of columns) settle(column, column.map(() => 0));
  for (let n = 0; n < SWEEPS; n++) {
    for (const [side, list] of [["ins", columns], ["outs", [...columns].reverse()]]) {
      for (const column of list) {
        const middle = (node) => (node[side].length ? sum(node[side], (each) => each.y) / node[side].length : node.y);
        settle(column, column.map(middle));
      }
    }
  }
}

// Halfway between pushing all down from above and all up from below: both keep the distances, so the middle does too.
function settle(column, wanted) {
  const apart = (a, b) => (tall(a) + tall(b)) / 2 + BETWEEN;
  const down = [];
  column.forEach((node, n) => (down[n] = n ? Math.max(wanted[n], down[n - 1] + apart(column[n - 1], node)) : wanted[n]));
  const up = [];
  for (let n = column.length - 1; n >= 0; n--)
    up[n] = n < column.length - 1 ? Math.min(wanted[n], up[n + 1] - apart(column[n], column[n + 1])) : wanted[n];
  column.forEach((node, n) => (node.y = (down[n] + up[n]) / 2));
}

function lineOf({ from, to, on, source }, wide) {
  const port = (node) => node.y + (node.step === null ? 0 : PORTS[on]);
  const [x1, y1, x2, y2] = [from.x + wide, port(from), to.x, port(to)];
  const half = GAP / 2;
  const curve = `M${x1} ${y1}C${x1 + half} ${y1} ${x2 - half} ${y2} ${x2} ${y2}`;
  const ends = to.step !== null;
  return {
    from: source,
    on,
    d: ends ? curve : `${curve}H${x2 + wide}`,
    head: ends ? `M${x2 - 7} ${y2 - 4}L${x2} ${y2}L${x2 - 7} ${y2 + 4}z` : "",
  };
}
