// @ts-check
// The methods of tables and of Tune, with one name each, and their dials. Pure.
import { epsilon, plain } from "../../numbers.js";
import { areSameWeights, weightsText } from "./weights.js";

/** @typedef {{ method: string, point: number, r: number, alpha: number, scale: number, density: number, drop_rate: number, weights?: import("./weights.js").Weights | null }} Settings
 * @typedef {{ key: string, name: string, symbol: string, title: string, steps: number[], ticks: number[], x: (v: number) => number, text: (v: number) => string }} Dial */

const upTo = (most, step) => Array.from({ length: Math.round(most / step) + 1 }, (_, i) => Number((i * step).toFixed(4)));
const root = (most) => (v) => Math.sqrt(Math.min(1, v / most));

/** Every dial; epsilon's has the profile's own axis. */
const DIALS = {
  point: { name: "epsilon", symbol: "ε", title: "Epsilon: ignore smaller changes" },
  r: { name: "r", symbol: "r", title: "Boost for unique changes (r)", steps: upTo(1, 0.005), ticks: [0, 0.05, 0.1, 0.2, 0.3, 0.5, 1], x: root(1) },
  alpha: { name: "alpha", symbol: "α", title: "Limit of the boost (alpha)", steps: upTo(10, 0.05), ticks: [0, 0.5, 1, 2, 5, 10], x: root(10) },
  scale: { name: "scale", symbol: "scale", title: "Scale: factor on the changes", steps: upTo(2, 0.05), ticks: [0, 0.1, 0.5, 1, 1.5, 2], x: root(2) },
  density: { name: "density", symbol: "density", title: "Share retained of each agent (density)", steps: upTo(1, 0.05), ticks: [0, 0.1, 0.2, 0.3, 0.5, 0.7, 1], x: root(1) },
  drop_rate: { name: "drop rate", symbol: "drop", title: "Share dropped at random (drop rate)", steps: upTo(0.95, 0.05), ticks: [0, 0.2, 0.4, 0.6, 0.8, 1], x: (v) => v },
};

const USUAL = { point: 22, r: 0.1, alpha: 2, scale: 1, density: 0.2, drop_rate: 0.5, weights: null };
const ram = (title, dials, says) => ({ title, dials, says, isRam: true });
const other = (title, dials, says, fixed = {}) => ({ title, dials, says, fixed, isRam: false });

/** isRam: unique changes times lambda, shared ones averaged. fixed: settings that the name implies. */
export const METHODS = {
  "ram+": ram("RAM+", ["point", "r", "alpha"], "Changed by one agent: kept, times λ. Changed by several: averaged."),
  "ram": ram("RAM", ["point"], "Changed by one agent: kept. Changed by several: averaged."),
  "task-arithmetic": other("Task Arithmetic", ["scale"], "Every change is added and multiplied by one scale."),
  "ties": other("TIES", ["density", "scale"], "Trim each agent to its largest changes; then the majority sign wins."),
  "dare-ties": other("DARE + TIES", ["drop_rate", "density", "scale"], "Drop changes at random, enlarge the rest, then TIES."),
  "ram+s": ram("RAM+s", ["point", "r"], "As RAM+, with a soft limit of the boost."),
  "ram+m": ram("RAM+m", ["point", "r", "alpha"], "As RAM+, with ρ by size of change instead of count."),
  "dare-ta": other("DARE + Task Arithmetic", ["drop_rate", "scale"], "Drop changes at random, enlarge the rest, add."),
  "tsv-m": other("TSV-M", ["scale"], "The strongest singular vectors of each agent, made orthogonal."),
  "iso-c": other("Iso-C", ["scale"], "The sum with equal singular values."),
  "wudi": other("WUDI", [], "Least interference per layer, closed form.", { solver: "closed" }),
};

/** The methods side by side, and those behind More. Average and Sum are two places on one scale. */
export const MAIN = ["ram+", "ram", "average", "sum", "ties", "dare-ties"];
export const MORE = ["ram+s", "ram+m", "dare-ta", "tsv-m", "iso-c", "wudi"];
const PLACES = { sum: () => 1, average: (n) => 1 / n }; // for one agent the sum
const SAYS = {
  average: (n) => `Every change is added and divided by the ${n} agents.`,
  sum: () => "Every change is added in full.",
};

const isSame = (a, b) => Math.abs(a - b) < 1e-9;

