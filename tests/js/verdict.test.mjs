// The verdict in JavaScript: the same sentence as Python's for every case, see tests/test_javascript.py.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { outcomeOf } from "../../assets/canvas/outcome.js";
import { verdictOf } from "../../assets/canvas/verdict.js";

const { profiles, cases } = JSON.parse(readFileSync(process.env.RAM_STUDIO_VERDICTS, "utf8"));
const NOT_MEASURED = " What it can do is not measured yet.";

for (const [name, profile] of Object.entries(profiles)) {
  const own = cases.filter((c) => c.profile === name);
  test(`verdict of ${name} is Python's (${own.length} settings)`, () => {
    assert.ok(own.length);
    for (const { settings, ...expected } of own) {
      const { key, tone, lead, pieces } = verdictOf(profile, outcomeOf(profile, settings), null);
      const text = lead + pieces.map(([piece]) => piece).join("");
      assert.deepEqual({ profile: name, key, tone, text }, { ...expected, text: expected.text + NOT_MEASURED }, JSON.stringify(settings));
    }
  });
}
