// The scenes of the lesson as data, in their order: what is asked, what can be said, what to do on the
// canvas, and what is told then. Every figure in a text comes from figures.js.
//
// A scene has: id and title; isLastWord, of what comes after the last counted scene; set, the models it is
// about; needs, what must be known of them; start(facts) and target(facts), settings to begin with and one
// that answers; controls, which lead there; ask, task and reveal (facts) -> pieces, a piece being text or
// [strong text]; shows: the panels of the stage that it needs; dial: the one in hand, if not epsilon; guess, what can be said: "share" for a share of something, or a list of texts;
// measured(facts) -> { value, text }, value a share or an index into the list; isReached(facts);
// chart(facts), of chart.js, or null. facts: { profile, skills, record, settings }, the last as they are on
// the canvas, or as they were when the answer was reached.
import { epsilon } from "../numbers.js";
import { brief, listText } from "../canvas/model/words.js";
import {
  aloneShare, baseScore, byLearning, figureText, leastAlone, learned, metShare, rowAt,
  scoreAt, specialistScore, specialistsScore, totalAt,
} from "./figures.js";
import { epsilonScene } from "./few_weights.js";
import { limitsScene, roundingScene } from "./limits.js";
import { dilution, overshoot, rivals, stepsText } from "./record.js";
import { asBase, average, isShown, sumUp, usual } from "./states.js";

const share = (found) => ({ value: found.share, text: figureText(found) });

// A curve of the mechanism in words, where it was measured.
const steps = (facts, name, lead) => {
  const text = stepsText(facts, name);
  return text ? [`${lead}: ${text}.`] : [];
};

const byMethod = (facts, entries) =>
  entries.map(([name, settings, isStrong]) => ({ name, figure: totalAt(facts, settings), isStrong }));

const bySkill = (facts, settings) => learned(facts.skills).map((skill) => ({
  name: skill.name, agent: skill.agent, figure: scoreAt(facts.skills, rowAt(facts.profile, settings), skill),
}));

