// The labels of the stage: decades, layers, what the lanes are.
import { put } from "../nodes.js";
import { power, rowName } from "./words.js";

const LINE = 12.5; // px a label needs

const everyOf = (rowHeight, scale) => [1, 2, 5].find((n) => rowHeight * n >= LINE * scale) || 10;

// marked: grid points at which skills were measured.
export const drawAxis = (svg, geometry, profile, marked) => {
  svg.replaceChildren();
  const { scale, left, right, low, high, axis, rowHeight, rowsTop } = geometry;
  const text = (x, y, content, anchor = "start", css = "") =>
    put(svg, "text", { x, y, "text-anchor": anchor, class: css }, content);
  const line = (x1, y1, x2, y2, css) => put(svg, "line", { x1, y1, x2, y2, class: css });
  const under = axis + 16 * scale;
  const decades = (right - geometry.x(low)) / (high - low) < 40 * scale ? 2 : 1;
  for (let d = low; d <= high; d += 1) {
    const x = geometry.x(d);
    line(x, axis, x, axis + 4, "tick");
    const hasRoom = d > low || x - left > 30;
    if ((high - d) % decades === 0 && hasRoom) text(x, under, power(d), d === high ? "end" : "middle");
  }
  text(left + 3, under, "0", "middle");
  line(left, axis + 0.5, right, axis + 0.5, "tick");
  text(left - 8, axis - 2, "all", "end", "strong");
  const every = everyOf(rowHeight, scale);
  const rows = profile.layers.length;
  profile.layers.forEach((layer, i) => {
    const number = /^\d+$/.test(layer) ? Number(layer) : null;
    const isEdge = i === 0 || i === rows - 1;
    const isFar = every < 5 || rows - 2 - number > 1;
    const isShown = every === 1 || (number === null ? isEdge : number > 0 && number % every === 0 && isFar);
    if (!isShown) return;
    const y = rowHeight > 22 ? rowsTop + (i + 1) * rowHeight - 4 : rowsTop + (i + 0.5) * rowHeight + 4.5 * scale;
    text(left - 8, y, rowName(layer), "end");
  });
  // Below the pill, which comes as far at the largest thresholds.
  const heads = geometry.phone ? ["Who", "changed it"] : ["Who changed it"];
  const headTop = Math.min(46 * scale, geometry.numbersTop - 5);
  heads.forEach((head, i) => text(geometry.bars.left, headTop + 17 * i, head, "start", "strong"));
  if (geometry.hasRetained) drawRetainedAxis(geometry, text, line);
  for (const point of marked) {
    if (!geometry.isOnAxis(point)) continue;
    put(svg, "circle", { cx: geometry.points[point], cy: geometry.bottom - 0.5, r: 2.6, class: "measured-point" });
  }
  if (marked.length && !geometry.phone) text(geometry.bars.left, geometry.bottom + 2, "○ skills measured");
};

const drawRetainedAxis = (geometry, text, line) => {
  const { left, right, retainedTop, scale } = geometry;
  // Beside the lane, where no line of epsilon crosses it.
  const isNarrow = geometry.bars.width < 130 * scale;
  const words = isNarrow ? ["Kept of", "each update,", "at every ε"] : ["Kept of each", "update, at every ε"];
  words.forEach((line, i) => text(geometry.bars.left, retainedTop + (10 + 17 * i) * scale, line, "start", "strong"));
  for (const share of [0, 1]) {
    const y = geometry.retainedY(share);
    line(left, y, right, y, share ? "whole" : "tick");
    text(left - 6, y + (share ? 5 : 1), share ? "100" : "0", "end");
  }
};
