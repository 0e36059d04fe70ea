// Answers against the right one, character by character; how numbers and keys read.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { answerPieces, promptText, shortPrompt } from "../../assets/canvas/paint/text.js";
import { counted } from "../../assets/canvas/model/words.js";
import { sliderPlace } from "../../assets/keys.js";
import * as numbers from "../../assets/numbers.js";

test("what is missing is a gap, what is too much is marked, a full stop is style", () => {
  assert.deepEqual(answerPieces(" (x+5)*3 .", "(x+5)*3", true), [["", "(x+5)*3"], ["stop", " ."]]);
  assert.deepEqual(answerPieces("x+5*3", "(x+5)*3", false), [["gap", "_"], ["", "x+5"], ["gap", "_"], ["", "*3"]]);
  assert.deepEqual(answerPieces("limes", "lime", false), [["", "lime"], ["extra", "s"]]);
  assert.deepEqual(answerPieces("", "lime", false), [["none", "(no answer)"]]);
  assert.deepEqual(answerPieces(" .", "lime", false), [["none", "“.” and nothing else"]]);
});

test("an answer's pieces without gaps spell the answer", () => {
  for (const [text, gold] of [["abcabc", "cab"], ["x", "yyyy"], ["clock(city=lima)", "clock(place=lima); call(user=dan)"]]) {
    const spelled = answerPieces(text, gold, false).filter(([kind]) => kind !== "gap").map(([, piece]) => piece).join("");
    assert.equal(spelled, text);
  }
});

test("a prompt stands without its prefix and blanks before punctuation", () => {
  assert.equal(promptText("code: f takes x , plus 8 . answer:"), "f takes x, plus 8.");
});

test("numbers read as in Python", () => {
  const { worded } = JSON.parse(readFileSync(process.env.RAM_STUDIO_TABLES, "utf8"));
  assert.deepEqual(Object.keys(worded), ["brief", "count", "epsilon", "factor", "percent", "ratio"]);
  for (const [kind, cases] of Object.entries(worded)) {
    assert.ok(cases.length > 8, kind);
    for (const [value, text] of cases) assert.equal(numbers[kind](value), text, `${kind} of ${value}`);
  }
});

test("what only the page says is short", () => {
  assert.deepEqual([4.22e6, 7e9].map(numbers.count), ["4.22 M", "7.00 B"]);
  assert.deepEqual([numbers.ratio(null), numbers.ratio(Infinity), numbers.percent(0.5, 0)], ["–", "∞", "50 %"]);
  assert.deepEqual([0.694, 2.81, 12.2].map(numbers.times), ["0.69", "2.8", "12"]);
});

test("of a long question the last line is shown, of others all", () => {
  const facts = "Abel works in the old mill. ".repeat(12);
  assert.equal(shortPrompt(`${facts}\nWhere does Abel work?`), "… Where does Abel work?");
  assert.equal(shortPrompt("He has 3.\nHow many?"), "He has 3.\nHow many?");
  assert.equal(shortPrompt(facts), promptText(facts));
});

test("sentences are compared by words", () => {
  const gold = "Luis works in the round hotel, and its code is 9748.";
  const pieces = answerPieces("Frida works in the broken hotel, and its code is 9748", gold, false);
  assert.deepEqual(pieces, [["extra", "Frida"], ["gap", "…"], ["", " works in the "], ["extra", "broken"], ["gap", "…"], ["", " hotel, and its code is 9748"]]);
});

test("one of a thing is not many", () => {
  assert.deepEqual([0, 1, 2].map((n) => counted(n, "question")), ["0 questions", "1 question", "2 questions"]);
});

test("keys move a slider within its places", () => {
  const to = (key, at) => sliderPlace(key, at, 9, 5);
  assert.deepEqual([to("ArrowRight", 3), to("ArrowUp", 9), to("ArrowLeft", 0), to("ArrowDown", 3)], [4, 9, 0, 2]);
  assert.deepEqual([to("PageUp", 6), to("PageDown", 6), to("Home", 6), to("End", 6)], [9, 1, 0, 9]);
  assert.equal(to("Tab", 3), null);
});
