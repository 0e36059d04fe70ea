// @ts-check
// Tune as one stage: the verdict on top, the models' answers on the left, and beside them methods, the curve with the
// slider, every measured merge, weights and parts. The same on the app's page and in an exported file; independent of
// Gradio.
import { put, putButton } from "../nodes.js";
import { skillsOf } from "./model/data.js";
import { axisOf } from "./model/histogram.js";
import { nameOf, usualOf } from "./model/methods.js";
import { layAnswers, mountAnswers, setAnswers } from "./paint/answers.js";
import { layMethods, mountDials, mountMethods, mountPin, nextMethod, togglePin } from "./paint/controls.js";
import { layCurve, mountCurve } from "./paint/curve.js";
import { layMap, mountMap } from "./paint/map.js";
import { isCovered, mountMenu } from "./paint/popups.js";
import { mountDock, mountMini, mountVerdict } from "./paint/outcome.js";
import { mountParts, setParts } from "./paint/parts.js";
import { layWeights, mountWeights, recolorWeights, setWeights } from "./paint/weights.js";
import { choose, onPaint, redraw, setSettings, shown, state } from "./store.js";

const PHONE = 900;
const PANELS = { answers: "Answers", curve: "Curve", map: "All merges", weights: "Weights", parts: "Parts" };

let part = null;
let laidOut = "";
let opener = null; // of a presentation

export const isPhone = () => window.innerWidth < PHONE;

/** openLayer(layer), or null without single weights; buttons: [{ at, id, text, css, run, menu or
 * data }], at "verdict", "curve" or "weights", which differ between the page and an exported file. */
export const mountCanvas = (root, { openLayer, buttons }) => {
  root.classList.add("cv");
  root.tabIndex = -1; // a click on a non-focusable element focuses the stage, which then gets key events
  const verdict = mountVerdict(root);
  const methods = mountMethods(root);
  const answers = mountAnswers(root);
  const curve = mountCurve(root);
  mountDials(curve.head);
  const map = mountMap(root);
  const weights = mountWeights(root, openLayer);
  mountParts(root);
  mountPin(verdict.acts);
  const places = { verdict: verdict.acts, curve: curve.head, weights: weights.head };
  for (const { at, text, css, run, menu, ...attributes } of buttons) {
    const button = put(places[at], "button", { type: "button", class: `cv-btn ${css || ""}`, ...attributes }, text);
    if (run) button.addEventListener("click", run);
    if (menu) mountMenu(places[at], button, menu);
  }
  mountDock(root);
  part = { root, methods, answers };
  mountPresentation(root);
  onPaint(paintRoot);
  for (const box of [root, answers, curve.plot, map.plot, weights.plot]) new ResizeObserver(() => requestAnimationFrame(layOut)).observe(box);
  const recolor = () => { recolorWeights(); relayout(); };
  new MutationObserver(recolor).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  window.matchMedia("(forced-colors: active)").addEventListener("change", recolor);
  document.fonts?.ready.then(() => relayout());
};

// Esc and a remote's keys work anywhere, letters and digits only with the focus on the stage and outside text fields:
// elsewhere they may be dictated words.
const onKey = (event) => {
  if (!state.profile || event.ctrlKey || event.metaKey || event.altKey) return;
  if (!part.root.checkVisibility() || isCovered()) return;
  if (isPresenting() && event.key === "Escape") present(false);
  else if (event.target.closest?.("input, textarea, [contenteditable]")) return;
  else if (isPresenting() && TURNS[event.key] && !event.defaultPrevented) turnPanel(TURNS[event.key]);
  else if (!part.root.contains(event.target)) return;
  else if (event.key === "p") togglePin();
  else if (event.key === "m" && !part.methods.inert) nextMethod(1);
  else if (isPresenting() && /^[1-5]$/.test(event.key)) showPanel(Object.keys(PANELS)[Number(event.key) - 1]);
};
document.addEventListener("keydown", onKey); // once, however many stages are mounted

