// @ts-check
// Sizes of changes: |tau| of all layers and of each, on one axis with the line of epsilon, and beside each layer the
// overlap of its changed weights. A click on a layer shows its single weights.
import { sliderPlace } from "../../keys.js";
import { named, put, saySlider } from "../../nodes.js";
import { brief, count, epsilon, plain, sum } from "../../numbers.js";
import { histogramOf } from "../model/histogram.js";
import { METHODS, nearestStep, stepAt } from "../model/methods.js";
import { bent, expanded, LEAST, MOST, STEP, straightened, weightAt } from "../model/weights.js";
import { layerTitle, rowName } from "../model/words.js";
import { choose, hold, onPaint, redraw, setWeight, shown, state, weightOf } from "../store.js";
import { agentColor, colors, forgetColors } from "./colors.js";
import { frameOf } from "./curve.js";
import { hideTip, showTip } from "./popups.js";

const PAGE = 7; // grid points
const CLICK = 4; // px that a pointer may move and still click
const DOUBLE = 500; // ms between the clicks of a double-click

let part = null;
let frame = null;
let histogram = null;
let openLayer = null;

/** onOpen(layer), or null without single weights. */
export const mountWeights = (root, onOpen) => {
  openLayer = onOpen;
  const box = put(root, "section", { class: "cv-panel cv-weights", "data-part": "weights", "aria-label": "Which weights changed, and how far" });
  const head = put(box, "div", { class: "cv-top" });
  put(head, "h2", {}, "How far weights moved");
  const key = put(head, "span", { class: "cv-key" });
  const plot = put(box, "div", { class: "cv-plot" });
  const canvas = put(plot, "canvas", { "aria-hidden": "true" });
  const numbers = put(plot, "div", { class: "cv-bar-numbers", "aria-hidden": "true" });
  const rows = put(plot, "div", { class: "cv-rows", "aria-orientation": "vertical" });
  const ghost = put(plot, "div", { class: "cv-pinned-line", hidden: "" }, put(plot, "span", { class: "cv-tag" }, "A"));
  const sides = ["too small to count", "counts as changed"].map((words) => put(plot, "span", { class: "cv-side", "aria-hidden": "true" }, words));
  const line = put(plot, "div", { class: "cv-line" });
  const pill = put(line, "div", { class: "cv-pill", id: "epsilon-line" });
  part = { box, head, key, plot, canvas, numbers, rows, ghost, sides, line, pill };
  wirePointer();
  wireKeys();
  onPaint(paintWeights);
  return part;
};

export const setWeights = () => {
  const { profile } = state;
  histogram = histogramOf(profile);
  frame = null;
  part.key.replaceChildren();
  profile.agents.forEach((name, t) => named(put(part.key, "span", { title: name }), t, profile.agents.length > 4 ? "" : ` ${name}`));
};

/** Update the panel's layout; not done while epsilon moves. */
export const layWeights = () => {
  const { plot, canvas } = part;
  const { profile } = state;
  const edges = frameOf(plot);
  const { unit, width, height, x0, x1 } = edges;
  if (width < 20 || height < 40) return;
  const [top, base] = [1.9 * unit, height - 1.5 * unit];
  const layers = profile.layers.length;
  const tall = Math.max(Math.min((2.1 * (base - top)) / (layers + 2.1), 6 * unit), Math.min(2.6 * unit, (base - top) / 4));
  const style = getComputedStyle(plot);
  const at = (x) => x0 + (x1 - x0) * x;
  frame = {
    unit, width, height, x0, x1, top, base, allBottom: top + tall, rowsTop: top + tall, rowHeight: (base - top - tall) / layers,
    x: (k) => at(profile.axis.x(k)), ofLog: (log) => at(profile.axis.ofLog(log)), ratio: Math.min(2, devicePixelRatio || 1),
    bars: { left: x1 + 1.1 * unit, width: width - x1 - 1.1 * unit }, font: style.fontFamily, muted: style.color,
  };
  [canvas.width, canvas.height] = [width * frame.ratio, height * frame.ratio];
  part.numbers.style.cssText = `left:${frame.bars.left}px;top:0`;
  part.line.style.height = part.ghost.style.height = `${base}px`;
  drawPlots(frame, profile, histogram);
};

/** The theme was switched. */
export const recolorWeights = () => {
  forgetColors();
  if (state.profile && frame) layWeights();
};

// ---------------------------------------------------------------- static parts while epsilon moves

// Every histogram with labels, drawn once in gray and once in color on two hidden canvases: moving epsilon only copies
// one to the left and the other to the right of its line.
const OVERLAID = 9; // px per row: from this on, overlaid outlines; below, a strip

