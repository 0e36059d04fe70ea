// @ts-check
// Effective lambda after rounding to the merge's default dtype (as in rounding_meter.py, tests compare them).
import { fixed } from "../../numbers.js";
import { dtypeName } from "./words.js";

const LOST = 0.1; // larger losses of the rescaling are reported
const TIE = 1e-4; // distance from a half step that counts as a tie

/** Effective lambda after rounding to nearest, and its bounds; null without a unique element. precision: of the
 * output's dtype, in bits. @param {any} curve @param {number} lambda @param {number} precision */
export const retainedToNearest = (curve, lambda, precision) => {
  if (!curve) return null;
  let value = 0;
  let ties = 0;
  let edges = 0;
  for (const [delta, share] of curve.cells) {
    const steps = (lambda - 1) * delta;
    const below = Math.floor(steps);
    const isTie = Math.abs(steps - below - 0.5) < TIE;
    const rounded = isTie ? below + 0.5 : below + (steps - below > 0.5 ? 1 : 0);
    value += share * (1 + rounded / delta);
    if (isTie) ties += (share * 0.5) / delta;
    edges += share / delta;
  }
  value += curve.loose * lambda;
  const width = lambda <= 2
    ? curve.spread + ties
    : 2 * curve.spread + (lambda - 1) * 2 ** -precision + edges + ties;
  return { value, low: value - width, high: value + width };
};

/** The standard error of effective lambda after stochastic rounding, whose mean is lambda.
 * @param {any} curve @param {number} lambda @returns {number | null} */
export const stochasticError = (curve, lambda) => {
  if (!curve) return null;
  let variance = curve.noise / 4;
  for (const [delta, , noise] of curve.cells) {
    const steps = (lambda - 1) * delta;
    const part = steps - Math.floor(steps);
    variance += noise * part * (1 - part);
  }
  return Math.sqrt(variance);
};

/** The curve of agent t in output dtype d (index into profile.rounding.dtypes), or null.
 * @param {any} profile @param {number} point @param {number} t @param {number} d */
export const roundingCurve = (profile, point, t, d) => {
  const { points, curves } = profile.rounding.agents[t][d];
  return curves[points[point]];
};

// The default output dtype of a merge: the base's.
export const usualFormat = (profile) => Math.max(0, profile.rounding.dtypes.indexOf(profile.dtypes.base));

// { requested, retained, width, dtype } of agent t for the base's format, or null.
export const cardRetained = (profile, point, t, lambda) => {
  if (!profile.rounding || lambda === null) return null;
  const d = usualFormat(profile);
  const retained = retainedToNearest(roundingCurve(profile, point, t, d), lambda, profile.rounding.precision[d]);
  return retained && { requested: lambda, retained: retained.value, width: retained.high - retained.value, dtype: dtypeName(profile.rounding.dtypes[d]) };
};

/** The agents that lose more than a tenth of their rescaling in the base's dtype, in order. */
export const lossesOf = (profile, point, agents) => agents
  .map(({ lambda }, t) => ({ name: profile.agents[t], ...cardRetained(profile, point, t, lambda) }))
  .filter(({ requested, retained }) => requested > 1 && retained - 1 < (1 - LOST) * (requested - 1));

/** Whether there is a lambda to round: only RAM's methods have one. */
export const hasLambda = (agents) => agents.some(({ lambda }) => lambda !== null);

/** The effect of rounding to nearest in the base's dtype on the agents' lambda, in one or two sentences. */
export const roundingSentence = (profile, point, agents) => {
  if (!hasLambda(agents)) return "These settings have no λ. The merge measures what it retains after rounding.";
  const dtype = dtypeName(profile.rounding.dtypes[usualFormat(profile)]);
  const lost = lossesOf(profile, point, agents);
  // The wording of rounding_meter.rounding_advice.
  if (lost.length) {
    const losses = lost.map(({ name, retained, requested }) => {
      let places = 3; // enough to show a difference
      while (fixed(retained, places) === fixed(requested, places)) places += 1;
      return `${name} ${fixed(retained, places)} instead of ${fixed(requested, places)}`;
    });
    return `Rounding to nearest in ${dtype} takes part of the rescaling: ${losses.join("; ")}. `
      + "Stochastic rounding or float32 keeps it.";
  }
  // An agent without unique weights has a lambda that scales nothing.
  return agents.some(({ lambda }, t) => cardRetained(profile, point, t, lambda)?.requested > 1)
    ? `Stored in ${dtype} to nearest, every agent is expected to retain at least 90 % of its rescaling.`
    : `Nothing is rescaled, so rounding in ${dtype} loses nothing.`;
};
