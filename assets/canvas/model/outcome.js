// @ts-check
// The effect of a setting on each agent's update: rho, lambda, and the factors of its own and its shared part in the
// merge. Arithmetic on the profile's counts and sums; nothing is estimated. Independent of the page.
import { sum } from "../../numbers.js";
import { METHODS } from "./methods.js";
import { ownWeights, weighedFactors } from "./weights.js";

const quotient = (shared, unique) => {
  if (unique === 0) return shared > 0 ? Infinity : 0;
  return shared / unique;
};

// Rho by size instead of count; null where the analysis has no magnitudes by region.
const byMagnitude = ({ relations }, point, t) =>
  (relations ? quotient(relations.shared_magnitude[point][t], relations.unique_magnitude[point][t]) : null);

const boosted = (rho, r, alpha) => 1 + r * Math.min(Math.max(rho, 0), alpha);

const RULES = {
  "ram": () => 1,
  "ram+": boosted,
  "ram+s": (rho, r) => 1 + r * (rho === Infinity ? 1 : rho / (1 + rho)),
  "ram+m": boosted, // with rho by size
};

/** rho and lambda of every agent, as in Analysis.preview: rho by count, rhoM by size, ratio: the method's. lambda is
 * null where the method has none, or needs sizes that this analysis lacks. byCount[j]: weights that j + 1 changed. */
export const outcomeOf = (profile, settings) => {
  const { point, r, alpha, method } = settings;
  const { isRam } = METHODS[method];
  const agents = profile.agents.map((name, t) => {
    const [unique, ...shared] = profile.overlap[point][t];
    const rho = quotient(sum(shared), unique);
    const rhoM = byMagnitude(profile, point, t);
    const ratio = method === "ram+m" ? rhoM : rho;
    const lambda = isRam && ratio !== null ? RULES[method](ratio, r, alpha) : null;
    const dialects = { paper: boosted(rho, 0.1, 2), script: 1 + (1.2 - 1) * Math.min(1, rho), mergekit: profile.mergekit?.[point][t] ?? null };
    return { name, t, rho, rhoM, ratio, lambda, dialects };
  });
  // A weight shared by j + 1 agents is counted once by each of them.
  const byCount = profile.agents.map((_, j) => sum(profile.overlap[point].map((others) => others[j])) / (j + 1));
  return { settings, isRam, agents, byCount, changed: sum(byCount) };
};

const mean = (values) => {
  const known = values.filter((v) => v !== null);
  return known.length ? sum(known) / known.length : null;
};

/** The factors of each agent's own part (weights that only it changed beyond the reference epsilon) and its
 * shared part in the merge: <merge, tau> / |tau|^2 over the part. isExact: for this setting, not the nearest
 * measured one. null where unknown; a part and its mean are null where no agent has such weights. */
export const factorsOf = (profile, result, near = null) => {
  const { settings, agents, isRam } = result;
  const found = (own, shared, isExact = true) => ({ own, shared, isExact, ownMean: mean(own), sharedMean: mean(shared) });
  if (ownWeights(settings.weights)) {
    const lambdas = isRam ? agents.map((a) => a.lambda) : null;
    const hasFormula = isRam ? !lambdas.includes(null) : settings.method === "task-arithmetic";
    const factors = hasFormula ? weighedFactors(profile, settings, lambdas) : near?.row.factors;
    return factors ? found(factors.own, factors.shared) : null;
  }
  if (isRam) {
    if (!profile.parts || agents.some((a) => a.lambda === null)) return null;
    const at = (rows) => rows.map((row) => row && row.slice(1).reduce((f, b, s) => f + b * agents[s].lambda, row[0]));
    return found(at(profile.parts.own[settings.point]), at(profile.parts.shared[settings.point]));
  }
  if (settings.method === "task-arithmetic") {
    const times = (values) => values.map((v) => v === null ? null : v * settings.scale);
    return profile.sum ? found(times(profile.sum.own), times(profile.sum.shared)) : null;
  }
  const factors = near?.row.factors;
  return factors ? found(factors.own, factors.shared, near.isExact) : null;
};
