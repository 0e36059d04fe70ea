// @ts-check
// The numbers of the lesson. Each is read from the models' profile, their table of measured settings or the record of
// their training; none is hard-coded. Independent of the page.
import { wilson } from "../canvas/model/data.js";
import { exactRow } from "../canvas/model/nearest.js";
import { factorsOf, outcomeOf } from "../canvas/model/outcome.js";
import { percent, sum } from "../numbers.js";

/** @typedef {{ right: number, n: number, share: number, low: number, high: number }} Figure
 * @typedef {{ name: string, domain: number, agent: number }} Skill of the table: its index, and the agent that learned it
 * @typedef {{ prompt: string, gold: string, lines: { who: string, agent?: number, text: string, right: boolean }[] }} Example
 * @typedef {import("./scenes.js").Facts} Facts @typedef {import("../canvas/model/methods.js").Settings} Settings */

/** right of n questions, as a share with its 95 % interval. @param {number} right @param {number} n @returns {Figure} */
export const figure = (right, n) => {
  const [low, high] = wilson(right, n);
  return { right, n, share: right / n, low, high };
};

/** A share of n questions from a record. @param {number} share @param {number} n */
export const recorded = (share, n) => figure(Math.round(share * n), n);

/** Several figures added up. @param {Figure[]} figures */
const together = (figures) =>
  figure(sum(figures.map((f) => f.right)), sum(figures.map((f) => f.n)));

/** "122 of 180 (68 %, 95 % interval 61–74 %)" @param {Figure} figure */
export const figureText = ({ right, n, share, low, high }) =>
  `${right} of ${n} (${percent(share, 0)}, 95 % interval ${Math.round(100 * low)}–${percent(high, 0)})`;

/** The skills that an agent learned. @param {any} skills @returns {Skill[]} */
export const learned = (skills) => skills.domains.flatMap((name, domain) =>
  (skills.agents[domain] === null ? [] : [{ name, domain, agent: skills.agents[domain] }]));

/** @param {any} skills @param {any} row @param {Skill} skill */
export const scoreAt = (skills, row, { domain }) => figure(row.score[domain], skills.n);

/** All questions of the learned skills, for one row of the table. @param {any} skills @param {any} row */
const scoreOfAll = (skills, row) =>
  together(learned(skills).map((skill) => scoreAt(skills, row, skill)));

/** The same for the row measured at these settings. @param {Facts} facts @param {Settings} settings */
export const totalAt = (facts, settings) => scoreOfAll(facts.skills, rowAt(facts.profile, settings));

/** @param {any} skills */
export const baseScore = (skills) => scoreOfAll(skills, skills.base);

/** @param {any} skills @param {Skill} skill */
export const specialistScore = (skills, skill) => scoreAt(skills, skills.specialists[skill.domain], skill);

/** Every agent's score on the skill it learned. @param {any} skills */
export const specialistsScore = (skills) =>
  together(learned(skills).map((skill) => specialistScore(skills, skill)));

/** The row that was measured at exactly these settings, or null. @param {any} profile @param {Settings} settings */
export const rowAt = (profile, settings) => (profile.skills ? exactRow(profile, settings) : null);

/** The number of weights that an agent changed, at a grid point.
 * @param {any} profile @param {number} point @param {number} agent @returns {number} */
export const changedBy = (profile, point, agent) => sum(profile.overlap[point][agent]);

/** The unique share of an agent's changes at a grid point, and its changes' share of all weights.
 * @param {any} profile @param {number} point @param {number} agent */
export const aloneShare = (profile, point, agent) => {
  const changed = changedBy(profile, point, agent);
  return { ofAll: changed / profile.total, byCount: changed ? profile.overlap[point][agent][0] / changed : 0 };
};

/** Names of the agents that learned a skill, and of those that learned a skill of the base; without a table every
 * domain counts as a skill. @param {Facts} facts @returns {{ skilled: string[], others: string[] }} */
export const byLearning = ({ profile, skills }) => {
  const agents = new Set(skills ? learned(skills).map(({ agent }) => agent) : profile.agents.keys());
  return {
    skilled: profile.agents.filter((_, t) => agents.has(t)),
    others: profile.agents.filter((_, t) => !agents.has(t)),
  };
};

/** The agent with a skill whose changes are shared the most.
 * @param {Facts} facts @param {number} point @returns {number} */
export const leastAlone = (facts, point) => {
  const { profile } = facts;
  const alone = (name) => aloneShare(profile, point, profile.agents.indexOf(name)).byCount;
  const least = byLearning(facts).skilled.reduce((a, b) => (alone(b) < alone(a) ? b : a));
  return profile.agents.indexOf(least);
};

/** The share of all weights that every agent changed. @param {any} profile @param {Settings} settings */
export const metShare = (profile, settings) =>
  outcomeOf(profile, settings).byCount.at(-1) / profile.total;

/** The smallest threshold without any change, so that the merge is the base.
 * @param {any} profile @returns {number} */
export const nothingCounts = (profile) => {
  const point = profile.overlap.findIndex((agents) => agents.every((counts) => !sum(counts)));
  return point < 0 ? profile.epsilon_grid.length - 1 : point;
};

/** The measured rows of a rule from a threshold upwards.
 * @param {any} profile @param {Settings} settings @returns {{ point: number, row: any }[]} */
const upwards = (profile, settings) => profile.epsilon_grid.flatMap((_, point) => {
  const row = point < settings.point ? null : rowAt(profile, { ...settings, point });
  return row ? [{ point, row }] : [];
});

/** The point at which one of some skills breaks as epsilon rises: the last measured step at which all survive, and the
 * first at which `skill` does not: its interval ends below the score at the start. Or null.
 * @param {any} profile @param {Settings} settings @param {Skill[]} skills */
export const breakingPoint = (profile, settings, skills) => {
  const steps = upwards(profile, settings);
  for (const [i, step] of steps.entries()) {
    const skill = i && skills.find((one) => scoreAt(profile.skills, step.row, one).high
      < scoreAt(profile.skills, steps[0].row, one).share - 1e-9);
    if (skill) return { last: steps[i - 1], first: step, skill };
  }
  return null;
};

/** A merge's factors of changes by one agent only, and by several: means over the agents.
 * @param {any} profile @param {Settings} settings */
export const partsApplied = (profile, settings) => {
  const row = rowAt(profile, settings);
  const found = factorsOf(profile, outcomeOf(profile, settings), row && { row, isExact: true });
  return found && { own: found.ownMean, shared: found.sharedMean };
};

/** A question that an agent solves and the base does not, the shortest with a nonempty answer of the base; or null.
 * @param {any} skills @param {number} agent @returns {Example | null} */
export const exampleOf = (skills, agent) => {
  const skill = skills && learned(skills).find((one) => one.agent === agent);
  if (!skill) return null;
  const own = skills.specialists[skill.domain];
  const said = (row, i) => skills.answers[i][row.said[i]];
  const places = Array.from({ length: skills.n }, (_, i) => skill.domain * skills.n + i)
    .filter((i) => own.right[i] && !skills.base.right[i] && said(skills.base, i).trim().length > 1);
  if (!places.length) return null;
  const i = places.reduce((a, b) => (skills.prompts[b].length < skills.prompts[a].length ? b : a));
  const line = (who, row, more) => ({ who, text: said(row, i), right: Boolean(row.right[i]), ...more });
  return { prompt: skills.prompts[i], gold: skills.gold[i], lines: [line("base", skills.base), line(`${own.name} agent`, own, { agent })] };
};
