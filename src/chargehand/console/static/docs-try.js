// A form for one operation: the request as a curl command, sent to this server, and its answer as it arrives.

import { $, $$, flag, html, morph } from "./dom.js";
import { example, resolved } from "./docs-schema.js";
import { copy, panel, pill } from "./parts.js";
import { bytes, length, quoted } from "./words.js";

const BASE = new URL(".", location.href).href.slice(0, -1); // also correct behind a proxy with a path prefix
const TOKEN_KEY = "chargehand.docs.token";
const LONGEST_ANSWER = 500_000;
const JSON_TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]/g;

let token = "";
try {
  token = sessionStorage.getItem(TOKEN_KEY) ?? "";
} catch (e) {
  /* storage is forbidden: the token lives as long as the page */
}
function keepToken(value) {
  token = value;
  try {
    sessionStorage.setItem(TOKEN_KEY, value);
  } catch (e) {
    /* as above */
  }
}

// A value typed in one form appears in the others too.
export function fillToken(view) {
  for (const input of $$("[name=token]", view)) input.value = token;
}

// Indents the text itself: numbers beyond 2^53 would come back from JSON.parse as other numbers.
export function paintJson(text) {
  let depth = 0;
  const line = (by) => "\n" + "  ".repeat((depth += by));
  const tokens = text.match(JSON_TOKEN) ?? [];
  return tokens.map((token, n) => {
    const [before, after] = [tokens[n - 1], tokens[n + 1]];
    if (/[{[]/.test(token[0])) return /[}\]]/.test(after) ? token : token + line(1);
    if (/[}\]]/.test(token[0])) return /^[{[]$/.test(before) ? token : line(-1) + token;
    if (token === ",") return token + line(0);
    if (token === ":") return ": ";
    return html`<span class="${token[0] !== '"' ? "j-n" : after === ":" ? "j-k" : "j-s"}">${token}</span>`;
  });
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch (e) {
    return false;
  }
}

export const contentOf = ({ content }) => Object.entries(content ?? {})[0] ?? [];
const sample = ({ requestBody }, whole) => JSON.stringify(example(contentOf(requestBody)[1].schema, whole), null, 2);

const QUIET = html`autocomplete="off" spellcheck="false"`;
const row = (name, note, control) => html`<label><span>${name}</span><span class="small dim">${note}</span>${control}</label>`;

function control({ schema, required }, name) {
  const { type, default: usual, enum: choices } = resolved(schema);
  const options = type === "boolean" ? ["true", "false"] : choices;
  const hint = type === "array" ? "several: separate them by commas" : (usual ?? "");
  if (!options)
    return html`<input class="input mono" name="${name}" placeholder="${hint}" ${QUIET} ${flag("required", required)} />`;
  return html`<select class="select" name="${name}" ${flag("required", required)}>
    <option value="">${hint || "not sent"}</option>
    ${options.map((option) => html`<option>${option}</option>`)}
  </select>`;
}

const placeOf = ({ in: place, required }) => (required ? `${place}, required` : place);

function editor(operation) {
  const rows = Math.min(12, Math.max(4, sample(operation, true).split("\n").length));
  const text = html`<textarea class="input mono" name="body" rows="${rows}" ${QUIET}>${sample(operation, false)}</textarea>`;
  return html`${row("Body", contentOf(operation.requestBody)[0], text)}
    <div class="actions choices">
      <span class="bad-t" role="status"></span>
      <button type="button" class="btn small" data-fill="required">Required fields</button>
      <button type="button" class="btn small" data-fill="every">Every field</button>
    </div>`;
}

function form(operation) {
  const { method, parameters = [], requestBody, security = [] } = operation;
  const key = html`<input class="input mono" name="token" type="password" ${QUIET} />`;
  return html`<form class="try panel-body" aria-label="Try it">
    ${security.length ? row("Bearer token", "kept in this tab only", key) : ""}
    ${parameters.map((each, n) => row(html`<code>${each.name}</code>`, placeOf(each), control(each, `p${n}`)))}
    ${requestBody ? editor(operation) : ""}
    <div class="actions">
      <button class="btn ${method === "delete" ? "danger" : "primary"}">Send</button>
      <button type="button" class="btn" data-stop disabled>Stop</button><span class="small dim">or Ctrl + Enter</span>
    </div>
  </form>`;
}

const copyable = (id, label) => html`<div class="code-wrap">
  <pre class="code wrap" id="${id}" tabindex="0" role="region" aria-label="${label}"></pre>
  ${copy("", "Copy", id)}
</div>`;

export const tryIt = (operation) => html`<div class="stack">
  ${panel({ id: "try", title: "Try it", sub: "sends a real request to this server", body: form(operation) })}
  ${panel({ id: "curl", title: "curl", body: html`<div class="panel-body">${copyable("command", "Curl command")}</div>` })}
  ${panel({
    id: "answer",
    title: "Answer",
    body: html`<div class="panel-body result" role="status"><span class="dim">Nothing sent yet.</span></div>
      <div class="answered" hidden>
        <details class="fold"><summary>Headers</summary><div><dl class="kv mono"></dl></div></details>
        <div class="panel-body">${copyable("answer-body", "Answer body")}</div>
      </div>`,
  })}
</div>`;