const changed = {
  id: "changed",
  shows: "weights",
  title: "What training changed",
  set: "shared-style",
  needs: [],
  controls: ["#epsilon-line", "#dial-epsilon"],
  start: asBase,
  target: usual,
  ask: (facts) => {
    const { profile } = facts;
    const t = leastAlone(facts, profile.default_index);
    const { skilled, others } = byLearning(facts);
    return [
      `Copies of one model were trained by reinforcement learning, each for one skill: ${listText(skilled)}`,
      others.length ? `; and ${listText(others)}, for what the model could do already. ` : ". ",
      "Of the weights that changed in ", [profile.agents[t]], ", which share changed in ", ["no other copy"], "?",
    ];
  },
  guess: "share",
  task: ({ profile }) => [
    "The line is at the far right: no change counts. Drag it to the ", ["left"], ` until changes count from ${epsilon(profile.epsilon_grid[profile.default_index])} on.`,
  ],
  isReached: ({ profile, settings }) => settings.point <= profile.default_index,
  measured: (facts) => {
    const { profile, settings } = facts;
    const { byCount } = aloneShare(profile, settings.point, leastAlone(facts, profile.default_index));
    return { value: byCount, text: brief(byCount) };
  },
  reveal: (facts) => {
    const { profile, settings } = facts;
    const t = leastAlone(facts, profile.default_index);
    const { ofAll, byCount, bySize } = aloneShare(profile, settings.point, t);
    const pieces = [
      `${profile.agents[t]} changed ${brief(ofAll)} of all ${profile.total.toLocaleString("en").replaceAll(",", " ")} weights, and only `,
      [brief(byCount)], " of those alone. ",
      `In ${brief(metShare(profile, settings))} of all weights all ${profile.agents.length} meet (amber): they learned one shared style besides.`,
    ];
    if (bySize !== null) pieces.push(` By size instead of number, what ${profile.agents[t]} changed alone is ${brief(bySize)} of its change.`);
    return pieces;
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

const dilutes = {
  id: "average",
  shows: "methods answers parts",
  title: "Average them",
  set: "shared-style",
  needs: ["skills"],
  controls: ["[data-choose=average]"],
  start: asBase,
  target: average,
  ask: (facts) => {
    const alone = specialistsScore(facts.skills);
    return [
      `Alone, ${listText(byLearning(facts).skilled)} each solve their own skill: `, [`${alone.right} of ${alone.n}`],
      ` prompts in all. Now average the weights of all ${facts.profile.agents.length} agents. Which share of these prompts does the `, ["one"], " model solve?",
    ];
  },
  guess: "share",
  task: () => ["Choose ", ["Average"], "."],
  isReached: (facts) => isShown(facts, "average"),
  measured: (facts) => share(totalAt(facts, facts.settings)),
  reveal: (facts) => {
    const n = facts.profile.agents.length;
    const scores = learned(facts.skills).map((skill) => {
      const { right } = scoreAt(facts.skills, rowAt(facts.profile, facts.settings), skill);
      return `${skill.name} ${specialistScore(facts.skills, skill).right} → ${right}`;
    });
    return [
      ["Dilution."], ` Averaging divides every change by ${n}, also one that a single agent made. Of ${facts.skills.n} each: ${scores.join(", ")}. `,
      ...steps(facts, "dilution", "Only what is unique divided"),
    ];
  },
  chart: (facts) => dilution(facts) || { kind: "bars", label: "Prompts solved by the average", rows: bySkill(facts, facts.settings) },
};

const OVERSHOOT = [
  "As good as the agents alone", "Better than the average", "Worse than the average", "Worse than the base",
];

const overshoots = {
  id: "sum",
  shows: "methods answers parts",
  title: "Add them up",
  set: "shared-style",
  needs: ["skills"],
  controls: ["[data-choose=sum]"],
  start: average,
  target: sumUp,
  ask: (facts) => [
    "Dividing lost skills. So do ", ["not divide"], `: add everything that the ${facts.profile.agents.length} agents changed to the base. How does the model do?`,
  ],
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
    const found = totalAt(facts, facts.settings);
    return [
      ["Overshoot."], ` ${found.right} of ${found.n} prompts; the base, before any of this training, solves ${baseScore(facts.skills).right}. What all agents changed alike, their shared style, `,
      `is now added ${facts.profile.agents.length} times. `,
      ...steps(facts, "overshoot", "Only what is shared multiplied"),
    ];
  },
  chart: (facts) => overshoot(facts) || {
    kind: "bars", label: "Prompts solved by the sum and others",
    rows: byMethod(facts, [["base", asBase(facts)], ["average", average(facts)], ["sum", facts.settings, true]]),
  },
};

const keeps = {
  id: "ram",
  shows: "methods answers parts",
  title: "Keep and average",
  set: "shared-style",
  needs: ["skills"],
  controls: ["[data-choose='ram+']", "[data-choose=ram]"],
  start: sumUp,
  target: usual,
  ask: (facts) => {
    const { profile } = facts;
    const t = leastAlone(facts, profile.default_index);
    return [
      "RAM averages what several agents changed, and keeps what only ", ["one"], " changed as it is. For ",
      [profile.agents[t]], ` that was ${brief(aloneShare(profile, profile.default_index, t).byCount)} of its changed weights. Which share of all prompts is solved now?`,
    ];
  },
  guess: "share",
  task: () => ["Choose ", ["RAM"], " or ", ["RAM+"], ", which also multiplies what is unique by λ."],
  isReached: (facts) => ["ram", "ram+"].includes(facts.settings.method) && rowAt(facts.profile, facts.settings) !== null
    && facts.settings.point <= facts.profile.default_index,
  measured: (facts) => share(totalAt(facts, facts.settings)),
  reveal: (facts) => {
    const alone = specialistsScore(facts.skills);
    return [`Alone the agents solve ${alone.right}. The shared style counts once, and each skill stays whole. `, ...rivals(facts)];
  },
  chart: (facts) => ({
    kind: "bars",
    label: "Prompts solved by each way of merging",
    rows: byMethod(facts, [
      ["base", asBase(facts)], ["average", average(facts)], ["sum", sumUp(facts)],
      ["RAM", usual(facts, { method: "ram" }), facts.settings.method === "ram"],
      ["RAM+", usual(facts), facts.settings.method === "ram+"],
    ]),
  }),
};

export const SCENES = [changed, dilutes, overshoots, keeps, epsilonScene, roundingScene, limitsScene];
