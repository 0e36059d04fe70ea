// The middle of the canvas: one axis, the line of epsilon through all of it, a row a layer.
import { named, put } from "../nodes.js";
import { count, epsilon, sum } from "../numbers.js";
import { drawAxis } from "./axis.js";
import { forgetColors } from "./colors.js";
import { geometryOf, isPhone, phoneHeight, pointAt, rowAt } from "./geometry.js";
import { histogramOf } from "./histogram.js";
import { drawMechanism, forgetCurves } from "./mechanism.js";
import { METHODS } from "./methods.js";
import { canTellRetained } from "./outcome.js";
import { drawPlots } from "./plots.js";
import { choose, onPaint, redraw, shown, state } from "./store.js";
import { measuredPoints } from "./table.js";
import { hideTip, showTip } from "./tip.js";
import { brief, layerTitle } from "./words.js";

const PAGE = 7; // grid points

let part = {};
let geometry = null;
let histogram = null;
let isStale = true; // the hidden sheets
let pillHalf = 0;
let openLayer = null;

export const mountStage = (column, onOpen) => {
  openLayer = onOpen;
  const head = put(column, "div", { class: "cv-head" });
  const title = put(head, "h2", {}, "How far weights moved");
  const chips = put(head, "div", { class: "cv-focus", role: "group", "aria-label": "Focus an agent" });
  const stage = put(column, "div", { class: "cv-stage" });
  const canvas = put(stage, "canvas", { "aria-hidden": "true" });
  const labels = put(stage, "svg", { "aria-hidden": "true", class: "cv-labels" });
  const rows = put(stage, "div", { class: "cv-rows", role: "group", "aria-roledescription": "layers", tabindex: "0" });
  const barsOf = put(stage, "button", { type: "button", class: "cv-bars-of" });
  const numbers = put(stage, "div", { class: "cv-bar-numbers", "aria-hidden": "true" });
  const ghost = put(stage, "div", { class: "cv-line-a", hidden: "" });
  put(ghost, "span", { class: "cv-tag" }, "A");
  const sides = ["unchanged", "changed"].map((word) => {
    const side = put(stage, "div", { class: `cv-side cv-${word}`, "aria-hidden": "true" });
    put(side, "span", {}, word);
    return side;
  });
  const line = put(stage, "div", { class: "cv-line" });
  const grip = put(line, "div", { class: "cv-grip" });
  const pill = put(line, "div", {
    class: "cv-pill", role: "slider", tabindex: "0", id: "epsilon-line",
    "aria-label": "epsilon: what counts as changed", "aria-valuemin": "0",
  });
  part = { title, chips, stage, canvas, labels, rows, barsOf, numbers, ghost, sides, line, grip, pill };
  barsOf.addEventListener("click", () => {
    state.barsOf = state.barsOf === "all" ? "changed" : "all";
    redraw();
  });
  wireDrag();
  wireRows();
  wireKeys();
  new ResizeObserver(() => requestAnimationFrame(layStage)).observe(stage);
  onPaint(paintStage);
};

export const setStageProfile = () => {
  histogram = histogramOf(state.profile);
  forgetCurves();
  isStale = true;
  part.pill.setAttribute("aria-valuemax", String(state.profile.epsilon_grid.length - 1));
  part.chips.replaceChildren();
  const { agents } = state.profile;
  part.chips.classList.toggle("many", agents.length > 4);
  agents.forEach((name, t) => {
    const chip = put(part.chips, "button", { type: "button", title: name, "aria-label": `Focus ${name}`, "data-focus": t });
    named(chip, t, agents.length > 5 ? "" : name);
    chip.addEventListener("click", () => focusAgent(state.focus === t ? null : t));
  });
  layStage();
};

export const focusAgent = (t) => {
  state.focus = t;
  isStale = true;
  redraw();
};

// Light and dark were switched.
export const recolor = () => {
  forgetColors();
  isStale = true;
  redraw();
};

