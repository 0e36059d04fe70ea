// Polling a room.
import assert from "node:assert/strict";
import { test } from "node:test";

import { follow } from "../../assets/room/api.js";

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
