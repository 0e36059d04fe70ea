// @ts-check
// The scenes of the lesson as data, in order: question, choices, task on the stage, and answer. Every number in a text
// comes from figures.js.
import { listText } from "../canvas/model/words.js";
import { brief, epsilon, times } from "../numbers.js";
import { epsilonScene } from "./few_weights.js";
import {
  aloneShare, baseScore, byLearning, exampleOf, figureText, leastAlone, learned, metShare, partsApplied, rowAt,
  scoreAt, specialistScore, specialistsScore, totalAt,
} from "./figures.js";
import { limitsScene, roundingScene } from "./limits.js";
import { rivals, stepsText } from "./record.js";
import { asBase, average, isShown, sumUp, usual } from "./states.js";

/** The input of scenes: settings are those of the stage, or those that reached the answer. skills and record: null
 * where a set has none.
 * @typedef {{ profile: any, skills: any, record: any, settings: import("../canvas/model/methods.js").Settings }} Facts
 * @typedef {(string | string[])[]} Pieces text; a part in its own list is strong
 * @typedef {{ value: number, text: string }} Measured value: a share, or an index into the choices
 */
/** A scene. needs: required facts of its set. figure: the panel of the stage that it shows, isWithMethods: with the
 * methods above it. start, target: initial settings, and some that reach the answer. controls: used to reach it; dial:
 * the active one if not epsilon, most: its largest value, if it is on the card. guess: "share" for a share of
 * something, or texts to choose from.
 * @typedef {{ id: string, title: string, isLastWord?: boolean, set: string, needs: string[], figure: string,
 *   isWithMethods?: boolean, start: (facts: Facts) => any, target: (facts: Facts) => any, controls: string[],
 *   dial?: string, most?: number, example?: (facts: Facts) => import("./figures.js").Example | null,
 *   ask: (facts: Facts) => Pieces, guess: "share" | string[], task: (facts: Facts) => Pieces,
 *   isReached: (facts: Facts) => boolean, measured: (facts: Facts) => Measured, reveal: (facts: Facts) => Pieces,
 *   chart: (facts: Facts) => any }} Scene */

const share = (found) => ({ value: found.share, text: figureText(found) });

/** Scores with only one part scaled, if measured. @returns {Pieces} */
const steps = (facts, name, lead) => {
  const text = stepsText(facts, name);
  return text ? [`${lead}: ${text} solved.`] : [];
};

// The argument in one chart, one more merge in each scene: own parts, shared parts, questions solved.
const partsChart = (facts, merges) => ({
  kind: "parts",
  label: "Each merge's factors of own and shared parts, and questions solved",
  rows: merges.map(([name, settings], i) => ({
    name, ...partsApplied(facts.profile, settings), figure: totalAt(facts, settings), isStrong: i === merges.length - 1,
  })),
});

const averaged = (facts) => ["average", average(facts)];
const added = (facts) => ["sum", sumUp(facts)];
const ram = (facts) => usual(facts, { method: "ram" });

/** @type {Scene} */
const changed = {
  id: "changed",
  figure: "weights",
  title: "What training changed",
  set: "shared-style",
  needs: [],
  controls: ["#epsilon-line", "#dial-epsilon"],
  start: asBase,
  target: usual,
  example: (facts) => exampleOf(facts.skills, leastAlone(facts, facts.profile.default_index)),
  ask: (facts) => {
    const { profile } = facts;
    const { skilled, others } = byLearning(facts);
    return [
      `Copies of one model were trained by RL, each for one skill: ${listText(skilled)}`,
      others.length ? `; and ${listText(others)}, for what the model could do already. ` : ". ",
      "Of the weights that changed in ", [profile.agents[leastAlone(facts, profile.default_index)]],
      ", what share changed in ", ["no other copy"], "?",
    ];
  },
  guess: "share",
  task: ({ profile }) => ["Drag the line to the ", ["left"], `, to ${epsilon(profile.epsilon_grid[profile.default_index])}: changes above it count.`],
  isReached: ({ profile, settings }) => settings.point <= profile.default_index,
  measured: (facts) => {
    const { profile, settings } = facts;
    const { byCount } = aloneShare(profile, settings.point, leastAlone(facts, profile.default_index));
    return { value: byCount, text: brief(byCount) };
  },
  reveal: (facts) => {
    const { profile, settings } = facts;
    const t = leastAlone(facts, profile.default_index);
    const { ofAll, byCount } = aloneShare(profile, settings.point, t);
    return [
      `${profile.agents[t]} changed ${brief(ofAll)} of all weights. Only `, [brief(byCount)], " of those changed in no other copy. ",
      `All ${profile.agents.length} copies changed ${brief(metShare(profile, settings))} of the weights: they also learned one common style.`,
    ];
  },
  chart: (facts) => ({
    kind: "bars",
    label: "Share of each agent's changed weights that no other agent changed",
    rows: facts.profile.agents.map((name, t) => ({
      name, agent: t, share: aloneShare(facts.profile, facts.settings.point, t).byCount, css: "unique",
      isStrong: t === leastAlone(facts, facts.profile.default_index),
    })),
  }),
};

