// @ts-check
// A skill as a dumbbell: from the base's score to the specialist's, the merge between them, above one dot per question.
// The dots are the axis: the base's circle is above the last one it solves. Answers are one character, 0 or 1, per
// question.
import { put, shape } from "../../nodes.js";
import { percent } from "../../numbers.js";
import { rightOf, wilson } from "../model/data.js";

const MIDDLE = 8; // y of the line
const TOP = 17; // y of the dots
const [LEAST, MOST] = [4, 11]; // px between dots; with less there are several lines of dots

// Questions in the order of the dots: right in the base, learned by the specialist, neither.
const orderOf = (base, specialist) => {
  const rank = (i) => 2 * Number(base[i]) + Number(specialist[i]);
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
  const share = put(numbers, "b");
  const against = put(numbers, "span");
  return { row, of, svg, share, against, name, width: 0 };
};

/** Draw a row at the available width: the answers of base, specialist and merge; agent: index of the specialist's
 * marker; chance: the chance level, or null. */
export const drawDumbbell = ({ svg, name, of, share }, width, { base, specialist, merge, agent, chance }) => {
  const n = base.length;
  const lines = Math.max(2, Math.ceil((LEAST * n) / width));
  const across = (width * lines) / n;
  const down = Math.min(across, MOST);
  const [from, to, here] = [base, specialist, merge].map((marks) => (n ? (rightOf(marks) / n) * width : 0));
  const right = rightOf(merge);
  const [low, high] = wilson(right, n || 1);
  svg.replaceChildren();
  svg.setAttribute("height", TOP + 1 + lines * down);
  put(svg, "line", { x1: 0, x2: width, y1: MIDDLE, y2: MIDDLE, class: "cv-rail" });
  if (chance !== null) put(svg, "line", { x1: chance * width, x2: chance * width, y1: 0, y2: 16, class: "cv-chance" });
  put(svg, "line", { x1: from, x2: to, y1: MIDDLE, y2: MIDDLE, class: "cv-span" });
  put(svg, "rect", { x: low * width, width: (high - low) * width, y: 4.5, height: 7, rx: 3.5, class: "cv-interval" });
  put(svg, "circle", { cx: from, cy: MIDDLE, r: 4.6, class: "cv-base" });
  put(svg, "rect", { x: here - 2.5, y: -2.5, height: 21, width: 5, rx: 1.5, class: "cv-merge" });
  const group = put(svg, "g", { transform: `translate(${to - 6.5} 1.5) scale(1.08)` });
  put(group, "path", { d: shape(agent), class: "cv-specialist", style: `fill:var(--ram-agent-${agent % 8})` });
  orderOf(base, specialist).forEach((item, i) => put(svg, "circle", {
    class: `cv-dot${merge[item] === "1" ? " right" : ""}`, "data-item": item,
    cx: (Math.floor(i / lines) + 0.5) * across, cy: TOP + down / 2 + (i % lines) * down, r: down * 0.36,
  }));
  share.textContent = percent(right / (n || 1), 0);
  of.textContent = `${right}/${n}`;
  svg.setAttribute("aria-label", `${name}: merge ${right} of ${n} right, 95 % interval ${percent(low, 0)} to ${percent(high, 0)}`);
};