// Measure the stage; nothing is measured while epsilon moves.
export const layStage = () => {
  const { profile, settings } = state;
  if (!profile || !part.stage) return;
  const hasRetained = Boolean(profile.energy);
  part.stage.style.height = isPhone() ? `${phoneHeight(profile.layers.length, hasRetained)}px` : "";
  const size = { width: part.stage.clientWidth, height: part.stage.clientHeight };
  if (!size.width || !size.height) return; // hidden
  geometry = geometryOf(size, profile, histogram, hasRetained && canTellRetained(profile, { ...settings, method: "ram+" }));
  part.canvas.width = size.width * geometry.ratio;
  part.canvas.height = size.height * geometry.ratio;
  part.stage.style.setProperty("--cv-line-end", `${size.height - geometry.bottom}px`);
  drawAxis(part.labels, geometry, profile, measuredPoints(profile));
  const { bars, axis, phone, numbersTop } = geometry;
  part.numbers.style.cssText = `left:${bars.left}px;width:${bars.width + 4}px;top:${numbersTop}px`;
  part.barsOf.style.cssText = `left:${bars.left - 6}px;top:${axis + 3}px`;
  part.barsOf.hidden = phone;
  pillHalf = 0;
  isStale = true;
  redraw();
};

// ---------------------------------------------------------------- drawing

const paintStage = () => {
  if (!geometry) return;
  const { profile, focus } = state;
  if (isStale) drawPlots(geometry, profile, histogram, focus);
  isStale = false;
  drawMechanism(part.canvas, geometry, state, shown, document.activeElement === part.rows);
  drawNumbers();
  drawLine();
  drawFocus();
};

const drawNumbers = () => {
  const { profile, barsOf } = state;
  const { byCount, changed } = shown.result;
  const unique = byCount[0] / (profile.total || 1);
  const shared = (changed - byCount[0]) / (profile.total || 1);
  const lines = [["unique", unique], ["shared", shared]];
  if (!geometry.phone) lines.push(["unchanged", Math.max(0, 1 - unique - shared)]);
  const key = lines.map(([, share]) => brief(share)).join("|");
  if (part.numbers.dataset.key !== key) {
    part.numbers.dataset.key = key;
    part.numbers.replaceChildren();
    for (const [word, share] of lines) {
      const row = put(part.numbers, "div");
      put(row, "b", { class: `cv-${word}-ink` }, brief(share));
      row.append(` ${word}`);
    }
  }
  const text = barsOf === "all" ? "of all weights ⇄" : "of changed ⇄";
  if (part.barsOf.textContent !== text) part.barsOf.textContent = text;
};

const drawLine = () => {
  const { profile, settings, pin } = state;
  const { pill, line, ghost, sides } = part;
  const { isRam } = shown.result;
  const place = geometry.points[settings.point];
  const text = `ε ${epsilon(profile.epsilon_grid[settings.point])}`;
  if (pill.dataset.text !== text) {
    pill.dataset.text = text;
    pill.replaceChildren();
    put(pill, "i", {}, "‹");
    pill.append(text);
    put(pill, "i", {}, "›");
    pillHalf = 0;
    pill.setAttribute("aria-valuenow", String(settings.point));
    pill.setAttribute("aria-valuetext", `${epsilon(profile.epsilon_grid[settings.point])}, ${brief(shown.result.changed / (profile.total || 1))} of the weights changed`);
  }
  pill.setAttribute("aria-disabled", String(!isRam));
  pillHalf ||= pill.offsetWidth / 2 + 2;
  const inset = Math.max(0, pillHalf - place);
  line.style.transform = `translateX(${place}px)`;
  line.classList.toggle("unused", !isRam);
  pill.style.marginLeft = `${inset}px`;
  sides[0].style.transform = `translateX(${place - pillHalf + inset - 8}px)`;
  sides[1].style.transform = `translateX(${place + pillHalf + inset + 8}px)`;
  sides[0].classList.toggle("off", !isRam || place < pillHalf + 76);
  sides[1].classList.toggle("off", !isRam || place > geometry.right - pillHalf - 60);
  ghost.hidden = !pin || !METHODS[pin.method].isRam;
  if (!ghost.hidden) ghost.style.transform = `translateX(${geometry.points[pin.point]}px)`;
};

