// The steps of a provisioning job, why it failed and what to do, and the end of the machine's log.

import { html } from "../dom.js";
import { glyph, panel, time } from "../parts.js";
import { plural } from "../words.js";
import { stepList } from "../servers-steps.js";

export function steps(job, door, events) {
  const { progress, failure } = door;
  const live = !job.finished_at;
  const done = progress.steps.filter((each) => each.ended_at).length;
  const notes = events
    .filter((event) => event.move === "note" && event.data)
    .map((event) => ({ kind: "step", ...event }));
  const deadlines = Object.entries(door.deadlines);
  return html`${failure ? trouble(failure) : ""} ${panel({
    id: "steps",
    title: "Steps",
    sub: `${plural(done, "step")} done${live && progress.step ? `, now at ${progress.step}` : ""}`,
    end: progress.heard_at ? html`<span>the machine was heard ${time(progress.heard_at, "ago")}</span>` : "",
    body: html`${stepList(door, notes)}
      ${deadlines.length ? html`<div class="panel-foot">${deadlines.map(([key, at]) => html`<span>gives up ${time(at, "ago")} with <code>${key}</code></span>`)}</div>` : ""}`,
  })}
  ${
    progress.log_tail
      ? panel({
          id: "tail",
          title: "Log of the machine",
          sub: "its end",
          body: html`<ol class="log short" tabindex="0" aria-label="Log of the machine, newest at the end">${progress.log_tail
            .trimEnd()
            .split("\n")
            .slice(-200)
            .map((line) => html`<li class="plain"><span>${line}</span></li>`)}</ol>`,
        })
      : ""
  }
  ${door.warnings.length ? panel({ id: "warnings", title: "Warnings", body: html`<ul class="rows">${door.warnings.map((text) => html`<li><span class="s s-warn">${glyph("warn")}</span><span>${text}</span></li>`)}</ul>` }) : ""}`;
}

function trouble(failure) {
  return html`<section class="panel wait one s s-failed" aria-labelledby="h-failure">
    <div>
      <h2 id="h-failure">${glyph("failed")}Failed at ${failure.failed_step || failure.unit || "an unknown step"}</h2>
      <p class="lead">${failure.message || failure.reason}</p>
      ${failure.meaning ? html`<p class="lead">${failure.meaning}</p>` : ""}
      ${failure.advice ? html`<p class="lead"><b>What to do:</b> ${failure.advice}</p>` : ""}
    </div>
  </section>`;
}
