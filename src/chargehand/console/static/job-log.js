// The log of a job, at whichever door it is read. Events never change, so only those that are new are read; of a very long log its
// newest are kept.

import { get } from "./api.js";

const KEPT = 5000;

let log = { path: "", events: [] };

// `newest` is the sequence of the job, where that is known: there is nothing after it, and what is too old to be kept is not read.
export async function readLog(path, newest) {
  if (log.path !== path) log = { path, events: [] };
  const mine = log;
  const from = newest === undefined ? 0 : Math.max(0, newest - KEPT);
  const last = () => (mine.events.length ? mine.events[mine.events.length - 1].sequence : from);
  while (newest === undefined || last() < newest) {
    const { events } = await get(`${path}?after=${last()}`);
    mine.events.push(...events.filter((event) => event.sequence > last()));
    mine.events.splice(0, mine.events.length - KEPT);
    if (!events.length) break; // a page may be short because its events are long
  }
  return mine.events.slice();
}