/** @type {Scene} */
const dilutes = {
  id: "average",
  figure: "answers",
  isWithMethods: true,
  title: "Average them",
  set: "shared-style",
  needs: ["skills"],
  controls: ["[data-choose=average]"],
  start: asBase,
  target: average,
  ask: (facts) => {
    const alone = specialistsScore(facts.skills);
    return [
      `Each alone, ${listText(byLearning(facts).skilled)} solve `, [`${alone.right} of ${alone.n}`],
      " questions of their skills. Now ", ["average"], " their weights. What share does the merge solve?",
    ];
  },
  guess: "share",
  task: () => ["Choose ", ["Average"], "."],
  isReached: (facts) => isShown(facts, "average"),
  measured: (facts) => share(totalAt(facts, facts.settings)),
  reveal: (facts) => {
    const { profile, skills, settings } = facts;
    const scores = learned(skills).map((skill) => {
      const { right } = scoreAt(skills, rowAt(profile, settings), skill);
      return `${skill.name} ${specialistScore(skills, skill).right} → ${right}`;
    });
    return [
      ["Dilution."], ` Averaging divides every change by ${profile.agents.length}, even one that only one agent made. Of ${skills.n} questions each: ${scores.join(", ")}. `,
      ...steps(facts, "dilution", "Control with only the own parts scaled"),
    ];
  },
  chart: (facts) => partsChart(facts, [averaged(facts)]),
};

const OVERSHOOT = [
  "As good as the agents alone", "Better than the average", "Worse than the average", "Worse than the base",
];

/** @type {Scene} */
const overshoots = {
  id: "sum",
  figure: "answers",
  isWithMethods: true,
  title: "Add them up",
  set: "shared-style",
  needs: ["skills"],
  controls: ["[data-choose=sum]"],
  start: average,
  target: sumUp,
  ask: () => ["Dividing lost skills. So do ", ["not divide"], ". Add every change to the base in full. How does that model do?"],
  guess: OVERSHOOT,
  task: () => ["Choose ", ["Sum"], "."],
  isReached: (facts) => isShown(facts, "sum"),
  measured: (facts) => {
    const found = totalAt(facts, facts.settings);
    const text = figureText(found);
    if (found.high >= specialistsScore(facts.skills).share) return { value: 0, text };
    if (found.right > totalAt(facts, average(facts)).right) return { value: 1, text };
    return { value: found.right >= baseScore(facts.skills).right ? 2 : 3, text };
  },
  reveal: (facts) => {
    const parts = partsApplied(facts.profile, facts.settings);
    return [
      ["Overshoot."], parts ? ` What the agents share, their common style, is applied ${times(parts.shared)} times. ` : " ",
      `The base, before RL, solves ${baseScore(facts.skills).right}. `,
      ...steps(facts, "overshoot", "Control with only the shared parts scaled"),
    ];
  },
  chart: (facts) => partsChart(facts, [averaged(facts), added(facts)]),
};

/** @type {Scene} */
const keeps = {
  id: "ram",
  figure: "answers",
  isWithMethods: true,
  title: "Keep and average",
  set: "shared-style",
  needs: ["skills"],
  controls: ["[data-choose=ram]"],
  start: sumUp,
  target: ram,
  ask: (facts) => {
    const { profile } = facts;
    const t = leastAlone(facts, profile.default_index);
    return [
      "RAM ", ["keeps"], " what only one agent changed, and ", ["averages"], " the rest. Of ", [profile.agents[t]],
      `'s changed weights, ${brief(aloneShare(profile, profile.default_index, t).byCount)} are its own. What share of all questions does RAM solve?`,
    ];
  },
  guess: "share",
  task: () => ["Choose ", ["RAM"], "."],
  isReached: (facts) => isShown(facts, "ram") && rowAt(facts.profile, facts.settings) !== null
    && facts.settings.point <= facts.profile.default_index,
  measured: (facts) => share(totalAt(facts, facts.settings)),
  reveal: (facts) => [
    ["Own parts whole, shared parts about once."], " One scale cannot do both: it moves the two bars together. ",
    `Alone, the agents solve ${specialistsScore(facts.skills).right}. RAM+ also multiplies own parts by λ and solves ${totalAt(facts, usual(facts)).right}. `,
    ...rivals(facts),
  ],
  chart: (facts) => partsChart(facts, [averaged(facts), added(facts), ["RAM", facts.settings]]),
};

/** @type {Scene[]} */
export const SCENES = [changed, dilutes, overshoots, keeps, epsilonScene, roundingScene, limitsScene];
