// @ts-check
// Common parts of a room's three views: texts in parts, the question, the clock of the discussion, announcements.
import { put, write } from "../nodes.js";

export const main = () => /** @type {HTMLElement} */ (document.getElementById("room"));

let spoken = "";

/** Announce a sentence to screen readers, once. @param {string} text */
export const speak = (text) => {
  if (text === spoken) return;
  spoken = text;
  const node = document.querySelector("[data-part=spoken]");
  if (node) node.textContent = text;
};

/** @param {any[]} pieces */
export const plainText = (pieces) => pieces.flat().join("");

/** Set the header's text and the tab's title. @param {string} text @param {boolean} isRehearsal */
export const headline = (text, isRehearsal = false) => {
  const node = /** @type {HTMLElement} */ (document.querySelector("[data-part=where]"));
  node.textContent = isRehearsal ? `${text} · rehearsal` : text;
  document.title = `${text} · RAM Studio`;
};

/** The question: its number, title and text. @param {HTMLElement} box @param {any} state */
export const drawQuestion = (box, { place, questions, question }) => {
  put(box, "p", { class: "rm-place" }, `Question ${place + 1} of ${questions}`);
  put(box, "h1", { tabindex: "-1" }, question.title);
  write(put(box, "p", { class: "rm-ask", "data-part": "ask" }), question.ask);
};

/** An answer in words. @param {any} question @param {number} value */
export const answerText = (question, value) => {
  if (question.choices) return question.choices[value];
  const digits = Math.max(0, Math.ceil(-Math.log10(question.line.step)));
  return `${Number(value.toFixed(digits))} ${question.line.unit}`.trim();
};

/** The measured value, in words. @param {any} question @param {{ value: number, text: string }} truth */
export const measuredText = (question, { value, text }) => (question.choices ? `${question.choices[value]}, ${text}` : text);

const timeText = (seconds) => `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
const SAID_AT = [60, 30, 10];

/** A clock that counts down while it is in the page. @param {HTMLElement} box @param {() => number} left seconds */
export const drawClock = (box, left) => {
  const node = put(box, "p", { class: "rm-clock", role: "timer", "aria-live": "off", "data-part": "clock" });
  let before = Infinity;
  const tick = () => {
    if (before !== Infinity && !node.isConnected) return;
    const seconds = Math.max(0, Math.ceil(left()));
    node.textContent = seconds ? timeText(seconds) : "Time is up";
    if (!seconds && before > 0 && before !== Infinity) speak("Time is up.");
    else if (SAID_AT.some((at) => before > at && seconds <= at) && before !== Infinity) speak(`${seconds} seconds left.`);
    before = seconds;
    window.setTimeout(tick, 500);
  };
  tick();
};

/** The title of each phase. */
export const PHASES = {
  lobby: "Waiting to begin", ask: "Read the question", first: "First vote", talk: "Talk with your neighbors",
  second: "Second vote", reveal: "What was measured", done: "The lesson is over",
};

/** Move the focus to new content, for screen readers and keyboards. @param {string} selector */
export const focusOn = (selector) => {
  /** @type {HTMLElement | null} */ (main().querySelector(selector))?.focus({ preventScroll: true });
};
