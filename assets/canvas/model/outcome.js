// @ts-check
// What a setting does to each agent's update: rho, lambda, and how many times its own and its shared part
// reach the merge. Arithmetic on the profile's counts and sums; nothing is estimated. Knows nothing of the page.
import { compute, sum } from "../../numbers.js";
import { METHODS } from "./methods.js";
import { ownWeights, weighedFactors } from "./weights.js";

/** rho and lambda of every agent; lambda is null where the method has none. byCount[j]: weights that j + 1 changed. */
export const outcomeOf = (profile, settings) => {
  const { point, r, alpha, method } = settings;
  const { isRam } = METHODS[method];
  const result = compute(profile, point, isRam ? method : "ram", r, alpha);
  const agents = result.agents.map((agent, t) => ({
    ...agent, t, ratio: method === "ram+m" ? agent.rhoM : agent.rho, lambda: isRam ? agent.lambda : null,
  }));
  return { settings, isRam, agents, byCount: result.byCount, changed: sum(result.byCount) };
};

const mean = (values) => {
  const known = values.filter((v) => v !== null);
  return known.length ? sum(known) / known.length : 0;
};

/** How many times each agent's own part (weights that it alone changed beyond the reference epsilon) and its
 * shared part reach the merge: <merge, tau> / |tau|^2 over the part. isExact: of this setting, not of the
 * nearest measured one. null where nothing tells. */
export const factorsOf = (profile, result, near = null) => {
  const { settings, agents, isRam } = result;
  const found = (own, shared, isExact = true) => ({ own, shared, isExact, ownMean: mean(own), sharedMean: mean(shared) });
  if (ownWeights(settings.weights)) {
    const lambdas = isRam ? agents.map((a) => a.lambda) : null;
    const hasFormula = isRam ? !lambdas.includes(null) : settings.method === "task-arithmetic";
    const told = hasFormula ? weighedFactors(profile, settings, lambdas) : near?.row.factors;
    return told ? found(told.own, told.shared) : null;
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
