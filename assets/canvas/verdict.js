// The one sentence above the outcome: the worst that can be said, first. Knows nothing of the page.
import { sum } from "../numbers.js";
import { cardKept, LOST } from "./rounding.js";
import { METHODS } from "./methods.js";
import { brief, keptText, lambdaText, listText } from "./words.js";
import { scoreOf, specialistOf, wilson } from "./table.js";

const PAPER_MOST = 1.4; // lambda at r 0.2 and alpha 2, the largest of the paper's Table 2
const FAR = 1.5;
const ALMOST_NOTHING = 0.2;
const LITTLE = 0.5;
const LITTLE_UNIQUE = 0.1;
const ALIKE = 0.3; // from this mean cosine on agents share an update, not only places
const STORAGE = 0.1; // less than this share of an agent's changes is left in the base's format

const worst = (items, value) => items.reduce((a, b) => (value(b) < value(a) ? b : a));
const total = (items, value) => sum(items.map((item) => value(item)));

// Agents that changed anything at all.
const moving = (profile, result) => result.agents.filter((a) => profile.norm2[a.t]);

// Of an agent's changed weights at epsilon 0, how many still count: all that sketches without sums tell.
const stillCounted = (profile, agent) => {
  const before = sum(profile.overlap[0][agent.t]);
  return before ? agent.active / before : 0;
};

const uniqueShare = (profile, result) => {
  const { point } = result.settings;
  const moved = result.agents.filter((a) => a.active);
  if (!profile.energy) return total(moved, (a) => a.unique) / (total(moved, (a) => a.active) || 1);
  const energy = (a) => sum(profile.energy[point][a.t]) * profile.norm2[a.t];
  return total(moved, (a) => profile.energy[point][a.t][0] * profile.norm2[a.t]) / (total(moved, energy) || 1);
};

// The mean cosine between two agents' updates, pairs weighing as their sizes; null where it is not known.
const likeness = ({ norm2, cross }) => {
  if (!norm2 || !cross) return null;
  const squares = sum(norm2);
  const sizes = total(norm2, Math.sqrt) ** 2 - squares;
  const dots = sum(norm2.map((x, t) => x * sum(cross[0][t])));
  return sizes > 0 ? dots / sizes : null;
};

const onlyStored = (profile, result) => {
  const rounded = profile.as_base_dtype_overlap;
  if (!rounded) return null;
  return result.agents.find((a) => a.active
    && sum(rounded[result.settings.point][a.t]) < STORAGE * a.active);
};

const lostByRounding = (profile, result) => result.agents.flatMap((a) => {
  const kept = cardKept(profile, result.settings.point, a.t, a.lambda);
  return kept && kept.asked > 1 && kept.kept - 1 < (1 - LOST) * (kept.asked - 1) ? [{ ...kept, name: a.name }] : [];
});

const almostNothing = (profile, result) => {
  if (result.hasKept) {
    const most = Math.max(...moving(profile, result).map((a) => a.kept.sum));
    return most < ALMOST_NOTHING ? `at most ${keptText(most)} of any agent's update` : "";
  }
  const most = Math.max(...result.agents.map((a) => stillCounted(profile, a)));
  return most < 0.01 ? `at most ${brief(most)} of the weights that any agent changed` : "";
};

// { tone, lead, rest } of a RAM setting that deserves a warning, or null.
const warning = (profile, result) => {
  if (!result.changed) return { tone: "bad", lead: "Nothing counts as changed at this ε: the merge is the base." };
  const nothing = almostNothing(profile, result);
  if (nothing) return { tone: "bad", lead: `Almost nothing is left at this ε: ${nothing}.` };
  const high = worst(result.agents, (a) => -a.lambda);
  if (high.lambda > FAR) {
    return {
      tone: "bad",
      lead: `λ ${high.lambda.toFixed(high.lambda < 10 ? 1 : 0)} for ${high.name} is far outside what the paper tried (at most ${PAPER_MOST}).`,
    };
  }
  const low = littleLeft(profile, result).filter(({ kept }) => kept.lostBelow >= kept.lostShared);
  return low.length ? { tone: "warn", ...leftText(low, "at this ε") } : null;
};

