// A chat: messages, folded reasoning, tool calls, small pictures. job-live.js writes the answer of a running job here, as it arrives.

import { html } from "../dom.js";
import { panel } from "../parts.js";
import { bytes, length, number, plural } from "../words.js";
import { jsonFold } from "./job-json.js";

const MAX_MESSAGES = 200;

// Can the request be shown as a chat? Ollama's two formats, or those like OpenAI's.
export function chatOf(body) {
  if (!body) return null;
  if (Array.isArray(body.messages)) return body.messages;
  if (typeof body.prompt !== "string") return null;
  const system = body.system ? [{ role: "system", content: body.system }] : [];
  return [...system, { role: "user", content: body.prompt, images: body.images }];
}

function answerOf(result) {
  if (!result || typeof result !== "object") return null;
  if (result.message) return tidy(result.message);
  if (typeof result.response === "string")
    return { role: "assistant", content: result.response, thinking: result.thinking };
  const choice = Array.isArray(result.choices) && result.choices[0];
  if (choice) return tidy(choice.message || { content: choice.text });
  return Array.isArray(result.content) ? { role: "assistant", content: result.content } : null;
}

export function conversation(job, door) {
  const { request, result } = door;
  const asked = chatOf(request && request.body);
  const answer = answerOf(result);
  const shown = asked ? asked.slice(-MAX_MESSAGES) : [];
  const count = shown.length + (answer ? 1 : 0);
  const folds = html`${request && request.body ? jsonFold("request", "Request", request.body, { sub: `JSON to ${request.path}` }) : ""}
    ${result !== null && result !== undefined ? jsonFold("result", "Result", result) : ""}
    ${door.metadata ? jsonFold("metadata", "Metadata", door.metadata) : ""}`;
  const too =
    request && !request.body
      ? html`<p class="dim">What was asked has ${bytes(request.bytes)}: too much to show here.</p>`
      : "";
  return panel({
    id: "conversation",
    title: asked ? "Conversation" : "Request and answer",
    sub: count ? plural(count, "message") : "",
    body: html`${
      asked || answer || !door.finished
        ? html`<div class="chat">
        ${asked && asked.length > MAX_MESSAGES ? html`<p class="dim">${number(asked.length - MAX_MESSAGES)} earlier messages are in the request below.</p>` : ""}
        ${shown.map((message, n) => said(message, `q${n}`, job.queue))}
        ${answer ? said({ ...answer, role: "assistant" }, "answer", job.queue, meta(door)) : waiting(job, door)}
      </div>`
        : ""
    } ${too ? html`<div class="panel-body">${too}</div>` : ""} ${folds}`,
  });
}

function waiting(job, door) {
  if (door.finished)
    return html`<div class="msg" data-key="none"><div class="role">${job.queue}</div><div class="txt dim">${door.error ? "No answer: " : "No answer."}${door.error}</div></div>`;
  return html`<div class="msg assistant" data-key="live">
    <div class="role">${job.queue}</div>
    <div class="txt" data-keep data-key="live-${job.id}" data-tokens aria-live="off"><p class="dim" data-none>No answer yet.</p></div>
  </div>`;
}

// The request may hold anything: fields that a chat does not have are ignored.
function tidy(message) {
  const given = message && typeof message === "object" ? message : { content: message };
  const word = (value) => (typeof value === "string" ? value : "");
  const list = (value) => (Array.isArray(value) ? value : []);
  return {
    role: word(given.role) || "user",
    name: word(given.tool_name) || word(given.name),
    thinking: word(given.thinking),
    content: Array.isArray(given.content) ? given.content : word(given.content),
    images: list(given.images),
    tool_calls: list(given.tool_calls).filter((call) => call && typeof call === "object"),
  };
}

function said(given, key, model, more = "") {
  const message = tidy(given);
  const { role } = message;
  const name = role === "assistant" ? model : role === "tool" ? message.name || "tool" : role;
  const side = ["user", "system", "assistant"].includes(role) ? role : "";
  return html`<div class="msg ${side}" data-key="${key}">
    <div class="role">${name}</div>
    <div class="txt">
      ${message.thinking ? thought(message.thinking) : ""}
      ${paragraphs(textOf(message.content))}
      ${message.tool_calls.map((call, n) => toolCall(call, `${key}-${n}`))}
      ${images(message).map((image, n) => html`<canvas class="pic" data-keep data-key="${key}-i${n}" data-image="${image}" role="img" aria-label="A picture of ${bytes((image.length * 3) / 4)}"></canvas>`)}
      ${more}
    </div>
  </div>`;
}

export function thought(text) {
  return html`<details class="think"><summary>Thinking <span class="dim">${plural(text.split(/\s+/).filter(Boolean).length, "word")}</span></summary><p>${text}</p></details>`;
}

// OpenAI's message parts: join the text of the text parts.
function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content
    .filter((part) => part && typeof part.text === "string")
    .map((part) => part.text)
    .join("\n\n");
}

function paragraphs(text) {
  return text
    .split(/\n{2,}/)
    .filter((each) => each.trim())
    .map((each) => html`<p>${each.trim()}</p>`);
}

function images(message) {
  const own = message.images.filter((each) => typeof each === "string");
  const parts = Array.isArray(message.content) ? message.content : [];
  const urls = parts
    .map((part) => part && part.image_url && (part.image_url.url || part.image_url))
    .filter((url) => typeof url === "string" && url.startsWith("data:image/"));
  return [...own, ...urls.map((url) => url.slice(url.indexOf(",") + 1))].slice(0, 8);
}

function toolCall(call, key) {
  const { name, arguments: given } = call.function || call;
  let value = given;
  try {
    if (typeof given === "string") value = JSON.parse(given);
  } catch (e) {
    /* shown as plain text */
  }
  return html`<div class="tool" data-key="tool-${key}"><span class="dim">calls</span> <code>${name}</code> <code class="args">${JSON.stringify(value)}</code></div>`;
}

function meta({ evidence, result }) {
  if (!evidence) return "";
  const facts = [];
  if (evidence.tokens) facts.push(`${number(evidence.tokens)} tokens`);
  const spent = result && result.eval_duration ? result.eval_duration / 1e9 : 0;
  if (evidence.tokens && spent) facts.push(`${(evidence.tokens / spent).toFixed(1)} tokens/s`);
  if (evidence.first_token_seconds) facts.push(`first token after ${length(evidence.first_token_seconds)}`);
  if (evidence.finish) facts.push(`ended by: ${evidence.finish}`);
  return facts.length ? html`<div class="meta">${facts.map((fact) => html`<span>${fact}</span>`)}</div>` : "";
}

// Pictures are drawn, not linked: the page allows no image that is not its own file.
export async function drawImages(root) {
  for (const canvas of root.querySelectorAll("canvas[data-image]:not([data-drawn])")) {
    canvas.dataset.drawn = "yes";
    try {
      const raw = Uint8Array.from(atob(canvas.dataset.image), (c) => c.charCodeAt(0));
      const image = await createImageBitmap(new Blob([raw]));
      const scale = Math.min(1, 240 / Math.max(image.width, image.height));
      canvas.width = Math.max(1, Math.round(image.width * scale));
      canvas.height = Math.max(1, Math.round(image.height * scale));
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    } catch (e) {
      canvas.setAttribute("aria-label", "A picture that this browser cannot show");
    }
  }
}
