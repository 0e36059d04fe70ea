// The verdict on every measured merge of the shipped sets: scores as in the table, damage as exact tests in Python
// find it (tests/test_javascript.py), and the cases of which the sentence matters.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { signTest, skillsOf } from "../../assets/canvas/model/data.js";
import { axisOf } from "../../assets/canvas/model/histogram.js";
import { usualOf } from "../../assets/canvas/model/methods.js";
import { nearestRow, paperRow, rivalRow } from "../../assets/canvas/model/nearest.js";
import { factorsOf, outcomeOf } from "../../assets/canvas/model/outcome.js";
import { verdictOf } from "../../assets/canvas/model/verdict.js";

const { sets, signs } = JSON.parse(readFileSync(process.env.RAM_STUDIO_TABLES, "utf8"));
const profiles = Object.fromEntries(Object.entries(sets).map(([name, { profile, table }]) => {
  profile.axis = axisOf(profile);
  profile.skills = skillsOf(table, profile);
  return [name, profile];
}));

const said = (name, settings, profile = profiles[name]) => {
  const result = outcomeOf(profile, settings);
  const near = nearestRow(profile, settings);
  return { ...verdictOf(profile, result, near, factorsOf(profile, result, near)), total: near?.row.total, isExact: near?.isExact };
};
const at = (name, method, changes = {}) => ({ ...usualOf(method, profiles[name]), ...changes });
const point = (name, epsilon) => profiles[name].epsilon_grid.reduce((best, e, k, grid) =>
  (Math.abs(Math.log(e / epsilon)) < Math.abs(Math.log(grid[best] / epsilon)) ? k : best), 1);

for (const [name, { expected }] of Object.entries(sets)) {
  test(`every measured merge of ${name} is judged as in Python (${expected.length} rows)`, () => {
    const { skills } = profiles[name];
    const byId = new Map(skills.merges.map((row) => [row.id, row]));
    assert.ok(expected.length > 500);
    for (const { id, total, score, key, damaged } of expected) {
      const row = byId.get(id);
      if (!row) continue; // of settings that the stage does not show
      const result = outcomeOf(profiles[name], row.set);
      const found = verdictOf(profiles[name], result, { row, isExact: true }, null);
      if (found.key === "nothing") continue;
      assert.deepEqual({ id, total: row.total, score: row.score, key: found.key, damaged: found.damaged }, { id, total, score, key, damaged });
    }
  });
}

test("the sign test is exact", () => {
  for (const [lost, won, p] of signs) assert.ok(Math.abs(signTest(lost, won) - p) < 1e-12, `${lost} ${won}`);
});

test("RAM+ at the paper's setting damages nothing, and never says that all hold", () => {
  const { key, lead, note, total } = said("shared-style", at("shared-style", "ram+"));
  assert.deepEqual([key, lead], ["good", "No skill is shown to be damaged."]);
  assert.match(note, /a loss below 7 cannot show/);
  assert.equal(total, paperRow(profiles["shared-style"]).total);
});

test("average damages skills, the sum breaks the model, and each says why", () => {
  const average = said("shared-style", at("shared-style", "average"));
  assert.deepEqual([average.key, average.isExact], ["damaged", true]);
  const sum = said("shared-style", at("shared-style", "sum"));
  assert.deepEqual([sum.key, sum.lead], ["broken", "Broken."]);
  if (profiles["shared-style"].sum) {
    assert.match(average.rest, /Only 33 % of each agent's own change is applied\./);
    assert.match(sum.rest, /Even the base solves \d+\. What the agents share is applied 2\.\d times\./);
  }
});

test("a larger epsilon damages skill after skill", () => {
  const verdicts = [0.01, 0.015, 0.02].map((epsilon) => said("shared-style", at("shared-style", "ram+", { point: point("shared-style", epsilon) })));
  for (const { key, lead } of verdicts) {
    assert.equal(key, "damaged");
    assert.match(lead, / (is|are) damaged\.$/);
  }
  assert.ok(verdicts[0].total > verdicts[2].total);
  assert.equal(said("shared-style", at("shared-style", "ram+", { point: 57 })).lead, "Nothing is merged.");
});

test("a lambda of 11 is warned of, and said to do better where it does", () => {
  const { key, rest, total } = said("dense", at("dense", "ram+", { r: 1, alpha: 10 }));
  const paper = paperRow(profiles.dense);
  assert.equal(key, "damaged");
  assert.ok(total > paper.total);
  assert.match(rest, /^Own changes are boosted \d+ times \(the paper: at most 1\.4\)\./);
  assert.match(rest, new RegExp(`Still better than the paper's setting \\(${paper.total}\\)\\.$`));
});

test("the best of all others is told by name, and may beat RAM+", () => {
  const rival = rivalRow(profiles["shared-style"]);
  assert.ok(!rival.set.method.startsWith("ram"));
  assert.ok(rival.total >= Math.max(...profiles["shared-style"].skills.merges.filter(({ set }) => set.method === "ties").map((r) => r.total)));
});

test("of models that nobody asked the overlap says what to expect", () => {
  const untested = (name, settings) => said(name, settings, { ...profiles[name], skills: undefined });
  const { key, lead, rest } = untested("shared-style", at("shared-style", "ram+"));
  assert.deepEqual([key, lead], ["untested", "Not tested yet."]);
  assert.match(rest, /moved alike \(mean cosine 0\.\d\d\): a sum applies that 3 times\. Expect RAM\+ to do best\.$/);
  assert.match(untested("independent", at("independent", "ram+")).rest, /unique/);
  assert.match(untested("dense", at("dense", "ram+")).rest, /averaging in effect\. Compare it with the sum\.$/);
  assert.match(untested("dense", at("dense", "ram+", { r: 1, alpha: 10 })).rest, /^Own changes are boosted/);
});

test("between measured settings the nearest is named", () => {
  const { note, isExact } = said("shared-style", at("shared-style", "ram+", { r: 0.77 }));
  assert.equal(isExact, false);
  assert.match(note, /^RAM\+ epsilon 10⁻⁵, r 0\.77, alpha 2 was not measured\. Shown: the nearest, /);
});
