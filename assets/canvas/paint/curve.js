// @ts-check
// Questions solved along the active dial. The curve is the slider: drag anywhere, or use the keys. Without a table: the
// exact factors of own and shared parts along it.
import { sliderPlace } from "../../keys.js";
import { onDrag, put, saySlider, setText, shape } from "../../nodes.js";
import { wilson } from "../model/data.js";
import { METHODS, nearestStep, stepAt } from "../model/methods.js";
import { along, paperRow, rivalRow } from "../model/nearest.js";
import { factorsOf, outcomeOf } from "../model/outcome.js";
import { rivalText } from "../model/verdict.js";
import { choose, dialInHand, onPaint, shown, state, tableHere } from "../store.js";

const EXACT_MOST = 3; // factor at the top of the axis
let part = null;
let frame = null;
let laid = "";
let hand = null;

export const mountCurve = (root) => {
  const box = put(root, "section", { class: "cv-panel cv-curve", "data-part": "curve" });
  const head = put(box, "div", { class: "cv-top" });
  const title = put(head, "h2");
  const plot = put(box, "div", { class: "cv-plot", id: "curve-plot" });
  const note = put(box, "p", { class: "cv-note" });
  part = { box, head, title, plot, note };
  makeSlider(plot, () => frame && [frame.x0, frame.x1]);
  onPaint(paintCurve);
  return part;
};

export const layCurve = () => { laid = ""; };

/** The text size, the unit of all lengths. @param {Element} node */
export const unitOf = (node) => parseFloat(getComputedStyle(node).fontSize);

/** The position of a plot's axes; curve and weights share left and right edge, so one line crosses both. */
export const frameOf = (plot) => {
  const unit = unitOf(plot);
  const [width, height] = [plot.clientWidth, plot.clientHeight];
  return { unit, width, height, x0: 2.9 * unit, x1: width - (width < 30 * unit ? 6.6 : 8.9) * unit, y0: 1.75 * unit, y1: height - 1.75 * unit };
};

/** Make an element a handle of the active dial. ends(): left and right end of its axis. */
export const makeSlider = (node, ends) => {
  onDrag(node, (event) => {
    const [dial, at] = [dialInHand(), ends()];
    if (!dial || !at) return;
    const x = (event.clientX - node.getBoundingClientRect().left - at[0]) / (at[1] - at[0]);
    const value = stepAt(dial, Math.max(0, Math.min(1, x)));
    if (value !== state.settings[dial.key]) choose({ [dial.key]: value });
  });
  node.addEventListener("keydown", (event) => {
    const dial = dialInHand();
    if (dial && moveByKey(event, dial)) event.preventDefault();
  });
};

// Arrows move to the next measured point; with Shift, or without measured points, one step of the dial.
const moveByKey = (event, dial) => {
  const { profile, settings } = state;
  const now = settings[dial.key];
  const measured = profile.skills && !event.shiftKey ? along(profile, settings, dial.key).map((p) => p.value) : [];
  const list = measured.length > 1 ? [...new Set([...measured, now])].sort((a, b) => a - b) : dial.steps;
  const at = list.indexOf(measured.length > 1 ? now : nearestStep(dial, now));
  const to = sliderPlace(event.key, at, list.length - 1, 5);
  if (to === null) return false;
  choose({ [dial.key]: list[to] });
  return true;
};

// ---------------------------------------------------------------- drawing the static parts

const xOf = (dial, value) => frame.x0 + (frame.x1 - frame.x0) * dial.x(value);
const yOf = (share) => frame.y1 - (frame.y1 - frame.y0) * share;
/** A path through points, [x, y] each. */
export const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** Labels at the right edge, pushed apart in their order. */
const spread = (labels, gap, low, high) => {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, i) => { label.at = Math.max(low, label.y, i ? labels[i - 1].at + gap : low); });
  for (let i = labels.length - 1, end = high; i >= 0; i -= 1) {
    labels[i].at = Math.min(labels[i].at, end);
    end = labels[i].at - gap;
  }
  return labels;
};

const noDialText = () =>
  (shown.near ? `No dial: one setting, ${shown.near.row.total} of ${state.profile.skills.asked} solved` : "No dial: one setting");

