// The limit of tasks of a command in progress, entered in the dialog that is also used for confirmations.

import { $, html, morph } from "../dom.js";
import { put } from "../api.js";

const MOST = 1_000_000;

export function limits(main, context) {
  async function pressed(event) {
    const button = event.target.closest("[data-limit]");
    if (!button) return;
    const limit = await ask(button.dataset.limit, button.dataset.now);
    if (limit === undefined) return;
    try {
      await put(`/v1/codeq/admin/queues/${encodeURIComponent(button.dataset.limit)}`, { maxInProgress: limit });
      context.say(limit === null ? "No limit" : `At most ${limit} at once`);
    } catch (error) {
      context.say(error.message);
    }
    context.look(true);
  }
  main.addEventListener("click", pressed);
  return () => main.removeEventListener("click", pressed);
}

// Returns a number, null for no limit, undefined if the user cancelled.
function ask(command, now) {
  const dialog = $("#ask");
  dialog.replaceChildren();
  morph(
    dialog,
    html`<h2 id="ask-h">How many tasks of ${command} may be in progress at once?</h2>
      <form method="dialog" class="ask-form">
        <label class="field"><span class="dim small">Left empty: no limit. What is in progress goes on.</span>
          <input class="input" name="limit" type="number" min="1" max="${MOST}" step="1" inputmode="numeric" value="${now}" /></label>
        <div class="ask-foot">
          <button class="btn" value="no" formnovalidate>Keep as it is</button>
          <button class="btn primary" value="yes">Set the limit</button>
        </div>
      </form>`,
  );
  const field = $("input", dialog);
  // Enter in the field presses the first button of the form, which is Keep.
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (field.form.reportValidity()) dialog.close("yes");
  });
  dialog.returnValue = "no";
  dialog.showModal();
  field.select();
  return new Promise((done) =>
    dialog.addEventListener(
      "close",
      () => done(dialog.returnValue === "yes" ? (field.value ? Number(field.value) : null) : undefined),
      { once: true },
    ),
  );
}
