// Polling a room.
import assert from "node:assert/strict";
import { test } from "node:test";

import { follow } from "../../assets/room/api.js";
import { roundsText, valueText } from "../../assets/room/cloud.js";

test("what a class answered on a line says what near is", () => {
  const rounds = { first: { answers: 1, right: 0, median: 50 }, second: { answers: 0 } };
  const line = { low: 0, high: 100, step: 1, unit: "%" };
  const told = "First vote: 0 of 1 near, median 50 %. Near: at most a tenth of the line away, or inside the measured interval.";
  assert.equal(roundsText({ line }, rounds), told);
  assert.equal(roundsText({ choices: ["a", "b"] }, rounds), "First vote: 0 of 1 right.");
  assert.equal(roundsText({ line }, { first: { answers: 0 }, second: { answers: 0 } }), "");
});

test("what was measured on a line is told in as many digits as elsewhere", () => {
  const told = (unit, value) => valueText({ line: { low: 0, high: 180, step: 1, unit } }, value);
  assert.deepEqual([told("%", 2.31), told("%", 68.33), told("%", 67.46), told("of 180", 174)], ["2.3 %", "68 %", "67 %", "174 of 180"]);
});

for (const status of [200, 404]) {
  test(`an answer of ${status} that is read after the end of a room changes nothing`, async () => {
    const told = [];
    /** @type {(body: any) => void} */
    let read = () => {};
    const body = new Promise((resolve) => { read = resolve; });
    globalThis.window = /** @type {any} */ ({ setTimeout: () => 0 });
    globalThis.fetch = async () => /** @type {any} */ ({ ok: status === 200, status, headers: new Headers(), json: () => body });
    const link = follow({ path: "/ABCD/teacher", headers: {}, take: () => told.push("take"), lost: () => told.push("lost") });
    await new Promise(setImmediate);
    link.stop();
    read({ error: "There is no room with this code. It may have ended." });
    await new Promise(setImmediate);
    assert.deepEqual(told, []);
  });
}
