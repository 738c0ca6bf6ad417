// Parts around every page: messages, copying, the theme, the menu on narrow screens.

import { $, $$ } from "./dom.js";

let toasting = 0;
export function say(text) {
  const toast = $("#toast");
  toast.textContent = text;
  toast.classList.add("on");
  clearTimeout(toasting);
  toasting = setTimeout(() => toast.classList.remove("on"), Math.max(1600, text.length * 60));
}

export async function copy(text, button, source) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (e) {
    // over plain HTTP most browsers have no clipboard
    if (!source) return say("The browser did not allow copying");
    getSelection().selectAllChildren(source);
    return say("Selected: copy it with the keyboard");
  }
  say(text.length < 40 ? `Copied ${text}` : "Copied");
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1600);
}

function setTheme(name) {
  try {
    localStorage.setItem("chargehand.theme", name);
  } catch (e) {
    /* a private window: for this page only */
  }
  if (name === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", name);
  pressTheme();
}

export function pressTheme() {
  const name = document.documentElement.getAttribute("data-theme") || "auto";
  for (const button of $$("[data-set-theme]"))
    button.setAttribute("aria-pressed", String(button.dataset.setTheme === name));
}

// In the capture phase, before the page's listeners, which must not handle a click on these.
document.addEventListener("click", (event) => {
  const copying = event.target.closest("[data-copy]");
  const theme = event.target.closest("[data-set-theme]");
  if (copying) {
    const source = document.getElementById(copying.dataset.copyFrom);
    copy(copying.dataset.copy || source.textContent.trim(), copying, source);
  } else if (theme) setTheme(theme.dataset.setTheme);
  else return;
  event.preventDefault();
  event.stopImmediatePropagation();
});

const side = $("#side");
const scrim = $(".scrim");
const menu = $(".menu-btn");
export function closeMenu() {
  if (!side.classList.contains("open")) return;
  side.classList.remove("open");
  scrim.hidden = true;
  menu.setAttribute("aria-expanded", "false");
  menu.focus();
}
menu.addEventListener("click", () => {
  side.classList.add("open");
  scrim.hidden = false;
  menu.setAttribute("aria-expanded", "true");
  $("a", side).focus();
});
scrim.addEventListener("click", closeMenu);