const draw = (dial) => {
  const { x0, x1, y1 } = frame;
  const skills = tableHere();
  part.plot.replaceChildren();
  hand = null;
  const svg = put(part.plot, "svg", { "aria-hidden": "true" });
  for (const share of skills ? [0, 0.25, 0.5, 0.75, 1] : [0, 1 / 3, 2 / 3, 1]) {
    put(svg, "line", { x1: x0, x2: x1, y1: yOf(share), y2: yOf(share), class: "cv-grid" });
    if (skills && share % 0.5 === 0) put(svg, "text", { x: x0 - 6, y: yOf(share) + 4, "text-anchor": "end" }, share === 1 ? "100 %" : String(100 * share));
  }
  if (!dial) {
    put(svg, "text", { x: (x0 + x1) / 2, y: (frame.y0 + y1) / 2, "text-anchor": "middle", class: "strong" }, noDialText());
    return;
  }
  drawTicks(svg, dial);
  if (skills) drawMeasured(svg, dial);
  else drawExact(svg, dial);
  drawHand(svg, skills ? skills.domains.length : 0);
};

const drawTicks = (svg, dial) => {
  const { unit, y1, x1 } = frame;
  const n = state.profile.agents.length;
  const places = { 0: "0 base", [1 / n]: `1/${n} average`, 1: "1 sum", 2: "2" };
  const named = state.settings.method === "task-arithmetic" ? Object.keys(places).map(Number).sort((a, b) => a - b) : null;
  let last = -Infinity;
  for (const value of named ?? dial.ticks) {
    const [x, text] = [xOf(dial, value), named ? places[value] : dial.text(value)];
    put(svg, "line", { x1: x, x2: x, y1, y2: y1 + 4, class: "cv-tick" });
    if (x - last < Math.max(2, text.length * 0.6) * unit || x > x1 + 2) continue;
    put(svg, "text", { x, y: y1 + 1.35 * unit, "text-anchor": "middle", class: named && value && value < 2 ? "strong" : "" }, text);
    last = x;
  }
};

const drawMeasured = (svg, dial) => {
  const { profile, settings } = state;
  const { skills } = profile;
  const { unit, x0, x1, width } = frame;
  const points = along(profile, settings, dial.key).map(({ value, row }) => ({ x: xOf(dial, value), row }));
  const labels = [];
  const mark = (row, name, css) => {
    if (!row) return;
    const y = yOf(row.total / skills.asked);
    put(svg, "line", { x1: x0, x2: x1 + 4, y1: y, y2: y, class: `cv-mark-line ${css}` });
    labels.push({ y, text: `${name} ${row.total}`, css: "strong" });
  };
  const paper = paperRow(profile);
  if (settings.method !== "ram+") mark(paper, "RAM+", "paper");
  mark(rivalRow(profile), width < 30 * unit ? "other*" : "best other*", "rival");
  mark(skills.base, "base", "base");
  if (points.length) {
    const share = ({ x, row }) => [x, row.total / skills.asked];
    const band = points.map(({ x, row }) => [x, ...wilson(row.total, skills.asked)]);
    put(svg, "path", { d: `${line([...band.map(([x, , high]) => [x, yOf(high)]), ...band.map(([x, low]) => [x, yOf(low)]).reverse()])}Z`, class: "cv-band" });
    skills.domains.forEach((_, d) => drawSkill(svg, points, d));
    put(svg, "path", { d: line(points.map(share).map(([x, p]) => [x, yOf(p)])), class: "cv-mean" });
    let last = -Infinity;
    for (const [x, p] of points.map(share)) {
      if (x - last < 0.45 * unit) continue;
      put(svg, "circle", { cx: x, cy: yOf(p), r: 2.6, class: "cv-point" });
      last = x;
    }
    labels.push({ y: yOf(points.at(-1).row.total / skills.asked), text: "mean, 95 %", css: "" });
    if (settings.method === "task-arithmetic" && paper) drawGap(svg, points, paper, xOf(dial, 1.75));
  }
  for (const { y, at, text, css } of spread(labels, 1.25 * unit, frame.y0, frame.y1)) {
    put(svg, "path", { d: `M${x1 + 4} ${y}L${x1 + 12} ${at}`, class: "cv-tick" });
    put(svg, "text", { x: x1 + 15, y: at + 4, class: css }, text);
  }
};

