// @ts-check
// The teacher's report: each question with both rounds, and the effect of the discussion. One page when printed, without
// names or answers of single students.
import { counted, listText } from "../canvas/model/words.js";
import { download } from "../keep.js";
import { put, putButton } from "../nodes.js";
import { drawAnswers } from "./cloud.js";
import { answerText, measuredText } from "./view.js";

const per = (part, whole) => (whole ? `${part} of ${whole}` : "–");

const gainText = ({ gain, both }) => {
  if (!both) return "nobody voted twice";
  return gain === null ? "all right before" : `${gain < 0 ? "−" : ""}${Math.abs(gain).toFixed(2)}`;
};

/** A round's result in words: the median guess, or the most frequent answers. @param {any} one @param {any} round */
const roundText = (one, { answers, right, median, by_choice: counts }) => {
  if (!answers) return "nobody answered";
  const chosen = () => one.choices.filter((_, i) => counts[i] === Math.max(...counts)).map((text) => `“${text}”`);
  const usual = one.choices ? `most often chosen: ${listText(chosen())}` : `the middle guess was ${answerText(one, median)}`;
  return `${usual}, ${per(right, answers)} right`;
};

/** A sheet for every student: the class's answers, and lines for their own explanation. Only visible in print. */
const drawWorksheet = (box, answered) => {
  const sheet = put(box, "section", { class: "rm-sheet", "aria-labelledby": "sheet-title", "data-part": "worksheet" });
  put(sheet, "h2", { id: "sheet-title" }, "Merging agents: what our class answered");
  put(sheet, "p", {}, "Name ", put(sheet, "i"), " Date ", put(sheet, "i"));
  const list = put(sheet, "ol");
  for (const one of answered) {
    const item = put(list, "li", {}, one.question);
    put(item, "p", {}, `First vote: ${roundText(one, one.first)}. Second vote: ${roundText(one, one.second)}.`);
    put(item, "p", {}, "Measured ", put(item, "i"), " Why is it so? ", put(item, "i", { class: "rm-line" }));
  }
};

const print = (what) => {
  document.body.dataset.paper = what;
  window.print();
};

/** @param {HTMLElement} box @param {any} results, see report.py @param {string} csv */
export const drawReport = (box, results, csv) => {
  const answered = results.questions.filter((one) => one.first.answers + one.second.answers > 0);
  const root = put(box, "section", { class: "rm-report", "aria-labelledby": "report-title", "data-part": "report" });
  put(root, "h2", { id: "report-title", tabindex: "-1" }, "What the class answered");
  const students = results.is_rehearsal ? `${results.students} simulated students, a rehearsal` : counted(results.students, "student");
  put(root, "p", {}, `${new Date().toLocaleDateString("en-GB", { dateStyle: "long" })}, ${students}, ${counted(answered.length, "question")}.`);
  const row = put(root, "p", { class: "rm-row rm-screen-only" });
  putButton(row, "Download CSV", () => download(`room-${results.code}.csv`, new Blob([csv], { type: "text/csv" })), { "data-part": "csv" });
  putButton(row, "Print the report", () => print("report"));
  if (!answered.length) return;
  putButton(row, "Print a worksheet with these results", () => print("worksheet"), { "data-part": "print-worksheet" });
  drawWorksheet(box, answered);
  const scroll = put(root, "div", { class: "rm-scroll", tabindex: "0", role: "group", "aria-label": "Table of results" });
  const table = put(scroll, "table");
  const head = put(put(table, "thead"), "tr");
  for (const text of ["Question", "Measured", "First vote", "Second vote", "Before, after", "Gain"]) put(head, "th", { scope: "col" }, text);
  const body = put(table, "tbody");
  for (const one of answered) {
    const line = put(body, "tr");
    put(line, "th", { scope: "row" }, one.title);
    put(line, "td", {}, measuredText(one, one.truth));
    put(line, "td", {}, per(one.first.right, one.first.answers));
    put(line, "td", {}, per(one.second.right, one.second.answers));
    put(line, "td", {}, one.both ? `${one.before}, ${one.after} of ${one.both}` : "–");
    put(line, "td", {}, gainText(one));
  }
  put(root, "p", { class: "rm-muted" },
    "A guess on a line is right within a tenth of the line, or inside the measured 95 % interval. Before and after count only students who voted twice. "
    + "Gain: of those who were wrong before, the net share that is right after (normalized gain).");
  for (const one of answered) {
    const part = put(root, "section", { class: "rm-report-one" });
    put(part, "h3", {}, one.title);
    put(part, "p", {}, one.question);
    drawAnswers(part, one, { first: one.first, second: one.second }, one.truth);
  }
};
