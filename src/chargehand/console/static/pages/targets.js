// Targets: slots, availability, waiting jobs and why they wait; below, which target has which model.

import { html } from "../dom.js";
import { get, getOr } from "../api.js";
import { columns, empty, fact, glyph, head, panel, pill, state, time } from "../parts.js";
import { slotsOf } from "../slots.js";
import { presence, presenceOf } from "../presence.js";
import { bytes, host, length, number, plural, since, sum } from "../words.js";
import { canonical } from "./job-words.js";

const COMMAND = "CHARGEHAND_INFERENCE_TARGETS=http://127.0.0.1:11434 chargehand serve";

export default {
  title: "Targets",
  titleOf: (data) => data.name || "Targets",
  async load({ argument }) {
    const [found, queues] = await Promise.all([get("/targets"), get("/engine/queues")]);
    const known = found.targets.some((target) => target.installed.length) ? await sizes() : new Map();
    const targets = found.targets.filter((target) => !argument || target.name === argument);
    const waits = queues.queues.filter((queue) => queue.kind === "inference" && queue.ready + queue.delayed > 0);
    return { name: argument, targets, everybody: found.targets, sizes: known, waits };
  },
  view(data) {
    const crumbs = data.name
      ? html`<nav class="crumbs" aria-label="Path"><a href="/console/targets">Targets</a><span>/</span></nav>`
      : "";
    const top = head({ title: data.name || "Targets", lede: lede(data), crumbs });
    if (!data.targets.length) return html`${top}${nobody(data)}`;
    const cards = data.targets.map((target) => card(target, data));
    if (cards.length === 1) return html`${top}<div class="cols2">${cards}${matrix(data)}</div>`;
    return html`${top}<div class="stack"><div class="cols2 stretch">${cards}</div>${matrix(data)}</div>`;
  },
};

// The size of each model on disk.
async function sizes() {
  const tags = await getOr("/api/tags", { models: [] }).catch(() => ({ models: [] }));
  return new Map((tags.models || []).map((model) => [canonical(model.model || model.name), model.size]));
}

// The name without the default tag, as people write it.
function spoken(model) {
  return model.replace(/:latest$/, "");
}

function lede({ name, targets, everybody, waits }) {
  if (!everybody.length) return "";
  if (name) return targets.length ? targets[0].url : "";
  const here = everybody.filter((target) => target.state === "up").length;
  const waiting = inLine(waits);
  return `${number(here)} of ${number(everybody.length)} here. ${waiting ? plural(waiting, "job waits", "jobs wait") : "Nothing waits"} for a model.`;
}

function nobody({ name }) {
  const body = name
    ? empty(`There is no target ${name}`, "Targets are named in the settings, under inference.targets.")
    : empty(
        "No target is configured",
        "A target is an Ollama server. Name one in inference.targets; jobs that come before wait for it.",
        COMMAND,
      );
  return html`<section class="panel" aria-label="Targets">${body}</section>`;
}

// one target ---------------------------------------------------------------------------------------------------------------

function card(target, data) {
  const up = target.state === "up";
  const seen = presenceOf(target);
  const waits = waitingFor(target, data);
  const requests = sum(target.resident, (each) => each.in_flight);
  const word = up
    ? pill("here")
    : html`<span class="pill s s-away">${glyph("away")}<span class="lbl">away ${time(target.since, "in")}</span></span>`;
  return html`<section class="panel tcard" aria-labelledby="t-${target.name}" data-key="t-${target.name}">
    <div class="panel-head">
      <h2 id="t-${target.name}">${target.name}</h2>
      <span class="sub" title="${target.url}">${host(target.url)}</span>
      <div class="end">${word}</div>
    </div>
    <div class="panel-body">
      <div class="slots2">${slotsOf(target, (each) => unload(target, each))}</div>
      ${presence(target)}
      <dl class="facts">
        ${fact(up ? "Here for" : "Away for", time(target.since, "in"))}
        ${up ? fact("At work", plural(requests, "request")) : ""}
        ${up ? fact("In memory", bytes(sum(target.resident, (each) => each.size))) : ""}
        ${fact("Waiting for it", plural(inLine(waits), "job"))}
        ${seen ? fact(`Here, ${seen.hours}\u00a0h`, `${Math.round(seen.share * 100)}\u00a0%`) : ""}
        ${target.version ? fact("Version", target.version) : ""}
      </dl>
      ${target.problem ? html`<p class="why-line"><b>What is wrong</b> ${target.problem}</p>` : ""}
      ${target.decision ? html`<p class="why-line"><b>Last decision</b> ${target.decision}</p>` : ""}
    </div>
    <div class="panel-foot">${foot(up, waits)}</div>
  </section>`;
}

