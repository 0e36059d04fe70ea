// Answers against the right one, character by character; how numbers and keys read.
import assert from "node:assert/strict";
import { test } from "node:test";

import { answerPieces, promptText, shortPrompt } from "../../assets/canvas/paint/text.js";
import { counted, epsilonText } from "../../assets/canvas/model/words.js";
import { sliderPlace } from "../../assets/keys.js";

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

test("an epsilon reads as one says it", () => {
  assert.deepEqual([0, 9.998e-6, 7.0104e-4, 0.0150125].map(epsilonText), ["0", "10⁻⁵", "7·10⁻⁴", "1.5·10⁻²"]);
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