const plots = { cold: document.createElement("canvas"), hot: document.createElement("canvas") };

const root = (share) => Math.sqrt(Math.min(1, share));

/** One agent's curve above a baseline. at: { bottom, height, most, isThin } */
const outline = (pen, { frame, histogram, isHot }, values, at, t) => {
  const color = isHot ? agentColor(t) : colors().outline;
  pen.beginPath();
  histogram.xs.forEach((log, i) => {
    const x = Math.max(frame.x0, frame.ofLog(log));
    if (!i) pen.moveTo(x, at.bottom);
    pen.lineTo(x, at.bottom - root(values[i] / at.most) * at.height);
  });
  pen.lineTo(frame.ofLog(histogram.xs.at(-1)), at.bottom);
  pen.fillStyle = pen.strokeStyle = color;
  pen.globalAlpha = isHot ? 0.1 : 0.05;
  pen.fill();
  pen.globalAlpha = isHot ? 1 : 0.75;
  pen.lineWidth = at.isThin ? 1.25 : 1.8;
  pen.stroke();
  pen.globalAlpha = 1;
};

/** Darkness shows the number of weights, of all agents together. */
const strip = (pen, { frame, histogram, isHot }, layer, top, height, most) => {
  const snap = (v) => Math.round(v * frame.ratio) / frame.ratio;
  pen.fillStyle = isHot ? colors().ink : colors().outline;
  const y = snap(top);
  for (let i = 0; i < histogram.xs.length - 1; i += 1) {
    const [from, to] = [snap(Math.max(frame.x0, frame.ofLog(histogram.xs[i]))), snap(frame.ofLog(histogram.xs[i + 1]))];
    if (to <= from) continue;
    pen.globalAlpha = root(sum(histogram.layers[layer].map((agent) => agent[i])) / most);
    pen.fillRect(from, y, to - from, Math.max(1, snap(top + height) - y));
  }
  pen.globalAlpha = 1;
};

const largest = (lists) => lists.reduce((most, values) => values.reduce((a, b) => Math.max(a, b), most), 1e-12);

const drawLabels = (pen, frame, profile) => {
  const { unit, x0, base, rowHeight, rowsTop, allBottom } = frame;
  const font = (bold) => { pen.font = `${bold ? 700 : 400} ${0.93 * unit}px ${frame.font}`; pen.fillStyle = bold ? colors().ink : frame.muted; };
  font(true);
  pen.textAlign = "right";
  pen.fillText("all", x0 - 0.45 * unit, allBottom - 2);
  font(false);
  const every = [1, 2, 5, 10, 20].find((n) => rowHeight * n >= 0.95 * unit) ?? 40;
  profile.layers.forEach((layer, l) => {
    if (every > 1 && (l % every || (l + 0.5) * rowHeight < 0.9 * unit)) return; // the first one is below "all"
    pen.fillText(rowName(layer), x0 - 0.45 * unit, rowsTop + (l + (every > 1 ? 0.5 : 1)) * rowHeight + (every > 1 ? 0.32 * unit : -2));
  });
  pen.textAlign = "center";
  let last = -Infinity;
  for (const k of profile.axis.ticks) {
    const x = frame.x(k);
    if (x - last < 2.4 * unit) continue;
    pen.fillText(epsilon(profile.epsilon_grid[k]), x, base + 1.2 * unit);
    last = x;
  }
};

const drawPlots = (frame, profile, histogram) => {
  const moved = (t) => sum(profile.overlap[0][t]);
  // The largest behind, so that none is hidden.
  const order = profile.agents.map((_, t) => t).sort((a, b) => moved(b) - moved(a));
  const most = largest(histogram.layers.flat());
  const together = largest(histogram.layers.map((layer) => histogram.xs.map((_, i) => sum(layer.map((agent) => agent[i])))));
  for (const [kind, sheet] of Object.entries(plots)) {
    [sheet.width, sheet.height] = [frame.width * frame.ratio, frame.height * frame.ratio];
    const pen = sheet.getContext("2d");
    const view = { frame, histogram, isHot: kind === "hot" };
    pen.setTransform(frame.ratio, 0, 0, frame.ratio, 0, 0);
    pen.lineJoin = "round";
    const ruled = (bottom) => { pen.fillStyle = colors().hair; pen.fillRect(frame.x0, bottom, frame.x1 - frame.x0, 1); };
    ruled(frame.allBottom);
    for (const t of order) outline(pen, view, histogram.all[t], { bottom: frame.allBottom, height: frame.allBottom - frame.top - 4, most: largest(histogram.all), isThin: false }, t);
    histogram.layers.forEach((layer, l) => {
      const bottom = frame.rowsTop + (l + 1) * frame.rowHeight;
      if (frame.rowHeight < OVERLAID) {
        strip(pen, view, l, bottom - frame.rowHeight, frame.rowHeight, together);
        return;
      }
      ruled(bottom);
      for (const t of order) outline(pen, view, layer[t], { bottom, height: frame.rowHeight * 0.9, most, isThin: true }, t);
    });
    drawLabels(pen, frame, profile);
  }
};

