// The one sentence above the outcome: the worst that can be said, first. The same rule as verdict.py in
// ram_studio/algorithm: one table of cases holds both to it. By energy, never by count. Knows nothing of the page.
import { sum } from "../numbers.js";
import { cardRetained, LOST } from "./rounding.js";
import { brief, lambdaText, listText, thresholdText } from "./words.js";
import { scoreOf, specialistOf, wilson } from "./table.js";

const NOTHING = 0.05; // above epsilon less than this of an update: nothing is left in effect
const ALMOST_NOTHING = 0.2; // a smaller retained share is worse than any scaling
export const LITTLE = 0.5;
const FAR = 1.5;
const PAPER_MOST = 1.4; // lambda at r 0.2 and alpha 2, the largest of the paper's Table 2
const LITTLE_UNIQUE = 0.1;
const ALIKE = 0.3; // from this mean cosine on agents share an update, not only places
const STORAGE = 0.1; // less than this share of an agent's changes is left in the base's format

const worst = (items, value) => items.reduce((a, b) => (value(b) < value(a) ? b : a));
const total = (items, value) => sum(items.map((item) => value(item)));
const retained = (a) => a.retained.sum;
const aboveEpsilon = (a) => 1 - a.retained.lostBelow;
const isLostToEpsilon = (a) => a.retained.lostBelow >= a.retained.lostShared;

// "a", "a and b", "a, b and c", or how many there are.
const names = (agents) => (agents.length > 3 ? `${agents.length} agents` : listText(agents.map((a) => a.name)));

const littleLeft = (where, reduced) => {
  const least = worst(reduced, retained);
  const share = brief(retained(least));
  if (reduced.length === 1) return { lead: `${where} only ${share} of ${least.name}'s update remains.` };
  return { lead: `${where} little of ${names(reduced)} remains:`, rest: `down to ${share} (${least.name}).` };
};

// The mean cosine between two agents' updates, pairs weighing as their sizes; 0 for one agent.
const meanCosine = ({ norm2, cross }) => {
  const sizes = total(norm2, Math.sqrt) ** 2 - sum(norm2);
  return sizes > 0 ? sum(norm2.map((x, t) => x * sum(cross[0][t]))) / sizes : 0;
};

// Each check: (profile, result, agents) to what it says, or null. agents: those that changed anything.
const unknown = (profile, result) => (result.hasRetained ? null : {
  key: "unknown", tone: "warn", lead: "How much of each update remains is not known:",
  rest: "analyze the models again, with relations.",
});

const unchanged = (profile, result, agents) => (agents.length ? null : {
  key: "unchanged", tone: "bad", lead: "No agent differs from the base: the merge is the base.",
});

const lostToEpsilon = (profile, result, agents) => {
  const lost = agents.filter((a) => aboveEpsilon(a) < NOTHING);
  if (!lost.length) return null;
  const most = Math.max(...lost.map(aboveEpsilon));
  const left = most <= 0 ? "nothing" : `${lost.length > 1 ? "at most " : ""}${brief(most)}`;
  const least = worst(lost, aboveEpsilon); // of several, the one that has least left speaks for all
  const counts = profile.overlap.map((at) => sum(at[least.t]));
  const bound = profile.epsilon_grid[counts.indexOf(0)];
  const by = bound === undefined ? "" : `, none by more than ${thresholdText(bound)}`;
  return {
    key: "lost-to-epsilon", tone: "bad",
    lead: `Epsilon ${thresholdText(profile.epsilon_grid[result.settings.point])} leaves ${left} of ${names(lost)}:`,
    rest: `${lost.length > 1 ? least.name : "it"} changed ${brief(counts[0] / profile.total)} of the weights${by}. Use epsilon 0.`,
  };
};

const reducedByEpsilon = (agents) => agents.filter((a) => retained(a) < LITTLE && isLostToEpsilon(a));

const almostLost = (profile, result, agents) => {
  const reduced = reducedByEpsilon(agents);
  if (reduced.every((a) => retained(a) >= ALMOST_NOTHING)) return null;
  return { key: "reduced-by-epsilon", tone: "bad", ...littleLeft("At this epsilon", reduced) };
};

const farLambda = (profile, result, agents) => {
  const { lambda, name } = worst(agents, (a) => -a.lambda);
  return lambda <= FAR ? null : {
    key: "far-lambda", tone: "bad",
    lead: `Lambda ${lambda.toFixed(lambda < 10 ? 1 : 0)} for ${name} is far outside what the paper tried (at most ${PAPER_MOST}).`,
  };
};

const reduced = (profile, result, agents) => {
  const low = reducedByEpsilon(agents);
  return low.length ? { key: "reduced-by-epsilon", tone: "warn", ...littleLeft("At this epsilon", low) } : null;
};

const oneAgent = (profile, result, agents) => (agents.length > 1 ? null : {
  key: "one-agent", tone: "good", lead: `Only ${agents[0].name} changed anything:`,
  rest: `the merge retains ${brief(retained(agents[0]))} of its update.`,
});

