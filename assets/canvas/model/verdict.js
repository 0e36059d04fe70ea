// @ts-check
// The verdict on a merge in one plain sentence; its reason is always computed, never a guess. Without measured skills:
// the models' overlap, and what to expect. Independent of the page.
import { brief, fixed, percent, sum, times } from "../../numbers.js";
import { compareRows } from "./data.js";
import { METHODS, settingsText } from "./methods.js";
import { paperRow, rivalRow } from "./nearest.js";
import { ownWeights } from "./weights.js";
import { capital, counted, listText } from "./words.js";

/** @typedef {{ key: string, tone: string, lead: string, rest: string, note: string, damaged: number[] }} Verdict */

const LEVEL = 0.05; // of all tests of a verdict together
const FAR = 1.5;
const PAPER_MOST = 1.4; // lambda at r 0.2 and alpha 2, the largest of the paper's Table 2
const [TOO_OFTEN, TOO_LITTLE, TOO_MUCH] = [1.2, 0.75, 1.3]; // shared; own
const LEFT_OUT = 0.1; // of the own part, by epsilon
const ALIKE = 0.3; // above this mean cosine, agents share a direction, not only positions
const APART = 0.6; // unique share by size: above it, agents changed mostly different weights
const TOGETHER = 0.1;

const NOTHING = {
  key: "nothing", tone: "bad", lead: "Nothing is merged.", rest: "Epsilon is so high that no change counts: this is the untouched base.",
};

/** The largest lambda, without agents that have no unique weights. */
const largest = (agents) => Math.max(1, ...agents.map((a) => (a.rho === Infinity ? 1 : a.lambda ?? 1)));

const areEqual = (values) => {
  const known = values.filter((v) => v !== null);
  return Math.max(...known) - Math.min(...known) < 0.01;
};

/** The reason, or "" where no factor is unusual. */
const reasonOf = (result, factors) => {
  const lambda = result.isRam ? largest(result.agents) : 1;
  if (factors?.sharedMean > TOO_OFTEN) return `The shared part is applied ${times(factors.sharedMean)} times.`;
  if (lambda > FAR) return `Own changes are boosted ${times(lambda)} times (the paper: at most ${PAPER_MOST}).`;
  if (!factors || factors.ownMean === null) return "";
  const lambdas = result.agents.flatMap((a, t) => (factors.own[t] === null ? [] : [a.lambda]));
  const left = result.isRam ? 1 - (factors.ownMean * lambdas.length) / sum(lambdas) : 0;
  if (left > LEFT_OUT && !ownWeights(result.settings.weights)) return `Epsilon leaves out ${percent(left, 0)} of what only one agent changed.`;
  const applied = percent(factors.ownMean, 0);
  if (factors.ownMean < TOO_LITTLE) {
    return areEqual(factors.own) ? `Only ${applied} of each agent's own change is applied.` : `On average only ${applied} of an agent's own change is applied.`;
  }
  return factors.ownMean > TOO_MUCH ? `Own changes overshoot: applied ${times(factors.ownMean)} times.` : "";
};

/** The smallest one-sided loss that a skill's test can show. */
const showable = (tests) => {
  let least = 1;
  while (2 / 2 ** least > LEVEL / tests) least += 1;
  return least;
};

// Holm over the skills: those whose agent solves more of the same questions.
const damagedSkills = ({ specialists, n }, row) => {
  const tests = specialists.flatMap((own, d) => (own ? [{ d, ...compareRows(row, own, d * n, (d + 1) * n) }] : [])).sort((a, b) => a.p - b.p);
  const end = tests.findIndex(({ p }, i) => p > LEVEL / (tests.length - i));
  return tests.slice(0, end < 0 ? tests.length : end).filter((t) => t.lost > t.won).sort((a, b) => a.d - b.d);
};

/** All of a number of skills, in words. */
const all = (count) => (count > 3 ? `All ${count} skills are` : ["", "The skill is", "Both skills are", "All three skills are"][count]);

