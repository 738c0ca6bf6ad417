// Chargehand's API reference: reads the OpenAPI document beside this page and draws it.
// Whatever comes from the document or from an answer enters the page as text, never as HTML.

const base = new URL(".", location.href); // "/docs" -> "/": also right behind a proxy with a path prefix
const METHODS = ["get", "post", "put", "patch", "delete", "head", "options"];
const TOKEN_KEY = "chargehand.docs.token";
const LONGEST_ANSWER = 500_000;

const byId = (id) => document.getElementById(id);
const main = byId("main");
const state = { document: {}, operations: [] };

// ---------- Drawing ----------

function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child || child === 0));
  return node;
}

function icon(name, className) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("class", className);
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#${name}`);
  svg.append(use);
  return svg;
}

const inline = (text) => text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? h("code", null, part) : part));

// The little of Markdown that our descriptions use: paragraphs, "- " lists and `code`.
function prose(text) {
  return (text ?? "")
    .trim()
    .split(/\n\s*\n|\n(?=- )/)
    .filter(Boolean)
    .map((block) => h("p", { class: block.startsWith("- ") ? "item" : undefined }, inline(block.replace(/^- /, ""))));
}

const badge = (operation) => h("span", { class: `method m-${operation.method}` }, operation.method.toUpperCase());

const panel = (title, sub, ...children) =>
  h(
    "section",
    { class: "panel", "aria-label": title },
    h("div", { class: "panel-head" }, h("h2", null, title), sub && h("span", { class: "sub" }, sub)),
    children,
  );

let unique = 0;
const freshId = (name) => `${name}-${++unique}`;

// ---------- Copying ----------

let toastTimer;
function say(text) {
  const toast = byId("toast");
  toast.textContent = text;
  toast.classList.add("on");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => toast.classList.remove("on"), 1600);
}

function copyButton(what, source) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      say("Copied");
      button.classList.add("copied");
      setTimeout(() => button.classList.remove("copied"), 1600);
    } catch {
      // Plain HTTP has no clipboard in most browsers.
      getSelection().selectAllChildren(source);
      say("Selected, now copy with the keyboard");
    }
  };
  const button = h("button", {
    type: "button",
    class: "copy",
    "aria-label": `Copy ${what}`,
    title: `Copy ${what}`,
    click: copy,
  });
  button.append(icon("i-copy", "i-copy"), icon("i-check", "i-ok"));
  return button;
}

function codeBlock(label, ...content) {
  const code = h("pre", { class: "code", tabindex: 0, role: "region", "aria-label": label }, content);
  return { code, node: h("div", { class: "code-wrap" }, code, copyButton(label.toLowerCase(), code)) };
}

// ---------- JSON ----------

const JSON_TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]/g;

// Works on the text itself: numbers beyond 2^53 would come back from JSON.parse as other numbers.
function paintJson(text) {
  const tokens = text.match(JSON_TOKEN) ?? [];
  const nodes = [];
  let depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === "{" || token === "[") {
      const empty = next === "}" || next === "]";
      if (!empty) depth += 1;
      nodes.push(token, empty ? "" : line());
    } else if (token === "}" || token === "]") {
      const empty = tokens[index - 1] === "{" || tokens[index - 1] === "[";
      if (!empty) depth -= 1;
      nodes.push(empty ? "" : line(), token);
    } else if (token === ",") nodes.push(token, line());
    else if (token === ":") nodes.push(": ");
    else if (token[0] === '"') nodes.push(h("span", { class: next === ":" ? "j-k" : "j-s" }, token));
    else nodes.push(h("span", { class: "j-n" }, token));
  });
  return nodes.filter((node) => node !== "");
}

const compactJson = (text) => text.match(JSON_TOKEN).join("");

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// ---------- Schemas ----------

const isNull = (schema) => schema.type === "null";
const isGiven = (value) => value !== undefined && value !== null;
const isEmpty = (value) => typeof value === "object" && Object.keys(value).length === 0;
const quoted = (value) => JSON.stringify(value);
const codes = (words) => words.map((word, index) => [index > 0 && ", ", h("code", null, word)]);

