// @ts-check
// What the merge's number format keeps of lambda, in the format that a merge has unless another is chosen.
import { dtypeName, factor, retainedToNearest, roundingCurve } from "../../numbers.js";

const LOST = 0.1; // more than this share of the rescaling lost is worth a word

// The output dtype that a merge has unless another is chosen: the base's.
export const usualFormat = (profile) => Math.max(0, profile.rounding.dtypes.indexOf(profile.dtypes.base));

// { asked, kept, width, dtype } of agent t for the base's format, or null.
export const cardRetained = (profile, point, t, lambda) => {
  if (!profile.rounding || lambda === null) return null;
  const d = usualFormat(profile);
  const retained = retainedToNearest(roundingCurve(profile, point, t, d), lambda, profile.rounding.precision[d]);
  return retained && { asked: lambda, retained: retained.value, width: retained.high - retained.value, dtype: dtypeName(profile.rounding.dtypes[d]) };
};

/** The agents of whose rescaling the base's format loses more than a tenth, in their order. */
export const lossesOf = (profile, point, agents) => agents
  .map(({ lambda }, t) => ({ name: profile.agents[t], ...cardRetained(profile, point, t, lambda) }))
  .filter(({ asked, retained }) => asked > 1 && retained - 1 < (1 - LOST) * (asked - 1));

/** What rounding to nearest in the base's format does to the agents' lambda, in one sentence or two. */
export const roundingSentence = (profile, point, agents) => {
  const dtype = dtypeName(profile.rounding.dtypes[usualFormat(profile)]);
  const lost = lossesOf(profile, point, agents);
  // As rounding_meter.rounding_advice words it.
  if (lost.length) {
    const said = lost.map(({ name, retained, asked }) => `${name} ${factor(retained)} instead of ${factor(asked)}`);
    return `Rounding to nearest in ${dtype} takes part of the rescaling: ${said.join("; ")}. `
      + "Stochastic rounding or float32 keeps it.";
  }
  // An agent without unique weights has a lambda that scales nothing.
  return agents.some(({ lambda }, t) => cardRetained(profile, point, t, lambda)?.asked > 1)
    ? `Stored in ${dtype} to nearest, every agent is expected to keep at least nine tenths of it.`
    : `Nothing is rescaled, so rounding in ${dtype} takes nothing away.`;
};
