// Signing in with a token that `chargehand token` created. It is checked, stored in this tab (or this browser, if chosen), and sent as a header.

import { $, html, morph } from "./dom.js";
import { ApiError, forgetToken, get, keepToken } from "./api.js";
import { pressTheme } from "./frame.js";

let shown = false;

export function showLogin(signedIn) {
  if (shown) return; // the user may be typing
  shown = true;
  $("#shell").hidden = true;
  const box = $("#login");
  box.hidden = false;
  document.title = "Sign in · Chargehand";
  morph(box, view());
  pressTheme();
  const form = $("form", box);
  form.onsubmit = async (event) => {
    event.preventDefault();
    const token = $("#token", form).value.trim();
    if (!token) return;
    keepToken(token, $("#keep", form).checked);
    try {
      await get("/engine/overview", { quiet: true });
    } catch (error) {
      forgetToken();
      const refused = error instanceof ApiError && error.status === 401;
      $("#token-e", form).textContent = refused ? "This token is not known here." : `${error.message}.`;
      $("#token", form).setAttribute("aria-invalid", "true");
      return $("#token", form).focus();
    }
    shown = false;
    box.replaceChildren();
    signedIn();
  };
  $("#token", form).focus();
}

function view() {
  return html`<div class="login">
    <main class="login-form">
      <div class="brand"><svg aria-hidden="true"><use href="#logo" /></svg>Chargehand</div>
      <div><h1>Sign in</h1><p class="ink2">to ${location.host}</p></div>
      <form method="post" action="/console">
        <div class="field">
          <label for="token">Token</label>
          <input class="input mono" id="token" name="token" type="password" autocomplete="current-password" spellcheck="false" placeholder="ch_…" aria-describedby="token-h token-e" required />
          <span class="hint" id="token-h">Made with <code>chargehand token --scope '*'</code>; reading needs <code>jobs:read</code></span>
          <span class="hint bad" id="token-e" role="alert"></span>
        </div>
        <label class="check-line"><input type="checkbox" id="keep" /> Keep me signed in on this browser</label>
        <button class="btn primary" type="submit">Sign in</button>
      </form>
      <p class="hint">The token stays in this browser and is sent as a header, never as a cookie.</p>
      <div class="theme" role="group" aria-label="Theme">
        <button type="button" data-set-theme="auto" aria-pressed="true">Auto</button>
        <button type="button" data-set-theme="light" aria-pressed="false">Light</button>
        <button type="button" data-set-theme="dark" aria-pressed="false">Dark</button>
      </div>
    </main>
    <aside class="login-art" aria-label="About">
      ${drawing()}
      <p>One engine, three doors. It takes jobs in, hands them to whoever can do them, and reports back.</p>
    </aside>
  </div>`;
}

const PLATES = [
  [8, 24, "inference", "chats for models"],
  [8, 124, "tasks", "workers that pull"],
  [8, 224, "provisioning", "servers, by Redfish"],
  [424, 124, "signed webhooks", "until answered"],
];

function drawing() {
  return html`<svg viewBox="0 0 572 300" role="img" aria-label="Three doors lead into one engine; signed webhooks lead out">
    <path class="wire" d="M150 50h40c30 0 30 100 60 100" />
    <path class="wire on" d="M150 150h100" />
    <path class="wire" d="M150 250h40c30 0 30-100 60-100" />
    <path class="wire on" d="M340 150h84" />
    <path class="tip" d="m414 145 9 5-9 5z" />
    <circle class="dot" cx="184" cy="150" r="4" /><circle class="dot" cx="222" cy="150" r="4" /><circle class="dot" cx="382" cy="150" r="4" />
    ${PLATES.map(
      ([x, y, name, what]) => html`<g>
      <rect class="plate" x="${x}" y="${y}" width="142" height="52" rx="8" />
      <text x="${x + 14}" y="${y + 23}">${name}</text><text class="m" x="${x + 14}" y="${y + 40}">${what}</text>
    </g>`,
    )}
    <rect class="core" x="250" y="112" width="90" height="76" rx="12" />
    <text class="core-t" x="295" y="154" text-anchor="middle">engine</text>
  </svg>`;
}
