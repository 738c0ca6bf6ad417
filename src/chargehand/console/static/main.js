// The shell: selects the page, reloads its data, handles clicks.

import { $, $$, html, morph } from "./dom.js";
import { ApiError, NoAnswer, forgetToken, get, whenSignedOut } from "./api.js";
import { Live } from "./live.js";
import { readOut } from "./charts.js";
import { nav, inst } from "./nav.js";
import { showLogin } from "./login.js";
import { head } from "./parts.js";
import { broken, problem } from "./problem.js";
import { now as serverNow, relative, setClock, short, clock } from "./words.js";
import { runAction } from "./actions.js";
import { closeMenu, pressTheme, say } from "./frame.js";
import { listenToKeys } from "./keys.js";

import now from "./pages/now.js";
import jobs from "./pages/jobs.js";
import job from "./pages/job.js";
import flows from "./pages/flows.js";
import flow from "./pages/flow.js";
import deliveries from "./pages/deliveries.js";
import targets from "./pages/targets.js";
import tasks from "./pages/tasks.js";
import servers from "./pages/servers.js";
import settings from "./pages/settings.js";

// A page is { title, load(context) -> data, view(data, context) -> html, optional mount(main, context) -> stop }. `context.whole` promises
// the overview to those who load.
const PAGES = [
  [/^\/console\/?$/, now],
  [/^\/console\/jobs\/?$/, jobs],
  [/^\/console\/jobs\/([^/]+)$/, job],
  [/^\/console\/flows\/?$/, flows],
  [/^\/console\/flows\/([^/]+)$/, flow],
  [/^\/console\/deliveries(?:\/([^/]+))?$/, deliveries],
  [/^\/console\/targets(?:\/([^/]+))?$/, targets],
  [/^\/console\/tasks(?:\/(.+))?$/, tasks],
  [/^\/console\/servers(?:\/([^/]+))?$/, servers],
  [/^\/console\/settings$/, settings],
];
const NOWHERE = {
  title: "Not found",
  load: async () => ({}),
  view: () => head({ title: "There is no such page", lede: html`Go to <a href="/console">Now</a>.` }),
};
const LOOK_AGAIN = 1000; // at most so often, however much happens
const LINES = 200;
const LOOK_ANYWAY = 15000; // some things change without an event: a clock, a target's memory

const main = $("#main");
let current = null; // { page, context, address, data, stop, reading, again }
let wanted = 0; // the timer of the next reload
let lookedAt = 0;
let paintedAt = 0; // when the shown data was current
let overview = null;
let lines = []; // recent events, newest first

function match(path) {
  for (const [pattern, page] of PAGES) {
    const found = pattern.exec(path);
    if (found) return [page, found[1] ? plain(found[1]) : ""];
  }
  return [NOWHERE, ""];
}

function plain(part) {
  try {
    return decodeURIComponent(part);
  } catch (e) {
    return part; // a literal percent sign
  }
}

const addressOf = (url) => url.pathname + url.search;

