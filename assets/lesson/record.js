// What the record of a shipped set tells beyond its table: curves of the mechanism, few weights against
// random ones, rivals whose settings were tuned. Every reader returns null or nothing where a record lacks it.
import { brief } from "../canvas/model/words.js";
import { sum } from "../numbers.js";
import { learned, recorded } from "./figures.js";

const MISSING = {
  skills: "measured settings of these agents",
  few_weights: "scores of agents with only some of their changes",
  rounding: "sizes of changes in steps of the number format",
};

// What a scene needs and these facts lack, in words.
export const missingOf = ({ needs }, { profile, skills, record }) => {
  const found = { skills, few_weights: record?.few_weights, rounding: profile.rounding };
  return needs.filter((need) => !found[need]).map((need) => MISSING[need]);
};

const ROUND = 1e-9; // the interval of all right ends at 1 but for that

const times = (scale) => `×${Number(scale.toFixed(2))}`;

// Points of a curve: all prompts of the learned skills at each scale.
const along = ({ skills, record }, name) => {
  const { n, [name]: rows } = record?.mechanism || {};
  if (!rows?.length) return null;
  const prompts = n * learned(skills).length;
  const [from, to] = [rows[0].scale, rows.at(-1).scale];
  return rows.map(({ scale, average }) => ({
    at: (scale - from) / (to - from), scale, figure: recorded(average, prompts),
  }));
};

const curve = (points, name, axis) => points && {
  kind: "curve",
  series: [{ name, css: "ink", points }],
  ticks: points.map(({ at, scale }) => ({ at, text: times(scale) })),
  axis,
  label: `${axis}: ${points.map(({ scale, figure }) => `${times(scale)} ${brief(figure.share, 0)}`).join(", ")}`,
};

export const dilution = (facts) =>
  curve(along(facts, "dilution"), "solved", "Solved when only what one agent alone changed is scaled");

export const overshoot = (facts) =>
  curve(along(facts, "overshoot"), "solved", "Solved when only what the agents share is scaled");

// The first steps of a curve in words: "×1 98 %, ×0.7 97 %".
export const stepsText = (facts, name) => {
  const points = along(facts, name);
  return points && points.map(({ scale, figure }) => `${times(scale)} ${brief(figure.share, 0)}`).join(", ");
};

// What methods reach whose settings were chosen on other prompts, as pieces of text.
export const rivals = ({ record }) => {
  const found = record?.seeds?.[record.seed];
  const names = Object.keys(found?.chosen || {}).filter((name) => found.rows[name]);
  if (!names.length) return [];
  const best = names.reduce((a, b) => (found.rows[b].average > found.rows[a].average ? b : a));
  const { n } = record.evaluation;
  return [
    `On ${n} prompts a skill: RAM+ ${brief(found.rows["RAM+"].average, 0)}, the best of ${names.length} tuned rivals ${brief(found.rows[best].average, 0)} (${best}). `,
    "The training of these agents was chosen to show the difference.",
  ];
};

// Of each agent, scores with only its k largest changes and with k random ones of them: the figures of the
// agent that needs the fewest, { name, domain, base, whole, changed, rows, fewest }, or null.
export const thriftiest = ({ record }) => {
  const { n, agents } = record?.few_weights || {};
  const found = Object.entries(agents || {}).flatMap(([name, own]) => {
    const rows = own.rows.map((row) => ({ k: row.k, largest: recorded(row.largest, n), random: rangeOf(row.random, n) }));
    const fewest = carrying(rows, own.whole);
    return fewest ? [{ ...own, name, n, rows, fewest }] : [];
  });
  return found.length ? found.reduce((a, b) => (b.fewest.k / b.changed < a.fewest.k / a.changed ? b : a)) : null;
};

// Draws of random weights: their mean, and from the lowest to the highest.
const rangeOf = (shares, n) => {
  const share = sum(shares) / shares.length;
  return { right: Math.round(share * n), n, share, low: Math.min(...shares), high: Math.max(...shares), draws: shares.length };
};

// The fewest largest changes with which, and with all more, the score is the whole agent's within its interval.
const carrying = (rows, whole) => {
  const few = [...rows].sort((a, b) => b.k - a.k);
  const broken = few.findIndex(({ largest }) => largest.high < whole - ROUND);
  return few[broken < 0 ? few.length - 1 : broken - 1] || null;
};
