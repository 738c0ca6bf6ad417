// The graph of a flow in layers: a step is one layer after the last of those that it comes after. Pure.

// -> { parents, children, layer, layers }: by step number, and the numbers in each layer. Edges go from earlier to later layers, and the
// server has refused circles.
export function graphOf(steps) {
  const parents = steps.map((step) => step.after);
  const children = steps.map(() => []);
  const open = parents.map((edges) => edges.length);
  parents.forEach((edges, number) => edges.forEach((edge) => children[edge.step].push({ step: number, on: edge.on })));
  const layer = steps.map(() => 0);
  const ready = steps.map((_, number) => number).filter((number) => !open[number]);
  for (let at = 0; at < ready.length; at++) {
    const number = ready[at];
    for (const { step } of children[number]) {
      layer[step] = Math.max(layer[step], layer[number] + 1);
      open[step] -= 1;
      if (!open[step]) ready.push(step);
    }
  }
  const layers = [];
  layer.forEach((at, number) => (layers[at] = layers[at] || []).push(number));
  return { parents, children, layer, layers };
}

// The numbers of all steps that come after this one, directly or not.
export function allAfter({ children }, number) {
  const found = new Set();
  const left = [number];
  while (left.length) {
    for (const { step } of children[left.pop()]) {
      if (found.has(step)) continue;
      found.add(step);
      left.push(step);
    }
  }
  return found;
}

// How many of these steps are in each state.
export function countsOf(steps, numbers) {
  const counts = {};
  for (const number of numbers) counts[steps[number].state] = (counts[steps[number].state] || 0) + 1;
  return counts;
}
