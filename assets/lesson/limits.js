// @ts-check
// The last scene and the last word, on agents that changed nearly everything: rounding removes the boost, and RAM cannot
// help.
import { brief, factor, fixed, percent } from "../numbers.js";
import { cardRetained } from "../canvas/model/rounding.js";
import { outcomeOf } from "../canvas/model/outcome.js";
import { listText } from "../canvas/model/words.js";
import { aloneShare, baseScore, exampleOf, figureText, specialistsScore, totalAt } from "./figures.js";
import { average, isShown, sumUp, usual } from "./states.js";

/** @typedef {import("./scenes.js").Facts} Facts @typedef {import("./scenes.js").Pieces} Pieces */

const GENTLE = 0.02; // r at which lambda is a few percent above 1
const MOST = 0.2; // r at the right end of the card's slider
const SMALL = 1.05; // lambda up to which the answer counts as reached

/** The effective value of each lambda; share: of its excess over 1. @param {Facts} facts */
const pushes = ({ profile, settings }) => outcomeOf(profile, settings).agents.flatMap(({ t, name, lambda }) => {
  const retained = lambda > 1 && cardRetained(profile, settings.point, t, lambda);
  return retained ? [{ ...retained, name, t, share: Math.max(0, retained.retained - 1) / (retained.requested - 1) }] : [];
});

/** The values of the agent that loses the most. @param {Facts} facts */
const swallowed = (facts) => {
  const found = pushes(facts);
  return found.length ? found.reduce((a, b) => (b.share < a.share ? b : a)) : null;
};

/** @param {Facts} facts */
const gentle = (facts) => usual(facts, { r: GENTLE });

/** The agent that loses the most of a small boost. @param {Facts} facts */
const ofGentle = (facts) => {
  const found = swallowed({ ...facts, settings: gentle(facts) });
  if (!found) throw new Error("Nothing is rounded away.");
  return found;
};

/** @type {import("./scenes.js").Scene} */
export const roundingScene = {
  id: "rounding",
  figure: "parts",
  title: "A small push",
  set: "dense",
  needs: ["rounding"],
  controls: [".ls-dial input"],
  dial: "r",
  most: MOST,
  start: usual,
  target: gentle,
  example: (facts) => exampleOf(facts.skills, ofGentle(facts).t),
  ask: (facts) => {
    const { name, dtype } = ofGentle(facts);
    return [
      "RAM+ multiplies own parts by λ. Let λ be a few percent above 1: a small push. The merge is stored in ",
      [dtype], ", whose numbers have gaps. What share of the push is left, for ", [name], "?",
    ];
  },
  guess: "share",
  task: () => ["Drag ", ["r"], ` to the left until every λ is between 1 and ${SMALL}.`],
  isReached: (facts) => {
    const { agents, isRam } = outcomeOf(facts.profile, facts.settings);
    return isRam && agents.every(({ lambda }) => (lambda ?? 1) <= SMALL) && swallowed(facts) !== null;
  },
  measured: (facts) => {
    const { share } = swallowed(facts) ?? ofGentle(facts);
    return { value: share, text: `${percent(share, 0)} (expected from the sizes of its changes)` };
  },
  reveal: (facts) => {
    const { name, requested, retained, dtype } = swallowed(facts) ?? ofGentle(facts);
    const strong = pushes({ ...facts, settings: usual(facts) }).find((push) => push.name === name);
    return [
      `${name}: λ ${factor(requested)} requested, `, [`${factor(retained)} stored`],
      `. Many of its changes are exactly one gap of ${dtype}; a slightly larger change rounds back to one gap. `,
      strong ? `A λ of ${factor(strong.requested)} leaves ${factor(strong.retained)}. ` : "",
      "Stochastic rounding or float32 keeps the push.",
    ];
  },
  chart: (facts) => {
    const { name } = swallowed(facts) ?? ofGentle(facts);
    return {
      kind: "bars",
      label: "Share of the push that is stored, by λ",
      rows: [facts.settings, ...[0.05, 0.1, 0.2].map((r) => usual(facts, { r }))].flatMap((settings, i) => {
        const push = pushes({ ...facts, settings }).find((one) => one.name === name);
        return push ? [{ name: `λ ${factor(push.requested)}`, share: Math.min(1, push.share), css: "unique", isStrong: i === 0 }] : [];
      }),
    };
  },
};

const SUM = ["It breaks here as well", "About the same as RAM+", "Far better than RAM+"];

/** @type {import("./scenes.js").Scene} */
export const limitsScene = {
  id: "limits",
  figure: "answers",
  isWithMethods: true,
  title: "A last word: when RAM cannot help",
  isLastWord: true,
  set: "dense",
  needs: ["skills"],
  controls: ["[data-choose=sum]"],
  start: usual,
  target: sumUp,
  ask: (facts) => {
    const { profile } = facts;
    const found = totalAt(facts, usual(facts));
    const shares = profile.agents.map((_, t) => aloneShare(profile, profile.default_index, t).ofAll);
    return [
      `The same skills, learned with another optimizer: each agent changed at least ${percent(Math.min(...shares), 0)} of all weights. RAM+ solves `,
      [`${found.right} of ${found.n}`], ". And the ", ["sum"], ", which broke the first agents?",
    ];
  },
  guess: SUM,
  task: () => ["Choose ", ["Sum"], "."],
  isReached: (facts) => isShown(facts, "sum"),
  measured: (facts) => {
    const [found, ram] = [totalAt(facts, facts.settings), totalAt(facts, usual(facts))];
    const value = found.high < ram.low ? 0 : found.low > ram.high ? 2 : 1;
    return { value, text: figureText(found) };
  },
  reveal: (facts) => {
    const { profile } = facts;
    const shares = profile.agents.map((_, t) => brief(aloneShare(profile, profile.default_index, t).byCount));
    /** @type {Pieces} */
    const pieces = [
      `Alone, the agents solve ${specialistsScore(facts.skills).right}. Only ${listText(shares)} of what each changed is unique: RAM averages the rest, whatever λ is. `,
    ];
    const cosines = profile.relations?.cosine;
    if (cosines) {
      const pairs = cosines.flatMap((row, i) => row.slice(i + 1));
      pieces.push(`Their changes point in different directions (cosine at most ${fixed(Math.max(...pairs), 2)}), so averaging dilutes and adding does not overshoot. `);
    }
    return [...pieces, ["Before merging, look at how much is unique and how similar the rest is."]];
  },
  chart: (facts) => ({
    kind: "bars",
    label: "Questions solved by each way of merging",
    rows: [
      { name: "base", figure: baseScore(facts.skills) },
      { name: "average", figure: totalAt(facts, average(facts)) },
      { name: "RAM+", figure: totalAt(facts, usual(facts)) },
      { name: "sum", figure: totalAt(facts, facts.settings), isStrong: true },
    ],
  }),
};
