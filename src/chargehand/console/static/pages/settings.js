// Settings: those of this browser, which can be changed here, and the server's, which its operator configures elsewhere.

import { $, flag, html } from "../dom.js";
import { get, getOr } from "../api.js";
import { columns, copy, empty, head, panel } from "../parts.js";
import { bytes, length, number, plural, short } from "../words.js";

export default {
  title: "Settings",
  async load() {
    const [overview, settings, health] = await Promise.all([
      get("/engine/overview"),
      getOr("/engine/settings", null),
      getOr("/healthz", null),
    ]);
    return { overview, settings, health };
  },
  view(data, { query }) {
    const only = query.get("show") === "changed";
    return html`${head({ title: "Settings", lede: lede(data.settings) })}
      <div class="stack">
        <div class="cols2 stretch">${browser(data.overview)} ${server(data)}</div>
        ${data.settings ? sections(data.settings.sections, only) : refused()}
      </div>`;
  },
  mount(main) {
    const change = (event) => event.target.id === "single-keys" && keepKeys(event.target.checked);
    main.addEventListener("change", change);
    return () => main.removeEventListener("change", change);
  },
};

function lede(settings) {
  if (!settings) return "Of this browser. Those of the server need the scope admin.";
  const changed = settings.sections.flatMap((section) => section.settings).filter((each) => each.changed).length;
  return `What is in force on the server that answers. ${changed ? `${plural(changed, "setting differs", "settings differ")} from the defaults.` : "All are the defaults."}`;
}

// this browser -------------------------------------------------------------------------------------------------------------

const THEMES = [
  ["auto", "Auto"],
  ["light", "Light"],
  ["dark", "Dark"],
];

function keysOn() {
  try {
    return localStorage.getItem("chargehand.keys") !== "off";
  } catch (e) {
    return true;
  }
}

function keepKeys(on) {
  try {
    if (on) localStorage.removeItem("chargehand.keys");
    else localStorage.setItem("chargehand.keys", "off");
  } catch (e) {
    $("#single-keys").checked = true; // a private window keeps nothing
  }
}

function browser(overview) {
  const theme = document.documentElement.getAttribute("data-theme") || "auto";
  const me = overview.me;
  const who = overview.auth
    ? html`<dt>Signed in as</dt><dd><b>${me.subject}</b>, tenant ${me.tenant} <a class="link" href="/console" data-sign-out>sign out</a></dd>
        <dt>May</dt><dd>${me.scopes.includes("*") ? "everything" : me.scopes.map((scope) => html`<span class="tag">${scope}</span> `)}</dd>`
    : html`<dt>Signed in as</dt><dd>nobody has to sign in here</dd>`;
  return panel({
    id: "browser",
    title: "This browser",
    sub: "kept here, and nowhere else",
    body: html`<div class="panel-body"><dl class="kv roomy">
      ${who}
      <dt id="l-theme">Theme</dt>
      <dd><div class="theme inline" role="group" aria-labelledby="l-theme">
        ${THEMES.map(([name, word]) => html`<button type="button" data-set-theme="${name}" aria-pressed="${String(name === theme)}">${word}</button>`)}
      </div></dd>
      <dt>Keys</dt>
      <dd><label class="check-line"><input type="checkbox" id="single-keys" ${flag("checked", keysOn())} /> Single keys act: <kbd>/</kbd> <kbd>j</kbd> <kbd>k</kbd> <kbd>g</kbd> <kbd>?</kbd></label></dd>
    </dl></div>`,
  });
}

function server({ overview, health }) {
  return panel({
    id: "server",
    title: "This server",
    sub: location.host,
    body: html`<div class="panel-body"><dl class="kv roomy">
      <dt>Version</dt><dd>${health ? health.version : overview.version}</dd>
      <dt>Up for</dt><dd>${short(overview.up_seconds)}</dd>
      <dt>Doors</dt><dd>${overview.doors.map((door) => html`<span class="tag">${door.kind}</span> `)}</dd>
      <dt>Callers</dt><dd>${overview.auth ? "must have a token" : "need no token: it listens on this machine alone"}</dd>
      <dt>Elsewhere</dt><dd><a class="link" href="/docs">API</a>${overview.auth ? "" : html`, <a class="link" href="/metrics">metrics</a>`}</dd>
    </dl></div>`,
  });
}