const drawFocus = () => {
  const { profile, focus } = state;
  const text = focus === null ? "How far weights moved"
    : profile.agents.length > 4 ? `Moved by ${profile.agents[focus]}` : `How far ${profile.agents[focus]} moved weights`;
  if (part.title.textContent !== text) part.title.textContent = text;
  for (const chip of part.chips.children) chip.setAttribute("aria-pressed", String(Number(chip.dataset.focus) === focus));
};

// ---------------------------------------------------------------- pointer

const wireDrag = () => {
  const { stage, pill, grip, rows } = part;
  let isDragging = false;
  const move = (event) => {
    const point = pointAt(geometry, event.clientX - stage.getBoundingClientRect().left);
    if (point !== state.settings.point) choose({ point });
  };
  const start = (event) => {
    if (!geometry || event.button > 0) return;
    isDragging = true;
    stage.setPointerCapture(event.pointerId);
    move(event);
    event.preventDefault();
    pill.focus({ preventScroll: true });
  };
  const stop = () => { isDragging = false; };
  pill.addEventListener("pointerdown", start);
  grip.addEventListener("pointerdown", start);
  // The histogram of all layers and the retained row are handles too; the rows open the microscope.
  rows.addEventListener("pointerdown", (event) => {
    const { x, y } = placeOf(event);
    const isLane = y < geometry.axis + 20 || (geometry.hasRetained && y > geometry.retainedTop - 6);
    if (isLane && x < geometry.right + 4) start(event);
  });
  stage.addEventListener("pointermove", (event) => { if (isDragging) move(event); });
  stage.addEventListener("pointerup", stop);
  stage.addEventListener("pointercancel", stop);
  part.isDragging = () => isDragging;
};

const placeOf = (event) => {
  const box = part.stage.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  return { x, y, layer: rowAt(geometry, y, state.profile.layers.length) };
};

const pointTo = (layer) => {
  if (layer === state.layer) return;
  state.layer = layer;
  redraw();
};

const wireRows = () => {
  const { rows } = part;
  rows.addEventListener("pointermove", (event) => {
    if (!geometry || part.isDragging()) return;
    const { x, layer } = placeOf(event);
    pointTo(layer);
    rows.style.cursor = layer !== null && openLayer ? "pointer" : x < geometry.right ? "ew-resize" : "";
    if (layer === null || event.pointerType === "touch") hideTip();
    else showTip(event, `${layer}|${state.settings.point}`, (box) => fillTip(box, layer));
  });
  rows.addEventListener("pointerleave", () => {
    pointTo(null);
    hideTip();
  });
  rows.addEventListener("click", (event) => {
    const { layer } = placeOf(event);
    if (layer !== null) openLayer?.(layer);
  });
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
  const [unchanged, unique, ...rest] = profile.layer_count[settings.point][layer];
  const total = profile.layer_total[layer] || 1;
  return `${layerTitle(profile.layers[layer])}: ${brief(unique / total)} of its weights unique, ${brief(sum(rest) / total)} shared, ${brief(unchanged / total)} unchanged.${openLayer ? " Enter shows single weights." : ""}`;
};

const wireKeys = () => {
  const { pill, rows } = part;
  pill.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: PAGE, PageDown: -PAGE }[event.key];
    const end = { Home: 0, End: state.profile?.epsilon_grid.length - 1 }[event.key];
    if (!state.profile || (step === undefined && end === undefined)) return;
    event.preventDefault();
    choose({ point: end ?? state.settings.point + step });
  });
  const say = () => rows.setAttribute("aria-label", state.layer === null
    ? "Layers: arrow up and down to read them" : layerText(state.layer));
  rows.addEventListener("keydown", (event) => {
    if (!state.profile) return;
    const last = state.profile.layers.length - 1;
    if (event.key === "ArrowDown") pointTo(Math.min(last, (state.layer ?? -1) + 1));
    else if (event.key === "ArrowUp") pointTo(Math.max(0, (state.layer ?? last + 1) - 1));
    else if (event.key === "Enter" && state.layer !== null) openLayer?.(state.layer);
    else return;
    event.preventDefault();
    say();
  });
  rows.addEventListener("focus", () => { say(); redraw(); });
  rows.addEventListener("blur", () => pointTo(null));
  say();
};

export const focusRows = () => part.rows.focus({ preventScroll: true });
