// @ts-check
// What the merge's number format keeps of lambda, in the format that a merge has unless another is chosen.
import { dtypeName, retainedToNearest, roundingCurve } from "../../numbers.js";

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
