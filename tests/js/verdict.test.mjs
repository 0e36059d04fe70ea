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
import { EVIDENCE, expectationOf, lostText, rivalText, verdictOf } from "../../assets/canvas/model/verdict.js";

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

// The same table is shown in a browser (tests/app/test_stage.py).
const cases = JSON.parse(readFileSync(new URL("../stage_verdicts.json", import.meta.url), "utf8"));
for (const { name, set, rule, settings, key, scores, lead, rest } of cases) {
  test(`${set}, ${name}: ${lead}`, () => {
    const { epsilon, ...own } = settings;
    const found = said(set, at(set, rule, { ...own, ...(epsilon ? { point: point(set, epsilon) } : {}) }));
    const total = scores.reduce((a, b) => a + b, 0);
    assert.deepEqual({ key: found.key, total: found.total, lead: found.lead, rest: found.rest.trim(), isExact: found.isExact }, { key, total, lead, rest, isExact: true });
    // With 60 questions nobody says that all skills hold, but what cannot show.
    assert.equal(/of 60; losing 6 would not show/.test(found.note), key === "good");
    assert.doesNotMatch(found.lead + found.rest, /hold|survive|all skills work/i);
  });
}

test("the best of all others is told by name, and may beat RAM+", () => {
  const rival = rivalRow(profiles["shared-style"]);
  assert.ok(!rival.set.method.startsWith("ram"));
  assert.ok(rival.total >= Math.max(...profiles["shared-style"].skills.merges.filter(({ set }) => set.method === "ties").map((r) => r.total)));
});

test("what the best other setting shows against RAM+ is said as it is", () => {
  assert.equal(rivalText(profiles["shared-style"]), "TIES density 0.5, scale 1: the best of 244 settings, picked on these same questions. It does not differ significantly from RAM+.");
  assert.match(rivalText(profiles.dense), /^Sum \(scale 1\): .* It solves more than RAM\+, beyond chance\.$/);
});

test("the best of many settings has to beat as many tests", () => {
  const usual = profiles["shared-style"];
  const paper = paperRow(usual);
  const wrong = [...paper.right.keys()].filter((i) => !paper.right[i]).slice(0, 6);
  const said = (tried) => {
    const better = { ...rivalRow(usual), right: paper.right.map((x, i) => (wrong.includes(i) ? 1 : x)), total: 999 };
    const others = usual.skills.merges.filter(({ set }) => !set.method.startsWith("ram")).slice(0, tried - 1);
    const ram = usual.skills.merges.filter(({ set }) => set.method.startsWith("ram"));
    return rivalText({ ...usual, skills: { ...usual.skills, merges: [...ram, better, ...others] } });
  };
  assert.equal(wrong.length, 6); // 6 : 0 is p .03
  assert.match(said(1), /best of 1 setting,.* It solves more than RAM\+, beyond chance\.$/);
  assert.match(said(100), /best of 100 settings.* It does not differ significantly from RAM\+\.$/);
});

test("of models that nobody asked the overlap says what to expect, and on what evidence", () => {
  const untested = (name, settings) => said(name, settings, { ...profiles[name], skills: undefined });
  const { key, lead, rest } = untested("shared-style", at("shared-style", "ram+"));
  assert.deepEqual([key, lead], ["untested", "Not tested yet."]);
  assert.match(rest, /updates are similar \(mean cosine 0\.\d\d\)\. A sum applies the common part 3 times.* Try RAM\+ first\.$/);
  assert.match(untested("dense", at("dense", "ram+", { r: 1, alpha: 10 })).rest, /^Own changes are boosted/);
  // Each example is what its own evidence is about, and every figure of it is the table's.
  for (const { set, ram, sum, average, rival } of Object.values(EVIDENCE)) {
    const profile = profiles[set];
    const { first, evidence, limits } = expectationOf(profile);
    const totals = [paperRow(profile), ...["sum", "average"].map((name) => nearestRow(profile, at(set, name)).row), rivalRow(profile)].map((row) => row.total);
    assert.deepEqual(totals, [ram, sum, average, rival], set);
    assert.match(evidence, new RegExp(`RAM\\+ solves ${ram} of ${profile.skills.asked} questions, the sum ${sum}, the average ${average}, .* ${rival}\\.`));
    assert.match(limits, /yours may differ/);
    // What is to be tried first solves no fewer, beyond chance, than the other one.
    assert.match(first, ram > sum ? /^Try RAM\+ first/ : /sum/);
  }
});

