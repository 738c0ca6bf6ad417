// The menu, with the most important number of each page.

import { html } from "./dom.js";
import { icon, glyph } from "./parts.js";
import { number, short, sum } from "./words.js";

function entry(href, iconName, name, path, badge) {
  const here = href === "/console" ? path === href || path === "/console/" : path.startsWith(href);
  return html`<li data-key="${href}"><a href="${href}" ${here ? html`aria-current="page"` : ""}>${icon(iconName)}${name}${badge}</a></li>`;
}

function badge(text, dead) {
  if (!text) return "";
  if (dead) return html`<span class="n bad s s-dead" title="${dead}">${glyph("dead")}${text}</span>`;
  return html`<span class="n">${text}</span>`;
}

export function nav(overview, path) {
  const doors = Object.fromEntries(overview.doors.map((door) => [door.kind, door]));
  const open = sum(overview.doors, (door) => door.waiting + sum(Object.values(door.running)));
  const flows = doors.flow ? sum(Object.values(doors.flow.running)) : 0;
  const dead = overview.deliveries.dead;
  return html`<ul>
      ${entry("/console", "now", "Now", path)}
      ${entry("/console/jobs", "jobs", "Jobs", path, badge(open ? number(open) : ""))}
      ${entry("/console/flows", "flow", "Flows", path, badge(flows ? number(flows) : ""))}
      ${entry("/console/deliveries", "deliver", "Deliveries", path, dead ? badge(number(dead), `${number(dead)} dead deliveries`) : "")}
    </ul>
    <h2>Doors</h2>
    <ul>
      ${doors.inference ? entry("/console/targets", "target", "Targets", path) : ""}
      ${doors.task ? entry("/console/tasks", "task", "Tasks", path) : ""}
      ${doors.provision ? entry("/console/servers", "server", "Servers", path, badge(busy(doors.provision))) : ""}
    </ul>
    <h2>Server</h2>
    <ul>
      ${entry("/console/settings", "settings", "Settings", path)}
    </ul>`;
}

function busy(door) {
  const count = sum(Object.values(door.running));
  return count ? `${number(count)} busy` : "";
}

export function inst(overview) {
  const who = overview.auth
    ? html` · <a class="link" href="/console" data-sign-out title="${overview.me.subject}, ${overview.me.tenant}">sign out</a>`
    : "";
  return html`<b title="${location.host}">${location.host}</b><span>v${overview.version} · up ${short(overview.up_seconds)}${who}</span>`;
}