const skillColor = (d) => { const t = state.profile.skills.agents[d]; return t === null ? "var(--ram-muted)" : `var(--ram-agent-${t % 8})`; };

const drawSkill = (svg, points, d) => {
  const { skills } = state.profile;
  const at = points.map(({ x, row }) => [x, yOf(row.score[d] / skills.n)]);
  put(svg, "path", { d: line(at), class: "cv-skill-line", style: `stroke:${skillColor(d)}` });
  let last = -Infinity;
  for (const [x, y] of at) {
    if (x - last < 0.62 * frame.unit) continue;
    skillShape(svg, d, 0.5 * frame.unit, { transform: `translate(${x - 0.25 * frame.unit} ${y - 0.25 * frame.unit}) scale(${frame.unit / 24})` });
    last = x;
  }
};

const skillShape = (parent, d, size, attributes) =>
  put(parent, "path", { d: shape(state.profile.skills.agents[d] ?? d), style: `fill:${skillColor(d)}`, ...attributes });

// The gap to the best single scale.
const drawGap = (svg, points, paper, x) => {
  const { unit } = frame;
  const best = points.reduce((a, b) => (b.row.total > a.row.total ? b : a));
  const [y, to] = [best, { row: paper }].map(({ row }) => yOf(row.total / state.profile.skills.asked));
  if (y - to < 3 * unit) return;
  put(svg, "path", { d: `M${best.x} ${y}H${x + 6}M${x} ${y}V${to + 1}M${x - 4} ${to + 7}L${x} ${to + 1}L${x + 4} ${to + 7}M${x - 4} ${y - 6}L${x} ${y}L${x + 4} ${y - 6}`, class: "cv-gap-arrow" });
  const text = (dy, words, css = "cv-gap-text") => put(svg, "text", { x: x - 9, y: (y + to) / 2 + dy * unit, "text-anchor": "end", class: css }, words);
  text(-0.1, "No single scale");
  text(1.1, "closes this gap");
  put(svg, "text", { x: x - 2, y: y + 1.15 * unit, "text-anchor": "end", class: "cv-gap-text light" }, `best scale ${best.row.total}`);
};

// For untested models: the exact factors of each part.
const drawExact = (svg, dial) => {
  const { profile, settings } = state;
  const { unit, x0, x1 } = frame;
  const y = (times) => yOf(Math.min(times, EXACT_MOST) / EXACT_MOST);
  for (const times of [0, 1, 2, 3]) put(svg, "text", { x: x1 + 8, y: y(times) + 4 }, times === 1 ? "× 1, as trained" : `× ${times}`);
  const found = dial.steps.map((value) => [value, factorsOf(profile, outcomeOf(profile, { ...settings, [dial.key]: value }))]).filter(([, factors]) => factors);
  if (!found.length) {
    put(svg, "text", { x: (x0 + x1) / 2, y: y(1.5), "text-anchor": "middle" }, "No formula gives this method's factors: merge to see them.");
    return;
  }
  for (const [key, css, words, dy] of [["ownMean", "unique", "own part", -8], ["sharedMean", "shared", "shared part", 1.25 * unit]]) {
    if (found[0][1][key] === null) continue; // no agent has such a part
    const points = found.map(([value, factors]) => [xOf(dial, value), y(factors[key])]);
    put(svg, "path", { d: line(points), class: `cv-exact cv-${css}-stroke` });
    put(svg, "text", { x: x0 + 0.46 * (x1 - x0), y: points[Math.floor(points.length * 0.4)][1] + dy, class: `strong cv-fill-${css}-ink` }, words);
  }
  put(svg, "line", { x1: x0, x2: x1, y1: y(1), y2: y(1), class: "cv-mark-line rival" });
};

