// The scene of epsilon: how few weights carry a skill, against as many random ones.
import { count, epsilon } from "../numbers.js";
import { brief } from "../canvas/model/words.js";
import { breakingPoint, changedBy, figureText, learned } from "./figures.js";
import { thriftiest } from "./record.js";
import { usual } from "./states.js";

const FEW = [["About half of them", 0.5], ["A tenth", 0.1], ["A hundredth", 0.01], ["A thousandth", 0.001]];

const nearest = (share) => {
  const far = ([, part]) => Math.abs(Math.log(part) - Math.log(share));
  return FEW.reduce((best, one, i) => (far(one) < far(FEW[best]) ? i : best), 0);
};

const known = new WeakMap(); // skills -> where the scene's skill breaks

// Asked in every frame: worked out once.
const broken = (facts) => {
  if (!known.has(facts.skills)) {
    const { domain } = thriftiest(facts);
    const skill = learned(facts.skills).find(({ name }) => name === domain);
    known.set(facts.skills, breakingPoint(facts.profile, usual(facts), [skill]));
  }
  return known.get(facts.skills);
};

export const epsilonScene = {
  id: "epsilon",
  shows: "weights answers",
  title: "How few weights carry a skill?",
  set: "independent",
  needs: ["skills", "few_weights"],
  controls: ["#epsilon-line", "#dial-epsilon"],
  start: usual,
  target: (facts) => usual(facts, { point: broken(facts).first.point }),
  ask: (facts) => {
    const { name, domain, changed } = thriftiest(facts);
    return [
      "Other agents, without a common style. ", [name], ` changed ${count(changed)} weights. Say it keeps only its `, ["largest"], ` changes. How few of them still carry its skill, ${domain}?`,
    ];
  },
  guess: FEW.map(([text]) => text),
  task: (facts) => [
    "The larger ε, the fewer changes count. Drag it to the ", ["right"], " until ", [thriftiest(facts).domain], " breaks in the merge.",
  ],
  isReached: (facts) => facts.settings.point >= broken(facts).first.point,
  measured: (facts) => {
    const { fewest, changed } = thriftiest(facts);
    const share = fewest.k / changed;
    return { value: nearest(share), text: `${count(fewest.k)} of ${count(changed)} (${brief(share)})` };
  },
  reveal: (facts) => {
    const { fewest, name } = thriftiest(facts);
    const { last, first } = broken(facts);
    const { epsilon_grid: grid, agents } = facts.profile;
    const at = ({ point }) =>
      `ε ${epsilon(grid[point])} (${count(changedBy(facts.profile, point, agents.indexOf(name)))} of its changes count)`;
    return [
      `${name} with its ${count(fewest.k)} largest changes: ${figureText(fewest.largest)}. `,
      ["As many at random"], ` of its changes: ${brief(fewest.random.share, 0)} (mean of ${fewest.random.draws} draws). `,
      `In the merge it held at ${at(last)} and no more at ${at(first)}.`,
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
      axis: `${domain} solved, by number of changes kept`,
      label: rows.map(({ k, largest, random }) => `${count(k)} changes: largest ${brief(largest.share, 0)}, random ${brief(random.share, 0)}`).join("; "),
    };
  },
};
