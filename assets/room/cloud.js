// @ts-check
// The answers of a class, first and second round in two shades, with the measured value on top: a cloud of dots on a
// line, bars for choices.
import { put } from "../nodes.js";
import { brief } from "../numbers.js";
import { answerText } from "./view.js";

const ROUNDS = [["first", "First vote"], ["second", "Second vote"]];
const EDGE = 14; // px left and right of the line
const WIDE = 900; // px: from this width on, sizes for a projector
const FOOT = 40; // px for the axis between the rounds

/** One sentence per round, and the definition of near. @param {any} question @param {any} rounds */
export const roundsText = (question, rounds) => {
  const sentences = ROUNDS.flatMap(([name, title]) => {
    const { answers, right, median } = rounds[name];
    if (!answers) return [];
    const middle = question.line ? `, median ${answerText(question, median)}` : "";
    return [`${title}: ${right} of ${answers} ${question.line ? "near" : "right"}${middle}.`];
  });
  if (sentences.length && question.line) sentences.push("Near: at most a tenth of the line away, or inside the measured interval.");
  return sentences.join(" ");
};

/** The measured value on a line: a share as elsewhere, not rounded to the steps of a guess. @param {any} question @param {number} value */
export const valueText = (question, value) => (question.line.unit === "%" ? brief(value / 100) : answerText(question, value));

/** @param {number} value @param {{ low: number, high: number }} line */
const shareOf = (value, { low, high }) => (value - low) / (high - low);

/** Dots in columns: [column, height in its column], and the tallest column. @param {number[]} values @param {any} line @param {number} columns */
const stack = (values, line, columns) => {
  const heights = new Map();
  const dots = values.map((value) => {
    const column = Math.round(shareOf(value, line) * columns);
    heights.set(column, (heights.get(column) ?? 0) + 1);
    return [column, heights.get(column) - 1];
  });
  return { dots, tallest: Math.max(1, ...heights.values()) };
};

/** @param {HTMLElement} box @param {any} question @param {any} rounds @param {any} truth */
const drawCloud = (box, question, rounds, truth) => {
  const { line } = question;
  const width = Math.max(280, Math.min(1100, box.clientWidth || 600));
  const span = width - 2 * EDGE;
  const label = `${roundsText(question, rounds)} ${truth ? `Measured: ${truth.text}.` : ""}`;
  const [tall, largest, top] = width > WIDE ? [116, 8, 28] : [84, 5, 20]; // px for the dots of one round, of a dot, of the title
  const height = 2 * tall + FOOT + top;
  const svg = put(box, "svg", { class: "rm-cloud", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const x = (value) => EDGE + shareOf(value, line) * span;
  const [above, below] = [top + tall, top + tall + FOOT];
  if (truth) {
    if (truth.low !== null) put(svg, "rect", { class: "rm-range", x: x(truth.low), width: Math.max(1, x(truth.high) - x(truth.low)), y: top - 2, height: height - top + 2 });
    put(svg, "line", { class: "rm-truth", x1: x(truth.value), x2: x(truth.value), y1: top - 2, y2: height });
    const share = shareOf(truth.value, line);
    const anchor = share > 0.7 ? "end" : share < 0.3 ? "start" : "middle";
    put(svg, "text", { class: "rm-truth-text", x: x(truth.value), y: top - 7, "text-anchor": anchor }, `measured ${valueText(question, truth.value)}`);
  }
  put(svg, "line", { class: "rm-axis", x1: EDGE, x2: width - EDGE, y1: above + FOOT / 2, y2: above + FOOT / 2 });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const value = line.low + part * (line.high - line.low);
    const anchor = { 0: "start", 1: "end" }[part] ?? "middle";
    put(svg, "text", { class: "rm-tick", x: part === 0 ? 2 : part === 1 ? width - 2 : x(value), y: above + FOOT / 2 + 5, "text-anchor": anchor }, String(Math.round(value)));
  }
  ROUNDS.forEach(([name], i) => {
    let [size, columns, found] = [largest + 0.5, 0, /** @type {any} */ (null)];
    do {
      size -= 0.5;
      columns = Math.floor(span / (2 * size + 1));
      found = stack(rounds[name].values, line, columns);
    } while (found.tallest * (2 * size + 1) > tall && size > 1.5);
    for (const [column, at] of found.dots) {
      const away = size + at * (2 * size + 1);
      put(svg, "circle", { class: `rm-${name}`, cx: EDGE + (column / columns) * span, cy: i ? below + away : above - away, r: size });
    }
  });
};

/** @param {HTMLElement} box @param {any} question @param {any} rounds @param {any} truth */
const drawChoices = (box, question, rounds, truth) => {
  const list = put(box, "ul", { class: "rm-bars" });
  question.choices.forEach((text, i) => {
    const item = put(list, "li", truth?.value === i ? { class: "rm-measured" } : {});
    put(item, "span", { class: "rm-choice-text" }, truth?.value === i ? `✓ ${text}` : text);
    for (const [name, title] of ROUNDS) {
      const { answers, by_choice: counts } = rounds[name];
      if (!answers) continue;
      const row = put(item, "span", { class: "rm-bar" });
      put(row, "i", { class: `rm-${name}` }).style.width = `${(100 * counts[i]) / answers}%`;
      const count = put(row, "b", {}, `${counts[i]}`);
      put(count, "span", { class: "rm-unseen" }, ` of ${answers}, ${title.toLowerCase()}`);
    }
  });
};

/**
 * Draw the answers of both rounds. truth: the measured value, or null before the reveal.
 * @param {HTMLElement} box @param {any} question @param {any} rounds @param {any} truth
 */
export const drawAnswers = (box, question, rounds, truth) => {
  const figure = put(box, "figure", { class: "rm-answers", "data-part": "answers" });
  (question.line ? drawCloud : drawChoices)(figure, question, rounds, truth);
  const caption = put(figure, "figcaption");
  for (const [name, title] of ROUNDS) {
    if (!rounds[name].answers) continue;
    const item = put(caption, "span");
    put(item, "i", { class: `rm-swatch rm-${name}` });
    item.append(title);
  }
  put(caption, "span", { "data-part": "summary" }, roundsText(question, rounds));
};