const drawHand = (svg, skills) => {
  const { unit, y0, y1 } = frame;
  const ghost = put(svg, "g", { class: "cv-moves" });
  put(ghost, "line", { y1: y0 - 4, y2: y1, class: "cv-ghost" });
  put(ghost, "text", { y: y0 - 6, "text-anchor": "middle", class: "strong" }, "A");
  const group = put(svg, "g", { class: "cv-moves" });
  put(group, "line", { y1: y0 - 2, y2: y1, class: "cv-hand" });
  const marks = Array.from({ length: skills }, (_, d) => skillShape(group, d, 0.95 * unit, { class: "cv-hand-skill" }));
  const knob = put(group, "circle", { r: 0.72 * unit, class: "cv-knob" });
  const arrows = put(group, "path", { d: "M-4-3-7 0-4 3M4-3 7 0 4 3", class: "cv-knob-arrows" });
  const tag = put(group, "text", { y: y0 - 8, "text-anchor": "middle", class: "strong" });
  hand = { ghost, group, marks, knob, arrows, tag };
};

// ---------------------------------------------------------------- painting a move

const paintCurve = () => {
  const { settings, pin } = state;
  const { near, factors } = shown;
  const dial = dialInHand();
  const others = METHODS[settings.method].dials.filter((key) => key !== state.dial).map((key) => settings[key]);
  const skills = tableHere();
  const key = JSON.stringify([settings.method, state.dial, others, settings.weights, skills ? skills.rows.length : 0]);
  if (laid !== key) {
    const next = laid === "" ? frameOf(part.plot) : frame;
    if (!next || next.width < 20) return;
    [frame, laid] = [next, key];
    draw(dial);
    paintNote();
  }
  const words = skills ? "Questions solved" : "Change applied";
  const title = dial ? `${words}, by` : words;
  setText(part.title, title);
  part.box.setAttribute("aria-label", `${words}${dial ? ", along the active dial" : ""}`);
  part.title.dataset.short = title.replace(/^\w+ s/, "S").replace(/^\w+ a/, "A"); // beside three dials
  paintSpoken(part.plot, dial);
  if (!dial || !hand) return;
  const share = near ? near.row.total / skills.asked : Math.min(1, (factors?.ownMean ?? 0) / EXACT_MOST);
  const isSure = near ? near.isExact : true;
  hand.group.setAttribute("transform", `translate(${xOf(dial, settings[dial.key])} 0)`);
  hand.knob.setAttribute("cy", yOf(share));
  hand.knob.classList.toggle("near", !isSure);
  hand.arrows.setAttribute("transform", `translate(0 ${yOf(share)})`);
  hand.marks.forEach((mark, d) => mark.setAttribute("transform", `translate(${-0.475 * frame.unit} ${yOf(near.row.score[d] / skills.n) - 0.475 * frame.unit}) scale(${(0.95 * frame.unit) / 12})`));
  hand.tag.textContent = `${dial.text(settings[dial.key])}${isSure ? "" : " · nearest"}`;
  const isBeside = pin && METHODS[pin.method].dials.includes(dial.key) && (dial.key !== "scale" || pin.method === settings.method);
  hand.ghost.style.display = isBeside ? "" : "none";
  if (isBeside) hand.ghost.setAttribute("transform", `translate(${xOf(dial, pin[dial.key])} 0)`);
};

/** The label of the active dial's slider; none for a method without a dial. */
export const paintSpoken = (node, dial) => {
  const { near } = shown;
  const solved = near ? `${near.row.total} of ${state.profile.skills.asked} solved${near.isExact ? "" : ", nearest measured setting"}` : "not tested";
  const value = state.settings[dial?.key];
  saySlider(node, dial ? {
    label: dial.title, least: 0, most: dial.steps.length - 1, now: dial.steps.indexOf(nearestStep(dial, value)), text: `${dial.name} ${dial.text(value)}: ${solved}`,
  } : { label: noDialText() });
};

// The meaning of "best other".
const paintNote = () => {
  const rivalNote = tableHere() ? rivalText(state.profile) : "";
  part.note.hidden = !rivalNote;
  if (!rivalNote) return;
  part.note.textContent = `* ${rivalNote}`;
  part.note.title = "RAM+ has the paper's setting and is not tuned. The lesson and docs/results.md show rivals tuned on other questions.";
};
