// Actions for a job: cancel, retry, submit the same as a new job, or copy it as a command.

import { html } from "../dom.js";
import { curl, icon } from "../parts.js";
import { canRetry, retryFrom } from "./flow-acts.js";
import { FINAL } from "./job-words.js";

const MAX_BODY = 64 * 1024; // the largest body for a button or a command line

// A step is not requeued by itself, but its flow is tried again from there on. Nor is it submitted by itself: what it takes over from other
// steps would be missing.
export function actions(job, door, overview, flow) {
  const ended = FINAL.has(job.state);
  const again = job.flow ? null : submission(job, door);
  const fits = again && JSON.stringify(again.body).length <= MAX_BODY;
  return html`
    ${fits ? html`<button class="btn" type="button" data-copy="${curl(overview, again.path, again.body)}">${icon("copy")}Copy as curl</button>` : ""}
    ${
      ended && fits
        ? html`<button class="btn" type="button" data-act="POST ${again.path}" data-body="${JSON.stringify(again.body)}"
      data-go="/console/jobs/{job_id}" data-done="Submitted as a new job, without its webhook">${icon("retry")}Run again</button>`
        : ""
    }
    ${["failed", "cancelled"].includes(job.state) && job.kind !== "batch" && !job.flow ? retry(job) : ""}
    ${flow && flow.steps.length && canRetry(flow) ? retryFrom(flow, flow.steps[0], null) : ""}
    ${ended ? "" : cancel(job)}`;
}

function retry(job) {
  const path =
    { inference: `/jobs/${job.id}/retry`, provision: `/api/v1/jobs/${job.id}/retry` }[job.kind] ||
    `/engine/jobs/${job.id}/requeue`;
  const ask =
    job.kind === "provision"
      ? `Start job ${job.id} again from the beginning? Its recipe may wipe the disks of ${job.queue}.`
      : "";
  const word = ["inference", "provision"].includes(job.kind) ? "Retry" : "Requeue";
  return html`<button class="btn${ask ? " danger" : ""}" type="button" data-act="POST ${path}" data-done="It has all its attempts again"
    ${ask ? html`data-ask="${ask}" data-yes="Start again"` : ""}>${icon("retry")}${word}</button>`;
}

function cancel(job) {
  const act =
    {
      inference: `DELETE /jobs/${job.id}`,
      provision: `POST /api/v1/jobs/${job.id}/cancel`,
      batch: `POST /v1/batches/batch_${job.id}/cancel`,
    }[job.kind] || `POST /engine/jobs/${job.id}/cancel`;
  const lost =
    {
      inference: "What the model has said so far is lost.",
      provision: "Its media are ejected; a machine that is at work already may go on.",
      batch: "Its lines that have not begun are not asked any more; the answers that are there are kept.",
      task: "It ends as FAILED with the error CANCELLED, and its callback says so.",
    }[job.kind] || "Whoever works on it is told to stop.";
  return html`<button class="btn danger" type="button" data-act="${act}" data-ask="Cancel this job of ${job.queue}? ${lost}" data-yes="Cancel it" data-done="Cancelled">${icon("stop")}Cancel</button>`;
}

// The same request as a new job. Without its webhook, because no view shows the whole URL.
function submission(job, door) {
  const metadata = job.metadata ? { metadata: job.metadata } : {};
  const common = { priority: job.priority, max_attempts: job.max_attempts, ...metadata };
  if (job.kind === "inference") {
    const request = door && door.request;
    if (!request || !request.body || !["/api/chat", "/api/generate"].includes(request.path)) return null;
    const body = { ...request.body };
    delete body.stream;
    return { path: "/jobs", body: { ...body, ...common } };
  }
  if (job.kind === "task")
    return {
      path: "/v1/codeq/tasks",
      body: { command: job.queue, payload: job.payload, priority: job.priority, maxAttempts: job.max_attempts },
    };
  if (job.kind === "job")
    return { path: "/engine/jobs", body: { queue: job.queue, payload: job.payload, ...common } };
  return null;
}