/** The name in links, buttons and on the stage: for a scale "average", "sum" or "task-arithmetic". */
export const nameOf = ({ method, scale }, n) =>
  (method !== "task-arithmetic" ? method : Object.keys(PLACES).find((name) => isSame(scale, PLACES[name](n))) ?? method);

export const methodOf = (name) => (PLACES[name] ? "task-arithmetic" : name);

export const titleOf = (settings, n) => {
  const name = nameOf(settings, n);
  return { average: "Average", sum: "Sum", "task-arithmetic": `Scale ${plain(settings.scale)}` }[name] ?? METHODS[name].title;
};

export const nameTitle = (name) => ({ average: "Average", sum: "Sum" })[name] ?? METHODS[name].title;
export const nameSays = (name, n) => SAYS[name]?.(n) ?? METHODS[name].says;

/** Complete settings of a method, by its name or a place's: the paper's, or its defaults. @returns {Settings} */
export const usualOf = (name, profile) => ({
  ...USUAL, r: profile.defaults.r, alpha: profile.defaults.alpha, point: profile.default_index,
  scale: PLACES[name]?.(profile.agents.length) ?? (["task-arithmetic", "dare-ta"].includes(name) ? 1 / profile.agents.length : 1),
  method: methodOf(name),
});

/** A setting in words: RAM+ epsilon 10⁻⁵, r 0.1, alpha 2, coding × 0.7. */
export const settingsText = (settings, profile) =>
  [methodText(settings, profile), weightsText(settings.weights)].filter(Boolean).join(", ");

const methodText = (settings, profile) => {
  const n = profile.agents.length;
  const name = nameOf(settings, n);
  if (name === "average") return `Average (scale 1/${n})`;
  if (name === "sum") return "Sum (scale 1)";
  const { title, dials } = METHODS[name];
  return [title, dials.map((key) => `${DIALS[key].name} ${valueText(profile, key, settings[key])}`).join(", ")].join(" ").trim();
};

const valueText = (profile, key, value) => (key === "point" ? epsilon(profile.epsilon_grid[value]) : plain(value));

/** The canvas settings of a recipe, or null if it cannot show them. point: on the epsilon grid. */
export const settingsOf = (method, recipe, point, profile) => {
  const known = METHODS[method];
  if (!known || (known.isRam && point === null)) return null;
  const own = [...known.dials.map((key) => (key === "point" ? "epsilon" : key)), "weights"];
  if (!Object.keys(recipe).every((key) => own.includes(key) || key in (known.fixed ?? {}))) return null;
  if (!Object.entries(known.fixed ?? {}).every(([key, value]) => recipe[key] === value)) return null;
  const given = Object.fromEntries(Object.entries(recipe).filter(([key, value]) => key in DIALS && value !== null));
  return { ...usualOf(method, profile), ...given, ...(known.isRam ? { point } : {}), weights: recipe.weights ?? null };
};

/** Whether two settings are equal: same method and weights, and equal on its dials. */
export const areSame = (a, b) => a.method === b.method && areSameWeights(a.weights, b.weights) && METHODS[a.method].dials.every((key) => isSame(a[key], b[key]));

/** A dial of a method, whose steps are the measured values, if any. @returns {Dial} */
export const dialOf = (profile, method, key) => {
  const made = profile.dials ??= new Map();
  const id = `${method}.${key}`;
  if (!made.has(id)) made.set(id, makeDial(profile, method, key));
  return made.get(id);
};

const makeDial = (profile, method, key) => {
  const text = (value) => valueText(profile, key, value);
  if (key === "point") return { key, ...DIALS.point, ...profile.axis, text };
  const rows = METHODS[method].isRam ? [] : profile.skills?.merges.filter((row) => row.set.method === method) ?? [];
  const measured = [...new Set(rows.map((row) => row.set[key]))].sort((a, b) => a - b);
  return { key, ...DIALS[key], ...(measured.length > 1 ? { steps: measured } : {}), text };
};

export const nearestStep = (dial, value) =>
  dial.steps.reduce((best, v) => (Math.abs(dial.x(v) - dial.x(value)) < Math.abs(dial.x(best) - dial.x(value)) ? v : best));

export const stepAt = (dial, at) => dial.steps.reduce((best, v) => (Math.abs(dial.x(v) - at) < Math.abs(dial.x(best) - at) ? v : best));
