// @ts-check
// The lesson's card, first in the stage's left column: example, question, prediction, task, answer.
import { isPhone } from "../canvas/canvas.js";
import { answerPieces, promptText } from "../canvas/paint/text.js";
import { marker, put, putButton, write } from "../nodes.js";
import { drawBars, drawCurve, drawParts } from "./chart.js";

/** The card's actions. guess: value (a share, or an index into the choices) and its text; turn: the dial's value.
 * @typedef {{ go: (index: number) => void, back: () => void, next: () => void, guess: (value: number, text: string) => void,
 *   turn: (value: number) => void, show: () => void, again: () => void, leave: () => void,
 *   copy: (kind: "text" | "csv", name: string) => Promise<string> }} Actions
 * The card's view. phase: "wait", "missing", "predict", "drag", "answer" or "end"; done: a boolean per scene; guess:
 * "share" or texts; said: a share or an index into the texts, or null; dial: the dial on the card, or null.
 * isFirst: the first panel; isShown: on a projector, where Next is always enabled.
 * @typedef {{ index: number, phase: string, isFirst: boolean, isShown: boolean, done: boolean[], title: string, example: import("./figures.js").Example | null,
 *   ask: import("./scenes.js").Pieces, guess: "share" | string[] | null, said: number | null,
 *   dial: { name: string, most: number, value: number } | null, task: import("./scenes.js").Pieces,
 *   answer: { said: string, measured: string, pieces: import("./scenes.js").Pieces } | null, chart: any,
 *   summary: { title: string, said?: string, measured?: string }[] | null }} View */

/** @type {any} */
let part = null;
/** @type {Actions} */
let act;

/** @param {HTMLElement} column @param {{ mark: string, label: string, title: string }[]} scenes @param {Actions} actions
 * @param {string} kit address of the teacher's kit */
export const mountCard = (column, scenes, actions, kit) => {
  act = actions;
  const root = document.createElement("section");
  root.className = "ls";
  root.setAttribute("aria-label", "Lesson");
  column.prepend(root);
  const head = put(root, "div", { class: "ls-head" });
  const dots = put(put(head, "nav", { "aria-label": "Scenes of the lesson" }), "ol");
  const steps = scenes.map(({ mark, label, title }, i) => putButton(put(dots, "li"), mark, () => act.go(i), { title, "aria-label": label }));
  putButton(head, "×", () => act.leave(), { class: "ls-leave", "aria-label": "Leave the lesson", title: "Leave the lesson" });
  const body = put(root, "div", { class: "ls-body", tabindex: "0", role: "group", "aria-label": "Text of this scene" });
  const title = put(body, "h2", { tabindex: "-1" });
  const example = put(body, "div", { class: "ls-example" });
  const ask = put(body, "p", { class: "ls-ask" });
  const guess = put(body, "div", { class: "ls-guess", role: "group", "aria-label": "Your prediction" });
  const task = put(body, "p", { class: "ls-task", role: "status" });
  const dial = put(body, "div", { class: "ls-dial" });
  const answer = put(body, "div", { class: "ls-answer", "aria-live": "polite" });
  const foot = put(root, "div", { class: "ls-foot" });
  const back = putButton(foot, "Back", () => act.back(), { class: "cv-btn", "data-part": "lesson-back" });
  const goOn = () => (root.dataset.phase === "end" ? act.again() : act.next());
  const next = putButton(foot, "", goOn, { class: "cv-btn", "data-part": "lesson-next" });
  put(foot, "p", { class: "ls-keys" }, "Next: → or Page Down. Back: ← or Page Up. Leave: Esc.");
  put(foot, "a", { class: "ls-kit", href: kit, ...(kit.startsWith("#") ? {} : { target: "_blank" }) }, "Teacher's kit");
  if (!kit.startsWith("#")) put(foot, "a", { class: "ls-kit ls-live", href: "room/teach", target: "_blank" }, "Teach this live");
  part = { root, steps, title, example, ask, guess, task, dial, answer, back, next };
};

export const unmountCard = () => {
  part?.root.remove();
  part = null;
};

/** @param {View} view */
export const drawCard = (view) => {
  const { root, steps, back, next } = part;
  const { index, phase } = view;
  root.dataset.scene = index;
  root.dataset.phase = phase;
  steps.forEach((step, i) => {
    if (i === index) step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
    step.classList.toggle("done", view.done[i]);
  });
  write(part.title, [view.title]);
  drawExample(view);
  write(part.ask, view.ask);
  drawGuess(view);
  drawTask(view);
  drawDial(view);
  drawAnswer(view);
  back.disabled = view.isFirst;
  next.textContent = { answer: index === steps.length - 1 ? "Finish" : "Next", end: "Start over" }[phase] || (view.isShown ? "Next" : "Skip");
  next.classList.toggle("cv-main", phase === "answer");
};

export const focusCard = () => part.title.focus({ preventScroll: true });

/** On a phone the card is above the control to drag. */
export const bringCard = () => {
  if (isPhone()) scrollTo(part.root, "start");
};

/** @param {Element} control */
export const bringControl = (control) => {
  if (isPhone()) scrollTo(control, "center");
};

const scrollTo = (node, block) => {
  const isCalm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  node.scrollIntoView({ block, behavior: isCalm ? "auto" : "smooth" });
};

// ---------------------------------------------------------------- example and prediction

