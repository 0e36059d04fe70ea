// @ts-check
// The parts of a shipped set's record beyond its table: steps of the mechanism, few weights against random ones, rivals
// with tuned settings. Every reader returns null or nothing where a record lacks them.
import { percent, sum } from "../numbers.js";
import { recorded } from "./figures.js";

/** @typedef {import("./scenes.js").Facts} Facts */

const MISSING = {
  skills: "measured settings of these agents",
  few_weights: "scores of agents with only some of their changes",
  rounding: "sizes of changes in steps of the number format",
};

/** The facts that a scene needs and that are missing, in words.
 * @param {{ needs: string[] }} scene @param {{ profile: any, skills: any, record: any }} facts @returns {string[]} */
export const missingOf = ({ needs }, { profile, skills, record }) => {
  const found = { skills, few_weights: record?.few_weights, rounding: profile.rounding };
  return needs.filter((need) => !found[need]).map((need) => MISSING[need]);
};

const ROUND = 1e-9; // tolerance: the interval for all right ends at 1 only up to rounding

/** Scores with only one part scaled, "overshoot" or "dilution": "×1 98 %, ×0.7 97 %"; or "".
 * @param {{ record: any }} facts @param {string} name @returns {string} */
export const stepsText = ({ record }, name) => {
  /** @type {{ scale: number, average: number }[]} */
  const rows = record?.mechanism?.[name] ?? [];
  return rows.map(({ scale, average }) => `×${Number(scale.toFixed(2))} ${percent(average, 0)}`).join(", ");
};

/** Scores of RAM and of methods with settings tuned on other questions, as parts of a text.
 * @param {Facts} facts @returns {string[]} */
export const rivals = ({ record }) => {
  const found = record?.seeds?.[record.seed];
  const names = Object.keys(found?.chosen || {}).filter((name) => found.rows[name]);
  if (!names.length) return [];
  const best = names.reduce((a, b) => (found.rows[b].average > found.rows[a].average ? b : a));
  const { n } = record.evaluation;
  const solved = (name) => percent(found.rows[name].average, 0);
  return [
    `On ${n} other questions per skill: RAM ${solved("RAM")}, the best of ${names.length} tuned rivals ${solved(best)} (${best}). `,
    "The training of these agents was chosen to show the effect.",
  ];
};

/** Scores of each agent with only its k largest changes and with k random ones: those of the agent that needs the fewest, { name, domain, base, whole, changed, rows, fewest }, or null.
 * @param {{ record: any }} facts @returns {any} */
export const thriftiest = ({ record }) => {
  const { n, agents } = record?.few_weights || {};
  const found = Object.entries(agents || {}).flatMap(([name, own]) => {
    const rows = own.rows.map((row) => ({ k: row.k, largest: recorded(row.largest, n), random: rangeOf(row.random, n) }));
    const fewest = carrying(rows, own.whole);
    return fewest ? [{ ...own, name, n, rows, fewest }] : [];
  });
  return found.length ? found.reduce((a, b) => (b.fewest.k / b.changed < a.fewest.k / a.changed ? b : a)) : null;
};

/** Draws of random weights: their mean, lowest and highest. @param {number[]} shares @param {number} n */
const rangeOf = (shares, n) => {
  const share = sum(shares) / shares.length;
  return { right: Math.round(share * n), n, share, low: Math.min(...shares), high: Math.max(...shares), draws: shares.length };
};

// The fewest largest changes from which on the whole agent's score is inside the interval.
const carrying = (rows, whole) => {
  const few = [...rows].sort((a, b) => b.k - a.k);
  const broken = few.findIndex(({ largest }) => largest.high < whole - ROUND);
  return few[broken < 0 ? few.length - 1 : broken - 1] || null;
};
