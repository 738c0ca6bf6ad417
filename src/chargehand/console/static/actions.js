// Buttons that do something: <button data-act="POST /path" data-ask="What is lost?" data-done="Said when it worked">.
// A body goes in data-body as JSON. What destroys asks once, and names what is lost.

import { $, html, morph } from "./dom.js";
import { call } from "./api.js";

const underWay = new Set();

export async function runAction(button, { say, look, go }) {
  // Taken now: while somebody makes up their mind the page goes on, and the same button may come to mean something else.
  const { act, body, ask: question, yes, done, go: then } = button.dataset;
  const what = `${act} ${body || ""}`;
  if (underWay.has(what)) return;
  underWay.add(what);
  try {
    if (question && !(await ask(question, yes || button.textContent.trim()))) return;
    button.setAttribute("aria-busy", "true");
    const [method, path] = act.split(" ");
    const answer = await call(method, path, body ? JSON.parse(body) : undefined);
    say(filled(done || "Done", answer));
    if (then) go(then.replace("{job_id}", (answer && (answer.job_id || answer.id)) || ""));
  } catch (error) {
    say(error.message);
  } finally {
    underWay.delete(what);
    button.removeAttribute("aria-busy");
    look(true);
  }
}

// "{count} requeued": with what the server says of itself.
function filled(text, answer) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (answer && answer[name] !== undefined ? answer[name] : whole));
}

function ask(question, yes) {
  const dialog = $("#ask");
  morph(
    dialog,
    html`<h2 id="ask-h">${question}</h2>
      <form method="dialog" class="ask-foot">
        <button class="btn" value="no">Keep</button>
        <button class="btn danger" value="yes">${yes}</button>
      </form>`,
  );
  dialog.returnValue = "no";
  dialog.showModal();
  $("button", dialog).focus();
  return new Promise((done) =>
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }),
  );
}
