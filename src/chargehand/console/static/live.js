// The page's event stream. Every event makes the page reload its data, at most once a second; when the connection is lost the page
// shows that, and resumes when it is back.

import { stream, ApiError } from "./api.js";

const RECONNECT = [500, 1000, 2000, 4000, 8000];
const SILENT = 40000; // the server sends a ping every 15 s: a connection without one is dead

export class Live {
  constructor({ onLines, onState }) {
    this.onLines = onLines;
    this.onState = onState;
    this.lastId = "";
    this.lostAt = 0;
    this.tries = 0;
    this.abort = null;
    this.timer = 0;
    this.silence = 0;
  }

  start() {
    this.stop();
    this.run();
  }

  stop() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    if (this.abort) this.abort.abort();
    this.abort = null;
  }

  // Another call got no answer, so the stream may be dead too: reconnect to find out.
  doubt() {
    if (this.lostAt) return;
    this.stop();
    this.lose();
  }

  async run() {
    const abort = (this.abort = new AbortController());
    const heard = () => {
      clearTimeout(this.silence);
      this.silence = setTimeout(() => abort.abort(SILENT), SILENT);
    };
    heard();
    try {
      await stream("/engine/feed", {
        signal: abort.signal,
        lastId: this.lastId,
        onBytes: heard,
        onOpen: () => {
          this.tries = 0;
          this.lostAt = 0;
          this.onState("live");
        },
        onEvent: (event) => {
          this.lastId = event.id || this.lastId;
          const lines = JSON.parse(event.data).lines;
          this.onLines(lines, event.name === "reset");
        },
      });
    } catch (error) {
      if (stopped(abort)) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return this.onState("closed");
    }
    if (stopped(abort)) return;
    clearTimeout(this.silence);
    this.lose();
  }

  lose() {
    this.lostAt = this.lostAt || Date.now();
    this.onState("lost");
    const pause = RECONNECT[Math.min(this.tries++, RECONNECT.length - 1)];
    this.timer = setTimeout(() => this.run(), pause);
  }
}

// Aborted by us, and not because of silence.
function stopped(abort) {
  return abort.signal.aborted && abort.signal.reason !== SILENT;
}