// the server's -------------------------------------------------------------------------------------------------------------

function refused() {
  const body = empty(
    "The server's settings are for its operators",
    "The token that you signed in with lacks the scope admin. One that has it is made with:",
    "chargehand token --scope jobs:read --scope admin",
  );
  return html`<section class="panel" aria-label="Settings of the server">${body}</section>`;
}

function sections(all, only) {
  const shown = all
    .map((section) => ({ ...section, settings: section.settings.filter((each) => each.changed || !only) }))
    .filter((section) => section.settings.length);
  const changed = all.flatMap((section) => section.settings).filter((each) => each.changed).length;
  const total = all.flatMap((section) => section.settings).length;
  return html`<div class="filters">
      <nav class="seg" aria-label="Which settings">
        <a href="/console/settings" ${only ? "" : flag('aria-current="page"', true)}>All <span class="n">${number(total)}</span></a>
        <a href="/console/settings?show=changed" ${only ? flag('aria-current="page"', true) : ""}>Not the default <span class="n">${number(changed)}</span></a>
      </nav>
      <div class="chips">${shown.map((section) => html`<a class="chip" href="#p-s-${section.section}">${section.section}</a>`)}</div>
    </div>
    ${shown.length ? shown.map(one) : html`<section class="panel" aria-label="Settings">${empty("Every setting is the default", "Set one in a file, in the environment or on the command line.", "chargehand serve --config chargehand.toml")}</section>`}`;
}

function one(section) {
  const rows = section.settings.map(
    (each) => html`<tr data-key="s-${each.name}" class="${each.changed ? "is-set" : ""}">
      <td class="c-full what"><code class="strong">${each.name.split(".").slice(1).join(".")}</code>${meaning(each.meaning)}</td>
      <td class="c-full val">${value(each)}</td>
      <td class="c-full env"><span class="id"><span>${each.variable}</span>${copy(each.variable, `Copy ${each.variable}`)}</span></td>
    </tr>`,
  );
  const set = section.settings.filter((each) => each.changed).length;
  return panel({
    id: `s-${section.section}`,
    title: section.section,
    sub: set ? `${set} not the default` : "all defaults",
    body: html`<table class="t cards settings">${columns("Setting", "In force", "In the environment")}<tbody>${rows}</tbody></table>`,
  });
}

function meaning(text) {
  const lines = text.split("\n");
  const example = lines.filter((line) => line.startsWith("  ")).map((line) => line.slice(2));
  const prose = lines.filter((line) => !line.startsWith("  ")).join(" ");
  return html`<span class="meaning">${prose}</span>${example.length ? html`<pre class="code small" tabindex="0" aria-label="Example">${example.join("\n")}</pre>` : ""}`;
}

function value(each) {
  const was = each.changed && !each.secret ? html`<small>default ${face(each, each.default)}</small>` : "";
  const by = each.origin ? html`<small>by ${each.origin}</small>` : "";
  const mark = each.changed ? html`<span class="tag on">set</span>` : "";
  const held = (shown) => html`<span class="held"><span class="two">${shown}${by}</span>${mark}</span>`;
  if (each.secret) return held(html`<span class="dim">${each.value ? "hidden" : "not set"}</span>`);
  if (each.value && typeof each.value === "object" && Object.keys(each.value).length)
    return html`${held("")}<pre class="code small" tabindex="0" aria-label="${each.name}">${JSON.stringify(each.value, null, 2)}</pre>`;
  return held(html`<span>${face(each, each.value)}</span>${was}`);
}

// 604800 is hard to read; 7 d is not.
function face(each, raw) {
  if (raw === null || raw === "" || (typeof raw === "object" && !Object.keys(raw).length))
    return html`<span class="dim">empty</span>`;
  if (typeof raw === "object") return html`<code>${JSON.stringify(raw)}</code>`;
  if (typeof raw !== "number") return html`<code>${String(raw)}</code>`;
  const words =
    each.name.endsWith("_seconds") && raw >= 60
      ? length(raw)
      : each.name.endsWith("_bytes") && raw >= 1000
        ? bytes(raw)
        : "";
  return html`<code>${raw}</code>${words ? html` <span class="dim">${words}</span>` : ""}`;
}
