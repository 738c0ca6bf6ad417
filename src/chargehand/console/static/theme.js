// The theme, set before the first paint: this file is loaded without defer, and does nothing else.
(function () {
  "use strict";
  var stored = "auto";
  try {
    stored = localStorage.getItem("chargehand.theme") || "auto";
  } catch (e) {
    /* a private window */
  }
  if (stored !== "auto") document.documentElement.setAttribute("data-theme", stored);
})();
