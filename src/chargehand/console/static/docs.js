// The API reference: reads the OpenAPI document beside this page and shows it with the parts of the console.

import { $, $$, html, morph } from "./dom.js";
import { codes, example, fieldRow, prose, schemaView, useSchemas } from "./docs-schema.js";
import { activate, contentOf, fillToken, paintJson, tryIt } from "./docs-try.js";
import { closeMenu } from "./frame.js";
import { copy, panel } from "./parts.js";
import { plural } from "./words.js";

const main = $("#main");
const filter = $("#filter");
let description = {};
let groups = []; // [tag, operations], in the order of the document
const operations = () => groups.flatMap(([, inside]) => inside);

const badge = (method) => html`<span class="method m-${method}">${method.toUpperCase()}</span>`;
// It breaks after a slash only.
const path = (operation) =>
  html`<code class="path">${operation.path.split(/(?<=\/)(?=.)/).map((part, n) => html`${n ? html`<wbr />` : ""}${part}`)}</code>`;
const header = (...content) => html`<header class="page-head"><div>${content}</div></header>`;

function read({ paths, tags = [] }) {
  const byTag = new Map(tags.map(({ name }) => [name, []]));
  for (const [path, item] of Object.entries(paths))
    for (const [method, row] of Object.entries(item)) {
      const tag = row.tags?.[0] ?? "other";
      const words = [method, path, row.operationId, row.summary, row.description, tag];
      words.push(...Object.values(row.responses).map((answer) => answer.description));
      byTag.set(tag, [...(byTag.get(tag) ?? []), { ...row, path, method, tag, words: words.join(" ").toLowerCase() }]);
    }
  return [...byTag].filter(([, inside]) => inside.length);
}

function access({ security = [] }) {
  const scopes = [...new Set(security.flatMap(Object.values).flat())];
  if (!security.length) return "Open to everybody.";
  return scopes.length ? html`Needs a token with the scope ${codes(scopes)}.` : "Needs a key.";
}

const PLACES = { path: "In the path", query: "In the query string", header: "Headers" };

function parametersPanel(parameters) {
  const group = ([place, title]) => {
    const rows = parameters.filter((each) => each.in === place).map((each) => fieldRow(each));
    return rows.length ? html`<div class="panel-body"><h3>${title}</h3><ul>${rows}</ul></div>` : "";
  };
  return panel({ id: "parameters", title: "Parameters", body: Object.entries(PLACES).map(group) });
}

const fold = (title, sub, body) =>
  html`<details class="fold"><summary>${title} <span class="sub">${sub}</span></summary><div>${body}</div></details>`;

function exampleFold(schema) {
  const text = JSON.stringify(example(schema, true), null, 2);
  const code = html`<pre class="code" tabindex="0" role="region" aria-label="Example">${paintJson(text)}</pre>`;
  return fold("Example", "every field", html`<div class="code-wrap">${code}${copy(text)}</div>`);
}

function contentPanel(id, title, sub, holder) {
  const [media, { schema } = {}] = contentOf(holder);
  const body = schema ? schemaView(schema) : html`<p>${media ? "The bytes as they are." : "No content."}</p>`;
  const shown = schema && /json$/.test(media) ? exampleFold(schema) : "";
  const about = [sub, media].filter(Boolean).join(", ");
  return panel({ id, title, sub: about, body: html`<div class="panel-body">${body}</div>${shown}` });
}

const answerPanel = ([status, answer]) =>
  contentPanel(`a${status}`, `Answer ${status}`, answer.description, answer);

function errorsPanel(errors) {
  if (!errors.length) return "";
  const [media, { schema } = {}] = contentOf(errors[0][1]);
  const rows = errors.map(([status, { description, headers = {} }]) => {
    const names = Object.keys(headers);
    const sent = names.length ? html`<p class="small dim">with ${codes(names)}</p>` : "";
    return html`<li class="problem"><b>${status}</b><div>${prose(description)}${sent}</div></li>`;
  });
  const shape = schema ? fold("The shape of every error", media, schemaView(schema)) : "";
  const sub = "by status, with the code for programs";
  return panel({ id: "errors", title: "Errors", sub, body: html`<ul>${rows}</ul>${shape}` });
}

function operationView(operation) {
  const { parameters = [], requestBody, responses } = operation;
  const answers = Object.entries(responses);
  const isError = ([status]) => status >= 400;
  return html`<div class="stack">
      ${header(
        html`<div class="crumbs"><a href="#">API</a> / ${operation.tag}</div><h1>${operation.summary}</h1>`,
        html`<div class="address">${badge(operation.method)}${path(operation)}${copy(operation.path, "Copy the path")}</div>`,
        html`<p class="small dim">${access(operation)}</p><div class="lede">${prose(operation.description)}</div>`,
      )}
      ${parameters.length ? parametersPanel(parameters) : ""}
      ${requestBody ? contentPanel("body", "Body", requestBody.required && "required", requestBody) : ""}
      ${answers.filter((row) => !isError(row)).map(answerPanel)}
      ${errorsPanel(answers.filter(isError))}
    </div>
    ${tryIt(operation)}`;
}

