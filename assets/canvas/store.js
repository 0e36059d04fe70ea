// What is shown now, and who draws it. One drawing a frame, always of the latest state.
import { outcomeOf } from "./outcome.js";

export const state = {
  profile: null,
  settings: { point: 22, r: 0.1, alpha: 2, method: "ram+" },
  pin: null, // settings of A
  focus: null, // an agent
  layer: null, // a row that is pointed at
  weight: null, // under the microscope: { tensor, element }
  lesson: null, // its number, when one is being read
  barsOf: "all", // overlap bars are shares of "all" or of "changed" weights
};

// Of the last frame: { result, pinned, near, nearPinned }, see outcome.js and table.js.
export const shown = { result: null, pinned: null, near: null, nearPinned: null };

const painters = new Set();
const watchers = new Set();
let frame = 0;
let lastMove = -Infinity;
let rest = 0;

// painter(state, shown): draws what changed; called in the order of registration.
export const onPaint = (painter) => { painters.add(painter); };

// watcher(settings): called at once when settings were changed here, not by the page's sliders.
export const onChange = (watcher) => { watchers.add(watcher); };

let nearestOf = () => null;
export const readTable = (nearest) => { nearestOf = nearest; };

export const paint = () => {
  frame = 0;
  const { profile, settings, pin } = state;
  if (!profile) return;
  shown.result = outcomeOf(profile, settings);
  shown.pinned = pin ? outcomeOf(profile, pin) : null;
  shown.near = nearestOf(profile, shown.result);
  shown.nearPinned = shown.pinned ? nearestOf(profile, shown.pinned) : null;
  for (const painter of painters) painter(state, shown);
};

// While moving nothing is animated; a single change is.
export const redraw = () => {
  const now = performance.now();
  const root = document.documentElement;
  root.classList.toggle("cv-moving", now - lastMove < 200);
  lastMove = now;
  clearTimeout(rest);
  rest = setTimeout(() => root.classList.remove("cv-moving"), 220);
  if (!frame) frame = requestAnimationFrame(paint);
};

const lastPoint = () => (state.profile ? state.profile.epsilon_grid.length - 1 : 57);

const clamp = (value, low, high) => Math.min(Math.max(low, value), high);

export const clean = (settings) => ({
  ...settings,
  point: clamp(Math.round(settings.point), 0, lastPoint()),
  r: clamp(settings.r, 0, 1),
  alpha: clamp(settings.alpha, 0, 10),
});

// Change settings by hand: the page's sliders follow.
export const choose = (changes) => {
  state.settings = clean({ ...state.settings, ...changes });
  redraw();
  for (const watcher of watchers) watcher(state.settings);
};

// Settings that came from the page's sliders.
export const accept = (settings) => {
  state.settings = clean(settings);
  redraw();
};

export const sameSettings = (a, b) =>
  a.point === b.point && a.r === b.r && a.alpha === b.alpha && a.method === b.method;
