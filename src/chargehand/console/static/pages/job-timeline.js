// A job's timeline: lanes from top to bottom in the order of the states, attempts as braces above, webhooks as ticks below, on the same
// x axis. On a narrow screen the same stretches are a list. Positions are percentages: text never stretches.

import { html } from "../dom.js";
import { glyph, look } from "../parts.js";
import { clock, length } from "../words.js";
import { ticksOf } from "./job-phases.js";
import { topicWord } from "./job-words.js";

const TOP = 56; // room for the ticks and the braces
const LANE = 38;
const BAR = 22;
const NAMES = 108; // the column of the lanes' names
const CHAR = 6.1; // approximate width of a letter
const REACH = 96; // position of the end, with room for the text after it

const seconds = (stretch) => (stretch.to - stretch.from) / 1000;
const per = (value) => `${value.toFixed(2)}%`;
const lengthOf = (stretch) => length(seconds(stretch));

export function timeline(phases, deliveries, room) {
  const width = Math.max(300, room - NAMES);
  const plot = plotOf(phases, deliveries, width);
  return html`<div class="tl" data-key="tl">
      <ul class="tl-names" aria-hidden="true">
        <li class="h">from start</li>
        ${phases.lanes.map((each) => html`<li class="s s-${each.reached ? look(each.shape)[1] : "queued"}">${glyph(each.shape)}${each.word}</li>`)}
        ${deliveries.length ? html`<li class="dl dim">webhooks</li>` : ""}
      </ul>
      ${plot}
    </div>
    <ol class="phases" data-key="phases">${phases.stretches.map(phase)} ${phases.end ? lastPhase(phases) : ""}</ol>`;
}

// The time in each state, for the head of the panel.
export function totals(phases) {
  const sums = new Map();
  for (const each of phases.stretches) {
    const word =
      each.lane === "queued" || each.lane === "parked"
        ? "waiting"
        : (phases.lanes.find((lane) => lane.lane === each.lane) || each).word;
    sums.set(word, (sums.get(word) || 0) + seconds(each));
  }
  return [...sums].map(([word, sum]) => html`<span>${word} ${length(sum)}</span>`);
}

function plotOf(phases, deliveries, width) {
  const span = phases.to - phases.from;
  const reach = phases.live ? 88 : REACH;
  const x = (at) => ((at - phases.from) / span) * reach;
  const lanes = new Map(phases.lanes.map((each, n) => [each.lane, TOP + n * LANE]));
  const base = TOP + phases.lanes.length * LANE;
  const px = (at) => (x(at) / 100) * width;
  const scale = { x, px, width, lanes, base, now: phases.live ? px(phases.to) : null };
  const height = base + (deliveries.length ? 50 : 8);
  return html`<svg class="plot" height="${height}" role="img" aria-label="${spoken(phases)}">
    ${ticksOf((span * 100) / reach)
      .filter(([at]) => (at / span) * reach < 98)
      .map(([at, text]) => {
        const to = per((at / span) * reach);
        return html`<line class="vgrid" x1="${to}" x2="${to}" y1="18" y2="${base}" /><text class="tick" x="${to}" y="10" text-anchor="${at ? "middle" : "start"}">${text}</text>`;
      })}
    ${phases.lanes.map((each) => html`<line class="lane" x1="0" x2="100%" y1="${lanes.get(each.lane)}" y2="${lanes.get(each.lane)}" />`)}
    <line class="sep" x1="0" x2="100%" y1="${base}" y2="${base}" />
    ${drops(phases, scale)} ${bars(phases, scale)} ${ending(phases, scale)} ${braces(phases, scale)}
    ${phases.live ? nowLine(phases, scale) : ""} ${deliveries.length ? hooks(deliveries, phases, scale) : ""}
  </svg>`;
}

// The connections between stretches.
function drops({ stretches, end }, { x, lanes }) {
  const lines = [];
  for (let n = 0; n < stretches.length; n++) {
    const next = stretches[n + 1] ? stretches[n + 1].lane : end ? "end" : null;
    if (!next || next === stretches[n].lane || !lanes.has(next)) continue;
    const [a, b] = [lanes.get(stretches[n].lane), lanes.get(next)].sort((p, q) => p - q);
    lines.push(
      html`<line class="drop" x1="${per(x(stretches[n].to))}" x2="${per(x(stretches[n].to))}" y1="${a + 8 + BAR}" y2="${b + 8}" />`,
    );
  }
  return lines;
}

const TONES = { queued: "queued", parked: "parked", loading: "loading" };