// Follows $ref, and sees through "this or null", so that what is left has the type and the rules.
function core(schema) {
  const { $ref, ...rest } = schema;
  if ($ref) {
    const name = $ref.split("/").pop();
    return core({ title: name, ...state.document.components.schemas[name], ...rest });
  }
  const kinds = (schema.anyOf ?? schema.oneOf ?? []).filter((kind) => !isNull(kind));
  if (kinds.length !== 1) return schema;
  const { anyOf, oneOf, ...own } = schema;
  return { ...core(kinds[0]), ...own, nullable: (anyOf ?? oneOf).length > 1 };
}

function typeName(schema) {
  const { anyOf, oneOf, nullable, ...s } = core(schema);
  const kinds = anyOf ?? oneOf;
  if (kinds) return [...new Set(kinds.map(typeName))].join(" or ");
  return plainTypeName(s) + (nullable ? " or null" : "");
}

function plainTypeName(s) {
  if (s.enum) return typeof s.enum[0];
  if ("const" in s) return typeof s.const;
  if (s.type === "array" && s.prefixItems) return `[${s.prefixItems.map(typeName).join(", ")}]`;
  if (s.type === "array") return `list of ${typeName(s.items ?? {})}`;
  if (s.type === "object" && s.properties) return s.title ?? "object";
  if (s.type === "object" && typeof s.additionalProperties === "object")
    return `map of ${typeName(s.additionalProperties)}`;
  if (!s.type) return "any JSON";
  const detail = s.format ?? s.contentEncoding;
  return detail ? `${s.type} (${detail})` : s.type;
}

function range(low, high, unit) {
  if (low === undefined && high === undefined) return undefined;
  if (low === high) return `exactly ${low}${unit}`;
  if (high === undefined) return `at least ${low}${unit}`;
  return low === undefined ? `at most ${high}${unit}` : `${low} to ${high}${unit}`;
}

// What a value must fulfil, as short phrases.
function rules(schema) {
  const s = core(schema);
  const each = core(s.items || {});
  const found = [
    range(s.minimum, s.maximum, ""),
    s.exclusiveMinimum !== undefined && `over ${s.exclusiveMinimum}`,
    s.exclusiveMaximum !== undefined && `under ${s.exclusiveMaximum}`,
    s.multipleOf !== undefined && `a multiple of ${s.multipleOf}`,
    range(s.minLength || undefined, s.maxLength, " characters"),
    range(s.minProperties || undefined, s.maxProperties, " entries"),
    !s.prefixItems && range(s.minItems || undefined, s.maxItems, " items"),
    s.pattern !== undefined && ["matches ", h("code", null, s.pattern)],
    s.enum && [s.enum.length > 1 ? "one of " : "always ", codes(s.enum.map(quoted))],
    each.enum && ["each one of ", codes(each.enum.map(quoted))],
    isGiven(s.default) && ["default ", h("code", null, quoted(s.default))],
  ];
  return found.filter(Boolean).map((rule) => h("span", { class: "rule" }, rule));
}

// The objects with fields that a schema leads to, through lists, maps and choices.
function shapes(schema) {
  const s = core(schema);
  if (s.properties) return [s];
  const inner = [...(s.anyOf ?? s.oneOf ?? []), ...(s.prefixItems ?? []), s.items, s.additionalProperties];
  return inner.filter((part) => part && typeof part === "object").flatMap(shapes);
}

function fieldRow({ name, schema, required, description }, above = []) {
  return h(
    "li",
    { class: "field" },
    h(
      "div",
      { class: "field-head" },
      h("code", { class: "field-name" }, name),
      h("span", { class: "type" }, typeName(schema)),
      h("span", { class: required ? "need" : "sub" }, required ? "required" : "optional"),
      rules(schema),
    ),
    h("div", { class: "field-text" }, prose(description ?? ownDescription(schema))),
    shapes(schema).map((shape) => nested(shape, above)),
  );
}

// The description of a field, not of the type it refers to: that one is shown with the type's own fields.
function ownDescription(schema) {
  const kinds = (schema.anyOf ?? []).filter((kind) => !isNull(kind));
  return schema.description ?? (kinds.length === 1 && !kinds[0].$ref ? kinds[0].description : undefined);
}

