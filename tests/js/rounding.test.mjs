// Which agents lose their rescaling to the number format that a merge is stored in.
import assert from "node:assert/strict";
import { test } from "node:test";

import { lossesOf } from "../../assets/canvas/model/rounding.js";

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
  assert.deepEqual([lost.name, lost.asked, lost.retained, lost.dtype], ["small", 1.2, 1, "bfloat16"]);
  assert.deepEqual(others, []);
});

test("nothing is lost where nothing is rescaled or known", () => {
  assert.deepEqual(losses(1, 1), []);
  assert.deepEqual(losses(null, null), []);
  assert.deepEqual(lossesOf({ ...profile, rounding: null }, 0, [{ lambda: 1.2 }]), []);
});
