// What a setting does to each agent, by hand-made sums.
import assert from "node:assert/strict";
import { test } from "node:test";

import { retainedCurves, outcomeOf } from "../../assets/canvas/outcome.js";

// Two agents at epsilon 0 and 1: the first changed two elements alone (one of them by at most 1), the second none.
const profile = {
  agents: ["trained", "unchanged"], epsilon_grid: [0, 1], total: 10,
  overlap: [[[2, 0], [0, 0]], [[1, 0], [0, 0]]],
  energy: [[[1, 0], [0, 0]], [[0.8, 0], [0, 0]]],
  cross: [[[0, 0], [0, 0]], [[0, 0], [0, 0]]],
  meet: [[0, 5, 0], [0, 4, 0]],
  norm2: [5, 0], others_all: [0, 0],
};

for (const method of ["ram", "ram+", "task-arithmetic-mean", "task-arithmetic-sum"]) {
  test(`an agent that changed nothing has null for what is retained of it by ${method}`, () => {
    const settings = { point: 1, r: 0.1, alpha: 2, method };
    const { agents: [trained, unchanged], hasRetained } = outcomeOf(profile, settings);
    assert.equal(hasRetained, true);
    assert.deepEqual([unchanged.retained, unchanged.others, unchanged.along], [null, null, null]);
    assert.equal(trained.retained.sum, { "ram": 0.8, "ram+": 0.8, "task-arithmetic-mean": 0.5, "task-arithmetic-sum": 1 }[method]);
    const [curve, none] = retainedCurves(profile, settings);
    assert.equal(curve[1], trained.retained.sum);
    assert.deepEqual(none, [null, null]);
  });
}

test("TIES has null for an agent that changed nothing, which its merge did not measure", () => {
  const found = { retained: 0.5, interference: 2, unique: 0.5, boost: 0, shared: 0, lost_to_averaging: 0, lost_to_epsilon: 0.5 };
  const { agents } = outcomeOf({ ...profile, ties: [found, null] }, { point: 0, r: 0.1, alpha: 2, method: "ties" });
  assert.deepEqual(agents.map((a) => [a.retained && a.retained.sum, a.others]), [[0.5, 2], [null, null]]);
});
