// Endpoints: their last hour, their breakers, and the actions for operators.

import { flag, html } from "../dom.js";
import { ACTIONS, columns, glyph, panel, time } from "../parts.js";
import { length, number, percent, plural } from "../words.js";

const SHOWN = 12; // those in trouble first; the rest on request

const NUMBERS = ["Delivered", "p50", "p95", "Pending", "Dead"];

export function heldBack(endpoint) {
  return endpoint.state !== "active" || endpoint.breaker === "open";
}

function trouble(endpoint) {
  return (
    (endpoint.state === "disabled" || endpoint.breaker === "open" ? 4 : 0) +
    (endpoint.dead ? 2 : 0) +
    (endpoint.state === "paused" || endpoint.breaker === "half open" ? 1 : 0)
  );
}

export function endpointsPanel({ endpoints, more }, query) {
  const sorted = [...endpoints].sort((a, b) => trouble(b) - trouble(a) || a.url.localeCompare(b.url));
  const all = query.get("endpoints") === "all";
  const shown = all ? sorted : sorted.slice(0, SHOWN);
  const chosen = query.get("endpoint");
  const rest = sorted.length - shown.length;
  const wide = new URLSearchParams(query);
  wide.set("endpoints", "all");
  return panel({
    id: "endpoints",
    title: "Endpoints",
    sub: `${number(endpoints.length)}${more ? "+" : ""}`,
    body: html`<table class="t cards tiles freeze">
        ${columns("Endpoint", "Last hour", ...NUMBERS.map((name) => [name, "num"]), "Breaker", ACTIONS)}
        <tbody>
          ${shown.map((each) => row(each, chosen))}
        </tbody>
      </table>
      <div class="panel-foot">
        <span>Delivered, p50 and p95 are of all tries of this node in the last hour. The hour begins anew with the process.</span>
        ${rest ? html`<span class="end"><a href="/console/deliveries?${wide}">${number(rest)} more</a></span>` : ""}
      </div>`,
  });
}

function row(endpoint, chosen) {
  const { hour } = endpoint;
  const [name, path] = split(endpoint.url);
  const href = `/console/deliveries?endpoint=${endpoint.id}`;
  const none = html`<span class="zero">–</span>`;
  return html`<tr data-key="${endpoint.id}" data-href="${href}" tabindex="-1" ${flag('aria-current="true"', endpoint.id === chosen)}>
    <td class="c-full">
      <span class="two"><span class="over"><a class="name" href="${href}">${name}</a> <span class="dim small">${path}</span></span><small>${note(endpoint)}</small></span>
    </td>
    <td data-l="Last hour" class="w6">${bars(hour)}</td>
    <td class="num" data-l="Delivered">${hour.tries ? percent(hour.success_rate) : none}</td>
    <td class="num" data-l="p50">${hour.tries ? length(hour.p50_seconds) : none}</td>
    <td class="num" data-l="p95">${hour.tries ? length(hour.p95_seconds) : none}</td>
    <td class="num" data-l="Pending">${endpoint.pending ? number(endpoint.pending) : html`<span class="zero">0</span>`}</td>
    <td class="num" data-l="Dead">${endpoint.dead ? html`<span class="state ink s s-dead">${glyph("dead")}${number(endpoint.dead)}</span>` : html`<span class="zero">0</span>`}</td>
    <td data-l="Breaker">${breaker(endpoint)}</td>
    <td class="acts">${acts(endpoint)}</td>
  </tr>`;
}

function split(url) {
  try {
    const { host, pathname } = new URL(url);
    return [host, pathname];
  } catch (e) {
    return [url, ""];
  }
}

function note(endpoint) {
  if (endpoint.state === "disabled") return endpoint.reason || "disabled: it answered 410 Gone";
  if (endpoint.state === "paused") return endpoint.reason || "paused";
  if (endpoint.oldest_due_at && endpoint.pending) return html`oldest due ${time(endpoint.oldest_due_at, "ago")}`;
  return endpoint.hour.tries
    ? `${plural(endpoint.hour.tries, "try", "tries")} in the last hour`
    : "nothing sent in the last hour";
}

// Closed lets everything through, open nothing, half open one at a time. An operator pauses an endpoint and 410 disables it, not the breaker.
export function breaker(endpoint) {
  if (endpoint.state !== "active") {
    return html`<span class="state s s-${endpoint.state === "paused" ? "parked" : "dead"}">${glyph(endpoint.state === "paused" ? "paused" : "dead")}<span class="lbl">${endpoint.state}</span></span>`;
  }
  const [shape, tone] = { open: ["open", "failed"], "half open": ["half", "parked"] }[endpoint.breaker] || [
    "closed",
    "done",
  ];
  const until =
    endpoint.breaker === "open" && endpoint.breaker_until
      ? html` <small class="dim">again ${time(endpoint.breaker_until, "ago")}</small>`
      : "";
  return html`<span class="breaker s s-${tone}"><svg viewBox="0 0 24 12" aria-hidden="true"><use href="#b-${shape}" /></svg>${endpoint.breaker}${until}</span>`;
}

export function acts(endpoint) {
  const path = `/engine/endpoints/${endpoint.id}`;
  const [name] = split(endpoint.url);
  const replay = endpoint.dead
    ? html`<button class="btn small" type="button" data-act="POST ${path}/replay" data-ask="Send ${plural(endpoint.dead, "dead delivery", "dead deliveries")} to ${name} once more? They keep their ids, and get all their tries again." data-yes="Replay ${number(endpoint.dead)}" data-done="{replayed} due again">Replay dead</button> `
    : "";
  if (endpoint.state !== "active")
    return html`${replay}<button class="btn small" type="button" data-act="POST ${path}/resume" data-done="Resumed">Resume</button>`;
  const probe =
    endpoint.breaker === "open"
      ? html`<button class="btn small" type="button" data-act="POST ${path}/resume" data-done="Tried now" title="Close the breaker and send at once">Probe now</button> `
      : "";
  return html`${replay}${probe}<button class="btn small" type="button" data-act="POST ${path}/pause" data-done="Paused: deliveries wait until it is resumed">Pause</button>`;
}

function bars(hour) {
  if (!hour.tries)
    return html`<svg class="mini" viewBox="0 0 120 22" preserveAspectRatio="none" aria-hidden="true"><rect class="q" x="0" y="21" width="120" height="1" /></svg>`;
  const most = Math.max(...hour.delivered_by_minute.map((good, n) => good + hour.failed_by_minute[n]));
  const high = (count) => (count ? Math.max(2, (count / most) * 20) : 0);
  const drawn = hour.delivered_by_minute.map((good, n) => {
    const bad = high(hour.failed_by_minute[n]);
    const well = high(good);
    const x = (n * 2).toFixed(1);
    return html`${well ? html`<rect class="y" x="${x}" y="${(22 - bad - well).toFixed(1)}" width="1.6" height="${well.toFixed(1)}" />` : ""}${bad ? html`<rect class="z" x="${x}" y="${(22 - bad).toFixed(1)}" width="1.6" height="${bad.toFixed(1)}" />` : ""}`;
  });
  const failed = hour.tries - hour.delivered;
  return html`<svg class="mini" viewBox="0 0 120 22" preserveAspectRatio="none" role="img" aria-label="${plural(hour.delivered, "success", "successes")}, ${plural(failed, "failure")} in the last hour"><rect class="q" x="0" y="21.5" width="120" height="0.5" />${drawn}</svg>`;
}
