// Which measured row a setting shows: only the same weights count as measured, and nothing lies between two rows.
import assert from "node:assert/strict";
import { test } from "node:test";

import { skillsOf, withRows } from "../../assets/canvas/model/data.js";
import { axisOf } from "../../assets/canvas/model/histogram.js";
import { usualOf } from "../../assets/canvas/model/methods.js";
import { along, bestOf, exactRow, nearestRow, startOf } from "../../assets/canvas/model/nearest.js";

const row = (kind, method, right, k = null, settings = {}) => ({ kind, method, settings, k, right, answers: Array(12).fill(0) });

// Two skills of four prompts each, and one that nobody learned.
const TABLE = {
  n: 4, domains: ["first", "second", "known"], prompts: Array(12).fill("?"), gold: Array(12).fill("!"), answers: Array.from({ length: 12 }, () => ["!"]),
  rows: [
    row("source", "base", "000000001111"), row("source", "one", "111100001111"), row("source", "two", "000011111111"),
    row("merge", "ram+", "111111101111", 1, { r: 0.3, alpha: 1.5 }), row("merge", "ram", "000011111111", 2),
    row("merge", "task-arithmetic", "101010101111", null, { scale: null }), row("merge", "task-arithmetic", "111100001111", null, { scale: 0.7 }),
    row("merge", "ties", "111111111111", null, { density: 0.5, scale: 1 }), row("merge", "ties", "100000001111", null, { density: 0.1, scale: 1 }),
    row("merge", "dare-ta", "111111111111", null, { drop_rate: 0.1, scope: "layer" }),
    row("merge", "wudi", "111111111111"), row("merge", "wudi", "110000001111", null, { solver: "closed" }),
  ],
};

const made = () => {
  const profile = {
    agents: ["one", "two"], epsilon_grid: [0, 1e-5, 1e-3, 1], total: 100, default_index: 1, defaults: { r: 0.1, alpha: 2, rule: "ram+" },
    overlap: [[[9, 3], [6, 3]], [[9, 3], [6, 3]], [[4, 1], [2, 1]], [[0, 0], [0, 0]]],
  };
  profile.axis = axisOf(profile);
  profile.skills = skillsOf(TABLE, profile);
  return profile;
};

const profile = made();
const at = (name, changes = {}) => ({ ...usualOf(name, profile), ...changes });
const right = (settings) => exactRow(profile, settings)?.right.join("");

test("only domains that an agent learned are skills, with the agent that learned them", () => {
  const { domains, agents, asked, specialists } = profile.skills;
  assert.deepEqual([domains, agents, asked], [["first", "second"], [0, 1], 8]);
  assert.deepEqual(specialists.map((own) => own.name), ["one", "two"]);
});

test("settings with the same counts and lambdas are the same weights", () => {
  for (const point of [0, 1]) assert.equal(right(at("ram+", { point, r: 0.3, alpha: 1.5 })), "11111110");
  // Above the agents' rho another alpha is the same lambda.
  assert.equal(right(at("ram+", { r: 0.3, alpha: 9 })), "11111110");
  assert.equal(right(at("ram+", { r: 0.31, alpha: 1.5 })), undefined);
  assert.equal(nearestRow(profile, at("ram+", { r: 0.31 })).isExact, false);
});

test("a merge with weights shows its own row, or none", () => {
  const weights = { two: 0.5 };
  const more = [row("merge", "ram", "100000001111", 2, { weights }), row("merge", "ties", "110000001111", null, { density: 0.5, scale: 1, weights })];
  const own = { ...made(), skills: skillsOf({ ...TABLE, rows: [...TABLE.rows, ...more] }, profile) };
  const solved = (settings) => exactRow(own, settings)?.total;
  assert.deepEqual([solved(at("ram", { point: 2, weights })), solved(at("ram", { point: 2 }))], [1, 4]);
  assert.deepEqual([solved(at("ties", { density: 0.5, weights })), solved(at("ties", { density: 0.5 }))], [2, 8]);
  for (const settings of [at("ram", { point: 2, weights: { two: 0.6 } }), at("ties", { density: 0.4, weights })]) {
    assert.equal(nearestRow(own, settings), null);
  }
  assert.ok(!nearestRow(own, at("ram", { point: 1 })).row.set.weights);
});

test("where nothing counts as changed the merge is the base", () => {
  assert.equal(exactRow(profile, at("ram+", { point: 3 })), profile.skills.base);
  assert.equal(exactRow(profile, at("average", { scale: 0 })), profile.skills.base);
});

test("a scale left out is one over the agents, and has the name average", () => {
  assert.equal(right(at("average")), "10101010");
  assert.equal(right(at("sum")), undefined);
  assert.equal(nearestRow(profile, at("sum")).row.set.scale, 0.7);
});

test("rows with settings that the stage cannot show are not taken for others", () => {
  assert.equal(bestOf(profile, "dare-ta"), null);
  assert.equal(right(at("wudi")), "11000000");
});

test("rivals begin at their best measured setting, and a dial's steps are what was measured", () => {
  assert.equal(startOf(profile, "ties").density, 0.5);
  assert.deepEqual(along(profile, startOf(profile, "ties"), "density").map(({ value, row: { total } }) => [value, total]), [[0.1, 1], [0.5, 8]]);
});

test("rows measured since come first, with their answers among the known ones", () => {
  const more = { ...TABLE, rows: [row("merge", "ram", "111111111111", 1)], answers: Array.from({ length: 12 }, () => ["new"]) };
  const table = withRows(TABLE, more);
  assert.deepEqual([table.rows.length, table.rows[0].method, table.answers[0]], [TABLE.rows.length + 1, "ram", ["!", "new"]]);
  assert.equal(table.rows[0].answers[0], 1);
});

test("a row measured since replaces the one of the same settings", () => {
  const since = [row("merge", "ties", "100000000000", null, { scale: 1, density: 0.5 }), row("merge", "ram", "100000000000", 2, { epsilon: 1e-3 })];
  const table = withRows(TABLE, { ...TABLE, rows: since });
  assert.equal(table.rows.length, TABLE.rows.length);
  const own = { ...made(), skills: skillsOf(table, profile) };
  assert.deepEqual([bestOf(own, "ties").total, bestOf(own, "ram").total], [1, 1]);
});