const littleUnique = (profile, result, agents) => {
  const energy = profile.energy[result.settings.point];
  const norm2 = (a) => profile.norm2[a.t];
  const share = total(agents, (a) => energy[a.t][0] * norm2(a)) / total(agents, (a) => sum(energy[a.t]) * norm2(a));
  if (share >= LITTLE_UNIQUE) return null;
  const cosine = meanCosine(profile);
  return cosine >= ALIKE
    ? {
      key: "common", tone: "good",
      lead: `The agents moved alike (mean cosine ${cosine.toFixed(2)}): averaging retains what they have in common.`,
      rest: `A sum would apply it ${profile.agents.length} times.`,
    }
    : {
      key: "averaging", tone: "warn",
      lead: `Only ${brief(share)} of the change, by energy, is unique: RAM is averaging in effect.`,
      rest: "Compare it with the sum (task arithmetic, scale 1).",
    };
};

const reducedByAveraging = (profile, result, agents) => {
  const low = agents.filter((a) => retained(a) < LITTLE);
  return low.length ? { key: "reduced-by-averaging", tone: "warn", ...littleLeft("After averaging", low) } : null;
};

const onlyStored = (profile, result, agents) => {
  const rounded = profile.as_base_dtype_overlap;
  const stored = rounded && agents.find((a) => sum(rounded[result.settings.point][a.t]) < STORAGE * a.active);
  return stored ? {
    key: "storage", tone: "warn", lead: `What ${stored.name} changed is storage, not training:`,
    rest: "in the base's format less than a tenth of its changed weights still differ.",
  } : null;
};

const lostByRounding = (profile, result, agents) => {
  const lost = agents.flatMap((a) => {
    const found = cardRetained(profile, result.settings.point, a.t, a.lambda);
    return found && found.asked > 1 && found.retained - 1 < (1 - LOST) * (found.asked - 1) ? [{ ...found, name: a.name }] : [];
  });
  const parts = lost.map((l) => `${l.name} ${lambdaText(l.retained)} instead of ${lambdaText(l.asked)}`);
  return lost.length ? {
    key: "rounding", tone: "warn", lead: `Rounding to nearest in ${lost[0].dtype} takes part of lambda:`,
    rest: `${parts.join("; ")}. Stochastic rounding or float32 retains it.`,
  } : null;
};

const retainedAll = (profile, result, agents) => {
  const least = worst(agents, retained);
  return {
    key: "retained", tone: "good", lead: `The merge retains at least ${brief(retained(least))} of every update`,
    rest: `(least: ${least.name}).`,
  };
};

const CHECKS = [
  unknown, unchanged, lostToEpsilon, almostLost, farLambda, reduced, oneAgent, littleUnique,
  reducedByAveraging, onlyStored, lostByRounding, retainedAll,
];

const ofRam = (profile, result) => {
  const agents = result.agents.filter((a) => a.retained);
  for (const check of CHECKS) {
    const found = check(profile, result, agents);
    if (found) return found;
  }
};

// What agents have in common a sum applies once for each of them.
const ofSum = (profile) => {
  const n = profile.agents.length;
  const cosine = profile.norm2 ? meanCosine(profile) : 0;
  if (cosine < ALIKE) return { key: "sum", tone: "good", lead: "The sum keeps every update whole, and leaves conflicts alone." };
  return { key: "sum-common", tone: "warn", lead: `The agents moved alike (mean cosine ${cosine.toFixed(2)}): the sum applies what they have in common ${n} times.` };
};

const OF_METHOD = {
  "task-arithmetic-mean": ({ agents }) => ({
    key: "average", tone: agents.length > 1 ? "warn" : "good", lead: `Averaging divides every change by ${agents.length}, unique or not.`,
  }),
  "task-arithmetic-sum": ofSum,
  "ties": () => ({ key: "ties", tone: "good", lead: "TIES keeps the largest changes; where signs differ, the majority." }),
};

// What was measured, as pieces of text: [text, isStrong].
const measured = (profile, near) => {
  if (!profile.skills || !near) return { pieces: [[" What it can do is not measured yet.", false]], hasFallen: false };
  if (!near.isExact) return { pieces: [[" Skills below are those of the nearest measured setting.", false]], hasFallen: false };
  const { n } = profile.skills;
  const skills = profile.skills.domains.flatMap((name, d) => {
    const specialist = specialistOf(profile.skills, d);
    if (!specialist) return [];
    const right = scoreOf(profile.skills, near.row, d);
    const [, high] = wilson(right, n);
    return [{ name, right, hasFallen: high < scoreOf(profile.skills, specialist, d) / n - 1e-9 }];
  });
  const pieces = [[" Measured: ", false]];
  skills.forEach(({ name, right, hasFallen }, i) => {
    if (i) pieces.push([", ", false]);
    pieces.push([`${name} ${right}`, hasFallen]);
  });
  const hasFallen = skills.some((s) => s.hasFallen);
  pieces.push([` of ${n}${hasFallen ? "." : "; none shown to be worse than its agent."}`, false]);
  return { pieces, hasFallen };
};

// key: which verdict; tone: "good", "warn" or "bad"; lead: the sentence; pieces: what follows, as [text, isStrong].
export const verdictOf = (profile, result, near) => {
  const { key, tone, lead, rest } = (OF_METHOD[result.settings.method] ?? ofRam)(profile, result);
  const { pieces, hasFallen } = measured(profile, near);
  return {
    key, tone: hasFallen && tone === "good" ? "warn" : tone, lead, pieces: [[rest ? ` ${rest}` : "", false], ...pieces],
  };
};
