// @ts-check
// The decoded table of measured settings: questions, answers, and which are right. Independent of the page.
//
// A shipped table has n questions a domain, domains, rows, prompts (the questions), gold, answers. A row: kind "source" or
// "merge", method, settings, k (grid point, null without epsilon), right: one character 0 or 1 per question, domain by
// domain, answers: an index into answers[prompt] each; factors {own, shared} of methods without a formula.
import { settingsOf } from "./methods.js";
import { ownWeights } from "./weights.js";

const Z = 1.96;

/** @typedef {{ id: number, name: string, set: any, right: Uint8Array, said: number[], score: number[], total: number, factors: any }} Row */

/** The Wilson 95 % interval of a share. @param {number} right @param {number} n */
export const wilson = (right, n) => {
  const p = right / n;
  const scale = 1 + Z ** 2 / n;
  const center = (p + Z ** 2 / 2 / n) / scale;
  const half = (Z * Math.sqrt((p * (1 - p)) / n + Z ** 2 / 4 / n ** 2)) / scale;
  return [Math.max(0, center - half), Math.min(1, center + half)];
};

/** Exact two-sided sign test: the probability of a split at least this uneven, of questions that differ. */
export const signTest = (lost, won) => {
  const m = lost + won;
  let [chance, ways] = [0, 1];
  for (let i = 0; i <= Math.min(lost, won); i += 1) {
    chance += ways * 0.5 ** m;
    ways = (ways * (m - i)) / (i + 1);
  }
  return m ? Math.min(1, 2 * chance) : 1;
};

/** Of questions from..to: numbers that only another row solves, that only this one solves, and the sign test. */
export const compareRows = (row, other, from = 0, to = row.right.length) => {
  let [lost, won] = [0, 0];
  for (let i = from; i < to; i += 1) {
    lost += Number(other.right[i] > row.right[i]);
    won += Number(row.right[i] > other.right[i]);
  }
  return { lost, won, p: signTest(lost, won) };
};

export const rightOf = (marks) => {
  let right = 0;
  for (const mark of marks) if (mark === "1") right += 1;
  return right;
};

const countOf = (table, row, domain) => rightOf(row.right.slice(domain * table.n, (domain + 1) * table.n));

/** The index of the agent that learned a domain, or null where none is significantly better than the base. */
const learner = (table, profile, domain) => {
  const row = (name) => table.rows.find((r) => r.kind === "source" && r.method === name);
  const scores = profile.agents.map((name) => (row(name) ? countOf(table, row(name), domain) : 0));
  const best = scores.indexOf(Math.max(...scores));
  return scores[best] / table.n > wilson(countOf(table, row("base"), domain), table.n)[1] ? best : null;
};

/** The part of a table for the canvas: the domains that an agent learned (all, if none was), each with its
 * questions ordered by the number of merges that solve them. items: the index of every question in the table. */
export const skillsOf = (table, profile) => {
  const { n } = table;
  const learned = table.domains.map((_, d) => learner(table, profile, d));
  const isKnown = learned.some((t) => t !== null);
  const shownDomains = table.domains.flatMap((_, d) => (!isKnown || learned[d] !== null ? [d] : []));
  const items = shownDomains.flatMap((d) => Array.from({ length: n }, (_, i) => d * n + i));
  const rows = table.rows.flatMap((row, id) => decoded(row, id, items, n, profile) ?? []);
  const sources = Object.fromEntries(rows.filter((r) => !r.set).map((r) => [r.name, r]));
  const merges = rows.filter((r) => r.set && !ownWeights(r.set.weights));
  const solvedBy = items.map((_, i) => merges.reduce((count, row) => count + row.right[i], 0));
  const { right } = sources.base;
  return {
    n, rows, sources, merges, items, weighted: rows.filter((r) => r.set && ownWeights(r.set.weights)), base: sources.base, asked: items.length,
    domains: shownDomains.map((d) => table.domains[d]),
    agents: shownDomains.map((d) => learned[d]),
    specialists: shownDomains.map((d) => (learned[d] === null ? null : sources[profile.agents[learned[d]]])),
    prompts: items.map((i) => table.prompts[i]), gold: items.map((i) => table.gold[i]), answers: items.map((i) => table.answers[i]),
    order: shownDomains.map((_, d) => Array.from({ length: n }, (__, i) => d * n + i)
      .sort((a, b) => right[b] - right[a] || solvedBy[b] - solvedBy[a] || a - b)),
  };
};

/** @returns {Row | null} */
const decoded = (row, id, items, n, profile) => {
  const set = row.kind === "source" ? null : settingsOf(row.method, row.settings, row.k, profile);
  if (!set && row.kind !== "source") return null;
  const right = Uint8Array.from(items, (i) => Number(row.right[i]));
  const score = Array.from({ length: items.length / n }, (_, d) => right.subarray(d * n, (d + 1) * n).reduce((a, b) => a + b, 0));
  return {
    id, name: row.method, set, right, said: items.map((i) => row.answers[i]), score,
    total: score.reduce((a, b) => a + b, 0), factors: row.factors ?? null,
  };
};

export const answerOf = (skills, row, i) => skills.answers[i][row.said[i]];

// The key of a row: its kind, method and settings, with k for epsilon.
const identityOf = ({ kind, method, settings, k }) =>
  JSON.stringify([kind, method, k, Object.entries(k === null ? settings : { ...settings, epsilon: null }).sort()]);

/** A table with the merges of another one on the same questions: newer merges come first and replace those with the
 * same settings, so that none is counted twice. */
export const withRows = (table, more) => {
  const answers = table.answers.map((texts) => [...texts]);
  const place = (i, text) => {
    const known = answers[i].indexOf(text);
    return known < 0 ? answers[i].push(text) - 1 : known;
  };
  const rows = more.rows.map((row) => ({ ...row, answers: row.answers.map((a, i) => place(i, more.answers[i][a])) }));
  const since = new Set(rows.map(identityOf));
  return { ...table, answers, rows: [...rows, ...table.rows.filter((row) => !since.has(identityOf(row)))] };
};