function fields(shape, above) {
  const rows = Object.entries(shape.properties).map(([name, schema]) =>
    fieldRow({ name, schema, required: shape.required?.includes(name) }, above),
  );
  return h("ul", { class: "fields" }, rows);
}

// Filled on opening: a type may contain itself.
function nested(shape, above) {
  const count = Object.keys(shape.properties).length;
  const closed = shape.additionalProperties === false ? ", no others" : "";
  const label = [
    h("b", null, shape.title ?? "object"),
    h("span", { class: "sub" }, `${count} ${count === 1 ? "field" : "fields"}${closed}`),
  ];
  const node = h("details", { class: "nest" }, h("summary", null, label));
  const fill = () =>
    node.children.length < 2 && node.append(...prose(shape.description), fields(shape, [...above, shape.title]));
  if (above.length < 2 && !above.includes(shape.title)) {
    node.open = true;
    fill();
  }
  node.addEventListener("toggle", fill);
  return node;
}

function schemaView(schema) {
  const s = core(schema);
  if (s.properties) return h("div", { class: "schema" }, prose(s.description), fields(s, [s.title]));
  const head = h("div", { class: "field-head" }, h("span", { class: "type" }, typeName(schema)), rules(schema));
  return h(
    "div",
    { class: "schema" },
    head,
    prose(s.description),
    shapes(schema).map((shape) => nested(shape, [])),
  );
}

const STRINGS = {
  "date-time": "2030-01-31T12:00:00Z",
  date: "2030-01-31",
  time: "12:00:00Z",
  duration: "PT30S",
  uuid: "0190a6f2-7c1e-7d4a-9b1f-2f6c0c9f4b11",
  uri: "https://example.net/",
  email: "someone@example.net",
};

const SAMPLES = {
  object: sampleObject,
  array: sampleList,
  string: sampleString,
  integer: sampleNumber,
  number: sampleNumber,
  boolean: () => false,
  null: () => null,
};

// `whole` shows every field; otherwise only what has to be there.
function example(schema, whole, above = []) {
  const s = core(schema);
  if (s.examples?.length) return s.examples[0];
  if ("const" in s) return s.const;
  if (isGiven(s.default) && !(whole && isEmpty(s.default))) return s.default;
  if (s.enum) return s.enum[0];
  const kinds = s.anyOf ?? s.oneOf;
  if (kinds) return example(kinds.find((kind) => !isNull(kind)) ?? kinds[0], whole, above);
  return Object.hasOwn(SAMPLES, s.type ?? "") ? SAMPLES[s.type](s, whole, above) : {};
}

// A type may contain itself; once is enough for an example.
const isAgain = (schema, above) => shapes(schema).some((shape) => above.includes(shape.title));

function sampleObject(s, whole, above) {
  if (s.title && above.includes(s.title)) return {};
  const inside = [...above, s.title];
  const wanted = Object.entries(s.properties ?? {}).filter(
    ([name, field]) => s.required?.includes(name) || (whole && !isAgain(field, inside)),
  );
  const others = typeof s.additionalProperties === "object" && whole ? [["key", s.additionalProperties]] : [];
  return Object.fromEntries([...wanted, ...others].map(([name, field]) => [name, example(field, whole, inside)]));
}

function sampleList(s, whole, above) {
  const one = s.items ?? {};
  const items = s.prefixItems ?? ((whole || s.minItems) && !isAgain(one, above) ? [one] : []);
  return items.map((item) => example(item, whole, above));
}

function sampleString(s) {
  const text = STRINGS[s.format] ?? (s.contentEncoding === "base64" ? "aGVsbG8=" : "string");
  return text.padEnd(s.minLength ?? 0, "-").slice(0, s.maxLength);
}

function sampleNumber(s) {
  if (s.exclusiveMinimum !== undefined) return s.exclusiveMinimum + 1;
  return s.minimum ?? Math.min(0, s.maximum ?? 0);
}

// ---------- One operation ----------