// ---------------------------------------------------------------- drawing

/** @returns {[number, number]} */
const shareOf = (counts, total) => [counts[1] / (total || 1), sum(counts.slice(2)) / (total || 1)];

const drawBar = (pen, y, height, [unique, shared]) => {
  const { left, width } = frame.bars;
  const fill = (color, x, share) => { pen.fillStyle = color; pen.fillRect(left + x * width, y, share * width, height); };
  fill(colors().unchanged, 0, 1);
  fill(colors().unique, 0, unique);
  fill(colors().shared, unique, shared);
};

// The overlap of changed weights, of all layers and of each.
const drawBars = (pen) => {
  const { profile, settings } = state;
  const { unit, rowHeight, rowsTop } = frame;
  const height = Math.max(1, Math.min(0.95 * unit, rowHeight * 0.62));
  profile.layer_count[settings.point].forEach((row, l) => drawBar(pen, rowsTop + (l + 1) * rowHeight - height - (rowHeight > 14 ? 1 : rowHeight * 0.19), height, shareOf(row, profile.layer_total[l])));
  const [unique, shared] = [shown.result.byCount[0], sum(shown.result.byCount.slice(1))].map((n) => n / (profile.total || 1));
  drawBar(pen, frame.allBottom - 1.15 * unit, 1.15 * unit, [unique, shared]);
  writeNumbers([["unique", `${brief(unique)} unique`], ["shared", `${brief(shared)} shared`]]);
};

// ---------------------------------------------------------------- the ramp

const numbered = (profile) => profile.layers.flatMap((layer, row) => (/^\d+$/.test(layer) ? [row] : []));

const weightX = (weight) => frame.bars.left + (frame.bars.width * Math.max(LEAST, Math.min(MOST, weight))) / MOST;

const middleOf = (row) => frame.rowsTop + (row + 0.5) * frame.rowHeight;

// Instead of the bars: the active agent's weight in each layer, with a handle per layer.
const drawRamp = (pen) => {
  const { profile, weighed } = state;
  const { unit, rowHeight, rowsTop, base } = frame;
  pen.fillStyle = colors().hair;
  pen.fillRect(frame.bars.left, rowsTop, frame.bars.width, base - rowsTop);
  pen.fillStyle = colors().outline;
  pen.fillRect(weightX(1), rowsTop, 1, base - rowsTop);
  const rows = numbered(profile);
  const values = expanded(weightOf(weighed), rows.length);
  pen.strokeStyle = pen.fillStyle = agentColor(weighed);
  pen.lineWidth = 2.5;
  pen.beginPath();
  profile.layers.forEach((_, row) => pen.lineTo(weightX(weightHere(row)), middleOf(row)));
  pen.stroke();
  rows.forEach((row, l) => {
    pen.beginPath();
    pen.arc(weightX(values[l]), middleOf(row), Math.max(2, Math.min(0.42 * unit, rowHeight * 0.45)) * (row === state.layer ? 1.4 : 1), 0, 7);
    pen.fill();
  });
  writeNumbers([["ink", profile.agents[weighed]], ["muted", "drag a layer"]]);
};

/** The active agent's weight in a row's layer. */
const weightHere = (row) => weightAt(weightOf(state.weighed), state.profile.weighing?.depth[row] ?? 1);

const isOnRamp = (x) => state.weighed !== null && x > frame.bars.left - frame.unit;

/** Change the active agent's weight in one layer's row; change(weight, n, layer). */
const reweigh = (row, change) => {
  const rows = numbered(state.profile);
  if (rows.includes(row)) setWeight(state.weighed, change(weightOf(state.weighed), rows.length, rows.indexOf(row)));
};

const steps = (weight) => Number((Math.round(Math.max(LEAST, Math.min(MOST, weight)) / STEP) * STEP).toFixed(2));

const dragRamp = (row, x) => reweigh(row, (weight, n, l) => bent(weight, n, l, steps(((x - frame.bars.left) / frame.bars.width) * MOST)));

/** The index of epsilon among the steps of its axis, which ends where almost no change is larger. */
const stepNow = () => {
  const { axis } = state.profile;
  return axis.steps.indexOf(nearestStep(axis, state.settings.point));
};