function overview(missing) {
  const schemes = Object.entries(description.components?.securitySchemes ?? {});
  const link = (operation) =>
    html`<li>
      <a class="rows-link" href="#${operation.operationId}">${badge(operation.method)}${path(operation)}<span class="ink2">${operation.summary}</span></a>
    </li>`;
  const group = ([tag, inside]) =>
    panel({ id: tag, title: tag, sub: plural(inside.length, "operation"), body: html`<ul>${inside.map(link)}</ul>` });
  const key = ([name, { type, scheme, description }]) =>
    html`<li class="field">
      <div class="field-head"><code>${name}</code><span class="ink2">${type} ${scheme}</span></div>
      ${prose(description)}
    </li>`;
  return html`${header(
      html`<h1>${description.info.title}</h1><div class="lede">${prose(description.info.description)}</div>`,
      missing ? html`<p class="bad-t" role="alert">There is no operation called <code>${missing}</code>.</p>` : "",
    )}
    <div class="stack">
      ${groups.map(group)}
      ${schemes.length ? panel({ id: "keys", title: "Keys", body: html`<ul class="panel-body">${schemes.map(key)}</ul>` }) : ""}
    </div>`;
}

function draw(content) {
  const view = document.createElement("article");
  morph(view, content);
  return view;
}

// Each operation keeps its view, with what was typed and answered.
function viewOf(operation) {
  if (operation.view) return operation.view;
  operation.view = draw(operationView(operation));
  operation.view.className = "op";
  activate(operation.view, operation);
  return operation.view;
}

function show() {
  const operation = operations().find(({ operationId }) => `#${operationId}` === location.hash);
  const view = operation ? viewOf(operation) : draw(overview(location.hash.slice(1)));
  fillToken(view);
  main.replaceChildren(view);
  document.title = `${operation?.summary ?? "API"} · Chargehand`;
  for (const link of $$("#nav a")) {
    link.removeAttribute("aria-current");
    if (link.hash !== location.hash) continue;
    link.setAttribute("aria-current", "page");
    link.scrollIntoView({ block: "nearest" });
  }
  closeMenu();
  scrollTo(0, 0);
}

function narrow() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const links = $$("#nav li");
  operations().forEach((operation, n) => (links[n].hidden = !words.every((word) => operation.words.includes(word))));
  for (const group of $$("#nav section")) group.hidden = !$("li:not([hidden])", group);
  const found = links.filter((link) => !link.hidden).length;
  const told = found ? `${found} of ${plural(links.length, "operation")}` : "No operation matches.";
  $("#matches").textContent = words.length ? told : "";
}

function onKey(event) {
  const links = $$("#nav li:not([hidden]) a");
  const focused = document.activeElement;
  const at = links.indexOf(focused);
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (event.key === "/" && isPlain && !focused.matches("input, select, textarea")) filter.focus();
  else if (event.key === "ArrowDown" && (focused === filter || at >= 0)) links[at + 1]?.focus();
  else if (event.key === "ArrowUp" && at >= 0) (links[at - 1] ?? filter).focus();
  else if (event.key === "Enter" && focused === filter) links[0]?.click();
  else if (event.key === "Escape" && focused === filter && filter.value) {
    filter.value = "";
    narrow();
  } else if (event.key === "Escape") return closeMenu();
  else return undefined;
  return event.preventDefault();
}

function navGroup([tag, inside]) {
  const link = ({ operationId, path, summary, method }) =>
    html`<li><a href="#${operationId}" title="${path}">${badge(method)}<span>${summary}</span></a></li>`;
  return html`<section><h2>${tag}</h2><ul>${inside.map(link)}</ul></section>`;
}

const failed = (error) => html`${header(html`<h1>Not available</h1>`)}
  <p role="alert">The description of the API could not be read: ${error.message}</p>
  <p><button class="btn" type="button" data-again>Try again</button></p>`;

async function start() {
  try {
    const answer = await fetch("openapi.json", { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    description = await answer.json();
  } catch (error) {
    return morph(main, failed(error));
  }
  useSchemas(description.components.schemas);
  groups = read(description);
  morph($("#nav"), html`${groups.map(navGroup)}`);
  $("#version").textContent = `version ${description.info.version}`;
  filter.disabled = false;
  addEventListener("hashchange", () => {
    show();
    main.focus({ preventScroll: true });
  });
  return show();
}

main.addEventListener("click", ({ target }) => target.dataset.again !== undefined && start());
filter.addEventListener("input", narrow);
document.addEventListener("keydown", onKey);
$(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment names an operation here
  main.focus();
});
start();
