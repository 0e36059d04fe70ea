// The small figures of the lesson: measured shares as bars with their intervals, and curves.
import { marker, put } from "../nodes.js";
import { brief } from "../canvas/model/words.js";

// rows: [{ name, agent, figure or share, css, isStrong }]; a figure has an interval. guess: a share, or null.
export const drawBars = (box, { rows, guess = null, label }) => {
  const list = put(box, "div", { class: "ls-bars", role: "img", "aria-label": label });
  for (const { name, agent, figure, share = figure.share, css = "ink", isStrong } of rows) {
    const row = put(list, "div", { class: `ls-bar${isStrong ? " strong" : ""}` });
    const title = put(row, "span", { class: "ls-bar-name" });
    if (agent !== undefined) marker(title, agent);
    title.append(name);
    const track = put(row, "span", { class: "ls-track" });
    put(track, "i", { class: `ls-fill ls-${css}` }).style.width = `${100 * share}%`;
    if (figure) {
      const whisker = put(track, "i", { class: "ls-whisker" });
      whisker.style.left = `${100 * figure.low}%`;
      whisker.style.width = `${100 * (figure.high - figure.low)}%`;
    }
    if (guess !== null && isStrong) {
      put(track, "i", { class: "ls-said", title: "what you said" }).style.left = `${100 * guess}%`;
    }
    put(row, "b", {}, figure ? `${figure.right}/${figure.n}` : brief(share));
  }
};

const WIDTH = 300;
const HEIGHT = 104;
const LEFT = 32;
const RIGHT = 8;
const BOTTOM = 20;
const TOP = 8;

// series: [{ name, css, points: [{ at, figure }] }], at between 0 and 1 along the axis; ticks: [{ at, text }].
export const drawCurve = (box, { series, ticks, axis, label }) => {
  const figure = put(box, "figure", { class: "ls-curve" });
  const svg = put(figure, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const x = (at) => LEFT + at * (WIDTH - LEFT - RIGHT);
  const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  for (const share of [0, 0.5, 1]) {
    put(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share), class: "ls-grid" });
    put(svg, "text", { x: LEFT - 4, y: y(share) + 3.5, "text-anchor": "end" }, brief(share, 0));
  }
  for (const { at, text } of ticks) {
    const anchor = at > 0.9 ? "end" : at < 0.1 ? "start" : "middle";
    put(svg, "text", { x: x(at), y: HEIGHT - 6, "text-anchor": anchor }, text);
  }
  for (const { css, points } of series) {
    const band = [...points.map((p) => [p.at, p.figure.high]), ...[...points].reverse().map((p) => [p.at, p.figure.low])];
    put(svg, "path", { d: `M${band.map(([at, share]) => `${x(at)} ${y(share)}`).join("L")}Z`, class: `ls-band ls-${css}` });
    put(svg, "path", { d: `M${points.map((p) => `${x(p.at)} ${y(p.figure.share)}`).join("L")}`, class: `ls-stroke ls-${css}` });
    for (const p of points) put(svg, "circle", { cx: x(p.at), cy: y(p.figure.share), r: 2.6, class: `ls-${css}` });
  }
  const caption = put(figure, "figcaption");
  if (series.length > 1) {
    for (const { name, css } of series) {
      const item = put(caption, "span", { class: "item" });
      put(item, "i", { class: `swatch ls-${css}` });
      item.append(name);
    }
  }
  caption.append(axis);
};