// Agents of whose update less than half is kept.
const littleLeft = (profile, result) =>
  (result.hasKept ? moving(profile, result).filter((a) => a.kept.sum < LITTLE) : []);

const leftText = (low, where) => {
  const names = low.length > 3 ? `${low.length} agents` : listText(low.map((a) => a.name));
  const least = worst(low, (a) => a.kept.sum);
  const [down, whose] = low.length > 1 ? ["down to ", ` (${least.name})`] : ["", ""];
  return { lead: `Little is left of ${names} ${where}:`, rest: ` ${down}${keptText(least.kept.sum)} of the update${whose}.` };
};

// What agents have in common a sum applies once for each of them.
const ofSum = (profile) => {
  const [alike, n] = [likeness(profile), profile.agents.length];
  if (alike === null || alike < ALIKE || n < 2) return { tone: "good", lead: "The sum keeps every update whole, and leaves conflicts alone." };
  return { tone: "warn", lead: `The agents moved alike (mean cosine ${alike.toFixed(2)}): the sum applies what they have in common ${n} times.` };
};

const ofMethod = (profile, result) => ({
  "task-arithmetic-mean": { tone: profile.agents.length > 1 ? "warn" : "good", lead: `Averaging divides every change by ${profile.agents.length}, unique or not.` },
  "task-arithmetic-sum": ofSum(profile),
  "ties": { tone: "good", lead: "TIES keeps the largest changes; where signs differ, the majority." },
}[result.settings.method]);

const ofRam = (profile, result) => {
  if (profile.agents.length < 2) return { tone: "good", lead: "Only one agent: the merge is that agent, and all of it is unique." };
  const share = uniqueShare(profile, result);
  const alike = likeness(profile);
  if (share < LITTLE_UNIQUE && alike !== null && alike >= ALIKE) {
    return {
      tone: "good",
      lead: `The agents moved alike (mean cosine ${alike.toFixed(2)}): averaging keeps what they have in common.`,
      rest: ` A sum would apply it ${profile.agents.length} times.`,
    };
  }
  if (share < LITTLE_UNIQUE) {
    return {
      tone: "warn",
      lead: `Only ${brief(share)} of the change ${profile.energy ? "(by size) " : ""}is unique: RAM is averaging in effect.`,
      rest: " Compare it with the sum (task arithmetic, scale 1).",
    };
  }
  const averaged = littleLeft(profile, result);
  if (averaged.length) return { tone: "warn", ...leftText(averaged, "after averaging what is shared") };
  const stored = onlyStored(profile, result);
  if (stored) {
    return { tone: "warn", lead: `What ${stored.name} changed is storage, not training:`, rest: " rounded to the base's format, less than a tenth of its changed weights still differ." };
  }
  const lost = lostByRounding(profile, result);
  if (lost.length) {
    return {
      tone: "warn",
      lead: `Rounding to nearest in ${lost[0].dtype} takes part of λ:`,
      rest: ` ${lost.map((l) => `${l.name} ${lambdaText(l.kept)} instead of ${lambdaText(l.asked)}`).join("; ")}. Stochastic rounding or float32 keeps it.`,
    };
  }
  if (!result.hasKept) return { tone: "good", lead: `${brief(share, 0)} of all changed weights are unique to one agent`, rest: " and keep their full strength; the rest is averaged." };
  const least = worst(moving(profile, result), (a) => a.kept.sum);
  return { tone: "good", lead: `Every update is kept to at least ${keptText(least.kept.sum)}`, rest: ` (${least.name}).` };
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
  pieces.push([` of ${n}${hasFallen ? "." : ": all hold."}`, false]);
  return { pieces, hasFallen };
};

// tone: "good", "warn" or "bad"; lead: the sentence; pieces: what follows, as [text, isStrong].
export const verdictOf = (profile, result, near) => {
  const found = (result.isRam && result.agents.every((a) => a.lambda !== null) && warning(profile, result))
    || ofMethod(profile, result) || ofRam(profile, result);
  const { pieces, hasFallen } = measured(profile, near);
  const tone = hasFallen && found.tone === "good" ? "warn" : found.tone;
  return { tone, lead: found.lead, pieces: [[found.rest || "", false], ...pieces] };
};
