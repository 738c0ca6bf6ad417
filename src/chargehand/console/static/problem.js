// The page that is shown if the server refused a request: its error text, and what helps.

import { html } from "./dom.js";
import { empty, head } from "./parts.js";

export function problem(page, error) {
  if (error.status === 403)
    return html`${head({ title: page.title })}<section class="panel" aria-label="Refused">${lacking(error.message)}</section>`;
  return head({
    title: error.status === 404 ? "There is no such thing" : page.title,
    lede: html`${sentence(error.message)} ${error.status === 404 ? html`Go to <a href="/console">Now</a>.` : ""}`,
  });
}

// A bug of ours: the page says so instead of being shown in part.
export function broken(page, error) {
  return head({
    title: page.title,
    lede: html`This page cannot be shown: ${sentence(error.message)} The API has it all the same: <a href="/docs">/docs</a>.`,
  });
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function lacking(message) {
  const named = /`([a-z:*]+)`/.exec(message);
  const scope = named ? named[1] : "*";
  return empty(
    "Not with this token",
    html`This page needs the scope <code>${scope}</code>, which the token that you signed in with lacks. One that has it is made with:`,
    `chargehand token --scope jobs:read --scope ${scope}`,
  );
}
