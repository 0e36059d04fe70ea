// Weights as a recipe has them, ramps by dragging layers, and what weights apply, as Python's previews tell it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { usualOf } from "../../assets/canvas/model/methods.js";
import { factorsOf, outcomeOf } from "../../assets/canvas/model/outcome.js";
import { areSameWeights, bent, expanded, ownWeights, scaled, straightened, weightsLine, weightsText } from "../../assets/canvas/model/weights.js";

const { sets, weighed } = JSON.parse(readFileSync(process.env.RAM_STUDIO_TABLES, "utf8"));

test("factors with weights are those of Python's previews, at every layer and epsilon", () => {
  assert.ok(weighed.length > 6);
  for (const { set, factors, ...changes } of weighed) {
    const { profile } = sets[set];
    const found = factorsOf(profile, outcomeOf(profile, { ...usualOf("ram+", profile), ...changes }));
    factors.forEach(([own, shared], t) => {
      for (const [a, b] of [[found.own[t], own], [found.shared[t], shared]]) {
        if (b === null) assert.equal(a, null);
        else assert.ok(Math.abs(a - b) < 1e-3, `${JSON.stringify(changes)} agent ${t}: ${a} instead of ${b}`);
      }
    });
  }
});

test("weights of a scale are the sum's factors times them", () => {
  const { profile } = sets.dense;
  const weights = Object.fromEntries(profile.agents.map((name) => [name, 0.5]));
  const half = factorsOf(profile, outcomeOf(profile, { ...usualOf("sum", profile), weights }));
  half.own.forEach((x, t) => assert.ok(x === null || Math.abs(x - profile.sum.own[t] / 2) < 1e-4));
  assert.ok(half.own.some((x) => x !== null));
});

test("weights of 1 are none, and their order tells nothing", () => {
  assert.equal(ownWeights({ a: 1, b: [1, 1] }), null);
  assert.ok(areSameWeights({ a: 0.5, b: 2, c: 1 }, { b: 2, a: 0.5 }));
  assert.ok(!areSameWeights({ a: 0.5 }, null));
});

test("one line says them for forms and links, another for people", () => {
  const weights = { b: [0.2, 0.8], a: 0.7, c: 1 };
  assert.equal(weightsLine(weights), "a=0.7, b=0.2 0.8");
  assert.equal(weightsText(weights), "a × 0.7, b × 0.2 to 0.8");
  assert.equal(weightsLine(null), "");
});

test("a dragged layer bends the ramp up to the next bends", () => {
  assert.deepEqual(bent(1, 5, 4, 0), [1, 0]);
  assert.deepEqual(bent(bent(1, 5, 0, 0.5), 5, 4, 1.5), [0.5, 1.5]);
  assert.deepEqual(bent(1, 5, 2, 0), [1, 0.5, 0, 0.5, 1]);
  assert.deepEqual(bent([1, 0.5, 0, 0.5, 1], 5, 4, 0), [1, 0.5, 0, 0, 0]);
  assert.equal(bent([1, 0], 5, 4, 1), 1);
  assert.equal(bent(1, 1, 0, 0.3), 0.3);
});

test("a layer that is reset leaves a line; the ends go back to 1", () => {
  assert.equal(straightened([1, 0.5, 0, 0.5, 1], 5, 2), 1);
  assert.deepEqual(straightened([0.2, 0.8], 3, 0), [1, 0.8]);
  assert.deepEqual(expanded([0, 1], 3), [0, 0.5, 1]);
});

test("an agent's slider scales its ramp", () => {
  assert.deepEqual(scaled([0.5, 1.5], 2), [1, 3]);
  assert.equal(scaled(0.3, 0.7), 0.7);
  assert.equal(scaled([0.5, 1.5], 0), 0);
});
