// Charts without a library: sixty minutes as bars, steps or a line. x runs in minutes, text is never stretched.

import { html } from "./dom.js";
import { number } from "./words.js";

export function spark(values, tone) {
  const points = thin(values, 24);
  const most = Math.max(...points, 1);
  const step = 61 / (points.length - 1);
  const path = points
    .map((v, i) => `${i ? "L" : "M"}${(0.5 + i * step).toFixed(1)} ${(18 - (v / most) * 15).toFixed(1)}`)
    .join(" ");
  return html`<svg class="spark s s-${tone}" viewBox="0 0 64 20" preserveAspectRatio="none" aria-hidden="true">
    <path class="a" d="${path} L61.500 20 L0.5 20 Z" />
    <path d="${path}" vector-effect="non-scaling-stroke" />
  </svg>`;
}

function thin(values, wanted) {
  if (values.length <= wanted) return values;
  const per = values.length / wanted;
  return Array.from({ length: wanted }, (_, i) =>
    Math.max(...values.slice(Math.floor(i * per), Math.floor((i + 1) * per))),
  );
}

function bars(up, down) {
  const most = Math.max(...up, 1);
  const worst = Math.max(...down, 1);
  return up.map((value, x) => {
    const height = (value / most) * 74;
    const low = down[x]
      ? html`<rect class="down" x="${x + 0.16}" y="80" width=".68" height="${((down[x] / worst) * 20 + 2).toFixed(1)}" />`
      : "";
    return html`${value ? html`<rect class="up" x="${x + 0.16}" y="${(78 - height).toFixed(1)}" width=".68" height="${height.toFixed(1)}" />` : ""}${low}`;
  });
}

function steps(values) {
  const most = Math.max(...values, 1);
  const y = (v) => (98 - (v / most) * 92).toFixed(1);
  const path = values.map((v, x) => `${x ? `L${x} ${y(v)}` : `M0 ${y(v)}`} L${x + 1} ${y(v)}`).join(" ");
  return html`<line class="base" x1="0" x2="60" y1="98" y2="98" /><path class="area" d="${path} L${values.length} 98 L0 98 Z" /><path class="edge" d="${path}" />`;
}

// rows: [{label, unit, values, down?}]
export function strips({ rows, label, kind, minutes }) {
  return html`<figure class="strips freeze" role="img" aria-label="${label}">
    ${rows.map(
      (row) => html`<div class="strip" data-points="${JSON.stringify(row.values)}">
        <div class="lab"><span>${row.label}</span><b><span data-out>${number(row.values[row.values.length - 1])}</span> <small>${row.unit}</small></b></div>
        <svg viewBox="0 0 60 100" preserveAspectRatio="none" aria-hidden="true">
          ${kind === "bars" ? html`<line class="base" x1="0" x2="60" y1="78" y2="78" />${bars(row.values, row.down)}` : steps(row.values)}
        </svg>
        <span class="max">${number(Math.max(...row.values, 0))}</span>
      </div>`,
    )}
    <div class="strip-axis" aria-hidden="true"><span></span><div>${minutes.map((m) => html`<span>${m}</span>`)}</div><span></span></div>
    <div class="cross"></div>
  </figure>`;
}

// The cross-hair changes only the numbers at the left.
export function readOut(root) {
  root.addEventListener("pointermove", (event) => {
    const figure = event.target.closest && event.target.closest(".strips");
    if (!figure) return;
    const plots = Array.from(figure.querySelectorAll(".strip"));
    const box = plots[0].querySelector("svg").getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width;
    if (at < 0 || at > 1) return rest(figure);
    const series = plots.map((plot) => JSON.parse(plot.dataset.points));
    const i = Math.min(series[0].length - 1, Math.floor(at * series[0].length));
    const cross = figure.querySelector(".cross");
    cross.style.display = "block";
    cross.style.left = `${box.left - figure.getBoundingClientRect().left + ((i + 0.5) / series[0].length) * box.width}px`;
    plots.forEach((plot, n) => (plot.querySelector("[data-out]").textContent = number(series[n][i])));
    const when = figure.parentNode.querySelector("[data-when]");
    if (when) when.textContent = i === series[0].length - 1 ? "this minute" : `${series[0].length - 1 - i} min ago`;
  });
  root.addEventListener("pointerout", (event) => {
    const figure = event.target.closest && event.target.closest(".strips");
    if (figure && !figure.contains(event.relatedTarget)) rest(figure);
  });
}

function rest(figure) {
  figure.querySelector(".cross").style.display = "none";
  for (const plot of figure.querySelectorAll(".strip")) {
    const values = JSON.parse(plot.dataset.points);
    plot.querySelector("[data-out]").textContent = number(values[values.length - 1]);
  }
  const when = figure.parentNode.querySelector("[data-when]");
  if (when) when.textContent = "last hour";
}