const drawExample = ({ index, example, phase }) => {
  const box = part.example;
  box.hidden = !example || phase === "answer";
  if (box.dataset.key === String(index) || !example) return;
  box.dataset.key = index;
  box.replaceChildren();
  put(box, "p", { class: "ls-prompt" }, promptText(example.prompt));
  for (const { who, agent, text, right } of example.lines) {
    const line = put(box, "p", { class: "ls-line", "data-right": Number(right) });
    const name = put(line, "span", { class: "ls-who" });
    if (agent !== undefined) marker(name, agent);
    name.append(who);
    put(line, "span", { class: "ls-mark", role: "img", "aria-label": right ? "right" : "wrong" }, right ? "✓" : "✗");
    put(line, "b", {}, answerPieces(text, example.gold, true).filter(([kind]) => kind !== "stop").map(([, piece]) => piece).join(""));
  }
};

const drawGuess = ({ index, phase, guess, said }) => {
  const box = part.guess;
  const isOpen = guess && phase !== "answer";
  box.hidden = !isOpen;
  // While it can be changed it is not redrawn, so that it keeps the focus.
  const key = isOpen ? [index, guess === "share" ? phase : ""].join("|") : "";
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren();
  if (isOpen) (guess === "share" ? drawSlider : drawChoices)(box, guess, said, phase);
};

const drawChoices = (box, texts, said) => {
  const buttons = texts.map((text, i) => {
    const choose = () => {
      buttons.forEach((other, k) => other.setAttribute("aria-pressed", String(k === i)));
      act.guess(i, text);
    };
    return putButton(box, text, choose, { class: "ls-choice", "aria-pressed": String(said === i), "data-choice": i });
  });
};

/** A slider with its value beside it: { most, step, value, label }; text: of a value; turn: called with each. */
const drawRange = (box, { most, step, value, label }, text, turn) => {
  const row = put(box, "div", { class: "ls-slide" });
  const input = put(row, "input", { type: "range", min: "0", max: String(most), step: String(step), "aria-label": label });
  input.value = value;
  const output = put(row, "b");
  const showValue = () => {
    output.textContent = text(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
    input.style.setProperty("--cv-at", `${(100 * input.value) / most}%`);
  };
  showValue();
  input.addEventListener("input", () => {
    showValue();
    turn(Number(input.value));
  });
  return input;
};

const drawSlider = (box, _, said, phase) => {
  const range = { most: 100, step: 1, value: said === null ? 50 : Math.round(100 * said), label: "Your prediction, in percent" };
  const guess = (value) => act.guess(value / 100, `${value} %`);
  const input = drawRange(box, range, (value) => `${value} %`, (value) => { if (phase === "drag") guess(value); });
  if (phase !== "predict") return;
  putButton(box, "Lock in my guess", () => guess(Number(input.value)), { class: "cv-btn cv-main", "data-part": "lesson-predict" });
};

// ---------------------------------------------------------------- task and answer

const drawTask = ({ task, phase }) => {
  write(part.task, task);
  part.task.hidden = !task.length;
  if (phase !== "drag") return;
  part.task.append(" ");
  putButton(part.task, "Do it for me", () => act.show(), { class: "link", "data-part": "lesson-show" });
};

const drawDial = ({ index, phase, dial }) => {
  const box = part.dial;
  box.hidden = !dial || phase !== "drag";
  const key = box.hidden ? "" : String(index);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren();
  if (box.hidden) return;
  const range = { most: dial.most, step: dial.most / 40, value: dial.value, label: dial.name };
  drawRange(box, range, (value) => `${dial.name} ${value.toFixed(3)}`, act.turn);
};

// Announced once by a screen reader: the region exists before it is filled.
const drawAnswer = ({ answer, chart, summary }) => {
  const key = JSON.stringify([answer, summary, chart?.kind === "curve" && part.answer.clientWidth]); // drawn at the available width
  if (part.answer.dataset.key === key) return;
  part.answer.dataset.key = key;
  part.answer.replaceChildren();
  if (summary) drawSummary(summary);
  if (!answer) return;
  const guessed = answer.said ? ["You said ", [answer.said], ". "] : [];
  write(put(part.answer, "p", { class: "ls-verdict" }), [...guessed, "Measured: ", [answer.measured], "."]);
  if (chart) ({ curve: drawCurve, parts: drawParts, bars: drawBars })[chart.kind](part.answer, chart);
  write(put(part.answer, "p", { class: "ls-reveal" }), answer.pieces);
};

const drawSummary = (scenes) => {
  const list = put(part.answer, "ol", { class: "ls-summary" });
  for (const { title, said, measured } of scenes) {
    const item = put(list, "li");
    put(item, "b", {}, title);
    write(put(item, "span"), measured ? [...(said ? [`You: ${said}. `] : []), "Measured: ", [measured], "."] : ["Skipped."]);
  }
  const form = put(part.answer, "div", { class: "ls-copy", role: "group", "aria-label": "Copy my answers" });
  const label = put(form, "label", {}, "Name ");
  const name = put(label, "input", { type: "text", autocomplete: "off", maxlength: "80" });
  const status = document.createElement("p");
  status.setAttribute("role", "status");
  for (const [kind, text] of [["text", "Copy as text"], ["csv", "Copy as CSV"]]) {
    const copy = async () => { status.textContent = await act.copy(/** @type {any} */ (kind), name.value); };
    putButton(form, text, copy, { class: "cv-btn", "data-copy": kind });
  }
  form.append(status);
};
