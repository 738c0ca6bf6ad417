// Follows an unfinished job: every change reloads the page's data, and the model's answer is written as it arrives.

import { stream } from "../api.js";
import { html, morph } from "../dom.js";

const PAUSE = 2000; // between two tries
const MAX_SHOWN = 200_000; // letters; the whole answer is in the result

// An attempt is over, and the next one answers from the beginning.
const OVER = new Set(["retry", "park", "requeue"]);

// Follows while the page is shown and the job is unfinished. `heard` returns the last sequence number that the page knows, or null to
// stop. The stream sends the attempt's whole text so far, then new events of the log; older events must be skipped, or the end of an
// earlier attempt would be taken for the end of this one.
export function follow(jobId, main, context, heard) {
  const stop = new AbortController();
  const words = new Words(main);
  const run = async () => {
    let last = 0;
    while (!stop.signal.aborted) {
      if (heard() !== null) {
        last = Math.max(last, heard());
        words.restart();
        await stream(`/jobs/${jobId}/events?tokens=1`, {
          signal: stop.signal,
          lastId: String(last),
          onEvent: (event) => {
            if (event.id) last = Number(event.id);
            if (event.name === "token") return words.add(event.data);
            if (OVER.has(event.name)) words.restart();
            context.look();
          },
        }).catch(() => {}); // the shell shows a lost connection
      }
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  };
  run();
  return () => stop.abort();
}

// Painted at most once per frame.
class Words {
  constructor(main) {
    this.main = main;
    this.restart();
  }

  restart() {
    this.text = "";
    this.thought = "";
    this.count = 0;
    this.began = 0;
    this.wanted = false;
  }

  add(line) {
    const said = read(line);
    if (!said) return;
    if (!this.began) this.began = performance.now();
    this.count += 1;
    if (this.text.length < MAX_SHOWN) this.text += said.text;
    if (this.thought.length < MAX_SHOWN) this.thought += said.thought;
    if (this.wanted) return;
    this.wanted = true;
    requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.wanted = false;
    const place = this.main.querySelector("[data-tokens]");
    if (!place || !this.count) return;
    const [thought, text, meta] = parts(place);
    if (thought.textContent !== this.thought) thought.textContent = this.thought;
    thought.parentElement.hidden = !this.thought;
    if (text.textContent !== this.text) text.textContent = this.text;
    const spent = (performance.now() - this.began) / 1000;
    meta.textContent = `${this.count} tokens so far${spent > 1 ? `, ${(this.count / spent).toFixed(1)} tokens/s` : ""}`;
  }
}

function parts(place) {
  if (!place.querySelector("[data-said]"))
    morph(place, html`<details class="think"><summary>Thinking</summary><p></p></details><p data-said></p><div class="meta"></div>`);
  return [place.querySelector(".think p"), place.querySelector("[data-said]"), place.querySelector(".meta")];
}

// A line of a target's answer: Ollama's, or one of an API like OpenAI's, which begins with `data:`.
function read(line) {
  try {
    const said = JSON.parse(line.startsWith("data:") ? line.slice(5) : line);
    const delta = (said.choices && said.choices[0] && (said.choices[0].delta || said.choices[0])) || {};
    const message = said.message || {};
    const text =
      message.content || said.response || delta.content || delta.text || (said.delta && said.delta.text) || "";
    const thought = message.thinking || said.thinking || delta.reasoning || delta.reasoning_content || "";
    return text || thought ? { text, thought } : null;
  } catch (e) {
    return null;
  }
}