const paintWeights = () => {
  const { profile, settings, pin } = state;
  if (!frame) layWeights();
  if (!frame) return;
  const { canvas, plot, line, pill, ghost, sides } = part;
  const { ratio, unit, rowHeight, rowsTop } = frame;
  const x = frame.x(settings.point);
  const edge = shown.result.isRam ? Math.round(x * ratio) : 0;
  const pen = canvas.getContext("2d");
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  if (state.layer !== null) {
    pen.fillStyle = colors().sunken;
    pen.fillRect(0, (rowsTop + state.layer * rowHeight) * ratio, canvas.width, Math.max(rowHeight, 4) * ratio);
  }
  if (edge) pen.drawImage(plots.cold, 0, 0, edge, canvas.height, 0, 0, edge, canvas.height);
  if (edge < canvas.width) pen.drawImage(plots.hot, edge, 0, canvas.width - edge, canvas.height, edge, 0, canvas.width - edge, canvas.height);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  plot.dataset.weighed = state.weighed === null ? "" : profile.agents[state.weighed];
  if (state.weighed === null) drawBars(pen); else drawRamp(pen);
  line.style.transform = `translateX(${Math.max(x, frame.x0 + 0.6 * unit)}px)`;
  line.classList.toggle("unused", !shown.result.isRam);
  pill.textContent = `ε ${epsilon(profile.epsilon_grid[settings.point])}`;
  saySlider(pill, {
    label: "epsilon: what counts as changed", least: 0, most: profile.axis.steps.length - 1, now: stepNow(),
    text: `${epsilon(profile.epsilon_grid[settings.point])}, ${brief(shown.result.changed / (profile.total || 1))} of the weights changed`,
  });
  sayLayer();
  pill.setAttribute("aria-disabled", String(!shown.result.isRam));
  sides[0].style.transform = `translateX(calc(${x - 3.6 * unit}px - 100%))`;
  sides[1].style.transform = `translateX(${x + 3.6 * unit}px)`;
  sides[0].classList.toggle("off", x - frame.x0 < 12 * unit);
  sides[1].classList.toggle("off", frame.x1 - x < 12 * unit);
  ghost.hidden = !pin || !METHODS[pin.method].isRam;
  if (!ghost.hidden) ghost.style.transform = `translateX(${frame.x(pin.point)}px)`;
};

const writeNumbers = (words) => {
  const { numbers } = part;
  const key = words.join();
  if (numbers.dataset.key === key) return;
  numbers.dataset.key = key;
  numbers.replaceChildren();
  for (const [css, text] of words) put(numbers, "b", { class: `cv-${css}${css === "muted" ? "" : "-ink"}` }, text);
};

// ---------------------------------------------------------------- pointer

const placeOf = (event) => {
  const { left, top } = part.plot.getBoundingClientRect();
  const [x, y] = [event.clientX - left, event.clientY - top];
  const layer = frame && y > frame.rowsTop && y < frame.base ? Math.min(state.profile.layers.length - 1, Math.floor((y - frame.rowsTop) / frame.rowHeight)) : null;
  return { x, y, layer };
};

const pointTo = (layer) => {
  if (layer === state.layer) return;
  state.layer = layer;
  redraw();
};

/** Move epsilon and make its dial active. */
const setPoint = (point) => {
  if (METHODS[state.settings.method].isRam && state.dial !== "point") hold("point");
  if (point !== state.settings.point) choose({ point }, "drag");
};

const moveTo = (x) => setPoint(stepAt(state.profile.axis, Math.max(0, Math.min(1, (x - frame.x0) / (frame.x1 - frame.x0)))));

