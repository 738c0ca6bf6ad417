// Keyboard shortcuts: search, pages, rows, copying.

import { $, $$ } from "./dom.js";
import { closeMenu, copy } from "./frame.js";

const GO = {
  n: "/console",
  j: "/console/jobs",
  f: "/console/flows",
  d: "/console/deliveries",
  t: "/console/targets",
  k: "/console/tasks",
  s: "/console/servers",
  e: "/console/settings",
};

export function listenToKeys(main, go) {
  let goAt = 0;
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") {
      if (typing) event.target.blur();
      return closeMenu();
    }
    const row = event.target.closest && event.target.closest("[data-href]");
    if (event.key === "Enter" && row && event.target === row) return go(row.dataset.href);
    if (typing || singleKeysOff() || document.querySelector("dialog[open]")) return;
    if (goAt && Date.now() - goAt < 900 && GO[event.key]) {
      goAt = 0;
      return go(GO[event.key]);
    }
    goAt = 0;
    if (event.key === "g") goAt = Date.now();
    else if (event.key === "/") {
      event.preventDefault();
      $("[data-find]").focus();
      $("[data-find]").select();
    } else if (event.key === "?") $("dialog.keys").showModal();
    else if (event.key === "j" || event.key === "k") move(main, event.key === "j" ? 1 : -1);
    else if (event.key === "c") {
      const button = row && $("[data-copy]", row);
      if (button) copy(button.dataset.copy, button);
    }
  });
}

function singleKeysOff() {
  try {
    return localStorage.getItem("chargehand.keys") === "off";
  } catch (e) {
    return false;
  }
}

function move(main, by) {
  const rows = $$("[data-href]", main).filter((row) => row.tagName === "TR" || row.hasAttribute("tabindex"));
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  const to = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
  for (const row of rows) row.classList.toggle("cursor", row === to);
  to.tabIndex = 0;
  to.focus({ preventScroll: true });
  to.scrollIntoView({ block: "nearest" });
}
