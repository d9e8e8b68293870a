// Lines over time in SVG, drawn by hand: a few hundred points need no library.

import { h, svg } from "./dom.js";
import { brief, clock } from "./format.js";

const WIDTH = 640;
const LEFT = 52;
const RIGHT = 4;
const TOP = 8;
const BOTTOM = 18;
const COLOURS = 6;

function nice(top) {
  if (!(top > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(top));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= top);
}

function trace(xs, values, y) {
  let path = "";
  let pen = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined) pen = false;
    else {
      path += `${pen ? "L" : "M"}${xs[at].toFixed(1)},${y(value).toFixed(1)}`;
      pen = true;
    }
  });
  return path;
}

/** A chart that is drawn anew by `update({times, series: [{name, values}]})`. `show` turns a value into text. */
export function chart(label, show = brief, tall = false) {
  const height = tall ? 210 : 130;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  const legend = h("div", { class: "legend" });
  const box = h("div", { class: tall ? "chart tall" : "chart" }, picture, legend);
  let now = { times: [], series: [] };
  let hovered = null;

  function draw() {
    const { times, series } = now;
    const width = picture.clientWidth || WIDTH;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const top = nice(Math.max(0, ...series.flatMap((one) => one.values.filter((value) => value !== null))));
    const first = times[0] ?? 0;
    const span = Math.max((times.at(-1) ?? 1) - first, 1);
    const xs = times.map((time) => LEFT + ((time - first) / span) * (width - LEFT - RIGHT));
    const y = (value) => height - BOTTOM - (value / top) * (height - TOP - BOTTOM);
    const parts = [0, 0.5, 1].flatMap((share) => [
      svg("line", { class: "gridline", x1: LEFT, x2: width, y1: y(top * share), y2: y(top * share) }),
      svg("text", { x: LEFT - 8, y: y(top * share) + 4, "text-anchor": "end" }, share ? show(top * share) : "0"),
    ]);
    series.forEach((one, at) => {
      const path = trace(xs, one.values, y);
      if (series.length === 1 && path && !one.values.includes(null)) {
        parts.push(svg("path", { class: "area c0", d: `${path}L${xs.at(-1).toFixed(1)},${y(0)}L${xs[0].toFixed(1)},${y(0)}Z` }));
      }
      parts.push(svg("path", { class: `line c${at % COLOURS}`, d: path }));
    });
    if (times.length > 1) {
      parts.push(svg("text", { x: LEFT, y: height - 3 }, clock(first)));
      parts.push(svg("text", { x: width, y: height - 3, "text-anchor": "end" }, clock(times.at(-1))));
    } else {
      parts.push(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Waiting for a second look at the cluster"));
    }
    const at = hovered === null || !times.length ? null : nearest(xs, hovered);
    if (at !== null) {
      parts.push(svg("line", { class: "cursor", x1: xs[at], x2: xs[at], y1: TOP, y2: height - BOTTOM }));
      parts.push(svg("text", { x: Math.min(Math.max(xs[at], 26), width - 26), y: TOP, "text-anchor": "middle" }, clock(times[at])));
    }
    picture.replaceChildren(...parts.filter(Boolean));
    legend.replaceChildren(...series.map((one, number) => {
      const value = at === null ? one.values.findLast((known) => known !== null) : one.values[at];
      return h("span", { class: `c${number % COLOURS}` }, one.name, h("b", null, value === undefined ? "–" : show(value)));
    }));
  }

  function nearest(xs, x) {
    let best = 0;
    xs.forEach((one, at) => {
      if (Math.abs(one - x) < Math.abs(xs[best] - x)) best = at;
    });
    return best;
  }

  picture.addEventListener("pointermove", (event) => {
    hovered = event.clientX - picture.getBoundingClientRect().left;
    draw();
  });
  picture.addEventListener("pointerleave", () => {
    hovered = null;
    draw();
  });
  new ResizeObserver(draw).observe(box);
  box.update = (data) => {
    now = data;
    draw();
  };
  return box;
}

/** A line without axes, for a table. */
export function spark(values) {
  const known = (values ?? []).map((value) => value ?? 0);
  const top = Math.max(...known, 1e-9);
  const xs = known.map((_, at) => (at / Math.max(known.length - 1, 1)) * 84);
  const path = known.length > 1 ? trace(xs, known, (value) => 18 - (value / top) * 16) : "";
  return svg("svg", { class: "spark", viewBox: "0 0 84 20", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { d: path }));
}