// The request of the form, for fetch and for curl.
function requestOf({ method, path, parameters = [], requestBody }, { elements }) {
  const headers = requestBody ? [["Content-Type", contentOf(requestBody)[0]]] : [];
  const query = new URLSearchParams();
  parameters.forEach(({ name, in: place, schema }, n) => {
    const value = elements[`p${n}`].value.trim();
    if (place === "path") path = path.replace(`{${name}}`, value ? encodeURIComponent(value) : `{${name}}`);
    else if (value && place === "header") headers.push([name, value]);
    else for (const one of resolved(schema).type === "array" ? value.split(",") : [value]) if (one.trim()) query.append(name, one.trim());
  });
  return { method: method.toUpperCase(), url: BASE + path + (query.size ? `?${query}` : ""), headers, body: elements.body?.value };
}

// Without the token: commands end up in histories and chats.
function curl({ responses, security = [] }, { method, url, headers, body }) {
  const streams = Object.values(responses).some((answer) => contentOf(answer)[0] === "text/event-stream");
  const words = [`curl${streams ? " -N" : ""}${method === "GET" ? "" : ` -X ${method}`} ${quoted(url)}`];
  if (security.length) words.push('-H "Authorization: Bearer $TOKEN"');
  words.push(...headers.map((header) => `-H ${quoted(header.join(": "))}`));
  if (body !== undefined) words.push(`--data-raw ${quoted(isJson(body) ? body.match(JSON_TOKEN).join("") : body)}`);
  return words.join(" \\\n  ");
}

// Makes the form of a view work.
export function activate(view, operation) {
  const form = $("form", view);
  let underWay = null;
  const draw = () => {
    if (form.elements.body) $(".bad-t", form).textContent = isJson(form.elements.body.value) ? "" : "This is not valid JSON.";
    $("#command", view).textContent = curl(operation, requestOf(operation, form));
  };
  const busy = (controller) => {
    underWay = controller;
    $(".btn.primary, .btn.danger", form).disabled = Boolean(controller);
    $("[data-stop]", form).disabled = !controller;
  };
  form.addEventListener("input", ({ target }) => {
    if (target.name === "token") keepToken(target.value.trim());
    draw();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (underWay) return;
    busy(new AbortController());
    await send(view, requestOf(operation, form), form.elements.token && token, underWay.signal);
    busy(null);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("click", ({ target }) => {
    if (target.dataset.stop !== undefined) underWay?.abort();
    if (!target.dataset.fill) return;
    form.elements.body.value = sample(operation, target.dataset.fill === "every");
    draw();
  });
  draw();
}

async function send(view, { url, ...request }, key, signal) {
  const result = $(".result", view);
  const answered = $(".answered", view);
  const began = performance.now();
  const show = (good, word, ...facts) =>
    morph(result, html`${pill(word, { as: good ? "done" : "failed" })}${facts.map((fact) => html`<span>${fact}</span>`)}`);
  const time = () => length((performance.now() - began) / 1000);
  if (key) request.headers.push(["Authorization", `Bearer ${key}`]);
  morph(result, html`<span class="dim">Sending…</span>`);
  answered.hidden = true;
  try {
    // No cookies: the token in the form decides.
    const answer = await fetch(url, { ...request, cache: "no-store", credentials: "omit", signal });
    const word = `${answer.status} ${answer.statusText}`.trim();
    show(answer.ok, word, time());
    morph($("dl", answered), html`${[...answer.headers].map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}`);
    answered.hidden = false;
    const size = await readInto($("#answer-body", view), answer);
    show(answer.ok, word, time(), size);
  } catch (error) {
    if (signal.aborted) result.append("stopped");
    else show(false, "No answer", error.message);
  }
  $("#p-answer", view).scrollIntoView({ block: "nearest" });
}

// Shows the body, a stream piece by piece, and returns its size in words.
async function readInto(code, answer) {
  const media = answer.headers.get("content-type") ?? "";
  const isLive = /event-stream|ndjson/.test(media);
  const isText = /json|text|xml|yaml/.test(media);
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  code.replaceChildren();
  const reader = answer.body?.getReader();
  for (let piece = await reader?.read(); piece && !piece.done; piece = await reader.read()) {
    size += piece.value.length;
    const more = isText ? decoder.decode(piece.value, { stream: true }) : "";
    text += more;
    if (isLive) code.append(more);
    if (text.length > LONGEST_ANSWER) {
      await reader.cancel();
      code.replaceChildren(text.slice(0, LONGEST_ANSWER));
      return `cut after ${bytes(LONGEST_ANSWER)}`;
    }
  }
  if (!isText && size) code.replaceChildren(`${media || "unnamed bytes"}, not shown`);
  else if (!isLive) morph(code, html`${/json/.test(media) && isJson(text) ? paintJson(text) : text}`);
  return bytes(size);
}
