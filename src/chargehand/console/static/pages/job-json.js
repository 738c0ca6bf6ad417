// JSON for people: a fold for every object and list, colours for keys and values, and bounds, because a payload may have any size.

import { flag, html } from "../dom.js";
import { copy } from "../parts.js";
import { bytes, number } from "../words.js";

const MAX_NODES = 2000;
const MAX_TEXT = 4000; // of one string
const MAX_COPY = 200_000; // the most that a copy button copies
const OPEN_DEPTH = 2;
const OPEN_ENTRIES = 40; // longer values start folded

// `name` is unique on the page: it identifies folds, so that they stay as the user left them.
export function jsonFold(name, title, value, { open = false, sub = "JSON" } = {}) {
  const text = JSON.stringify(value, null, 2);
  return html`<details class="fold" data-key="fold-${name}" ${flag("open", open)}>
    <summary>${title} <span class="sub">${sub}, ${bytes(new TextEncoder().encode(text).length)}</span></summary>
    <div>${json(name, value, text)}</div>
  </details>`;
}

export function json(name, value, text = JSON.stringify(value, null, 2)) {
  const budget = { left: MAX_NODES };
  return html`<div class="code-wrap">
    <div class="code json" role="group" aria-label="${name}" tabindex="0">${node(value, "", 0, budget, "")}</div>
    ${text.length <= MAX_COPY ? copy(text, "Copy as JSON") : ""}
  </div>`;
}

function node(value, key, depth, budget, comma) {
  budget.left -= 1;
  if (value !== null && typeof value === "object" && (Array.isArray(value) ? value.length : Object.keys(value).length))
    return branch(value, key, depth, budget, comma);
  return html`<div class="jl">${label(key)}${leaf(value)}${comma}</div>`;
}

function branch(value, key, depth, budget, comma) {
  const list = Array.isArray(value);
  const entries = list ? value.map((each) => ["", each]) : Object.entries(value);
  const inside = [];
  for (const [n, [name, each]] of entries.entries()) {
    if (budget.left <= 0) {
      inside.push(html`<div class="jl j-c">… ${number(entries.length - n)} more</div>`);
      break;
    }
    inside.push(node(each, name, depth + 1, budget, n < entries.length - 1 ? "," : ""));
  }
  const many = `${number(entries.length)} ${list ? "entries" : entries.length === 1 ? "member" : "members"}`;
  return html`<details class="jf" ${flag("open", depth < OPEN_DEPTH && entries.length <= OPEN_ENTRIES)}>
    <summary>${label(key)}${list ? "[" : "{"}<span class="j-c more"> … ${many} ${list ? "]" : "}"}${comma}</span></summary>
    <div class="ji">${inside}</div>
    <div class="jl">${list ? "]" : "}"}${comma}</div>
  </details>`;
}

function label(key) {
  return key === "" ? "" : html`<span class="j-k">${JSON.stringify(key)}</span>: `;
}

function leaf(value) {
  if (typeof value === "string") {
    const shown = value.length > MAX_TEXT ? `${value.slice(0, MAX_TEXT)}` : value;
    const more =
      value.length > MAX_TEXT ? html`<span class="j-c"> … ${number(value.length - MAX_TEXT)} more letters</span>` : "";
    return html`<span class="j-s">${JSON.stringify(shown)}</span>${more}`;
  }
  if (value === null || typeof value !== "object") return html`<span class="j-n">${String(value)}</span>`;
  return Array.isArray(value) ? "[]" : "{}";
}
