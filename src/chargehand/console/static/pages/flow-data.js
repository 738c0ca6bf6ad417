// Reads a flow of up to 10,000 steps. What never changes, names and edges, is kept; states are read anew, a few pages of steps at a time,
// so that neither the server nor the browser has to hold its breath.

import { get } from "../api.js";
import { graphOf } from "./flow-graph.js";
import { canDraw } from "./flow-layout.js";
import { hasEnded, total } from "./flow-words.js";
import { FINAL } from "./job-words.js";

const PAGE = 500; // as many steps as the server gives at once
const AT_ONCE = 5; // pages for each look at the flow

let kept = null; // the flow that was read last

class Kept {
  constructor(id) {
    this.id = id;
    this.flow = null;
    this.steps = []; // by number; with holes until all pages were read
    this.version = 0; // grows when the flow has moved
    this.again = 0; // the version at which it was last started again
    this.readAt = []; // the version of each page of steps
    this.graph = null;
    this.drawable = false;
  }

  async read(page, limit = PAGE) {
    const flow = await get(`/engine/flows/${encodeURIComponent(this.id)}?first=${page * PAGE}&limit=${limit}`);
    this.note({ ...flow, steps: null });
    for (const step of flow.steps) this.steps[step.number] = step;
    if (limit === PAGE) this.readAt[page] = this.version;
  }

  note(flow) {
    const before = this.flow;
    this.flow = flow;
    if (before && said(before) === said(flow)) return;
    this.version += 1;
    // Steps that have ended change only if the flow is started again; it may even have ended again since.
    if (before && (FINAL.has(before.state) || !this.pages().some((page) => !this.settled(page)))) this.again = this.version;
  }

  pages() {
    return Array.from({ length: Math.ceil(total(this.flow.counts) / PAGE) }, (_, page) => page);
  }

  settled(page) {
    const steps = this.steps.slice(page * PAGE, (page + 1) * PAGE);
    return this.readAt[page] !== undefined && steps.every(hasEnded);
  }

  // Pages to read, those first that were not read for the longest time.
  stale() {
    const age = (page) => this.readAt[page] ?? -1;
    const old = (page) => age(page) < this.again || (age(page) < this.version && !this.settled(page));
    return this.pages()
      .filter(old)
      .sort((a, b) => age(a) - age(b));
  }
}

function said(flow) {
  return JSON.stringify([flow.sequence, flow.state, flow.stage, flow.counts]);
}

// -> { flow, steps, graph, drawable, read, behind }. `shown` are the numbers of the steps on the display, which are read at every look. The graph is
// null until all steps are known; `read` says how many are. `behind`: there is more to read, at the next look.
export async function readFlow(id, shown) {
  if (!kept || kept.id !== id) kept = new Kept(id);
  const mine = kept;
  const wanted = [...new Set(shown.map((number) => Math.floor(number / PAGE)))]
    .filter((page) => !mine.settled(page))
    .slice(0, AT_ONCE / 2); // the other pages have their turn too
  const done = [mine.flow ? wanted[0] : 0];
  await (done[0] === undefined ? mine.read(0, 1) : mine.read(done[0]));
  const rest = [...new Set([...wanted, ...mine.stale()])].filter((page) => !done.includes(page));
  for (const page of rest.slice(0, AT_ONCE - 1)) await mine.read(page);
  const { flow, steps } = mine;
  const read = steps.reduce((count) => count + 1, 0); // holes are not counted
  if (!mine.graph && read === total(flow.counts)) {
    mine.graph = graphOf(steps);
    mine.drawable = canDraw(mine.graph);
  }
  return { flow, steps, graph: mine.graph, drawable: mine.drawable, read, behind: mine.stale().length > 0 };
}