function operationView(operation) {
  const { parameters = [], requestBody, responses } = operation;
  const path = h("code", { class: "path" }, breakable(operation.path));
  const head = h(
    "header",
    { class: "page-head" },
    h("p", { class: "crumbs" }, h("a", { href: "#" }, "API"), " / ", operation.tag),
    h("h1", { tabindex: -1 }, operation.summary),
    h("div", { class: "address" }, badge(operation), path, copyButton("path", path)),
    h("p", { class: "access" }, access(operation)),
    h("div", { class: "lede" }, prose(operation.description)),
  );
  const told = h(
    "div",
    { class: "stack" },
    head,
    parameters.length > 0 && panel("Parameters", undefined, parameterGroups(parameters)),
    requestBody && bodyPanel(requestBody),
    answersPanel(responses),
    problemsPanel(responses),
  );
  return h("article", { class: "op" }, told, tryIt(operation));
}

// A long path may break after a slash, and only there.
const breakable = (path) => path.split(/(?<=\/)(?=.)/).flatMap((part, index) => (index ? [h("wbr"), part] : [part]));

function access({ security = [] }) {
  const scopes = [...new Set(security.flatMap(Object.values).flat())];
  if (!security.length) return "Open to everybody.";
  return scopes.length ? ["Needs a token with the scope ", codes(scopes), "."] : "Needs a key.";
}

const PLACES = { path: "In the path", query: "In the query string", header: "Headers" };

function parameterGroups(parameters) {
  return Object.entries(PLACES)
    .map(([place, title]) => {
      const rows = parameters.filter((parameter) => parameter.in === place);
      return (
        rows.length > 0 &&
        h(
          "div",
          { class: "panel-body" },
          h("h3", null, title),
          h(
            "ul",
            { class: "fields" },
            rows.map((row) => fieldRow(row)),
          ),
        )
      );
    })
    .filter(Boolean);
}

const firstContent = (content) => Object.entries(content ?? {})[0] ?? [];

function bodyPanel(requestBody) {
  const [media, { schema } = {}] = firstContent(requestBody.content);
  const sub = requestBody.required ? `${media}, required` : media;
  if (!schema) return panel("Body", sub, h("div", { class: "panel-body" }, h("p", null, "The bytes as they are.")));
  const { node } = codeBlock("Example body", paintJson(JSON.stringify(example(schema, true))));
  return panel(
    "Body",
    sub,
    h("div", { class: "panel-body" }, schemaView(schema)),
    fold("Example", "every field", node),
  );
}

const fold = (title, sub, ...children) =>
  h(
    "details",
    { class: "fold" },
    h("summary", null, title, sub && h("span", { class: "sub" }, sub)),
    h("div", null, children),
  );

const isProblem = ([, answer]) => firstContent(answer.content)[0] === "application/problem+json";

function answersPanel(responses) {
  const rows = Object.entries(responses).filter((row) => !isProblem(row));
  return rows.map(([status, answer]) => {
    const [media, { schema } = {}] = firstContent(answer.content);
    const body = schema ? schemaView(schema) : h("p", null, media ? "The bytes as they are." : "No content.");
    const shown = schema && /json/.test(media) && paintJson(JSON.stringify(example(schema, true)));
    return panel(
      `Answer ${status}`,
      [answer.description, media].filter(Boolean).join(", "),
      h("div", { class: "panel-body given" }, body),
      shown && fold("Example", "every field", codeBlock("Example answer", shown).node),
    );
  });
}

function problemsPanel(responses) {
  const rows = Object.entries(responses).filter(isProblem);
  if (!rows.length) return undefined;
  const [, { schema }] = firstContent(rows[0][1].content);
  const list = rows.map(([status, answer]) =>
    h(
      "li",
      { class: "problem" },
      h("b", null, status),
      h(
        "div",
        null,
        prose(answer.description),
        Object.keys(answer.headers ?? {}).map((name) => h("p", { class: "with" }, "with ", h("code", null, name))),
      ),
    ),
  );
  const shape = fold(
    "The shape of every error",
    "application/problem+json",
    h("div", { class: "given" }, schemaView(schema)),
  );
  return panel("Errors", "by status, with the code for programs", h("ul", { class: "problems" }, list), shape);
}

// ---------- Try it ----------

