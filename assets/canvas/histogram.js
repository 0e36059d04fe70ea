// How far weights moved: numbers of weights by |tau|, from the counts at the epsilon grid's points. Knows
// nothing of the page.

import { sum } from "../numbers.js";

const STEP = 0.05;
const OCTAVE = Math.log10(2);

const soften = (values) =>
  values.map((v, i) => (values[i - 1] ?? v) / 4 + v / 2 + (values[i + 1] ?? v) / 4);

// logs: log10 of the epsilon grid; low, high: the axis in whole decades, around where weights are; xs: where
// the densities are read. all[t], layers[l][t]: share of weights a decade, at xs.
//
// A density is the number in the octave around x, because bfloat16 steps come in octaves: a difference
// of two exact counts, read on a straight line between the epsilon grid's points.
export const histogramOf = (profile) => {
  const logs = profile.epsilon_grid.map((epsilon) => (epsilon ? Math.log10(epsilon) : -Infinity));
  const last = logs.length - 1;
  const active = profile.overlap.map((agents) => agents.map(sum));
  const [low, high] = range(logs, active);
  const xs = [];
  for (let x = low - 0.3; x <= high + 0.001; x += STEP) xs.push(x);
  const read = (counts, x) => {
    if (x <= logs[1]) return counts(1);
    let k = 1;
    while (k < last - 1 && logs[k + 1] < x) k += 1;
    const weight = Math.min(1, (x - logs[k]) / (logs[k + 1] - logs[k]));
    return counts(k) * (1 - weight) + counts(k + 1) * weight;
  };
  const density = (counts, total) => soften(soften(xs.map((x) =>
    (total ? Math.max(0, read(counts, x - OCTAVE / 2) - read(counts, x + OCTAVE / 2)) / total / OCTAVE : 0))));
  return {
    logs, low, high, xs,
    all: profile.agents.map((_, t) => density((k) => active[k][t], profile.total)),
    layers: profile.layers.map((_, l) => profile.agents.map((__, t) =>
      density((k) => profile.layer_active[k][l][t], profile.layer_total[l]))),
  };
};

// The decades between which all but the outermost fractions of the changes lie.
const range = (logs, active) => {
  const everything = sum(active[0]) || 1;
  let low = -8;
  let high = 0;
  for (let k = 1; k < logs.length; k += 1) {
    const share = sum(active[k]) / everything;
    if (1 - share < 0.002) low = logs[k];
    if (share > 0.0004) high = logs[k];
  }
  return [Math.min(-6, Math.floor(low)), Math.min(0, Math.ceil(high + 0.05))];
};
