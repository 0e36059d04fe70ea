// @ts-check
// Histograms of changes: numbers of weights by |tau|, from the counts at the epsilon grid's points, and the common
// axis for epsilon. Independent of the page.
import { sum } from "../../numbers.js";

const STEP = 0.05;
const OCTAVE = Math.log10(2);
const ZERO = 0.02; // position of epsilon 0 on the axis
const FIRST = 0.07; // and the first decade

const soften = (values) =>
  values.map((v, i) => (values[i - 1] ?? v) / 4 + v / 2 + (values[i + 1] ?? v) / 4);

const logOf = (epsilon) => (epsilon ? Math.log10(epsilon) : -Infinity);

/** The decades that contain all changes except small fractions at both ends. */
const range = (logs, active) => {
  const everything = sum(active[0]) || 1;
  let [low, high] = [-8, 0];
  for (let k = 1; k < logs.length; k += 1) {
    const share = sum(active[k]) / everything;
    if (1 - share < 0.002) low = logs[k];
    if (share > 0.0004) high = logs[k];
  }
  return [Math.min(-6, Math.floor(low)), Math.min(0, Math.ceil(high + 0.05))];
};

/** Positions of a grid point and a size, 0 to 1; steps: the points on the axis; ticks: those of whole decades. */
export const axisOf = (profile) => {
  const logs = profile.epsilon_grid.map(logOf);
  const [low, high] = range(logs, profile.overlap.map((agents) => agents.map(sum)));
  const ofLog = (log) => FIRST + ((1 - FIRST) * (log - low)) / (high - low);
  const least = logs[1];
  const x = (k) => (!k ? 0 : logs[k] < low
    ? ZERO + ((FIRST - ZERO) * (logs[k] - least)) / (low - least || 1) : Math.min(1, ofLog(logs[k])));
  const steps = logs.flatMap((log, k) => (!k || log <= high + 0.003 ? [k] : []));
  const decades = Array.from({ length: high - low + 1 }, (_, i) => low + i);
  const ticks = [0, ...decades.flatMap((d) => { const k = logs.findIndex((log) => Math.abs(log - d) < 0.02); return k > 0 ? [k] : []; })];
  return { low, high, x, ofLog, steps, ticks };
};

/** xs: positions of densities; all[t], layers[l][t]: share of weights per decade there.
 *
 * A density is the number in the octave around x, because bfloat16 steps form octaves: a difference of two exact
 * counts, interpolated linearly between the epsilon grid's points. */
export const histogramOf = (profile) => {
  const logs = profile.epsilon_grid.map(logOf);
  const last = logs.length - 1;
  const { low, high } = profile.axis;
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
    xs,
    all: profile.agents.map((_, t) => density((k) => sum(profile.overlap[k][t]), profile.total)),
    layers: profile.layers.map((_, l) => profile.agents.map((__, t) =>
      density((k) => profile.layer_active[k][l][t], profile.layer_total[l]))),
  };
};
