// The panels beside a job: its attempts, deliveries and files.

import { html } from "../dom.js";
import { ask, get, headers } from "../api.js";
import { glyph, icon, look, panel } from "../parts.js";
import { bytes, clock, host, length, number, plural, utc } from "../words.js";
import { toldOf } from "./job-timeline.js";

const SHOWN = 8;

// attempts -----------------------------------------------------------------------------------------------------------------

const OUTCOMES = {
  succeed: "done",
  retry: "failed",
  fail: "failed",
  expire: "failed",
  cancel: "off",
  park: "parked",
  "": "working",
};

export function attempts(job, door, phases) {
  const all = [...phases.attempts].reverse();
  if (!all.length) return "";
  const measured = job.kind === "inference" && door ? door.attempts : [];
  const rows = all.slice(0, 20).map((each) => {
    const shape = OUTCOMES[each.outcome] || "working";
    const found = measured.find((m) => Date.parse(m.at) === each.to);
    const name = each.outcome === "park" ? "not counted" : number(each.number);
    const where = found && found.evidence && found.evidence.target;
    const by = where || (/^claimed by (?!@)(.+)$/.exec(each.by || "") || [])[1] || "";
    return html`<li data-key="a-${each.from}"><span class="s s-${look(shape)[1]}">${glyph(shape, { pulse: !each.outcome })}</span>
      <span class="t1">${by ? `${name} · ${by}` : name}</span><span class="e">${length((each.to - each.from) / 1000)}</span>
      <span class="t2" title="${each.error || each.message || ""}">${each.outcome ? detail(each, found) : "at work"}</span></li>`;
  });
  return panel({
    id: "attempts",
    title: "Attempts",
    sub: `${number(job.attempt)} of ${number(job.max_attempts)}`,
    body: html`<ul class="rows">${rows}</ul>`,
  });
}

function detail(attempt, found) {
  const evidence = (found && found.evidence) || {};
  const facts = [];
  if (evidence.load_seconds) facts.push(`loaded in ${length(evidence.load_seconds)}`);
  else if (evidence.resident) facts.push("was in memory");
  if (evidence.tokens) facts.push(`${number(evidence.tokens)} tokens`);
  if (attempt.outcome !== "succeed") facts.push(attempt.error || attempt.message || attempt.outcome);
  return facts.join(", ") || attempt.message || "done";
}

// deliveries ---------------------------------------------------------------------------------------------------------------

export function deliveries(list) {
  if (!list.length)
    return panel({
      id: "deliveries",
      title: "Deliveries",
      body: html`<div class="nothing small-n"><p>None. The job was submitted without a webhook, or nothing was to be told yet.</p></div>`,
    });
  const hosts = [...new Set(list.map((each) => host(each.url)))];
  const rows = list.slice(0, SHOWN).map((each) => {
    const shape = { delivered: "done", dead: "dead", pending: each.tries ? "parked" : "queued" }[each.state];
    const how = each.status ? `${each.status} · ${length(each.duration_seconds)}` : each.state;
    const at = each.state === "pending" ? each.due_at : each.updated_at;
    return html`<li data-key="d-${each.id}"><span class="s s-${look(shape)[1]}">${glyph(shape)}</span>
      <a class="t1" href="/console/deliveries/${each.id}">${toldOf(each)}</a><span class="e">${how}</span>
      <span class="t2" title="${each.reason}">${each.state}, ${plural(each.tries, "try", "tries")}, <time datetime="${at}" title="${utc(at)}">${clock(at)}</time>${each.reason ? ` · ${each.reason}` : ""}</span></li>`;
  });
  const ended = list.filter((each) => each.state !== "pending");
  const one = ended.find((each) => each.state === "dead") || ended[0];
  const replay = one
    ? html`<button class="btn small" type="button" data-act="POST /engine/deliveries/${one.id}/replay" ${askReplay(one)} data-done="${toldOf(one)} is sent once more"
    title="Send ${toldOf(one)} once more">${icon("retry")}Replay</button>`
    : "";
  return panel({
    id: "deliveries",
    title: "Deliveries",
    sub: `${number(list.length)} to ${hosts.length === 1 ? hosts[0] : plural(hosts.length, "host")}`,
    end: replay,
    body: html`<ul class="rows">${rows}</ul>${list.length > SHOWN ? html`<div class="panel-foot">${earlier(list.slice(SHOWN))}</div>` : ""}`,
  });
}

// A receiver that already accepted it gets it a second time.
export function askReplay({ state }) {
  return state === "delivered"
    ? html`data-ask="It was delivered already. Send it once more, under the same id?" data-yes="Send again"`
    : "";
}

function earlier(rest) {
  const bad = rest.filter((each) => each.state !== "delivered").length;
  return `${number(rest.length)} earlier, ${bad ? `${number(bad)} of them not delivered` : "all delivered"}`;
}

// artifacts ----------------------------------------------------------------------------------------------------------------

export function artifacts(job, list) {
  if (!list.length) {
    if (job.kind !== "inference" && job.kind !== "task") return "";
    return panel({
      id: "artifacts",
      title: "Artifacts",
      body: html`<div class="nothing small-n"><p>${job.finished_at ? "None." : "None yet. They show here when the job works."}</p></div>`,
    });
  }
  const rows = list.map(
    (each) => html`<li data-key="f-${each.name}">${icon("file")}
    ${fileLink(each)}<span class="e">${each.size === undefined ? "" : bytes(each.size)}</span>
    <span class="t2${each.sha256 ? " mono" : ""}" title="${each.sha256 || ""}">${each.sha256 ? `sha256 ${each.sha256.slice(0, 6)}…${each.sha256.slice(-4)}` : each.media_type || ""}</span></li>`,
  );
  return panel({
    id: "artifacts",
    title: "Artifacts",
    sub: plural(list.length, "file"),
    body: html`<ul class="rows files">${rows}</ul>`,
  });
}

// The worker chose the URL of a file: only http and https become a link.
function fileLink({ name, url }) {
  let to = null;
  try {
    to = new URL(url, location.origin);
  } catch (e) {
    /* shown as plain text */
  }
  if (!url || !to || !["http:", "https:"].includes(to.protocol))
    return html`<span class="t1" title="${url}">${name}</span>`;
  return html`<a class="t1" href="${to.href}" data-download="${name}" ${to.origin === location.origin ? "" : html`target="_blank" rel="noopener noreferrer"`}>${name}</a>`;
}

// A file needs the token, which a link cannot send: fetch it, and let the browser save it.
export async function download(path, name) {
  const answer = await ask(path, { headers: headers(), cache: "no-store" });
  if (!answer.ok) {
    await get(path); // throws the server's error
    return;
  }
  save(await answer.blob(), name);
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
