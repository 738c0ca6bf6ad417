// The availability of a target as a strip: of the last day, or since the server's start.

import { html } from "./dom.js";
import { clock, now, plural, sum } from "./words.js";

const HOUR = 3600000;
const SPANS = [1, 3, 6, 12, 24];

// [{ from, to, up }] in milliseconds, the last one until now
function spells(seen) {
  return seen.map((change, n) => ({
    from: Date.parse(change.at),
    to: n + 1 < seen.length ? Date.parse(seen[n + 1].at) : now(),
    up: change.state === "up",
  }));
}

export function presenceOf(target) {
  const all = spells(target.seen);
  if (!all.length) return null;
  const hours = SPANS.find((span) => now() - all[0].from <= span * HOUR) || 24;
  const begin = now() - hours * HOUR;
  const shown = all
    .filter((spell) => spell.to > begin)
    .map((spell) => ({ ...spell, from: Math.max(spell.from, begin) }));
  const known = sum(shown, (spell) => spell.to - spell.from);
  const here = sum(shown, (spell) => (spell.up ? spell.to - spell.from : 0));
  return { hours, begin, shown, share: known ? here / known : 0, times: shown.filter((spell) => spell.up).length };
}

export function presence(target) {
  const seen = presenceOf(target);
  if (!seen) return "";
  const { hours, begin, shown, share, times } = seen;
  const x = (at) => `${(((at - begin) / (hours * HOUR)) * 100).toFixed(2)}%`;
  const wide = (spell) => `${(((spell.to - spell.from) / (hours * HOUR)) * 100).toFixed(2)}%`;
  const label = `${target.name} was here ${Math.round(share * 100)} per cent of what was seen of the last ${plural(hours, "hour")}, in ${plural(times, "spell")}`;
  return html`<div>
    <svg class="presence" role="img" aria-label="${label}">
      <rect class="unseen" width="100%" height="100%" rx="3" />
      ${shown.map((spell) => html`<rect class="${spell.up ? "on" : "off"}" x="${x(spell.from)}" width="${wide(spell)}" y="0" height="100%" />`)}
    </svg>
    <div class="axis"><span>${clock(begin).slice(0, 5)}</span><span>green: here, grey: away</span><span>now</span></div>
  </div>`;
}
