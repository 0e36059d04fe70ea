// @ts-check
// A skill as a dumbbell: from the base's score to the specialist's, the merge between them, above one dot a
// question. The dots are the axis: the base's circle stands above the end of its own. Tune draws it of measured
// settings, Check of what was just asked; here nothing is known of either. Answers are one character, 0 or 1, a question.
import { put, shape } from "../../nodes.js";
import { rightOf, wilson } from "../model/data.js";
import { brief } from "../model/words.js";

const MIDDLE = 8; // y of the line
const TOP = 17; // y of the dots
const [LEAST, MOST] = [4, 11]; // px from dot to dot; below the least there are more lines of dots

// Questions in the order of the dots: right in the base, learned by the specialist, neither.
const orderOf = (base, specialist) => {
  const rank = (i) => 2 * Number(base[i]) + Number((specialist ?? base)[i]);
  return Array.from(base, (_, i) => i).sort((a, b) => rank(b) - rank(a) || a - b);
};

export const mountLegend = (parent) => {
  const legend = put(parent, "span", { class: "cv-legend" });
  const item = (text) => {
    const span = put(legend, "span");
    const svg = put(span, "svg", { width: "12", height: "12", viewBox: "0 0 12 12", "aria-hidden": "true" });
    span.append(` ${text}`);
    return svg;
  };
  put(item("base"), "circle", { cx: "6", cy: "6", r: "4.4", class: "cv-base" });
  put(item("specialist"), "path", { d: shape(0), style: "fill:var(--ram-agent-0)" });
  put(item("merge, with 95 % interval"), "rect", { x: "4", y: "0", width: "4", height: "12", rx: "1", class: "cv-merge" });
};

export const mountDumbbell = (list, name) => {
  const row = put(list, "div", { class: "cv-skill", "data-skill": name });
  const title = put(row, "div", { class: "cv-skill-name" });
  put(title, "b", {}, name);
  const of = put(title, "span");
  const svg = put(row, "svg", { role: "img" });
  const numbers = put(row, "div", { class: "cv-skill-number" });
  const percent = put(numbers, "b");
  const against = put(numbers, "span");
  return { row, of, svg, percent, against, name, width: 0, dots: [] };
};

// All that does not depend on the merge, at the width there is; false while that is none. agent: whose marker
// the specialist has; chance: the chance level, or null.
export const layDumbbell = (row, { base, specialist, agent, chance = null }) => {
  const { svg } = row;
  const width = svg.clientWidth;
  if (!width) return false;
  const n = base.length;
  const lines = Math.max(2, Math.ceil((LEAST * n) / width));
  const across = (width * lines) / n;
  const down = Math.min(across, MOST);
  const share = (marks) => (n ? rightOf(marks) / n : 0);
  const from = share(base);
  const to = specialist ? share(specialist) : from;
  svg.replaceChildren();
  svg.setAttribute("height", TOP + 1 + lines * down);
  put(svg, "line", { x1: 0, x2: width, y1: MIDDLE, y2: MIDDLE, class: "cv-rail" });
  if (chance !== null) put(svg, "line", { x1: chance * width, x2: chance * width, y1: 0, y2: 16, class: "cv-chance" });
  put(svg, "line", { x1: from * width, x2: to * width, y1: MIDDLE, y2: MIDDLE, class: "cv-span" });
  row.interval = put(svg, "rect", { y: 4.5, height: 7, rx: 3.5, class: "cv-interval" });
  row.ghost = put(svg, "rect", { y: 0, height: 16, width: 5, rx: 1.5, class: "cv-merge-a" });
  put(svg, "circle", { cx: from * width, cy: MIDDLE, r: 4.6, class: "cv-base" });
  row.merge = put(svg, "rect", { x: -2.5, y: -2.5, height: 21, width: 5, rx: 1.5, class: "cv-merge" });
  if (specialist) {
    const group = put(svg, "g", { transform: `translate(${to * width - 6.5} 1.5) scale(1.08)` });
    put(group, "path", { d: shape(agent), class: "cv-specialist", style: `fill:var(--ram-agent-${agent % 8})` });
  }
  row.dots = orderOf(base, specialist).map((item, i) => {
    const dot = put(svg, "circle", {
      class: "cv-dot", cx: (Math.floor(i / lines) + 0.5) * across, cy: TOP + down / 2 + (i % lines) * down, r: down * 0.36, "data-item": item,
    });
    return { dot, item };
  });
  row.width = width;
  return true;
};

// marks: of the merge; pinned: of another one, whose ghost stands beside it, or null.
export const paintDumbbell = (row, marks, pinned = null) => {
  const n = marks.length || 1;
  const right = rightOf(marks);
  const [low, high] = wilson(right, n);
  row.interval.setAttribute("x", low * row.width);
  row.interval.setAttribute("width", (high - low) * row.width);
  row.merge.setAttribute("transform", `translate(${(right / n) * row.width} 0)`);
  row.ghost.style.display = pinned ? "" : "none";
  if (pinned) row.ghost.setAttribute("x", (rightOf(pinned) / n) * row.width - 2.5);
  for (const { dot, item } of row.dots) {
    const is = marks[item] === "1";
    const was = pinned ? pinned[item] === "1" : is;
    const css = `cv-dot${is ? " right" : ""}${is === was ? "" : is ? " gain" : " loss"}`;
    if (dot.getAttribute("class") !== css) dot.setAttribute("class", css);
  }
  row.percent.textContent = brief(right / n, 0);
  row.of.textContent = `${right}/${marks.length}`;
  row.svg.setAttribute("aria-label", `${row.name}: merge ${right} of ${marks.length} right, 95 % interval ${brief(low, 0)} to ${brief(high, 0)}`);
  return right;
};
