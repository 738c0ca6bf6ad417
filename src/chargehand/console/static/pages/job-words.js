// A job in the terms of its door. The engine has five states; each door has its own names for them.

import { length, own, since } from "../words.js";

const WORDS = {
  inference: { queued: "queued", running: "working", succeeded: "done", failed: "failed" },
  task: { queued: "PENDING", running: "IN_PROGRESS", succeeded: "COMPLETED", failed: "FAILED" },
  provision: { queued: "queued", running: "provisioning", succeeded: "complete", failed: "failed" },
};
const NOUNS = { inference: "model", task: "command", provision: "server", batch: "batch", flow: "flow", job: "queue" };
export const FINAL = new Set(["succeeded", "failed", "cancelled"]);

// A model's name with its tag, as targets list it.
export function canonical(model) {
  const lower = model.toLowerCase();
  return lower.slice(lower.lastIndexOf("/") + 1).includes(":") ? lower : `${lower}:latest`;
}

// The name of a running job's stage; a job that was only just claimed shows the state before.
function running(job) {
  if (job.kind === "inference" || job.kind === "provision") {
    if (!job.stage) return "queued";
    return job.kind === "provision" && job.stage !== "provisioning" ? "cleaning up" : job.stage;
  }
  return (WORDS[job.kind] || {}).running || "running";
}

export function wordOf(job) {
  if (job.state === "running") return running(job);
  return (WORDS[job.kind] || {})[job.state] || job.state;
}

// The name of a topic, as in deliveries and filters: the state, with the stage after a colon.
export function topicWord(kind, topic) {
  const [state, stage = ""] = topic.split(":");
  return wordOf({ kind, state, stage });
}

// The glyph, if it is not that of the state's name: parked is a reason, dead is a kind of failure.
export function shapeOf(job, waitingFor = job.waiting_for) {
  if (job.state === "queued") return PARKED.has(waitingFor) ? "parked" : "queued";
  if (job.state === "failed") return job.stage === "dead" ? "dead" : "failed";
  if (job.state === "cancelled") return "off";
  if (job.state === "succeeded") return "done";
  return { queued: "queued", loading: "loading" }[wordOf(job)] || "working";
}
export const PARKED = new Set(["target", "queue", "queue paused"]);

export function nounOf(kind) {
  return own(NOUNS, kind) || "queue";
}

const WHY = {
  target: "waits for a target",
  slot: "waits for a free slot",
  model: "waits while a model is loaded",
  turn: "waits for its turn",
  queue: "its queue is paused",
  "queue paused": "its queue is paused",
  steps: "waits for other steps of its flow",
  worker: "no worker has claimed it yet",
  run_at: "not due yet",
  backoff: "waits before the next attempt",
};

// One line on where a job is or why it waits: [text, whether it is a reason to wait].
export function whereOf(job, waitingFor = job.waiting_for) {
  if (job.state === "queued") {
    const left = -since(job.run_at);
    if (waitingFor === "run_at" && left > 1) return [`due in ${length(left)}`, true];
    const again = left > 1 ? `, due in ${length(left)}` : "";
    const why =
      job.kind === "provision" && waitingFor === "worker"
        ? "waits for a free place to work on it"
        : own(WHY, waitingFor) || waitingFor || "";
    return [`${why}${again}${job.error ? ` · ${job.error}` : ""}`, true];
  }
  if (job.state === "running") {
    const owner = job.lease_owner && !job.lease_owner.startsWith("@") ? `by ${job.lease_owner}` : "";
    const stage = job.stage && job.stage !== wordOf(job) && job.stage !== "claimed" && job.stage !== "steps" ? job.stage : "";
    return [[stage, owner].filter(Boolean).join(" · "), false];
  }
  if (job.state === "failed")
    return [`${job.kind === "provision" && job.failed_step ? `${job.failed_step}: ` : ""}${job.error || ""}`, false];
  if (job.state === "cancelled") return [job.error || "cancelled", false];
  return [job.attempt > 1 ? `at attempt ${job.attempt}` : "", false];
}

// The time from its submission to its end; for a running job, the time in its stage.
export function tookOf(job) {
  if (job.finished_at) return length((Date.parse(job.finished_at) - Date.parse(job.created_at)) / 1000);
  return job.state === "running" ? length(since(job.updated_at)) : "";
}