test("an agent without weights of its own is no reason: epsilon takes none, lambda boosts none", () => {
  const profile = profiles.independent;
  for (const lambda of [1.5, 11]) {
    const agents = [{ rho: Infinity, lambda }, { rho: 0.2, lambda: 1.02 }, { rho: 0.2, lambda: 1.02 }];
    const result = { settings: at("independent", "ram+"), isRam: true, agents, changed: 1 };
    const factors = { own: [null, 1.02, 1.02], ownMean: 1.02, shared: [0.7, 0.7, 0.7], sharedMean: 0.7 };
    assert.match(verdictOf(profile, result, { row: profile.skills.base, isExact: true }, factors).rest, /^Fewer questions than its agent: /);
  }
});

test("what one agent loses is not said of each", () => {
  const result = outcomeOf(profiles.dense, at("dense", "task-arithmetic"));
  const why = (own) => {
    const factors = { own, ownMean: own.reduce((a, b) => a + b) / 3, shared: own, sharedMean: 0.5 };
    return verdictOf(profiles.dense, result, { row: profiles.dense.skills.base, isExact: true }, factors).rest;
  };
  assert.equal(why([0.33, 0.33, 0.33]), "Only 33 % of each agent's own change is applied.");
  assert.equal(why([0.6, 0.39, 1.11]), "On average only 70 % of an agent's own change is applied.");
});

test("what the merge applies is told of the parts there are", () => {
  const { profile } = sets.dense;
  const result = outcomeOf(profile, usualOf("ram+", profile));
  const note = (ownMean, sharedMean) => verdictOf({ ...profile, skills: undefined }, result, null, { own: [], shared: [], ownMean, sharedMean }).note;
  assert.match(note(1, 0.5), / Exact: own parts applied 1\.00 times, shared parts 0\.50 times\.$/);
  assert.match(note(1, null), / Exact: own parts applied 1\.00 times\.$/);
  assert.match(note(null, 0.5), / Exact: shared parts applied 0\.50 times\.$/);
  assert.match(note(null, null), /alpha 2\.$/);
});

test("where no agent solves more than the base, the questions are inconclusive", () => {
  const [name, profile] = ["shared-style", profiles["shared-style"]];
  const skills = { ...profile.skills, specialists: profile.skills.specialists.map(() => null) };
  const settings = at(name, "ram+");
  const row = nearestRow(profile, settings).row;
  const { key, lead } = verdictOf({ ...profile, skills }, outcomeOf(profile, settings), { row, isExact: true }, null);
  assert.deepEqual([key, lead], ["unlearned", "These questions are inconclusive."]);
});

test("between measured settings the nearest is named", () => {
  const { note, isExact } = said("shared-style", at("shared-style", "ram+", { r: 0.77 }));
  assert.equal(isExact, false);
  assert.match(note, /^RAM\+ epsilon 10⁻⁵, r 0\.77, alpha 2 was not measured\. Shown: the nearest, /);
});

test("an agent that epsilon leaves nothing of is told before anything else, as Python says it", () => {
  const usual = at("independent", "ram+");
  const text = "Epsilon 1e-5 leaves nothing of tool: it changed 3 weights (1 %) by at most 9e-6. Use epsilon 0.";
  const profile = { ...profiles.independent, lost: profiles.independent.lost.map((_, k) => (k < usual.point ? null : text)) };
  assert.equal(said("independent", usual, { ...profile, skills: null }).rest, text);
  assert.match(said("independent", usual, profile).rest, new RegExp(text.replace(/[()]/g, ".")));
  assert.equal(lostText(profile, outcomeOf(profile, { ...usual, point: 0 })), "");
  assert.equal(lostText(profile, outcomeOf(profile, at("independent", "task-arithmetic"))), "");
  assert.equal(lostText(profiles.independent, outcomeOf(profiles.independent, usual)), "");
});
