// The log of a job of any door. Events never change, so only new ones are fetched; of a very long log only the newest are kept.

import { get } from "./api.js";

const KEPT = 5000;

let log = { path: "", events: [] };

// `newest` is the job's last sequence number, if known: nothing comes after it, and events too old to be kept are not fetched.
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