// Far from the paper's settings, and still better than them on the same questions.
const surprise = (profile, row) => {
  const paper = paperRow(profile);
  const { lost, won, p } = paper ? compareRows(row, paper) : { lost: 0, won: 0, p: 1 };
  return paper && p < LEVEL && won > lost ? ` Still better than the paper's setting (${paper.total}).` : "";
};

const ofMeasured = (profile, result, near, factors) => {
  const { skills } = profile;
  const { row } = near;
  const damaged = damagedSkills(skills, row);
  const versus = compareRows(row, skills.base);
  const lost = lostText(profile, result);
  const reason = lost || reasonOf(result, factors);
  const why = `${reason}${reason && result.isRam && largest(result.agents) > FAR ? surprise(profile, row) : ""}`;
  if (versus.p < LEVEL && versus.lost > versus.won) {
    return { key: "broken", tone: "bad", lead: "Broken.", rest: `Even the base solves ${skills.base.total}. ${why}`, damaged };
  }
  if (!skills.specialists.some(Boolean)) {
    return {
      key: "unlearned", tone: "", lead: "These questions are inconclusive.", damaged,
      rest: "No agent beats the base on them, beyond chance. Test the agents' own skills in Check.",
    };
  }
  if (!damaged.length) {
    return {
      key: "good", tone: "good", lead: "No skill is shown to be damaged.", damaged,
      rest: `No loss against an agent is beyond chance. ${lost || largest(result.agents) > FAR ? why : ""}`,
    };
  }
  const names = damaged.map(({ d }) => skills.domains[d]);
  const fewer = damaged.map(({ d, lost: less, won }) => `${skills.domains[d]} −${less - won}`);
  return {
    key: "damaged", tone: damaged.length === skills.domains.length ? "bad" : "part", damaged,
    lead: damaged.length === skills.domains.length ? `${all(damaged.length)} damaged.` : `${capital(listText(names))} ${names.length > 1 ? "are" : "is"} damaged.`,
    rest: why || `Fewer questions than its agent: ${fewer.join(", ")}.`,
  };
};

/** The mean cosine between two agents' updates, weighted by size; 0 for one agent. */
const meanCosine = ({ norm2, cross }) => {
  const sizes = sum(norm2.map(Math.sqrt)) ** 2 - sum(norm2);
  return sizes > 0 ? sum(norm2.map((x, t) => x * sum(cross[0][t]))) / sizes : 0;
};

/** Scores of our own examples of each kind, of 180 questions; rival: the best other setting, chosen on the same
 * questions. Tested against the shipped tables. */
export const EVIDENCE = {
  alike: { set: "shared-style", ram: 174, sum: 21, average: 123, rival: 175 },
  apart: { set: "independent", ram: 171, sum: 173, average: 96, rival: 176 },
  together: { set: "dense", ram: 110, sum: 174, average: 99, rival: 174 },
};
const LIMITS = "That is one tiny model and one training recipe; yours may differ.";

const evidenceText = ({ ram, sum: added, average, rival }) =>
  `In our example of this kind RAM+ solves ${ram} of 180 questions, the sum ${added}, the average ${average}, the best of all other settings ${rival}.`;

const expected = (first, why, kind) => ({ first, why, evidence: kind ? evidenceText(EVIDENCE[kind]) : "None of our examples is of this kind.", limits: kind ? LIMITS : "" });

/** Expectations for untested models from their overlap: which method to try first, why, the evidence, and its limits.
 * @returns {{ first: string, why: string, evidence: string, limits: string }} */