// The keys of a presenter's remote.
const TURNS = { PageDown: 1, PageUp: -1 };

const turnPanel = (step) => {
  const ids = Object.keys(PANELS);
  showPanel(ids[(ids.indexOf(document.documentElement.dataset.panel ?? "") + step + ids.length) % ids.length]);
};

const paintRoot = () => {
  const { profile, settings } = state;
  const { near } = shown;
  Object.assign(part.root.dataset, {
    method: nameOf(settings, profile.agents.length), dial: state.dial ?? "", total: near ? near.row.total : "",
    nearest: near && !near.isExact ? near.row.id : "", tested: near ? (near.isExact ? "here" : "nearest") : "none",
  });
};

/** Show a new set of models, or null. Settings stay. */
export const setCanvasProfile = (profile) => {
  const before = state.profile && state.settings && nameOf(state.settings, state.profile.agents.length);
  Object.assign(state, { profile, pin: null, layer: null, weight: null, weighed: null });
  shown.near = null;
  if (!profile) return;
  profile.axis = axisOf(profile);
  const place = ["average", "sum"].includes(before) ? { scale: usualOf(before, profile).scale } : {};
  setSettings({ ...(state.settings ?? usualOf(profile.defaults.rule, profile)), ...place }, "method");
  setWeights();
  setParts();
  setAnswers();
  relayout("method");
};

/** Set the table of measured settings of these models, when it is loaded. */
export const setTable = (profile, table) => {
  if (profile !== state.profile) return;
  profile.skills = skillsOf(table, profile);
  profile.dials = null;
  setAnswers();
  relayout("method");
};

const sizeOf = (node) => `${node.clientWidth}x${node.clientHeight}`;

const layOut = () => {
  const sizes = [part.root, part.answers, ...part.root.querySelectorAll(".cv-plot")].map(sizeOf).join();
  if (sizes === laidOut) return;
  laidOut = sizes;
  relayout();
};

/** Update the layout: the stage ends at the window's end, whatever is above it. */
export const relayout = (how) => {
  if (!part) return;
  const top = Math.round(part.root.getBoundingClientRect().top + window.scrollY);
  if (top > 0) part.root.style.setProperty("--cv-height", isPhone() ? "auto" : `calc(100vh - ${top + 14}px)`);
  if (!state.profile) return;
  layAnswers();
  layMethods();
  layCurve();
  layMap();
  layWeights();
  redraw(how);
};

export const reset = () => {
  const { profile } = state;
  state.dial = "point";
  state.weighed = null;
  choose(usualOf(profile.defaults.rule, profile), "method");
};

// ---------------------------------------------------------------- presentation

export const isPresenting = () => document.documentElement.classList.contains("cv-present");

const mountPresentation = (root) => {
  const bar = put(root, "div", { class: "cv-present-bar" });
  part.tabs = Object.entries(PANELS).map(([id, title]) => putButton(bar, title, () => showPanel(id), { class: "cv-btn", "data-panel": id }));
  const drawMini = mountMini(bar);
  putButton(bar, "Leave", () => present(false), { class: "cv-btn cv-leave" });
  onPaint(() => { if (isPresenting()) drawMini(); });
};

const showPanel = (id) => {
  document.documentElement.dataset.panel = id;
  for (const tab of part.tabs) tab.setAttribute("aria-pressed", String(tab.dataset.panel === id));
  requestAnimationFrame(() => relayout());
};

/** Show one panel at a time, with text for the last row. Its opener gets the focus back at the end. */
export const present = (isOn) => {
  if (isOn && !isPresenting()) opener = document.activeElement;
  document.documentElement.classList.toggle("cv-present", isOn);
  showPanel(document.documentElement.dataset.panel || "answers");
  (isOn ? part.root.querySelector("[data-panel][aria-pressed=true]") : opener)?.focus({ preventScroll: true });
};