const token = {
  value: "",
  load() {
    try {
      token.value = sessionStorage.getItem(TOKEN_KEY) ?? "";
    } catch {
      token.value = ""; // storage is forbidden: the token then lives as long as the page
    }
  },
  keep(value) {
    token.value = value;
    try {
      if (value) sessionStorage.setItem(TOKEN_KEY, value);
      else sessionStorage.removeItem(TOKEN_KEY);
    } catch {
      // as above
    }
  },
};

function control({ schema, required }) {
  const s = core(schema);
  const options = s.type === "boolean" ? ["true", "false"] : s.enum;
  const common = { id: freshId("p"), required, autocomplete: "off", spellcheck: "false" };
  if (options)
    return h(
      "select",
      { ...common, class: "select" },
      h("option", { value: "" }, hint(s) || "not sent"),
      options.map((value) => h("option", null, String(value))),
    );
  return h("input", {
    ...common,
    class: "input mono",
    placeholder: hint(s),
    inputmode: s.type === "integer" ? "numeric" : undefined,
  });
}

function hint(s) {
  if (s.type === "array") return "several: separate them by commas";
  return isGiven(s.default) ? String(s.default) : "";
}

function labelled(text, note, node) {
  return h(
    "div",
    { class: "row" },
    h("label", { for: node.id }, text, note && h("span", { class: "sub" }, note)),
    node,
  );
}

function parameterRow([parameter, node]) {
  const note = [parameter.in, parameter.required && "required"].filter(Boolean).join(", ");
  return labelled(h("code", null, parameter.name), note, node);
}

function tokenRow() {
  const input = h("input", {
    id: freshId("token"),
    class: "input mono token",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
  });
  input.addEventListener("input", () => token.keep(input.value.trim()));
  return labelled("Bearer token", "kept in this tab only", input);
}

// A JSON editor, or a file for bodies that are bytes.
function bodyField({ content }) {
  const [media, { schema } = {}] = firstContent(content);
  const id = freshId("body");
  if (!schema) {
    const file = h("input", { id, type: "file", class: "input file", required: true });
    return { row: labelled("Body", media, file), media, value: () => file.files[0] };
  }
  const text = (whole) => JSON.stringify(example(schema, whole), null, 2);
  const note = h("span", { class: "note", id: `${id}-note`, "aria-live": "polite" });
  const rows = Math.min(12, Math.max(4, text(true).split("\n").length));
  const quiet = { spellcheck: "false", autocomplete: "off" };
  const editor = h(
    "textarea",
    { id, class: "input mono editor", rows, "aria-describedby": note.id, ...quiet },
    text(false),
  );
  const check = () => (note.textContent = isJson(editor.value) ? "" : "This is not valid JSON.");
  const fill = (whole) => () => {
    editor.value = text(whole);
    editor.dispatchEvent(new Event("input", { bubbles: true }));
  };
  editor.addEventListener("input", check);
  const choices = h(
    "div",
    { class: "choices" },
    note,
    h("button", { type: "button", class: "btn small", click: fill(false) }, "Required fields"),
    h("button", { type: "button", class: "btn small", click: fill(true) }, "Every field"),
  );
  return { row: h("div", null, labelled("Body", media, editor), choices), media, value: () => editor.value };
}

function tryIt(operation) {
  const { parameters = [], requestBody, security = [] } = operation;
  const inputs = parameters.map((parameter) => [parameter, control(parameter)]);
  const body = requestBody && bodyField(requestBody);
  const curl = codeBlock("Curl command");
  const answer = answerPanel();
  const send = h("button", { class: `btn ${operation.method === "delete" ? "danger" : "primary"}` }, "Send");
  const stop = h("button", { type: "button", class: "btn", disabled: true, title: "Nothing is under way" }, "Stop");
  const form = h(
    "form",
    { class: "try panel-body", "aria-label": "Try it" },
    security.length > 0 && tokenRow(),
    inputs.map(parameterRow),
    body?.row,
    h("div", { class: "actions" }, send, stop, h("span", { class: "sub" }, "or Ctrl + Enter")),
  );
  let underWay;

  const draw = () => curl.code.replaceChildren(curlCommand(operation, requestOf(operation, inputs, body)));
  const busy = (controller) => {
    underWay = controller;
    send.disabled = Boolean(controller);
    stop.disabled = !controller;
    stop.title = controller ? "" : "Nothing is under way";
  };
  const submit = async (event) => {
    event.preventDefault();
    if (underWay) return;
    busy(new AbortController());
    await answer.show(requestOf(operation, inputs, body), underWay.signal);
    busy(undefined);
  };
  form.addEventListener("submit", submit);
  form.addEventListener("input", draw);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  stop.addEventListener("click", () => underWay?.abort());
  curl.code.classList.add("wrap", "curl");
  draw();

  return h(
    "div",
    { class: "stack aside" },
    panel("Try it", "sends a real request to this server", form),
    panel("curl", undefined, h("div", { class: "panel-body" }, curl.node)),
    answer.node,
  );
}

