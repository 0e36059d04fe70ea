// Which agents lose their rescaling to the number format that a merge is stored in.
import assert from "node:assert/strict";
import { test } from "node:test";

import { lossesOf, retainedToNearest, roundingSentence } from "../../assets/canvas/model/rounding.js";

// Updates of one unit in the last place round back to 1; those of ten hold 1.2 as it is.
const curve = (delta) => ({ cells: [[delta, 1, 0]], loose: 0, spread: 0, noise: 0 });
const profile = {
  agents: ["small", "large"], dtypes: { base: "BF16" },
  rounding: {
    dtypes: ["F32", "BF16"], precision: [24, 8],
    agents: [1, 10].map((delta) => [{ points: [0], curves: [curve(1000)] }, { points: [0], curves: [curve(delta)] }]),
  },
};
const losses = (...lambdas) => lossesOf(profile, 0, lambdas.map((lambda) => ({ lambda })));

test("updates of one unit in the last place lose lambda", () => {
  const [lost, ...others] = losses(1.2, 1.2);
  assert.deepEqual([lost.name, lost.requested, lost.retained, lost.dtype], ["small", 1.2, 1, "bfloat16"]);
  assert.deepEqual(others, []);
});

test("nothing is lost where nothing is rescaled or known", () => {
  assert.deepEqual(losses(1, 1), []);
  assert.deepEqual(losses(null, null), []);
  assert.deepEqual(lossesOf({ ...profile, rounding: null }, 0, [{ lambda: 1.2 }]), []);
});

test("one sentence says who loses lambda, or that nobody does", () => {
  const said = (own, ...lambdas) => roundingSentence(own, 0, lambdas.map((lambda) => ({ lambda })));
  assert.match(said(profile, 1.2, 1.2), /^Rounding to nearest in bfloat16 takes .*: small 1\.000 instead of 1\.200\./);
  assert.match(said(profile, 1, 1.2), /^Stored in bfloat16 to nearest, every agent is expected to retain/);
  assert.match(said(profile, 1, 1), /^Nothing is rescaled/);
  assert.match(said(profile, 1.0004, 1), /: small 1\.0000 instead of 1\.0004\./); // three digits are the same
  // Without unique weights lambda is 1.2 and scales nothing.
  const none = [null, null].map(() => ({ points: [0], curves: [null] }));
  const rounding = { ...profile.rounding, agents: profile.rounding.agents.map((a) => [a[0], none[0]]) };
  assert.match(said({ ...profile, rounding }, 1.2, 1.2), /^Nothing is rescaled/);
});

test("a method without a lambda is not said to lose nothing", () => {
  const told = roundingSentence(profile, 0, [{ lambda: null }, { lambda: null }]);
  assert.equal(told, "These settings have no λ. The merge measures what it retains after rounding.");
});

test("without a unique element nothing is kept or lost", () => {
  assert.equal(retainedToNearest(null, 1.1, 8), null);
});