function inLine(waits) {
  return sum(waits, (queue) => queue.ready + queue.delayed);
}

function oldest(waits) {
  const at = waits
    .map((queue) => queue.oldest_at)
    .filter(Boolean)
    .sort()[0];
  return at ? `, the oldest for ${length(since(at))}` : "";
}

// A target that was never reached may have any model that no other target has.
function waitingFor(target, { waits, everybody }) {
  const mine = new Set(target.installed);
  const elsewhere = new Set(everybody.filter((each) => each !== target).flatMap((each) => each.installed));
  return waits.filter(
    (queue) =>
      mine.has(canonical(queue.queue)) ||
      (target.state !== "up" && !mine.size && !elsewhere.has(canonical(queue.queue))),
  );
}

function foot(up, waits) {
  const count = inLine(waits);
  if (!count) return html`<span>Nothing in line</span>`;
  const text = `${plural(count, up ? "job" : "job is", up ? "jobs" : "jobs are")} ${up ? "in line" : "parked"}${oldest(waits)}`;
  const href =
    waits.length === 1
      ? `/console/jobs?kind=inference&state=queued&queue=${encodeURIComponent(waits[0].queue)}`
      : "/console/jobs?kind=inference&state=queued";
  return html`${up ? html`<span>${text}</span>` : state(text, { as: "parked" })}<span class="end"><a class="btn small" href="${href}">Show them</a></span>`;
}

function unload(target, each) {
  const question = `Unload ${each.model} from ${target.name}? What runs on it ends first. The next job for it has to load it again.`;
  return html`<div class="slot-foot"><span class="sub">${each.context_length ? `context of ${number(each.context_length)}` : ""}</span>
    <button class="btn small quiet" type="button" data-act="POST /targets/${encodeURIComponent(target.name)}/unload" data-body="${JSON.stringify({ model: each.model })}"
      data-ask="${question}" data-yes="Unload" data-done="Unloaded ${each.model}" aria-label="Unload ${each.model} from ${target.name}">Unload</button></div>`;
}

// which model is where -----------------------------------------------------------------------------------------------------

function matrix(data) {
  const { targets, waits } = data;
  const known = new Set(
    targets.flatMap((target) => [...target.installed, ...target.resident.map((each) => each.model), ...target.loading]),
  );
  if (!data.name) for (const queue of waits) known.add(canonical(queue.queue));
  const models = [...known].sort();
  const body = models.length
    ? table(models, data)
    : empty(
        "No model is known",
        "What the targets have shows here once one of them was reached.",
        "ollama pull smollm2:135m",
      );
  return panel({
    id: "models",
    title: "Models",
    sub: "where each one is",
    end: html`<span class="hide-m">resident means in memory and ready</span>`,
    body,
  });
}

function table(models, { targets, sizes: known, waits }) {
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Models by target">
    <table class="t matrix freeze">
      ${columns("Model", ...targets.map((target) => target.name), ["Waiting", "num"])}
      <tbody>${models.map((model) => {
        const waiting = inLine(waits.filter((queue) => canonical(queue.queue) === model));
        return html`<tr data-key="m-${model}">
          <td><span class="name">${spoken(model)}</span> <small class="dim small">${known.get(model) ? bytes(known.get(model)) : ""}</small></td>
          ${targets.map((target) => where(target, model))}
          <td class="num">${waiting ? html`<a href="/console/jobs?kind=inference&state=queued">${number(waiting)}</a>` : html`<span class="zero">–</span>`}</td>
        </tr>`;
      })}</tbody>
    </table>
  </div>`;
}

function where(target, model) {
  const here = target.resident.find((each) => each.model === model);
  if (target.loading.includes(model)) return html`<td>${state("loading")}</td>`;
  if (here)
    return html`<td>${here.in_flight ? state("working", { pulse: true }) : state("resident", { as: "queued" })}</td>`;
  if (target.installed.includes(model)) return html`<td class="dim small">on disk</td>`;
  return html`<td class="dim small">–</td>`;
}
