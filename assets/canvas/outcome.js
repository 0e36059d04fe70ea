// What a setting does to each agent's update: rho, lambda, and how much of the update the merge keeps.
// Arithmetic on the profile's counts and sums; nothing is estimated. Knows nothing of the page.
import { compute, sum } from "../numbers.js";
import { METHODS } from "./methods.js";

// kept = <own part of the merge, tau> / |tau|^2, in parts: unique, boost (what lambda adds), shared,
// below (changes that epsilon leaves out but the method keeps). lost*: what was lost to averaging or left out.
// energy[j]: share of |tau|^2 where j other agents changed the element too. null for an agent that changed nothing.
const retainedParts = (profile, settings, t, lambda) => {
  if (!profile.norm2[t]) return null;
  const method = METHODS[settings.method];
  const energy = profile.energy[settings.point][t];
  const unique = energy[0];
  const shared = sum(energy.slice(1));
  const below = Math.max(0, 1 - unique - shared);
  const parts = { unique: 0, boost: 0, shared: 0, below: 0, lostUnique: 0, lostShared: 0, lostBelow: 0 };
  if (method.isRam) {
    parts.unique = unique;
    parts.boost = (lambda - 1) * unique;
    parts.shared = energy.reduce((retained, e, j) => (j ? retained + e / (j + 1) : retained), 0);
  } else if (method.factor) {
    const factor = method.factor(profile.agents.length);
    parts.unique = unique * factor;
    parts.shared = shared * factor;
    parts.below = below * factor;
  } else {
    // Measured by a merge, see preview_retained in in_memory.py; what TIES trimmed counts as below.
    const found = profile.ties[t];
    return {
      ...parts, unique: found.unique + Math.min(0, found.boost), boost: Math.max(0, found.boost), shared: found.shared,
      lostUnique: Math.max(0, -found.boost), lostShared: found.lost_to_averaging, lostBelow: found.lost_to_epsilon, sum: found.retained,
    };
  }
  parts.lostUnique = unique - parts.unique;
  parts.lostShared = shared - parts.shared;
  parts.lostBelow = below - parts.below;
  return { ...parts, sum: parts.unique + parts.boost + parts.shared + parts.below };
};

// interference = |merge - own part| / |tau|: everything else in the merge, in units of the agent's update.
const interference = (profile, settings, agents, t) => {
  const method = METHODS[settings.method];
  const { point } = settings;
  if (!method.isRam) {
    return method.factor
      ? Math.sqrt(profile.others_all[t]) * method.factor(agents.length) : profile.ties[t].interference;
  }
  const norm2 = profile.norm2;
  let others = 0;
  for (let j = 1; j < agents.length; j += 1) {
    const own = profile.energy[point][t][j] + 2 * profile.cross[point][t][j];
    others += (profile.meet[point][j + 1] - own * norm2[t]) / (j + 1) ** 2;
  }
  for (const other of agents) {
    if (other.t !== t) others += other.lambda ** 2 * profile.energy[point][other.t][0] * norm2[other.t];
  }
  return Math.sqrt(Math.max(0, others) / norm2[t]);
};

// What the others bring along an agent's update where they moved the same elements, as a share of it: with
// kept it makes <merge, tau> / |tau|^2. null where the profile lacks it.
const alongOf = (profile, settings, t) => {
  const { isRam, factor } = METHODS[settings.method];
  if (isRam) return profile.cross[settings.point][t].reduce((along, c, j) => along + c / (j + 1), 0);
  return factor ? sum(profile.cross[0][t]) * factor(profile.agents.length) : null;
};

// Analyses without relations have no sums; TIES needs a merge, which only some sets carry.
export const canTellRetained = (profile, settings) =>
  Boolean(profile.energy) && (settings.method !== "ties" || Boolean(profile.ties));

// settings: { point, r, alpha, method }. lambda is null where the method has none; retained, others and along where the
// profile lacks it (hasRetained) or the agent changed nothing. byCount[j]: elements changed by j + 1 agents.
export const outcomeOf = (profile, settings) => {
  const { point, r, alpha, method } = settings;
  const isRam = Boolean(METHODS[method].isRam);
  const result = compute(profile, point, isRam ? method : "ram", r, alpha);
  const cap = method === "ram+" || method === "ram+m" ? alpha : Infinity;
  const agents = result.agents.map((agent, t) => {
    const used = method === "ram+m" ? agent.rhoM : agent.rho;
    return { ...agent, t, ratio: used, lambda: isRam ? agent.lambda : null, isCapped: used > cap };
  });
  const known = canTellRetained(profile, settings) && agents.every((a) => !isRam || a.lambda !== null);
  for (const agent of agents) {
    agent.retained = known ? retainedParts(profile, settings, agent.t, agent.lambda) : null;
    agent.others = agent.retained && interference(profile, settings, agents, agent.t);
    agent.along = agent.retained && alongOf(profile, settings, agent.t);
  }
  return { settings, isRam, agents, byCount: result.byCount, changed: sum(result.byCount), hasRetained: known };
};

// Kept of each agent at every grid point, or null; of an agent that changed nothing nulls.
export const retainedCurves = (profile, settings) => {
  const at = profile.epsilon_grid.map((_, point) => outcomeOf(profile, { ...settings, point }));
  if (!at[0].hasRetained) return null;
  return profile.agents.map((_, t) => at.map((result) => result.agents[t].retained?.sum ?? null));
};