const wirePointer = () => {
  const { plot, rows, pill } = part;
  let drag = null; // start position, and whether it moved
  let pressed = { layer: null, time: 0 }; // the ramp's last clicked row, and its time
  plot.addEventListener("pointerdown", (event) => {
    if (!frame || event.button > 0) return;
    const { x, layer } = placeOf(event);
    const ramp = layer !== null && isOnRamp(x) ? layer : null;
    drag = { x, isMoved: false, layer: pill.contains(event.target) ? null : layer, ramp };
    plot.setPointerCapture(event.pointerId);
    hideTip();
    if (ramp !== null) pointTo(ramp);
    else if (drag.layer === null && x < frame.x1 + frame.unit) {
      moveTo(x);
      event.preventDefault();
      pill.focus({ preventScroll: true });
    }
  });
  plot.addEventListener("pointermove", (event) => {
    if (!frame) return;
    const { x, layer } = placeOf(event);
    if (drag) {
      drag.isMoved ||= Math.abs(x - drag.x) > CLICK;
      if (drag.isMoved && drag.ramp !== null) dragRamp(drag.ramp, x);
      else if (drag.isMoved && drag.x < frame.x1 + frame.unit) moveTo(x);
      return;
    }
    pointTo(layer);
    rows.style.cursor = layer !== null && openLayer && !isOnRamp(x) ? "pointer" : "ew-resize";
    if (layer === null || event.pointerType === "touch") hideTip();
    else if (isOnRamp(x)) showTip(event, `ramp${layerText(layer)}`, (box) => put(box, "span", {}, `${layerTitle(state.profile.layers[layer])} × ${plain(weightHere(layer))} · double-click: reset`));
    else showTip(event, `${layer}|${state.settings.point}`, (box) => fillTip(box, layer));
  });
  // Two clicks, not dblclick, which not every browser sends for touch.
  plot.addEventListener("pointerup", (event) => {
    const isPress = drag && !drag.isMoved && drag.layer !== null;
    if (isPress && drag.ramp === null) openLayer?.(drag.layer);
    if (isPress && drag.ramp !== null) {
      const isSecond = pressed.layer === drag.ramp && event.timeStamp - pressed.time < DOUBLE;
      if (isSecond) reweigh(drag.ramp, straightened);
      pressed = { layer: isSecond ? null : drag.ramp, time: event.timeStamp };
    }
    drag = null;
  });
  plot.addEventListener("pointercancel", () => { drag = null; });
  plot.addEventListener("pointerleave", () => { pointTo(null); hideTip(); });
};

const fillTip = (box, layer) => {
  const { profile, settings } = state;
  const total = profile.layer_total[layer];
  put(box, "b", {}, layerTitle(profile.layers[layer]));
  box.append(` · ${count(total)} weights`);
  profile.agents.forEach((name, t) => {
    const share = total ? profile.layer_active[settings.point][layer][t] / total : 0;
    named(put(box, "div"), t, ` ${name} changed ${brief(share)}`);
  });
  if (openLayer) put(box, "div", { class: "cv-aside" }, "click: single weights");
};

// ---------------------------------------------------------------- keys

const layerText = (layer) => {
  const { profile, settings } = state;
  const [unique, shared] = shareOf(profile.layer_count[settings.point][layer], profile.layer_total[layer]);
  if (state.weighed !== null) {
    return `${layerTitle(profile.layers[layer])}: ${profile.agents[state.weighed]} counts ${plain(weightHere(layer))} times. Left and right change it, Delete resets it.`;
  }
  return `${layerTitle(profile.layers[layer])}: ${brief(unique)} of its weights unique, ${brief(shared)} shared, ${brief(Math.max(0, 1 - unique - shared))} unchanged.${openLayer ? " Enter shows single weights." : ""}`;
};

const NUDGES = { ArrowRight: STEP, ArrowLeft: -STEP };
const RESETS = ["Delete", "Backspace"]; // a Mac's Delete key is the latter

const wireKeys = () => {
  const { pill, rows } = part;
  pill.addEventListener("keydown", (event) => {
    if (!state.profile) return;
    const { steps } = state.profile.axis;
    const to = sliderPlace(event.key, stepNow(), steps.length - 1, PAGE);
    if (to === null) return;
    event.preventDefault();
    setPoint(steps[to]);
  });
  rows.addEventListener("keydown", (event) => {
    if (!state.profile) return;
    const last = state.profile.layers.length - 1;
    if (event.key === "ArrowDown") pointTo(Math.min(last, (state.layer ?? -1) + 1));
    else if (event.key === "ArrowUp") pointTo(Math.max(0, (state.layer ?? last + 1) - 1));
    else if (event.key === "Enter" && state.layer !== null) openLayer?.(state.layer);
    else if (state.weighed !== null && state.layer !== null && event.key in NUDGES) {
      reweigh(state.layer, (weight, n, l) => bent(weight, n, l, steps(expanded(weight, n)[l] + NUDGES[event.key])));
    } else if (state.weighed !== null && state.layer !== null && RESETS.includes(event.key)) reweigh(state.layer, straightened);
    else return;
    event.preventDefault();
  });
  rows.addEventListener("blur", () => pointTo(null));
};

const sayLayer = () => saySlider(part.rows, {
  label: "Layers", least: 1, most: state.profile.layers.length, now: (state.layer ?? 0) + 1,
  text: state.layer === null ? "Arrow up and down to read them" : layerText(state.layer),
});

export const focusRows = () => part.rows.focus({ preventScroll: true });
