// One delivery: its event, its tries, the answers, and the body that was sent.

import { html } from "../dom.js";
import { copy, glyph, jobHref, pill, time } from "../parts.js";
import { bytes, clock, length, number, plural, since } from "../words.js";
import { breaker, heldBack } from "./deliveries-endpoints.js";
import { askReplay } from "./job-aside.js";
import { jsonFold } from "./job-json.js";
import { topicWord } from "./job-words.js";

const SHOWN = 12;

export function onePanel({ one, body, endpoints }) {
  const endpoint = endpoints.find((each) => each.id === one.endpoint_id);
  const held = one.state === "pending" && endpoint && heldBack(endpoint);
  return html`<section class="panel" aria-labelledby="h-open" id="p-open">
    <div class="panel-head">
      <h2 id="h-open">${topicWord(one.kind, one.topic)}</h2>
      ${held ? pill("held", { as: "held" }) : pill(one.state)}
      <div class="end">${replay(one)}</div>
    </div>
    <div class="panel-body">${facts(one, endpoint, held)}</div>
    <div class="pad pad-0">
      <div class="sec-h sec-in">Attempts</div>
      ${ladder(one)}
    </div>
    ${answered(one)}
    ${body ? jsonFold("body", "Body", body) : ""}
  </section>`;
}

function replay(one) {
  if (one.state === "pending")
    return html`<button class="btn small" type="button" disabled title="It is still pending, and will be sent without your help">Replay</button>`;
  return html`<button class="btn small primary" type="button" data-act="POST /engine/deliveries/${one.id}/replay" ${askReplay(one)} data-done="Due again"><svg class="icon" aria-hidden="true"><use href="#i-retry" /></svg>Replay</button>`;
}

function facts(one, endpoint, held) {
  return html`<dl class="kv">
    <dt>Delivery</dt>
    <dd><span class="id">${one.id}${copy(one.id, "Copy the delivery's id")}</span></dd>
    <dt>Endpoint</dt>
    <dd><a class="link" href="/console/deliveries?endpoint=${one.endpoint_id}">${one.url}</a></dd>
    ${endpoint && (heldBack(endpoint) || endpoint.breaker !== "closed") ? html`<dt>${endpoint.state === "active" ? "Breaker" : "It is"}</dt><dd>${breaker(endpoint)}</dd>` : ""}
    <dt>From</dt>
    <dd><a class="link" href="${jobHref(one.job_id)}">${one.queue || one.job_id}</a>, sequence ${number(one.sequence)}</dd>
    <dt>Signed as</dt>
    <dd>${one.dialect}</dd>
    ${end(one, held)}
  </dl>`;
}

function end(one, held) {
  const tries = plural(one.tries, "attempt");
  const first = one.attempts.length ? one.attempts[one.attempts.length - 1].at : one.created_at;
  const span = (Date.parse(one.updated_at) - Date.parse(first)) / 1000;
  if (one.state === "delivered") return html`<dt>Delivered</dt><dd>${time(one.updated_at, "ago")}, after ${tries}</dd>`;
  if (one.state === "dead")
    return html`<dt>Died</dt><dd>${time(one.updated_at, "ago")}, after ${tries}${one.tries > 1 ? ` in ${length(span)}` : ""}</dd><dt>Because</dt><dd>${one.reason}</dd>`;
  if (held) return html`<dt>Next try</dt><dd>when the endpoint takes something again</dd>`;
  return html`<dt>Next try</dt><dd>${since(one.due_at) >= 0 ? "now" : time(one.due_at, "ago")}</dd>`;
}

// Newest first; between two attempts, how long it waited.
function ladder(one) {
  if (!one.attempts.length) return html`<ol class="ladder"><li class="more"><span>Not tried yet</span></li></ol>`;
  const shown = one.attempts.slice(0, SHOWN);
  const rest = one.tries - shown.length;
  const oldest = one.attempts[one.attempts.length - 1];
  return html`<ol class="ladder" reversed>
    ${shown.map((each, n) => rung(each, one.attempts[n + 1], n === 0 ? one : null))}
    ${rest > 0 ? html`<li class="more"><span>${number(rest)} more, the first at ${clock(oldest.at)}</span></li>` : ""}
  </ol>`;
}

function rung(attempt, before, latest) {
  const good = attempt.status >= 200 && attempt.status < 300;
  const word = good ? "done" : "failed";
  const waited = before ? (Date.parse(attempt.at) - Date.parse(before.at)) / 1000 - attempt.duration_seconds : 0;
  const notes = [
    attempt.error,
    before && waited >= 0.05 ? `waited ${length(waited)}` : "",
    latest && latest.state === "dead" ? "then dead" : "",
  ].filter(Boolean);
  const text = notes.join(", ") || (good ? "taken" : "");
  return html`<li data-key="try-${attempt.number}">
    <span class="n">${attempt.number}</span>
    <span class="st s s-${word}">${glyph(word)}${attempt.status || "none"}</span>
    <span class="note" title="${text}">${text}</span>
    <span class="num dur">${length(attempt.duration_seconds)}</span>
    <span class="num"><time datetime="${attempt.at}" title="${attempt.at}">${clock(attempt.at)}</time></span>
  </li>`;
}

function answered(one) {
  const [last, ...before] = one.attempts.filter((each) => each.answer);
  if (!last) return "";
  return html`<div class="pad">
    <div>
      <div class="sec-h"><span>Start of the answer to attempt ${last.number}</span> <span>${length(last.duration_seconds)} · ${bytes(new TextEncoder().encode(last.answer).length)}</span></div>
      <pre class="code wrap" tabindex="0" aria-label="Answer">${last.answer}</pre>
    </div>
  </div>
  ${before.map(
    (each) => html`<details class="fold" data-key="answer-${each.number}">
    <summary>Answer to attempt ${each.number} <span class="sub">${each.status} · ${length(each.duration_seconds)}</span></summary>
    <div><pre class="code wrap" tabindex="0" aria-label="Answer to attempt ${each.number}">${each.answer}</pre></div>
  </details>`,
  )}`;
}