function bars({ stretches }, scale) {
  return stretches.map((stretch, n) => {
    const { x, lanes } = scale;
    const y = lanes.get(stretch.lane) + 8;
    const tone = stretch.broke ? "failed" : stretch.backoff ? "retry" : TONES[stretch.lane] || "working";
    const wide = Math.max(0.2, x(stretch.to) - x(stretch.from));
    const next = stretches.slice(n + 1).find((each) => each.lane === stretch.lane);
    const last = stretches
      .slice(0, n)
      .reverse()
      .find((each) => each.lane === stretch.lane);
    return html`<g class="seg-g"><title>${titleOf(stretch)}</title>
        <rect class="b b-${tone}" x="${per(x(stretch.from))}" y="${y}" width="${per(wide)}" height="${BAR}" />
        ${label(stretch, tone, y, scale, last, next)}
      </g>
      ${stretch.broke ? html`<svg x="${per(x(stretch.to))}" y="${y - 8}" overflow="visible"><use class="s s-failed g" href="#g-failed" x="-8" y="11" width="16" height="16" /></svg>` : ""}`;
  });
}

// The label: inside if it fits, else to the right, else to the left, else omitted; the title has it in any case.
function label(stretch, tone, y, { x, px, width, now }, last, next) {
  const texts = wordings(stretch);
  const room = px(stretch.to) - px(stretch.from);
  const inside = texts.find((text) => text.length * CHAR + (stretch.broke ? 30 : 20) <= room);
  if (inside && (tone === "working" || tone === "failed")) {
    return html`<svg x="${per(x(stretch.from))}" y="${y}" overflow="visible"><text class="${tone === "failed" ? "out bad" : "in"}" x="9" y="15">${inside}</text></svg>`;
  }
  if (inside) {
    const half = (inside.length * CHAR) / 2 + 6;
    const plate =
      tone === "parked" || tone === "loading"
        ? html`<rect class="plate" x="${-half}" y="1" width="${half * 2}" height="20" />`
        : "";
    return html`<svg x="${per((x(stretch.from) + x(stretch.to)) / 2)}" y="${y}" overflow="visible">${plate}<text class="in-warn" x="0" y="15" text-anchor="middle">${inside}</text></svg>`;
  }
  const gap = stretch.broke ? 14 : 8;
  const edge = next ? px(next.from) : now !== null && px(stretch.to) < now ? now : width;
  const beside = texts.find((text) => text.length * CHAR + gap <= edge - px(stretch.to));
  const before = beside
    ? ""
    : texts.find((text) => text.length * CHAR + 8 <= px(stretch.from) - (last ? px(last.to) + 60 : 0));
  if (!beside && !before) return "";
  const ink = `out${tone === "failed" ? " bad" : ""}`;
  return beside
    ? html`<svg x="${per(x(stretch.to))}" y="${y}" overflow="visible"><text class="${ink}" x="${gap}" y="15">${beside}</text></svg>`
    : html`<svg x="${per(x(stretch.from))}" y="${y}" overflow="visible"><text class="${ink}" x="-8" y="15" text-anchor="end">${before}</text></svg>`;
}

// Variants of the text, from the longest to the shortest.
function wordings(stretch) {
  const time = `${lengthOf(stretch)}${stretch.live ? " so far" : ""}`;
  if (stretch.backoff) return [`back-off ${time}`, time];
  const why = stretch.broke
    ? stretch.failure || brief(stretch.error)
    : stretch.lane === "parked"
      ? brief((stretch.note || "").replace(/^parked: /, ""))
      : "";
  return why ? [`${time} · ${why}`, time] : [time];
}

