// The figures of the lesson. Each is read from the models' profile, from their table of measured settings
// or from the record of how they were trained; none is typed. Knows nothing of the page.
import { wilson } from "../canvas/model/data.js";
import { exactRow } from "../canvas/model/nearest.js";
import { outcomeOf } from "../canvas/model/outcome.js";
import { brief } from "../canvas/model/words.js";
import { sum } from "../numbers.js";

// right of n prompts, as a share with its 95 % interval.
export const figure = (right, n) => {
  const [low, high] = wilson(right, n);
  return { right, n, share: right / n, low, high };
};

// A share that a record tells of n prompts.
export const recorded = (share, n) => figure(Math.round(share * n), n);

// Figures of the same kind as one.
export const together = (figures) =>
  figure(sum(figures.map((f) => f.right)), sum(figures.map((f) => f.n)));

// "122 of 180 (68 %, 95 % interval 61–74 %)"
export const figureText = ({ right, n, share, low, high }) =>
  `${right} of ${n} (${brief(share, 0)}, 95 % interval ${Math.round(100 * low)}–${brief(high, 0)})`;

// The skills that an agent learned: [{ name, domain, agent }], agent an index.
export const learned = (skills) => skills.domains.flatMap((name, domain) =>
  (skills.agents[domain] === null ? [] : [{ name, domain, agent: skills.agents[domain] }]));

export const scoreAt = (skills, row, { domain }) => figure(row.score[domain], skills.n);

// All prompts of the learned skills, for one row of the table.
export const scoreOfAll = (skills, row) =>
  together(learned(skills).map((skill) => scoreAt(skills, row, skill)));

// The same, of the row that was measured at some settings.
export const totalAt = (facts, settings) => scoreOfAll(facts.skills, rowAt(facts.profile, settings));

export const baseScore = (skills) => scoreOfAll(skills, skills.base);

export const specialistScore = (skills, skill) => scoreAt(skills, skills.specialists[skill.domain], skill);

// Every agent on the skill it learned.
export const specialistsScore = (skills) =>
  together(learned(skills).map((skill) => specialistScore(skills, skill)));

// The row that was measured at exactly these settings, or null.
export const rowAt = (profile, settings) => (profile.skills ? exactRow(profile, settings) : null);

// The number of weights that an agent changed, at a grid point.
export const changedBy = (profile, point, agent) => sum(profile.overlap[point][agent]);

// Of what an agent changed at a grid point: the share that it changed alone, by number of weights
// and by size (sums of squares; null in old analyses), and the share of all weights that it changed.
export const aloneShare = (profile, point, agent) => {
  const counts = profile.overlap[point][agent];
  const changed = changedBy(profile, point, agent);
  const energy = profile.energy?.[point][agent];
  return {
    ofAll: changed / profile.total,
    byCount: changed ? counts[0] / changed : 0,
    bySize: energy && sum(energy) ? energy[0] / sum(energy) : null,
  };
};

// Names of the agents that learned a skill, and of those that learned what the base could do: what no table
// tells of counts as a skill.
export const byLearning = ({ profile, skills }) => {
  const agents = new Set(skills ? learned(skills).map(({ agent }) => agent) : profile.agents.keys());
  return {
    skilled: profile.agents.filter((_, t) => agents.has(t)),
    others: profile.agents.filter((_, t) => !agents.has(t)),
  };
};

// Of the agents that learned a skill, the one that shares most of what it changed.
export const leastAlone = (facts, point) => {
  const { profile } = facts;
  const alone = (name) => aloneShare(profile, point, profile.agents.indexOf(name)).byCount;
  const least = byLearning(facts).skilled.reduce((a, b) => (alone(b) < alone(a) ? b : a));
  return profile.agents.indexOf(least);
};

// The share of all weights that every agent changed.
export const metShare = (profile, settings) =>
  outcomeOf(profile, settings).byCount.at(-1) / profile.total;

// The smallest threshold at which nothing counts as changed, so that the merge is the base.
export const nothingCounts = (profile) => {
  const point = profile.overlap.findIndex((agents) => agents.every((counts) => !sum(counts)));
  return point < 0 ? profile.epsilon_grid.length - 1 : point;
};

// The measured rows of a rule from a threshold on upwards, as [{ point, row }].
const upwards = (profile, settings) => profile.epsilon_grid.flatMap((_, point) => {
  const row = point < settings.point ? null : rowAt(profile, { ...settings, point });
  return row ? [{ point, row }] : [];
});

// Where one of some skills breaks as epsilon rises: { last, first, skill }, the last measured step at which all
// hold and the first at which `skill` does not: its interval ends below what was right at the start. Or null.
export const breakingPoint = (profile, settings, skills) => {
  const steps = upwards(profile, settings);
  for (const [i, step] of steps.entries()) {
    const skill = i && skills.find((one) => scoreAt(profile.skills, step.row, one).high
      < scoreAt(profile.skills, steps[0].row, one).share - 1e-9);
    if (skill) return { last: steps[i - 1], first: step, skill };
  }
  return null;
};