// What the form says, ready for fetch and for curl.
function requestOf({ method, path, security = [] }, inputs, body) {
  const headers = body ? [["Content-Type", body.media]] : [];
  const query = [];
  let filled = path;
  for (const [{ name, in: place, schema }, node] of inputs) {
    const value = node.value.trim();
    if (!value) continue;
    if (place === "path") filled = filled.replace(`{${name}}`, () => encodeURIComponent(value));
    else if (place === "header") headers.push([name, value]);
    else {
      const values = core(schema).type === "array" ? value.split(",").map((part) => part.trim()) : [value];
      query.push(...values.filter(Boolean).map((one) => `${encodeURIComponent(name)}=${encodeURIComponent(one)}`));
    }
  }
  const url = base.href.slice(0, -1) + filled + (query.length ? `?${query.join("&")}` : "");
  return {
    method: method.toUpperCase(),
    url,
    headers,
    body: body?.value(),
    hasBody: Boolean(body),
    secured: security.length > 0,
  };
}

const shell = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

// The token stays out of it: commands end up in histories and chats.
function curlCommand({ responses }, { method, url, headers, hasBody, body, secured }) {
  const streams = Object.values(responses).some(({ content }) => firstContent(content)[0] === "text/event-stream");
  const words = [`curl${streams ? " -N" : ""}${method === "GET" ? "" : ` -X ${method}`} ${shell(url)}`];
  if (secured) words.push('-H "Authorization: Bearer $TOKEN"');
  words.push(...headers.map(([name, value]) => `-H ${shell(`${name}: ${value}`)}`));
  if (typeof body === "string") words.push(`--data-raw ${shell(isJson(body) ? compactJson(body) : body)}`);
  else if (hasBody) words.push(`--data-binary ${shell(`@${body?.name ?? "FILE"}`)}`);
  return words.join(" \\\n  ");
}

function answerPanel() {
  const status = h("div", { class: "result", role: "status" }, h("span", { class: "dim" }, "Nothing sent yet."));
  const headers = h("dl", { class: "kv" });
  const headersFold = fold("Headers", undefined, headers);
  const body = codeBlock("Answer body");
  body.code.classList.add("wrap");
  const bodyBox = h("div", { class: "panel-body" }, body.node);
  const node = panel("Answer", undefined, h("div", { class: "panel-body" }, status), headersFold, bodyBox);
  node.classList.add("answer");
  headersFold.hidden = bodyBox.hidden = true;

  const tell = (good, word, ...facts) => {
    const pill = h(
      "span",
      { class: `pill ${good ? "s-done" : "s-failed"}` },
      icon(good ? "g-done" : "g-failed", "g"),
      word,
    );
    status.replaceChildren(pill, ...facts.map((fact) => h("span", { class: "fact" }, fact)));
  };

  async function show(request, signal) {
    const began = performance.now();
    const time = () => `${Math.round(performance.now() - began)}\u00a0ms`;
    status.replaceChildren(h("span", { class: "dim" }, "Sending…"));
    try {
      const response = await fetch(request.url, {
        method: request.method,
        headers: [
          ...request.headers,
          ...(request.secured && token.value ? [["Authorization", `Bearer ${token.value}`]] : []),
        ],
        body: request.body,
        cache: "no-store",
        credentials: "omit", // the key in the form decides, not a console session that happens to be open
        signal,
      });
      const word = `${response.status} ${response.statusText}`.trim();
      tell(response.ok, word, time());
      headers.replaceChildren(
        ...[...response.headers].flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
      );
      headersFold.hidden = false;
      const size = await readInto(response, body.code, bodyBox);
      tell(response.ok, word, time(), size);
    } catch (error) {
      if (signal.aborted) status.append(h("span", { class: "fact" }, "stopped"));
      else {
        headersFold.hidden = bodyBox.hidden = true;
        tell(false, "No answer", error.message);
      }
    }
    node.scrollIntoView({ block: "nearest" });
  }
  return { node, show };
}