function brief(text) {
  const line = (text || "").split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 58)}…` : line;
}

function titleOf(stretch) {
  const what = stretch.backoff ? "back-off" : stretch.lane;
  const attempt = stretch.attempt && stretch.attempt.number ? `, attempt ${stretch.attempt.number}` : "";
  const why = stretch.broke ? `: ${stretch.error}` : stretch.note ? `: ${stretch.note}` : "";
  return `${what}${attempt}, ${lengthOf(stretch)}${stretch.live ? " so far" : ""}${why}`;
}

function ending(phases, { x, px, lanes }) {
  if (!phases.end) return "";
  const y = lanes.get("end");
  const shape = phases.lanes[phases.lanes.length - 1].shape;
  const text = `${phases.end.word} after ${length((phases.end.at - phases.from) / 1000)}`;
  const left = px(phases.end.at) > text.length * CHAR + 20;
  return html`<svg x="${per(x(phases.end.at))}" y="${y}" overflow="visible">
    <use class="s s-${look(shape)[1]} g" href="#g-${look(shape)[0]}" x="-8" y="11" width="16" height="16" />
    <text class="out" x="${left ? -16 : 16}" y="23" text-anchor="${left ? "end" : "start"}">${text}</text></svg>`;
}

function braces({ attempts }, { x, px, width, now }) {
  return attempts.map((attempt, n) => {
    const [from, to] = [per(x(attempt.from)), per(x(attempt.to))];
    const text = attempt.outcome === "park" ? "not counted" : `attempt ${attempt.number}`;
    const wide = text.length * CHAR + 8;
    const right = (attempts[n + 1] ? px(attempts[n + 1].from) : now === null ? width : now) - px(attempt.from) > wide;
    const left = !right && px(attempt.from) - (n ? px(attempts[n - 1].to) : 0) > wide;
    return html`<line class="brace${attempt.outcome === "park" ? " dash" : ""}" x1="${from}" x2="${to}" y1="42.5" y2="42.5" />
      <line class="brace" x1="${from}" x2="${from}" y1="39" y2="46" /><line class="brace" x1="${to}" x2="${to}" y1="39" y2="46" />
      ${right || left ? html`<svg x="${from}" y="27" overflow="visible"><text class="brace-t" x="${right ? 4 : -6}" y="${right ? 9 : 19}" text-anchor="${right ? "start" : "end"}">${text}</text></svg>` : ""}`;
  });
}

function nowLine(phases, { x, base }) {
  const at = per(x(phases.to));
  return html`<line class="now" x1="${at}" x2="${at}" y1="26" y2="${base}" /><svg x="${at}" y="28" overflow="visible"><text class="now-t" x="6" y="9">now</text></svg>`;
}

// Webhooks ------------------------------------------------------------------------------------------------------------------

const HOOKS = { delivered: "done", dead: "dead", pending: "queued" };

// A tick at the end of a delivery, or at its creation if it is still due. Overlapping ticks are merged into the worst of them.
function hooks(deliveries, phases, { x, px, width, base }) {
  const at = (each) =>
    Math.min(
      phases.to,
      Math.max(phases.from, Date.parse(each.state === "pending" ? each.created_at : each.updated_at)),
    );
  const groups = [];
  for (const each of [...deliveries].sort((a, b) => at(a) - at(b))) {
    const last = groups[groups.length - 1];
    if (last && px(at(each)) - px(last.at) < 14) last.of.push(each);
    else groups.push({ at: at(each), of: [each] });
  }
  return groups.map((group, n) => {
    const worst =
      group.of.find((each) => each.state === "dead") ||
      group.of.find((each) => each.state === "pending") ||
      group.of[0];
    const shape = HOOKS[worst.state];
    const last = !groups[n + 1];
    const room = last ? Infinity : px(groups[n + 1].at) - px(group.at);
    const text = [group.of.map(toldOf).join(", "), toldOf(group.of[0])].find((each) => each.length * CHAR + 10 <= room);
    const back = last && text && px(group.at) + text.length * CHAR > width; // it would not fit
    return html`<svg x="${per(x(group.at))}" y="${base}" overflow="visible">
      <g class="s s-${look(shape)[1]}"><title>${group.of.map(hookTitle).join("; ")}</title>
        <line class="drop" x1="0" x2="0" y1="0" y2="10" /><use class="g" href="#g-${look(shape)[0]}" x="-6" y="10" width="12" height="12" /></g>
      ${text ? html`<text class="out dim" x="${back ? 6 : -6}" y="36" text-anchor="${back ? "end" : "start"}">${text}</text>` : ""}</svg>`;
  });
}

export function toldOf(delivery) {
  return delivery.topic ? topicWord(delivery.kind, delivery.topic) : `event ${delivery.sequence}`;
}

function hookTitle(delivery) {
  const how = delivery.status
    ? `${delivery.status} in ${length(delivery.duration_seconds)}`
    : delivery.reason || delivery.state;
  return `${toldOf(delivery)}: ${how}`;
}

// in words ------------------------------------------------------------------------------------------------------------------

function spoken(phases) {
  const said = phases.stretches.map((each) => {
    const attempt = each.attempt && each.lane !== "queued" ? ` in attempt ${each.attempt.number}` : "";
    return `${each.backoff ? "back-off" : each.lane} ${lengthOf(each)}${attempt}${each.live ? " so far" : ""}${each.broke ? `, then ${brief(each.error)}` : ""}`;
  });
  const end = phases.end ? `${phases.end.word} after ${length((phases.end.at - phases.from) / 1000)}` : "";
  const text = [...said, end].filter(Boolean).join(", ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function phase(stretch) {
  const shape = stretch.broke ? "failed" : TONES[stretch.lane] || "working";
  const attempt = stretch.attempt && stretch.lane !== "queued" ? `attempt ${stretch.attempt.number}` : "";
  const why = stretch.broke ? stretch.error : stretch.note;
  return html`<li class="s s-${look(shape)[1]}">${glyph(shape)}<b>${stretch.backoff ? "back-off" : stretch.lane}</b><span class="d">${lengthOf(stretch)}</span>
    <small>${[clock(stretch.from), attempt, stretch.live ? "so far" : "", why].filter(Boolean).join(" · ")}</small></li>`;
}

function lastPhase(phases) {
  const { shape } = phases.lanes[phases.lanes.length - 1];
  return html`<li class="s s-${look(shape)[1]}">${glyph(shape)}<b>${phases.end.word}</b><span class="d">${length((phases.end.at - phases.from) / 1000)}</span>
    <small>${[clock(phases.end.at), phases.end.error].filter(Boolean).join(" · ")}</small></li>`;
}
