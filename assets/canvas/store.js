// @ts-check
// The current state, and its painters. One drawing per frame, always of the latest state.
import { dialOf, METHODS, usualOf } from "./model/methods.js";
import { nearestRow } from "./model/nearest.js";
import { factorsOf, outcomeOf } from "./model/outcome.js";
import { ownWeights } from "./model/weights.js";

/** @type {any} profile: of the loaded models; settings: see model/methods.js; dial: the active one; pin: settings of A;
 * layer: the row under the pointer; weight: under the microscope; lesson: the scene's number; weighed: the agent whose
 * weights are edited, or null. */
export const state = { profile: null, settings: null, dial: "point", pin: null, layer: null, weight: null, lesson: null, weighed: null };

/** The last frame: result and factors of the settings, near: the measured row shown for them, the same for A,
 * previous: the row before, how: the type of change ("drag", "method", "pick" or "size"). @type {any} */
export const shown = { result: null, factors: null, near: null, pinned: null, previous: null, how: "method" };

const painters = new Set();
const watchers = new Set();
let [frame, lastMove, rest] = [0, -Infinity, 0];
let waiting = "size";

/** painter(state, shown): draws changes; called in the order of registration. */
export const onPaint = (painter) => { painters.add(painter); };

/** watcher(): called immediately after a change made here, not by the page. */
export const onChange = (watcher) => { watchers.add(watcher); };

const lookAt = (profile, settings) => {
  const result = outcomeOf(profile, settings);
  const near = nearestRow(profile, settings);
  return { result, near, factors: factorsOf(profile, result, near) };
};

const paint = () => {
  frame = 0;
  const { profile, settings, pin } = state;
  if (!profile) return;
  const previous = shown.near?.row ?? null;
  Object.assign(shown, lookAt(profile, settings), { previous, pinned: pin && lookAt(profile, pin), how: waiting });
  waiting = "size";
  for (const painter of painters) painter(state, shown);
};

/** Single changes are animated, dragging is not. */
export const redraw = (how = "size") => {
  if (how !== "size") waiting = how;
  const now = performance.now();
  const root = document.documentElement;
  root.classList.toggle("cv-moving", now - lastMove < 200);
  lastMove = now;
  clearTimeout(rest);
  rest = window.setTimeout(() => root.classList.remove("cv-moving"), 220);
  if (!frame) frame = requestAnimationFrame(paint);
};

const clamp = (value, low, high) => Math.min(Math.max(low, value), high);

const LIMITS = { r: [0, 1], alpha: [0, 10], scale: [0, 10], density: [0, 1], drop_rate: [0, 0.99] };

/** Settings clamped to their ranges; missing ones are the method's defaults. */
const clean = (settings) => {
  const { profile } = state;
  const found = { ...usualOf(METHODS[settings.method] ? settings.method : "ram+", profile), ...settings };
  if (!METHODS[found.method]) found.method = "ram+";
  found.point = clamp(Math.round(found.point), 0, profile.epsilon_grid.length - 1);
  for (const [key, [low, high]] of Object.entries(LIMITS)) found[key] = clamp(Number(found[key]), low, high);
  const named = Object.entries(found.weights ?? {}).filter(([name]) => profile.agents.includes(name));
  found.weights = ownWeights(Object.fromEntries(named));
  return found;
};

/** Show settings of the loaded models. */
export const setSettings = (settings, how) => {
  const before = state.settings;
  state.settings = clean(settings);
  const { dials } = METHODS[state.settings.method];
  if (!dials.includes(state.dial)) [state.dial] = dials;
  if (state.settings.weights) state.weighed ??= 0;
  redraw(how ?? (before?.method === state.settings.method ? "drag" : "method"));
};

/** Change settings by user input: the page follows. */
export const choose = (changes, how) => {
  setSettings({ ...state.settings, ...changes }, how);
  for (const watcher of watchers) watcher();
};

/** Set settings from the page, possibly some of them; for another method the rest are defaults. */
export const accept = (values) => {
  const isOther = values.method && values.method !== state.settings.method;
  setSettings({ ...(isOther ? usualOf(values.method, state.profile) : state.settings), ...values }, "method");
};

/** Show the weights of an agent, or, with null, remove all. */
export const weigh = (agent) => {
  state.weighed = agent;
  if (agent === null) choose({ weights: null });
  else redraw();
};

/** Set the active agent's weight: a number, or a list over the layers. */
export const setWeight = (agent, weight) => {
  state.weighed = agent;
  choose({ weights: { ...state.settings.weights, [state.profile.agents[agent]]: weight } }, "drag");
};

export const weightOf = (agent) => state.settings.weights?.[state.profile.agents[agent]] ?? 1;

/** The table, if it applies to the current settings: not with weights or a method without measured rows. */
export const tableHere = () => (shown.near ? state.profile.skills : null);

/** Make another dial active. */
export const hold = (key) => {
  state.dial = key;
  redraw("dial");
  for (const watcher of watchers) watcher();
};

export const setPin = (settings) => {
  state.pin = settings && clean(settings);
  redraw("pin");
};

export const dialInHand = () => state.dial && dialOf(state.profile, state.settings.method, state.dial);
