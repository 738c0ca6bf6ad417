// Buttons that do something: <button data-act="POST /path" data-ask="What is lost?" data-done="Shown when it worked">.
// A body goes in data-body as JSON. An action that destroys something asks for confirmation, and names what is lost.

import { $, html, morph } from "./dom.js";
import { call } from "./api.js";

const underWay = new Set();

export async function runAction(button, { say, look, go }) {
  // Read before the dialog: while the user decides, the page goes on, and the same button may get another meaning.
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

// Fill "{count} requeued" with values of the server's answer.
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
