// Deliveries: endpoints and their success, dead deliveries, and one delivery with its tries.

import { html } from "../dom.js";
import { get, getOr } from "../api.js";
import { curl, empty, head, panel } from "../parts.js";
import { length, number, percent, plural, since, sum } from "../words.js";
import { endpointsPanel, heldBack } from "./deliveries-endpoints.js";
import { filters, listPanel } from "./deliveries-list.js";
import { onePanel } from "./deliveries-one.js";

const PAGE = 50;

export default {
  title: "Deliveries",
  titleOf: (data) => (data.one ? `Delivery ${data.one.id}` : "Deliveries"),
  async load({ argument, query }) {
    const [places, page, one] = await Promise.all([
      get("/engine/endpoints?limit=200"),
      get(`/engine/deliveries?${asked(query)}`),
      argument ? get(`/engine/deliveries/${encodeURIComponent(argument)}`) : null,
    ]);
    const body = one ? await getOr(`/engine/deliveries/${one.id}/body`, null) : null;
    const endpoints = places.endpoints;
    // The selected endpoint may not be in the first page of endpoints.
    const wanted = one ? one.endpoint_id : query.get("endpoint");
    if (wanted && !endpoints.some((each) => each.id === wanted)) {
      const found = await getOr(`/engine/endpoints/${encodeURIComponent(wanted)}`, null);
      if (found) endpoints.unshift(found);
    }
    return { endpoints, more: Boolean(places.next), deliveries: page.deliveries, next: page.next, one, body };
  },
  view(data, context) {
    if (!data.endpoints.length) return nothing(context.overview());
    if (data.one) return opened(data, context);
    return html`${head({ title: "Deliveries", lede: lede(data.endpoints) })}
      <div class="stack">${endpointsPanel(data, context.query)} ${filters(data, context.query)} ${listPanel(data, context)}</div>`;
  },
};

function asked(query) {
  const by = new URLSearchParams({ limit: PAGE });
  for (const name of ["state", "endpoint", "job", "cursor"]) if (query.get(name)) by.set(name, query.get(name));
  return by;
}

// A delivery beside the list that it was opened from; on a narrow screen it is alone.
function opened(data, context) {
  const back = new URLSearchParams(context.query);
  const search = String(back) ? `?${back}` : "";
  const crumbs = html`<nav class="crumbs" aria-label="Where you are"><a href="/console/deliveries${search}">Deliveries</a><span aria-hidden="true">/</span><span>${data.one.id}</span></nav>`;
  return html`${head({ title: "Delivery", crumbs })}
    <div class="split one-open">${listPanel(data, context)} ${onePanel(data)}</div>`;
}

function lede(endpoints) {
  const tries = sum(endpoints, (each) => each.hour.tries);
  const good = sum(endpoints, (each) => each.hour.delivered);
  const dead = sum(endpoints, (each) => each.dead);
  const held = sum(endpoints.filter(heldBack), (each) => each.pending);
  const open = endpoints.filter((each) => each.breaker === "open");
  const rate = tries
    ? `${percent(good / tries)} of ${plural(tries, "try", "tries")} succeeded in the last hour.`
    : "Nothing was sent in the last hour.";
  const next = open
    .map((each) => each.breaker_until)
    .filter(Boolean)
    .sort()[0];
  const breakers = open.length
    ? ` ${open.length === 1 ? "One breaker is" : `${number(open.length)} breakers are`} open${next ? `, the next probe is in ${length(Math.max(1, Math.round(-since(next))))}` : ""}.`
    : "";
  return `${rate} ${held ? `${number(held)} held, ` : ""}${dead ? `${number(dead)} dead.` : held ? "none dead." : "None is dead."}${breakers}`;
}

function nothing(overview) {
  const command = curl(overview, "/engine/jobs", {
    queue: "hello",
    payload: {},
    webhook: { url: "http://127.0.0.1:9000/" },
  });
  return html`${head({ title: "Deliveries", lede: "Every change of a job can be pushed to a URL of yours, signed, and tried again until it is taken." })}
    <div class="stack">
      ${panel({
        id: "none",
        title: "No webhook has been asked for yet",
        body: html`${empty("First, somebody who listens", "Prints whatever arrives, and says whether its signature is good.", "chargehand listen --port 9000")}
        ${empty("Then, a job that reports", "Any job of any door can name a webhook. Its deliveries show here.", command)}`,
      })}
    </div>`;
}
