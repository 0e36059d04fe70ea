// What a setting applies of each agent's own and shared part, by hand-made sums.
import assert from "node:assert/strict";
import { test } from "node:test";

import { factorsOf, outcomeOf } from "../../assets/canvas/model/outcome.js";

// Two agents at epsilon 0 and 1: the first changed two weights alone and shares one, the second only that one.
const profile = {
  agents: ["first", "second"], epsilon_grid: [0, 1], total: 10, default_index: 0, defaults: { r: 0.5, alpha: 2, rule: "ram+" },
  overlap: [[[2, 1], [0, 1]], [[1, 0], [0, 0]]],
  parts: { own: [[[0, 1, 0], null], [[0, 0.6, 0], null]], shared: [[[0.75, 0, 0], [0.5, 0, 0]], [[0, 0.25, 0], [0, 0.25, 0]]] },
  sum: { own: [1, null], shared: [1.5, 1] },
};
const usual = { point: 0, r: 0.5, alpha: 2, scale: 1, density: 0.2, drop_rate: 0.5 };
const factors = (settings, near) => {
  const found = factorsOf(profile, outcomeOf(profile, { ...usual, ...settings }), near);
  return found && [found.own, found.shared, found.isExact];
};

test("of RAM's rules the factors are a + sum of lambda times b", () => {
  assert.deepEqual(factors({ method: "ram" }), [[1, null], [0.75, 0.5], true]);
  // rho of the first is 1 / 2: lambda 1.25; the second has no unique weight: rho is infinite.
  assert.deepEqual(factors({ method: "ram+" }), [[1.25, null], [0.75, 0.5], true]);
  assert.deepEqual(factors({ method: "ram", point: 1 }), [[0.6, null], [0.25, 0.25], true]);
});

test("a scale applies both parts of the sum alike", () => {
  assert.deepEqual(factors({ method: "task-arithmetic", scale: 0.5 }), [[0.5, null], [0.75, 0.5], true]);
});

test("methods without a formula have what was measured of their row, or nothing", () => {
  const row = { factors: { own: [0.8, null], shared: [0.6, 0.5] } };
  assert.deepEqual(factors({ method: "ties" }, { row, isExact: false }), [[0.8, null], [0.6, 0.5], false]);
  assert.equal(factors({ method: "ties" }, { row: { factors: null }, isExact: true }), null);
  assert.equal(factorsOf({ ...profile, parts: undefined }, outcomeOf(profile, { ...usual, method: "ram" })), null);
});

test("means leave out agents that have no such part", () => {
  const found = factorsOf(profile, outcomeOf(profile, { ...usual, method: "ram+" }));
  assert.deepEqual([found.ownMean, found.sharedMean], [1.25, 0.625]);
});

test("a part that no agent has is applied no number of times", () => {
  const alone = { ...profile, agents: ["only"], overlap: [[[3]], [[1]]], parts: { own: [[[0, 1]], [[0, 0.6]]], shared: [[null], [null]] } };
  const found = factorsOf(alone, outcomeOf(alone, { ...usual, method: "ram+" }));
  assert.deepEqual([found.ownMean, found.sharedMean], [1, null]);
});
