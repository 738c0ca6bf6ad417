// The list of deliveries, newest first, filtered by state and endpoint.

import { flag, html } from "../dom.js";
import { columns, empty, fresh, id, jobHref, panel, state, time } from "../parts.js";
import { length, number, own, since, sum } from "../words.js";
import { acts, heldBack } from "./deliveries-endpoints.js";
import { topicWord } from "./job-words.js";

const STATES = ["pending", "dead", "delivered"];

function hrefWith(query, changes) {
  const next = new URLSearchParams(query);
  next.delete("cursor");
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  return `/console/deliveries${String(next) ? `?${next}` : ""}`;
}

export function filters({ endpoints }, query) {
  const chosen = query.get("endpoint") || "";
  const among = chosen ? endpoints.filter((each) => each.id === chosen) : endpoints;
  const sums = { pending: sum(among, (each) => each.pending), dead: sum(among, (each) => each.dead) };
  const now = query.get("state") || "";
  const tab = (value, word) =>
    html`<a href="${hrefWith(query, { state: value })}" ${flag('aria-current="true"', value === now)}>${word}${sums[value] ? html` <span class="n">${number(sums[value])}</span>` : ""}</a>`;
  const job = query.get("job");
  return html`<form class="filters tight" action="/console/deliveries" data-auto>
    <div class="seg" role="group" aria-label="State">${tab("", "All")}${STATES.map((each) => tab(each, each[0].toUpperCase() + each.slice(1)))}</div>
    ${now ? html`<input type="hidden" name="state" value="${now}" />` : ""}
    ${job ? html`<input type="hidden" name="job" value="${job}" />` : ""}
    <select class="select" name="endpoint" aria-label="Endpoint">
      <option value="" ${flag("selected", !chosen)}>Any endpoint</option>
      ${endpoints.map((each) => html`<option value="${each.id}" ${flag("selected", each.id === chosen)}>${place(each.url)}</option>`)}
    </select>
    ${job ? html`<span class="dim small">of job ${id(job, jobHref(job))} <a class="link" href="${hrefWith(query, { job: "" })}">of all jobs</a></span>` : ""}
  </form>`;
}

export function listPanel({ deliveries, endpoints, next, one }, { query }) {
  const places = Object.fromEntries(endpoints.map((each) => [each.id, each]));
  const chosen = own(places, query.get("endpoint"));
  const rows = deliveries.map((each) => row(each, places[each.endpoint_id], query, one));
  const older = new URLSearchParams(query);
  older.set("cursor", next || "");
  const foot = html`<div class="panel-foot">
    <div class="hints"><span><kbd>j</kbd><kbd>k</kbd> move</span><span><kbd>Enter</kbd> open</span><span><kbd>c</kbd> copy id</span></div>
    <span class="end">${query.get("cursor") ? html`<a class="btn small" href="${hrefWith(query, {})}">Newest</a>` : ""}${next ? html`<a class="btn small" href="/console/deliveries?${older}">Older</a>` : ""}</span>
  </div>`;
  return panel({
    id: "deliveries",
    title: "Deliveries",
    sub: html`newest first ${fresh("deliveries-new")}`,
    end: chosen && !one ? acts(chosen) : "",
    body: rows.length
      ? html`<table class="t cards freeze">
            ${columns("State", "Event", ["About", one && "hide-l"], !one && ["Delivery", "hide-l"], "Endpoint", !one && ["Attempts", "num hide-l"], "Last answer", ["Age", "num"])}
            <tbody data-list="deliveries-new">${rows}</tbody>
          </table>
          ${foot}`
      : none(query),
  });
}

function row(delivery, endpoint, query, one) {
  const search = String(query) ? `?${query}` : "";
  const href = `/console/deliveries/${delivery.id}${search}`;
  const mine = one && one.id === delivery.id;
  return html`<tr data-key="${delivery.id}" data-href="${href}" tabindex="-1" ${flag('aria-current="true"', mine)}>
    <td class="c-main">${stateOf(delivery, endpoint)}</td>
    <td data-l="Event" class="nowrap c-2a"><span class="name">${topicWord(delivery.kind, delivery.topic)}</span></td>
    <td class="nowrap ink2 c-hide ${one ? "hide-l" : ""}">${one ? delivery.queue : html`<a class="link" href="${jobHref(delivery.job_id)}">${delivery.queue || "its job"}</a>`}</td>
    ${one ? "" : html`<td data-l="Delivery" class="c-hide hide-l">${id(delivery.id, href)}</td>`}
    <td class="ink2 nowrap c-2b" title="${delivery.url}"><span class="over short">${place(delivery.url)}</span></td>
    ${one ? "" : html`<td class="num c-hide hide-l">${number(delivery.tries)}</td>`}
    <td class="clip ink2 c-full" title="${delivery.reason}">${answer(delivery, endpoint)}</td>
    <td class="num dim c-side">${time(delivery.created_at)}</td>
  </tr>`;
}

function place(url) {
  return url.replace(/^https?:\/\//, "");
}

// The API's state, unless the endpoint holds the delivery back, which its state does not show.
export function stateOf(delivery, endpoint) {
  if (delivery.state === "pending" && endpoint && heldBack(endpoint)) return state("held", { as: "held" });
  return state(delivery.state);
}

function answer(delivery, endpoint) {
  if (delivery.state === "delivered") return `${delivery.status} in ${length(delivery.duration_seconds)}`;
  if (delivery.state === "dead") return delivery.reason || "dead";
  const last = delivery.tries ? `${delivery.status || "no answer"}, ` : "";
  if (endpoint && endpoint.state !== "active") return `${last}endpoint ${endpoint.state}`;
  if (endpoint && endpoint.breaker === "open") return `${last}held by the breaker`;
  if (since(delivery.due_at) >= 0) return `${last}due now`;
  return html`${last}again ${time(delivery.due_at, "ago")}`;
}

function none(query) {
  const word = query.get("state");
  if (word === "dead")
    return empty(
      "No delivery is dead",
      "What could not be delivered after all its tries shows here, and can be sent once more.",
    );
  if (word === "pending") return empty("Nothing is pending", "All that was to be told has been told.");
  if (query.get("endpoint") || query.get("job"))
    return empty(
      "No such deliveries",
      "None of those that are kept matches. Delivered ones go with their job when its time is over.",
    );
  return empty("No deliveries", "Jobs that name a webhook make them.");
}
