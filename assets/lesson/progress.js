// @ts-check
// A tab's state of the lesson: the open scene, and for every scene the guess, the settings that reached the answer, and
// the measured value. And all of it as text or CSV, for a teacher.
import { tabMemory } from "../storage.js";

const KEY = "lesson";

/** @typedef {{ value?: number | null, said?: string, settings?: any, measured?: string }} Answer settings and measured after the answer was shown; said "" without a guess
 * @typedef {{ scene: string | null, answers: Record<string, Answer> }} Progress */

/** @returns {Progress} */
const empty = () => ({ scene: null, answers: {} });

/** @type {Progress | null} */
let stored = null;

/** @returns {Progress} */
const read = () => {
  const found = tabMemory.readJson(KEY);
  return found?.answers ? found : empty();
};

const write = () => tabMemory.write(KEY, JSON.stringify(stored));

const progress = () => {
  stored ??= read();
  return stored;
};

export const openScene = () => progress().scene;

/** @param {string} id */
export const setOpenScene = (id) => {
  progress().scene = id;
  write();
};

/** @param {string} id @returns {Answer} */
export const answerOf = (id) => progress().answers[id] || {};

/** @param {string} id @param {Answer} changes */
export const setAnswer = (id, changes) => {
  progress().answers[id] = { ...answerOf(id), ...changes };
  write();
};

export const forget = () => {
  stored = empty();
  write();
};

// ---------------------------------------------------------------- for a teacher

// A spreadsheet reads a text with such a beginning as a formula.
const FORMULA = /^[=+\-@\t\r]/;

const cell = (text) => `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

/** Guesses and measured values, as lines of text or of CSV.
 * @param {"text" | "csv"} kind @param {string} name @param {{ id: string, title: string }[]} scenes */
export const answersText = (kind, name, scenes) => {
  const rows = scenes.map(({ id, title }, i) => {
    const { said = "", measured = "" } = answerOf(id);
    return [name, String(i + 1), title, said, measured];
  });
  if (kind === "csv") return [["name", "scene", "title", "guess", "measured"], ...rows].map((row) => row.map(cell).join(",")).join("\r\n");
  const lines = rows.map(([, i, title, said, measured]) => `${i}. ${title}: I said ${said || "nothing"}; measured ${measured || "not seen"}.`);
  return [`Merging agents${name ? `, ${name}` : ""}`, ...lines].join("\n");
};
