// @ts-check
// The small charts of the lesson: measured shares as bars with intervals, factors of a merge, and curves.
import { marker, put } from "../nodes.js";
import { brief, percent, times } from "../numbers.js";

/** @typedef {import("./figures.js").Figure} Figure
 * @typedef {{ name: string, agent?: number, figure?: Figure, share?: number, css?: string, isStrong?: boolean }} Bar */

const MOST = { own: 1.6, shared: 3.2 }; // ends of the two scales, as on the stage

/** @param {HTMLElement} box @param {string} name @param {number} [agent] */
const title = (box, name, agent) => {
  const node = put(box, "span", { class: "ls-bar-name" });
  if (agent !== undefined) marker(node, agent);
  node.append(name);
};

/** Shares, or figures with their intervals. guess: a share, or null.
 * @param {HTMLElement} box @param {{ rows: Bar[], guess?: number | null, label: string }} chart */
export const drawBars = (box, { rows, guess = null, label }) => {
  const list = put(box, "div", { class: "ls-bars", role: "img", "aria-label": label });
  for (const { name, agent, figure, share = figure?.share ?? 0, css = "ink", isStrong } of rows) {
    const row = put(list, "div", { class: `ls-bar${isStrong ? " strong" : ""}` });
    title(row, name, agent);
    const track = put(row, "span", { class: "ls-track" });
    put(track, "i", { class: `ls-fill ls-${css}` }).style.width = `${100 * share}%`;
    if (figure) {
      const whisker = put(track, "i", { class: "ls-whisker" });
      whisker.style.left = `${100 * figure.low}%`;
      whisker.style.width = `${100 * (figure.high - figure.low)}%`;
    }
    if (guess !== null && isStrong) {
      put(track, "i", { class: "ls-said", title: "your guess" }).style.left = `${100 * guess}%`;
    }
    put(row, "b", {}, figure ? `${figure.right}/${figure.n}` : brief(share));
  }
};

/** Each merge's factors of own and shared parts (a tick is at 1), and its score.
 * @param {HTMLElement} box
 * @param {{ rows: { name: string, own?: number, shared?: number, figure: Figure, isStrong: boolean }[], label: string }} chart */
export const drawParts = (box, { rows, label }) => {
  const says = rows.map(({ name, own, shared, figure }) =>
    `${name}: own parts ${times(own ?? 0)} times, shared parts ${times(shared ?? 0)} times, ${figure.right} of ${figure.n} solved`);
  const list = put(box, "div", { class: "ls-parts", role: "img", "aria-label": `${label}. ${says.join("; ")}` });
  for (const [text, css] of [["", ""], ["own part", "unique"], ["shared part", "shared"], ["solved", ""]]) put(list, "span", { class: css && `cv-${css}-ink` }, text);
  for (const row of rows) {
    const { figure, isStrong } = row;
    put(list, isStrong ? "b" : "span", { class: "ls-bar-name" }, row.name);
    for (const [key, css] of [["own", "unique"], ["shared", "shared"]]) {
      const cell = put(list, "span", { class: `ls-part${isStrong ? " strong" : ""}` });
      const track = put(cell, "span", { class: "ls-track" });
      put(track, "i", { class: `ls-fill ls-${css}` }).style.width = `${Math.min(100, (100 * (row[key] ?? 0)) / MOST[key])}%`;
      put(track, "i", { class: "ls-one" }).style.left = `${100 / MOST[key]}%`;
      put(cell, "span", {}, row[key] === undefined ? "–" : `×${times(row[key])}`);
    }
    put(list, isStrong ? "b" : "span", { class: "ls-solved" }, `${figure.right}/${figure.n}`);
  }
};

/** at: between 0 and 1 along the axis.
 * @param {HTMLElement} box
 * @param {{ series: { name: string, css: string, points: { at: number, figure: Figure }[] }[],
 *   ticks: { at: number, text: string }[], axis: string, label: string }} chart */
export const drawCurve = (box, { series, ticks, axis, label }) => {
  const figure = put(box, "figure", { class: "ls-curve" });
  const em = parseFloat(getComputedStyle(figure).fontSize);
  const width = Math.max(18 * em, figure.clientWidth);
  const [left, right, top, bottom] = [3.4 * em, 0.6 * em, 0.6 * em, 1.7 * em];
  const height = Math.min(0.4 * width, 11 * em);
  const svg = put(figure, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const x = (at) => left + at * (width - left - right);
  const y = (share) => top + (1 - share) * (height - top - bottom);
  for (const share of [0, 0.5, 1]) {
    put(svg, "line", { x1: left, x2: width - right, y1: y(share), y2: y(share), class: "ls-grid" });
    put(svg, "text", { x: left - 0.3 * em, y: y(share) + 0.33 * em, "text-anchor": "end" }, percent(share, 0));
  }
  for (const { at, text } of ticks) {
    const anchor = at > 0.9 ? "end" : at < 0.1 ? "start" : "middle";
    put(svg, "text", { x: x(at), y: height - 0.3 * em, "text-anchor": anchor }, text);
  }
  for (const { css, points } of series) {
    const band = [...points.map((p) => [p.at, p.figure.high]), ...[...points].reverse().map((p) => [p.at, p.figure.low])];
    put(svg, "path", { d: `M${band.map(([at, share]) => `${x(at)} ${y(share)}`).join("L")}Z`, class: `ls-band ls-${css}` });
    put(svg, "path", { d: `M${points.map((p) => `${x(p.at)} ${y(p.figure.share)}`).join("L")}`, class: `ls-stroke ls-${css}` });
    for (const p of points) put(svg, "circle", { cx: x(p.at), cy: y(p.figure.share), r: 0.2 * em, class: `ls-${css}` });
  }
  const caption = put(figure, "figcaption");
  if (series.length > 1) {
    for (const { name, css } of series) {
      const item = put(caption, "span", { class: "item" });
      put(item, "i", { class: `cv-swatch ls-${css}` });
      item.append(name);
    }
  }
  caption.append(axis);
};
