// @ts-check
// Weights of agents, as in a recipe: by name a number, or a list over the layers; missing ones are 1. And their effect
// on the factors of own and shared parts. Independent of the page.
import { plain, sum } from "../../numbers.js";

export const [LEAST, MOST, STEP] = [0, 2, 0.05]; // of a handle
const SAME = 3e-4; // weights have four digits

/** @typedef {number | number[]} Weight @typedef {{ [agent: string]: Weight }} Weights */

/** A weight at a depth, 0 for the first layer and 1 for the last. @param {Weight} weight @param {number} depth */
export const weightAt = (weight, depth) => {
  if (!Array.isArray(weight)) return weight;
  const scaled = depth * (weight.length - 1);
  const below = Math.floor(scaled);
  const share = scaled - below;
  return (1 - share) * weight[below] + share * weight[Math.min(weight.length - 1, below + 1)];
};

/** The weights that differ from 1, or null. @param {Weights | null | undefined} weights */
export const ownWeights = (weights) => {
  const own = Object.entries(weights ?? {}).filter(([, weight]) => [weight].flat().some((x) => x !== 1));
  return own.length ? Object.fromEntries(own.sort(([a], [b]) => (a < b ? -1 : 1))) : null;
};

export const areSameWeights = (a, b) => JSON.stringify(ownWeights(a)) === JSON.stringify(ownWeights(b));

/** Weights as in Merge's form and links: coding=0.7, memory=0.2 0.8. */
export const weightsLine = (weights) => Object.entries(ownWeights(weights) ?? {})
  .map(([name, weight]) => `${name}=${[weight].flat().join(" ")}`).join(", ");

export const weightText = (weight) =>
  (Array.isArray(weight) ? `${plain(weight[0])} to ${plain(weight.at(-1))}${weight.length > 2 ? ", bent" : ""}` : plain(weight));

export const weightsText = (weights) => Object.entries(ownWeights(weights) ?? {})
  .map(([name, weight]) => `${name} × ${weightText(weight)}`).join(", ");

// ---------------------------------------------------------------- ramps

/** The weight in each of n layers. @param {Weight} weight @param {number} n @returns {number[]} */
export const expanded = (weight, n) => Array.from({ length: n }, (_, l) => weightAt(weight, n > 1 ? l / (n - 1) : 1));

/** The shortest weight with these values: a number, its ends, or all. @param {number[]} values @returns {Weight} */
const shortest = (values) => {
  const ends = [values[0], values.at(-1)];
  const isLine = expanded(ends, values.length).every((x, l) => Math.abs(x - values[l]) < SAME);
  if (!isLine) return values;
  return ends[0] === ends[1] ? ends[0] : ends;
};

const between = (values, knots) => shortest(values.map((_, l) => {
  const right = knots.find((k) => k >= l);
  const left = knots.findLast((k) => k <= l);
  const share = right === left ? 0 : (l - left) / (right - left);
  return Number(((1 - share) * values[left] + share * values[right]).toFixed(4));
}));

const knotsOf = (values) => values.flatMap((x, l) =>
  (l === 0 || l === values.length - 1 || Math.abs(values[l - 1] - 2 * x + values[l + 1]) > SAME ? [l] : []));

/** A weight with one layer changed: layers up to the next bends are interpolated linearly. */
export const bent = (weight, n, layer, to) => {
  const values = expanded(weight, n);
  const knots = [...new Set([...knotsOf(values), layer])].sort((a, b) => a - b);
  values[layer] = to;
  return between(values, knots);
};

/** A weight without its bend at one layer; the first and the last layer are reset to 1. */
export const straightened = (weight, n, layer) => {
  if (layer === 0 || layer === n - 1) return bent(weight, n, layer, 1);
  const values = expanded(weight, n);
  return between(values, knotsOf(values).filter((k) => k !== layer));
};

/** A weight times a number. */
export const scaled = (weight, to) => {
  const mean = sum([weight].flat()) / [weight].flat().length;
  if (!Array.isArray(weight) || !mean || !to) return to;
  return weight.map((x) => Number((x * (to / mean)).toFixed(4)));
};

// ---------------------------------------------------------------- factors

const decoded = new WeakMap();

const rowsOf = (weighing) => {
  if (!decoded.has(weighing)) {
    const bytes = Uint8Array.from(atob(weighing.rows), (c) => c.charCodeAt(0));
    decoded.set(weighing, new Int16Array(bytes.buffer));
  }
  return decoded.get(weighing);
};

/** Own and shared factors with weights, as in weighted.py: with lambda for RAM's rules, without for a scale. */
export const weighedFactors = (profile, { weights, point, scale }, lambdas) => {
  const { weighing, agents } = profile;
  if (!weighing) return null;
  const n = agents.length;
  const own = agents.map(() => 0);
  const shared = agents.map(() => 0);
  const at = weighing.depth.map((depth) => agents.map((name) => weightAt(weights[name] ?? 1, depth)));
  const rows = rowsOf(weighing);
  at.forEach((w, l) => agents.forEach((_, t) => {
    if (!lambdas) {
      for (let s = 0; s < n; s += 1) {
        own[t] += scale * w[s] * weighing.total[l][t][0][s];
        shared[t] += scale * w[s] * weighing.total[l][t][1][s];
      }
      return;
    }
    const from = ((point * at.length + l) * n + t) * (1 + 2 * n);
    const [ofOwn, ofShared] = weighing.scale[t];
    own[t] += ofOwn * lambdas[t] * w[t] * rows[from];
    for (let s = 0; s < n; s += 1) {
      if (point < weighing.reference) own[t] += ofOwn * w[s] * rows[from + 1 + s];
      else shared[t] += ofShared * lambdas[s] * w[s] * rows[from + 1 + s];
      shared[t] += ofShared * w[s] * rows[from + 1 + n + s];
    }
  }));
  const known = (sums, part) => sums.map((x, t) => (profile.sum[part][t] === null ? null : x));
  return { own: known(own, "own"), shared: known(shared, "shared") };
};