// Shows the body, a stream piece by piece, and says how long it was.
async function readInto(response, code, box) {
  const media = response.headers.get("content-type") ?? "";
  const live = /event-stream|ndjson/.test(media);
  const readable = /json|text|xml|yaml/.test(media);
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  code.replaceChildren();
  box.hidden = false;
  const reader = response.body?.getReader();
  for (let piece = await reader?.read(); piece && !piece.done; piece = await reader.read()) {
    bytes += piece.value.length;
    const more = readable ? decoder.decode(piece.value, { stream: true }) : "";
    text += more;
    if (live) code.append(more);
    if (text.length > LONGEST_ANSWER) {
      await reader.cancel();
      code.replaceChildren(text.slice(0, LONGEST_ANSWER));
      return `cut after ${size(LONGEST_ANSWER)}`;
    }
  }
  if (!readable && bytes) code.replaceChildren(`${media || "unnamed bytes"}, not shown`);
  else if (!live) code.replaceChildren(...(/json/.test(media) && isJson(text) ? paintJson(text) : [text]));
  box.hidden = !bytes;
  return size(bytes);
}

const size = (bytes) => (bytes < 1000 ? `${bytes}\u00a0B` : `${(bytes / 1000).toFixed(1)}\u00a0kB`);

// ---------- All operations ----------

function overview(missing) {
  const { info, components } = state.document;
  const schemes = Object.entries(components?.securitySchemes ?? {});
  return h(
    "article",
    null,
    h(
      "header",
      { class: "page-head" },
      h("h1", { tabindex: -1 }, info.title),
      h("div", { class: "lede" }, prose(info.description)),
      missing &&
        h(
          "p",
          { class: "missing", role: "alert" },
          icon("g-warn", "g"),
          h("span", null, "There is no operation called ", h("code", null, missing), "."),
        ),
    ),
    h(
      "div",
      { class: "stack" },
      groups().map(([tag, operations]) =>
        panel(tag, count(operations.length), h("ul", { class: "list" }, operations.map(listRow))),
      ),
      schemes.length > 0 && panel("Keys", undefined, h("ul", { class: "fields panel-body" }, schemes.map(schemeRow))),
    ),
  );
}

const schemeRow = ([name, { type, scheme, description }]) =>
  h(
    "li",
    { class: "field" },
    h(
      "div",
      { class: "field-head" },
      h("code", { class: "field-name" }, name),
      h("span", { class: "type" }, `${type} ${scheme ?? ""}`),
    ),
    h("div", { class: "field-text" }, prose(description)),
  );

const count = (number) => `${number} ${number === 1 ? "operation" : "operations"}`;

const listRow = (operation) =>
  h(
    "li",
    null,
    h(
      "a",
      { href: `#${operation.operationId}` },
      badge(operation),
      h("code", { class: "path" }, breakable(operation.path)),
      h("span", { class: "what" }, operation.summary),
    ),
  );

function groups() {
  const byTag = new Map();
  for (const operation of state.operations) byTag.set(operation.tag, [...(byTag.get(operation.tag) ?? []), operation]);
  return [...byTag];
}

function drawIndex() {
  const entries = (operations) => operations.map((operation) => h("li", null, operation.link));
  const sections = groups().map(([tag, operations]) =>
    h("div", { class: "group" }, h("h2", null, tag), h("ul", null, entries(operations))),
  );
  byId("index").replaceChildren(...sections);
}

function filter() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const operation of state.operations) {
    const match = words.every((word) => operation.haystack.includes(word));
    operation.link.parentElement.hidden = !match;
    found += match;
  }
  for (const section of byId("index").children) section.hidden = !section.querySelector("li:not([hidden])");
  const told = found ? `${found} of ${count(state.operations.length)}` : "No operation matches.";
  byId("matches").textContent = words.length ? told : "";
}