export const expectationOf = (profile) => {
  const { energy, norm2, agents, default_index: usual } = profile;
  if (!energy || !norm2) return { first: "Analyze the models again to see what to expect.", why: "", evidence: "", limits: "" };
  if (agents.length < 2) return { first: "One agent: nothing to combine.", why: "", evidence: "", limits: "" };
  const own = (t) => energy[usual][t][0] * norm2[t];
  const share = sum(agents.map((_, t) => own(t))) / (sum(agents.map((_, t) => sum(energy[usual][t]) * norm2[t])) || 1);
  const cosine = meanCosine(profile);
  if (cosine >= ALIKE) {
    return expected("Try RAM+ first.", `The updates are similar (mean cosine ${fixed(cosine, 2)}). A sum applies the common part ${agents.length} times; an average divides the rest.`, "alike");
  }
  if (share >= APART) return expected("Expect a sum to do as well as RAM+.", `The agents changed mostly different weights: ${brief(share)} of the change, by size, is unique.`, "apart");
  if (share < TOGETHER) return expected("Try the sum first.", `Only ${brief(share)} of the change, by size, is unique: RAM+ mostly averages.`, "together");
  return expected("Try RAM+ and the sum.", `${brief(share)} of the change, by size, is unique: RAM+ keeps it and averages the rest.`, null);
};

/** The sentence on agents whose change is almost all below epsilon, by size, as in all commands; "" for none. */
export const lostText = ({ lost }, { isRam, settings }) => (isRam && lost?.[settings.point]) || "";

/** The factors of own and shared parts, where there are any. @param {any} factors */
const appliedText = ({ ownMean, sharedMean }) => {
  if (ownMean === null && sharedMean === null) return "";
  if (ownMean === null) return ` Exact: shared parts applied ${times(sharedMean)} times.`;
  return ` Exact: own parts applied ${times(ownMean)} times${sharedMean === null ? "" : `, shared parts ${times(sharedMean)} times`}.`;
};

/** The text for one line: a warning about this setting, or which method to try, and why. */
const expectationLine = (profile, result) => {
  const lost = lostText(profile, result);
  if (lost) return lost;
  const { first, why } = expectationOf(profile);
  return reasonOf(result, null) || [why, first].join(" ").trim();
};

/** The best of all other methods' settings: from how many it was chosen, on which questions, and whether it differs
 * significantly from RAM+ at the paper's setting, corrected for that number (Bonferroni). "" without one. */
export const rivalText = (profile) => {
  const [rival, paper] = [rivalRow(profile), paperRow(profile)];
  if (!rival) return "";
  const tried = profile.skills.merges.filter(({ set }) => !METHODS[set.method].isRam).length;
  const picked = `${settingsText(rival.set, profile)}: the best of ${counted(tried, "setting")}, picked on these same questions.`;
  if (!paper) return picked;
  const { lost, won, p } = compareRows(rival, paper);
  if (tried * p >= LEVEL) return `${picked} It does not differ significantly from RAM+.`;
  return `${picked} It solves ${won > lost ? "more" : "fewer"} than RAM+, beyond chance.`;
};

/** @param {any} profile @param {any} result @param {any} near the measured row shown, or null @param {any} factors
 * @returns {Verdict} */
export const verdictOf = (profile, result, near, factors) => {
  const text = settingsText(result.settings, profile);
  const { skills } = profile;
  if (result.isRam && !result.changed) return { ...NOTHING, note: `${text}.`, damaged: [] };
  const isWeighted = Boolean(ownWeights(result.settings.weights));
  if (!skills || (isWeighted && !near)) {
    return {
      key: "untested", tone: "", lead: isWeighted ? "Not tested with these weights." : "Not tested yet.", damaged: [],
      rest: isWeighted ? reasonOf(result, factors) : expectationLine(profile, result),
      note: `${text}.${factors ? appliedText(factors) : ""}`,
    };
  }
  if (!near) return { key: "untested", tone: "", lead: "Not tested yet.", rest: METHODS[result.settings.method].says, note: `${text}.`, damaged: [] };
  const verdict = ofMeasured(profile, result, near, factors);
  const scores = skills.domains.map((name, d) => `${name} ${near.row.score[d]}`).join(", ");
  const weak = verdict.key === "good" ? `; losing ${showable(skills.domains.length) - 1} would not show` : "";
  const nearest = near.row.set ? settingsText(near.row.set, profile) : "the base";
  return {
    ...verdict, damaged: verdict.damaged.map(({ d }) => d),
    note: near.isExact ? `${text}. Measured: ${scores} of ${skills.n}${weak}.` : `${text} was not measured. Shown: the nearest, ${nearest}: ${scores} of ${skills.n}.`,
  };
};
