// The log of a provisioning job, with lines of the server and of the machine; the list stays scrolled to its end while it grows.

import { html } from "./dom.js";
import { clock } from "./words.js";

export function log(events) {
  return html`<ol class="log" tabindex="0" aria-label="Log, newest at the end" data-follow>
    ${events.map((event) => html`<li data-key="l-${event.sequence}"><time datetime="${event.time}">${clock(event.time)}</time><span class="src">${source(event)}</span><span class="${tone(event)}">${event.message}</span></li>`)}
  </ol>`;
}

function source(event) {
  if (event.kind === "progress" || event.kind === "webhook") return "machine";
  return event.step.startsWith("redfish.") || event.step.startsWith("cleanup.") ? "bmc" : "server";
}

function tone(event) {
  if (event.level === "warning" || event.level === "error") return "w";
  return event.kind === "transition" || event.kind === "outcome" ? "h" : "";
}

// If the user has scrolled up, keep the position.
export function followEnd(main) {
  let atEnd = true;
  const onScroll = (event) => {
    const list = event.target;
    if (list.hasAttribute && list.hasAttribute("data-follow"))
      atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 24;
  };
  const down = () => {
    const list = main.querySelector("[data-follow]");
    if (list && atEnd) list.scrollTop = list.scrollHeight;
  };
  const observer = new MutationObserver(down);
  main.addEventListener("scroll", onScroll, true);
  observer.observe(main, { childList: true, subtree: true });
  down();
  return () => {
    observer.disconnect();
    main.removeEventListener("scroll", onScroll, true);
  };
}