const visibleLinks = () => state.operations.map(({ link }) => link).filter((link) => !link.parentElement.hidden);

// ---------- Where we are ----------

function show(moveFocus) {
  const operation = state.operations.find(({ link }) => link.hash === location.hash);
  for (const { link } of state.operations) link.removeAttribute("aria-current");
  if (operation) operation.view ??= operationView(operation); // kept, with what was typed and answered
  const view = operation?.view ?? overview(location.hash.slice(1));
  for (const input of view.querySelectorAll(".token")) input.value = token.value;
  main.replaceChildren(view);
  document.title = `${operation?.summary ?? "API"} · Chargehand`;
  operation?.link.setAttribute("aria-current", "page");
  operation?.link.scrollIntoView({ block: "nearest" });
  closeMenu();
  scrollTo(0, 0);
  if (moveFocus) main.querySelector("h1").focus({ preventScroll: true });
}

function openMenu() {
  byId("side").classList.add("open");
  byId("scrim").hidden = false;
  byId("menu").setAttribute("aria-expanded", "true");
  main.inert = byId("top").inert = true;
  byId("filter").focus();
}

function closeMenu() {
  if (byId("scrim").hidden) return;
  byId("side").classList.remove("open");
  byId("scrim").hidden = true;
  byId("menu").setAttribute("aria-expanded", "false");
  main.inert = byId("top").inert = false;
  byId("menu").focus();
}

function onKey(event) {
  const links = visibleLinks();
  const at = links.indexOf(document.activeElement);
  const inFilter = document.activeElement === byId("filter");
  const typing = document.activeElement.matches("input, select, textarea");
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (event.key === "/" && plain && !typing) byId("filter").focus();
  else if (event.key === "ArrowDown" && (inFilter || at >= 0)) links[at + 1]?.focus();
  else if (event.key === "ArrowUp" && at >= 0) (links[at - 1] ?? byId("filter")).focus();
  else if (event.key === "Enter" && inFilter && links.length) links[0].click();
  else if (event.key === "Escape" && inFilter && byId("filter").value) {
    byId("filter").value = "";
    filter();
  } else if (event.key === "Escape") return closeMenu();
  else return undefined;
  return event.preventDefault();
}

// ---------- Start ----------

function readOperations({ paths }) {
  return Object.entries(paths).flatMap(([path, item]) =>
    Object.entries(item)
      .filter(([method]) => METHODS.includes(method))
      .map(([method, row]) => readOperation(path, method, row)),
  );
}

function readOperation(path, method, row) {
  const operation = { ...row, path, method, tag: row.tags?.[0] ?? "other" };
  const answers = Object.values(row.responses).map(({ description }) => description);
  const words = [method, path, row.operationId, row.summary, row.description, operation.tag, ...answers];
  operation.haystack = words.join(" ").toLowerCase();
  operation.link = h("a", { href: `#${row.operationId}`, title: path }, badge(operation), h("span", null, row.summary));
  return operation;
}

async function start() {
  try {
    const response = await fetch(new URL("openapi.json", base), { credentials: "same-origin" });
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    state.document = await response.json();
  } catch (error) {
    const again = h("button", { type: "button", class: "btn", click: start }, "Try again");
    const text = h("p", null, "The description of the API could not be read: ", error.message);
    main.replaceChildren(
      h("h1", null, "Not available"),
      h("div", { class: "missing", role: "alert" }, icon("g-warn", "g"), text, again),
    );
    return;
  }
  const order = (state.document.tags ?? []).map(({ name }) => name);
  state.operations = readOperations(state.document).sort((a, b) => order.indexOf(a.tag) - order.indexOf(b.tag));
  byId("version").textContent = `version ${state.document.info.version}`;
  byId("filter").disabled = false;
  token.load();
  drawIndex();
  show(false);
  addEventListener("hashchange", () => show(true));
}

byId("filter").addEventListener("input", filter);
byId("menu").addEventListener("click", openMenu);
byId("scrim").addEventListener("click", closeMenu);
matchMedia("(max-width: 820px)").addEventListener("change", closeMenu);
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment names an operation here
  main.focus();
});
document.addEventListener("keydown", onKey);
start();
