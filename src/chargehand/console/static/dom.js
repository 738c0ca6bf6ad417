// HTML templates that escape every value; and `morph`, which updates a page in place and keeps focus, selection, open folds and rows.

class Html {
  constructor(text) {
    this.text = text;
  }
  toString() {
    return this.text;
  }
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

export function escape(value) {
  return String(value).replace(/[&<>"']/g, (c) => ESCAPES[c]);
}

function shown(value) {
  if (value instanceof Html) return value.text;
  if (Array.isArray(value)) return value.map(shown).join("");
  if (value === null || value === undefined || value === false || value === true) return "";
  return escape(value);
}

export function html(strings, ...values) {
  let text = strings[0];
  for (let i = 0; i < values.length; i++) text += shown(values[i]) + strings[i + 1];
  return new Html(text);
}

// A boolean attribute: html`<button ${flag("disabled", busy)}>`
export function flag(name, on) {
  return on ? new Html(name) : "";
}

export const $ = (selector, within = document) => within.querySelector(selector);
export const $$ = (selector, within = document) => Array.from(within.querySelectorAll(selector));

export function morph(element, content) {
  const template = document.createElement("template");
  template.innerHTML = content instanceof Html ? content.text : escape(content);
  morphChildren(element, template.content);
}

// The identity of a button is its action: one with another action is another button.
function keyOf(node) {
  if (node.nodeType !== 1) return "";
  const { key, act, body } = node.dataset || {};
  return key || node.id || (act ? `${act} ${body || ""}` : "");
}

function morphChildren(was, becomes) {
  if (was.nodeType === 1 && was.hasAttribute("data-list"))
    return held(was) ? morphHeld(was, becomes) : morphRows(was, becomes);
  const keyed = new Map();
  for (const child of was.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = was.firstChild;
  for (const next of Array.from(becomes.childNodes)) {
    const key = keyOf(next);
    let found = key ? keyed.get(key) : at;
    if (!key) while (found && keyOf(found) && becomesHas(becomes, keyOf(found))) found = found.nextSibling;
    if (found && alike(found, next)) {
      if (found !== at) was.insertBefore(found, at);
      else at = at.nextSibling;
      if (key) keyed.delete(key);
      morphNode(found, next);
    } else {
      was.insertBefore(next, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function becomesHas(fragment, key) {
  for (const child of fragment.childNodes) if (keyOf(child) === key) return true;
  return false;
}

function alike(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
}

function morphNode(was, becomes) {
  if (was.nodeType !== 1) {
    if (was.nodeValue !== becomes.nodeValue) was.nodeValue = becomes.nodeValue;
    return;
  }
  if (was.hasAttribute("data-keep")) return; // a part that updates itself
  for (const { name, value } of Array.from(becomes.attributes)) {
    if (name === "open" && was.nodeName === "DETAILS") continue; // a fold stays as the user left it
    if (name === "aria-pressed" && was.hasAttribute("data-hold")) continue; // so does a list that the user holds
    if (was.getAttribute(name) !== value) was.setAttribute(name, value);
  }
  for (const { name } of Array.from(was.attributes)) {
    const own =
      name === "open" ||
      name === "data-held" ||
      (name === "tabindex" && was.hasAttribute("data-href")) ||
      (name === "class" && was === document.activeElement);
    if (!becomes.hasAttribute(name) && !own) was.removeAttribute(name);
  }
  if (was.nodeName === "INPUT" || was.nodeName === "SELECT" || was.nodeName === "TEXTAREA") {
    if (was === document.activeElement) return;
    if (becomes.hasAttribute("value") && was.value !== becomes.getAttribute("value"))
      was.value = becomes.getAttribute("value");
    if (was.nodeName !== "SELECT") return;
  }
  morphChildren(was, becomes);
}

// A list with data-list keeps its rows while the pointer or the focus is in it, or its Hold button is pressed: existing rows change in
// place, removed ones are disabled, new ones wait, and the head of the list shows how many.
function held(list) {
  if (!list.children.length) return false;
  return list.hasAttribute("data-held") || list.matches(":hover") || list.contains(document.activeElement);
}

// Update row by row in place: a new first row overwrites the old first one, and nothing moves.
function morphRows(list, becomes) {
  const rows = Array.from(list.children);
  const next = Array.from(becomes.children);
  for (const row of rows.splice(next.length)) row.remove();
  next.forEach((each, i) => (rows[i] ? morphNode(rows[i], each) : list.append(each)));
  tellNew(list, 0);
}

function morphHeld(list, becomes) {
  const next = new Map();
  for (const child of becomes.childNodes) if (keyOf(child)) next.set(keyOf(child), child);
  const known = new Set();
  for (const child of Array.from(list.children)) {
    known.add(keyOf(child));
    const row = next.get(keyOf(child));
    if (row && alike(child, row)) morphNode(child, row);
    child.inert = !row;
    child.classList.toggle("gone", !row);
  }
  tellNew(list, Array.from(next.keys()).filter((key) => !known.has(key)).length);
}

function tellNew(list, count) {
  const note = document.getElementById(list.getAttribute("data-list"));
  const text = count ? `${count} new` : "";
  if (note && note.textContent !== text) note.textContent = text;
}