async function open(url, { push = true } = {}) {
  const [page, argument] = match(url.pathname);
  clearTimeout(wanted);
  if (push && addressOf(url) !== addressOf(location)) history.pushState(null, "", url);
  const same = current && current.page === page && current.context.argument === argument;
  if (same) return reopen(url);
  leave();
  const context = { argument, query: url.searchParams, lines, overview: () => overview, whole: null, look, say };
  current = { page, context, address: addressOf(url), data: null, stop: null };
  const mine = current;
  document.title = `${page.title} · Chargehand`;
  morph(main, head({ title: page.title }));
  main.setAttribute("aria-busy", "true");
  await refresh();
  if (current !== mine) return;
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

// Another filter of the same page: keep focus and scrolling, and show the new data when it has arrived.
async function reopen(url) {
  const turned = url.searchParams.get("cursor") !== current.context.query.get("cursor");
  current.context.query = url.searchParams;
  current = { ...current, address: addressOf(url), reading: false, again: false };
  await refresh();
  if (turned) window.scrollTo(0, 0);
}

function leave() {
  if (current && current.stop) current.stop();
  current = null;
  main.replaceChildren();
}

// Loads and paints, one at a time. Data that arrives after the user left the page is dropped.
async function refresh() {
  const mine = current;
  if (!mine) return;
  if (mine.reading) return void (mine.again = true);
  mine.reading = true;
  lookedAt = Date.now();
  try {
    const data = await read(mine);
    if (current === mine) paint(mine, data);
  } catch (error) {
    if (current === mine) refused(mine, error);
  }
  if (current !== mine) return;
  main.removeAttribute("aria-busy");
  mine.reading = false;
  if (mine.again) {
    mine.again = false;
    look();
  }
}

async function read(mine) {
  const { context } = mine;
  context.whole = get("/engine/overview");
  const loading = mine.page.load(context);
  loading.catch(() => {}); // awaited below: a page that is refused has the menu too
  const whole = await context.whole;
  if (current !== mine) return null;
  overview = whole;
  setClock(whole.now);
  frame();
  return loading;
}

function paint(mine, data) {
  const first = mine.data === null;
  mine.data = data;
  paintedAt = Date.now();
  const title = mine.page.titleOf ? mine.page.titleOf(data) : mine.page.title;
  document.title = `${title} · Chargehand`;
  morph(main, mine.page.view(data, mine.context));
  if (first && mine.page.mount) mine.stop = mine.page.mount(main, mine.context);
  tick();
}

function refused(mine, error) {
  if (error instanceof NoAnswer) return live.doubt(); // the banner shows it, and the page stays
  if (!(error instanceof ApiError)) {
    console.error(error);
    return morph(main, broken(mine.page, error));
  }
  if (error.status === 401) return;
  if (mine.data && (error.status === 429 || error.status >= 500)) return say(error.message); // temporary
  morph(main, problem(mine.page, error));
}

function frame() {
  morph($("#nav"), nav(overview, location.pathname));
  morph($("#inst"), inst(overview));
}

function look(soon = false) {
  if (document.hidden && !soon) return;
  clearTimeout(wanted);
  const pause = soon ? 0 : Math.max(0, LOOK_AGAIN - (Date.now() - lookedAt));
  wanted = setTimeout(refresh, pause);
}

const live = new Live({
  onLines(fresh, anew) {
    lines = [...fresh.reverse(), ...(anew ? [] : lines)].slice(0, LINES);
    if (!current) return;
    current.context.lines = lines;
    look();
  },
  onState(state) {
    document.body.classList.toggle("is-offline", state === "lost");
    const text = { live: "Live", lost: "Reconnecting", closed: "Not live" }[state];
    write("[data-live-text]", text);
    if (state === "live") {
      $("[data-offline-banner]").hidden = true;
      write("[data-offline-alert]", "");
      look(true);
    }
    if (state === "lost") offline();
  },
});

function offline() {
  if (!live.lostAt) live.lostAt = Date.now();
  $("[data-offline-banner]").hidden = false;
  write("[data-offline-alert]", "Connection lost"); // announced once; the running time is in another element
  write("[data-offline-since]", `${short((Date.now() - live.lostAt) / 1000)} ago.`);
  write(
    "[data-offline-from]",
    paintedAt ? `What you see is from ${clock(paintedAt + (serverNow() - Date.now()))} UTC.` : "",
  );
}

function write(selector, text) {
  for (const each of $$(selector)) if (each.textContent !== text) each.textContent = text;
}

// every second: relative times, by the server's clock, never the user's
function tick() {
  for (const each of $$("time[data-rel]")) {
    const text = relative(each.dateTime, each.dataset.rel);
    if (each.textContent !== text) each.textContent = text;
  }
  write("[data-clock]", `${clock(serverNow())} UTC`);
  if (live.lostAt) offline();
}

// links, rows, buttons -----------------------------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const acting = event.target.closest("[data-act]");
  if (acting) {
    event.preventDefault();
    return runAction(acting, { say, look, go });
  }
  const holding = event.target.closest("[data-hold]");
  if (holding) return hold(holding);
  if (event.target.closest("[data-keys]")) return $("dialog.keys").showModal();
  if (event.target.closest("[data-reconnect]")) return live.start();
  if (event.target.closest("[data-sign-out]")) {
    event.preventDefault();
    forgetToken();
    return location.assign("/console");
  }
  if (event.target.tagName === "DIALOG") return event.target.close();
  const link = event.target.closest("a[href]");
  const to = link && new URL(link.getAttribute("href"), location.href); // a link in a drawing has no `href` like others
  if (
    to &&
    to.origin === location.origin &&
    (to.pathname === "/console" || to.pathname.startsWith("/console/")) &&
    !to.pathname.startsWith("/console/static/")
  ) {
    if (event.metaKey || event.ctrlKey || event.shiftKey || link.getAttribute("target") || to.hash) return;
    event.preventDefault();
    closeMenu();
    return open(to);
  }
  const row = event.target.closest("[data-href]");
  if (row && !event.target.closest("a, button, input, label, select")) go(row.dataset.href);
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "get" || !new URL(form.action).pathname.startsWith("/console")) return;
  event.preventDefault();
  const url = new URL(form.action);
  for (const [name, value] of new FormData(form)) if (value) url.searchParams.set(name, value);
  open(url);
});
document.addEventListener("change", (event) => {
  const form = event.target.form;
  if (form && form.hasAttribute("data-auto")) form.requestSubmit();
});

window.addEventListener("popstate", () => {
  if (current && current.address === addressOf(location)) return; // another part of the same page
  open(new URL(location.href), { push: false });
});

// A browser has six connections to a server: a hidden tab closes its stream, and resumes when it is visible again.
document.addEventListener("visibilitychange", () => {
  if (!$("#login").hidden) return;
  if (!document.hidden) return live.start();
  live.stop();
  if (current && current.stop) current.stop();
  if (current) current = { ...current, stop: null, data: null, reading: false, again: false };
});
document.addEventListener("pointerout", (event) => {
  const list = event.target.closest && event.target.closest("[data-list]");
  if (list && !list.contains(event.relatedTarget)) look();
});

// A list on hold keeps its rows until it is released, wherever the pointer is.
function hold(button) {
  const held = document.getElementById(button.dataset.hold).toggleAttribute("data-held");
  button.setAttribute("aria-pressed", String(held));
  if (!held) look();
}

function go(path) {
  open(new URL(path, location.origin));
}

// start --------------------------------------------------------------------------------------------------------------------

whenSignedOut(() => {
  live.stop();
  leave();
  showLogin(begin);
});

async function begin() {
  $("#login").hidden = true;
  $("#shell").hidden = false;
  live.start();
  await open(new URL(location.href), { push: false });
}

pressTheme();
readOut(main);
listenToKeys(main, go);
setInterval(tick, 1000);
setInterval(() => look(), LOOK_ANYWAY);
begin();
