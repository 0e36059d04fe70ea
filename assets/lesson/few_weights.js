// @ts-check
// The scene of epsilon: how few weights carry a skill in the merge, with equally few random ones as a control.
import { brief, count, epsilon, percent } from "../numbers.js";
import { breakingPoint, changedBy, exampleOf, learned } from "./figures.js";
import { thriftiest } from "./record.js";
import { usual } from "./states.js";

/** @typedef {import("./scenes.js").Facts} Facts */

/** @type {[string, number][]} */
const FEW = [["About half of them", 0.5], ["A tenth", 0.1], ["A hundredth", 0.01], ["A thousandth", 0.001]];

const nearest = (share) => {
  const far = ([, part]) => Math.abs(Math.log(part) - Math.log(share));
  return FEW.reduce((best, one, i) => (far(one) < far(FEW[best]) ? i : best), 0);
};

const cache = new WeakMap(); // skills -> the point at which the scene's skill breaks

/** The scene's skill and agent, and the point at which its merge breaks; needed in every frame, computed once.
 * @param {Facts} facts */
const broken = (facts) => {
  if (!cache.has(facts.skills)) {
    const { domain } = thriftiest(facts);
    const skill = learned(facts.skills).find(({ name }) => name === domain);
    const found = skill && breakingPoint(facts.profile, usual(facts), [skill]);
    if (!skill || !found) throw new Error(`No measured epsilon breaks ${domain}.`);
    const of = (step) => changedBy(facts.profile, step.point, skill.agent);
    cache.set(facts.skills, { ...found, skill, enough: of(found.last), tooFew: of(found.first), changed: of({ point: facts.profile.default_index }) });
  }
  return cache.get(facts.skills);
};

/** @type {import("./scenes.js").Scene} */
export const epsilonScene = {
  id: "epsilon",
  figure: "curve",
  title: "How few weights carry a skill?",
  set: "independent",
  needs: ["skills", "few_weights"],
  controls: ["#curve-plot", "#dial-epsilon"],
  start: usual,
  target: (facts) => usual(facts, { point: broken(facts).first.point }),
  example: (facts) => exampleOf(facts.skills, broken(facts).skill.agent),
  ask: (facts) => {
    const { skill, changed } = broken(facts);
    return [
      "These agents have no common style. ", [facts.profile.agents[skill.agent]], ` changed ${count(changed)} weights. `,
      "The larger ε is, the fewer changes count: only the ", ["largest"], ` do. How few are enough for ${skill.name} in the merge?`,
    ];
  },
  guess: FEW.map(([text]) => text),
  task: (facts) => ["Drag the curve's handle to the ", ["right"], " until ", [broken(facts).skill.name], " breaks."],
  isReached: (facts) => facts.settings.point >= broken(facts).first.point,
  measured: (facts) => {
    const { enough, changed } = broken(facts);
    return { value: nearest(enough / changed), text: `${count(enough)} of ${count(changed)} (${brief(enough / changed)})` };
  },
  reveal: (facts) => {
    const { last, first, skill, enough, tooFew } = broken(facts);
    const { fewest, name } = thriftiest(facts);
    const at = ({ point, row }) => `ε ${epsilon(facts.profile.epsilon_grid[point])}: ${row.score[skill.domain]} of ${facts.skills.n}`;
    return [
      `With ${count(enough)} changes (${at(last)}) ${skill.name} holds, with ${count(tooFew)} (${at(first)}) it breaks. `,
      ["Control"], `, ${name} alone: its ${count(fewest.k)} largest changes solve ${percent(fewest.largest.share, 0)}, `,
      [`${count(fewest.k)} at random`], ` ${percent(fewest.random.share, 0)} (mean of ${fewest.random.draws} draws).`,
    ];
  },
  chart: (facts) => {
    const { rows, changed, domain } = thriftiest(facts);
    const from = Math.log10(rows[0].k);
    const at = (k) => (Math.log10(k) - from) / (Math.log10(changed) - from);
    const points = (key) => rows.map((row) => ({ at: at(row.k), figure: row[key] }));
    return {
      kind: "curve",
      series: [
        { name: "largest changes", css: "ink", points: points("largest") },
        { name: "random ones", css: "shared", points: points("random") },
      ],
      ticks: [rows[0].k, rows[Math.floor(rows.length / 2)].k, changed].map((k) => ({ at: at(k), text: count(k) })),
      axis: `${domain} solved by the agent alone, by number of changes`,
      label: rows.map(({ k, largest, random }) => `${count(k)} changes: largest ${percent(largest.share, 0)}, random ${percent(random.share, 0)}`).join("; "),
    };
  },
};
