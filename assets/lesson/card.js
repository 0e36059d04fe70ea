// The lesson's card, first of what is left on the canvas: question, prediction, task, answer.
import { put } from "../nodes.js";
import { isPhone } from "../canvas/canvas.js";
import { drawBars, drawCurve } from "./chart.js";

let part = null;
let act = {};

// actions: { go(index), guess(value, text), show(), again(), leave() }; scenes: [{ mark, label, title }].
export const mountCard = (column, scenes, actions) => {
  act = actions;
  const root = document.createElement("section");
  root.className = "ls";
  root.setAttribute("aria-label", "Lesson");
  column.prepend(root);
  const head = put(root, "div", { class: "ls-head" });
  const dots = put(put(head, "nav", { "aria-label": "Scenes of the lesson" }), "ol");
  const steps = scenes.map(({ mark, label, title }, i) => {
    const step = put(put(dots, "li"), "button", { type: "button", title, "aria-label": label }, mark);
    step.addEventListener("click", () => act.go(i));
    return step;
  });
  const leave = put(head, "button", { type: "button", class: "ls-leave", "aria-label": "Leave the lesson", title: "Leave the lesson" }, "×");
  leave.addEventListener("click", () => act.leave());
  const body = put(root, "div", { class: "ls-body", tabindex: "0", role: "group", "aria-label": "What is told" });
  const title = put(body, "h2", { tabindex: "-1" });
  const ask = put(body, "p", { class: "ls-ask" });
  const guess = put(body, "div", { class: "ls-guess", role: "group", "aria-label": "Your prediction" });
  const task = put(body, "p", { class: "ls-task", role: "status" });
  const answer = put(body, "div", { class: "ls-answer", "aria-live": "polite" });
  const foot = put(root, "div", { class: "ls-foot" });
  const back = put(foot, "button", { type: "button", class: "cv-btn", "data-part": "lesson-back" }, "Back");
  const next = put(foot, "button", { type: "button", class: "cv-btn", "data-part": "lesson-next" });
  back.addEventListener("click", () => act.go(Number(root.dataset.scene) - 1));
  next.addEventListener("click", () => (root.dataset.phase === "end" ? act.again() : act.go(Number(root.dataset.scene) + 1)));
  part = { root, steps, title, ask, guess, task, answer, back, next };
};

export const unmountCard = () => {
  part?.root.remove();
  part = null;
};

// A number stays with its unit.
const unbroken = (text) => text.replaceAll(" %", "\u00a0%");

const write = (node, pieces) => {
  node.replaceChildren();
  for (const piece of pieces) {
    if (Array.isArray(piece)) put(node, "b", {}, ...piece.map(unbroken));
    else node.append(unbroken(piece));
  }
};

// view: { index, phase, done (a boolean a scene), title, ask, guess, said, task, answer, chart, summary };
// phase one of "wait", "missing", "predict", "drag", "answer" and "end". guess: "share" or texts; said: a share
// or an index into the texts, or null.
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
  write(part.ask, view.ask);
  drawGuess(view);
  drawTask(view);
  drawAnswer(view);
  back.disabled = index === 0;
  next.textContent = { answer: index === steps.length - 1 ? "Finish" : "Next", end: "Start over" }[phase] || "Skip";
  next.classList.toggle("cv-main", phase === "answer");
};

export const focusCard = () => part.title.focus({ preventScroll: true });

// On a phone the card is above what is dragged.
export const bringCard = () => {
  if (isPhone()) scrollTo(part.root, "start");
};

export const bringControl = (control) => {
  if (isPhone()) scrollTo(control, "center");
};

const scrollTo = (node, block) => {
  const isCalm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  node.scrollIntoView({ block, behavior: isCalm ? "auto" : "smooth" });
};

// ---------------------------------------------------------------- prediction

const drawGuess = ({ index, phase, guess, said }) => {
  const box = part.guess;
  const isOpen = guess && phase !== "answer";
  box.hidden = !isOpen;
  // While it can still be changed it stays as it is, and so does the focus in it.
  const key = isOpen ? [index, guess === "share" ? phase : ""].join("|") : "";
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren();
  if (isOpen) (guess === "share" ? drawSlider : drawChoices)(box, guess, said, phase);
};

const drawChoices = (box, texts, said) => {
  const buttons = texts.map((text, i) => {
    const button = put(box, "button", { type: "button", class: "ls-choice", "aria-pressed": String(said === i), "data-choice": i }, text);
    button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      act.guess(i, text);
    });
    return button;
  });
};

const drawSlider = (box, _, said, phase) => {
  const row = put(box, "div", { class: "ls-slide" });
  const input = put(row, "input", { type: "range", min: "0", max: "100", step: "1", "aria-label": "Your prediction, in per cent" });
  input.value = said === null ? 50 : Math.round(100 * said);
  const output = put(row, "b");
  const tell = () => {
    output.textContent = `${input.value} %`;
    input.setAttribute("aria-valuetext", output.textContent);
    input.style.setProperty("--cv-at", `${input.value}%`);
  };
  tell();
  input.addEventListener("input", () => {
    tell();
    if (phase === "drag") act.guess(input.value / 100, `${input.value} %`);
  });
  if (phase !== "predict") return;
  const button = put(box, "button", { type: "button", class: "cv-btn cv-main", "data-part": "lesson-predict" }, "Lock in my guess");
  button.addEventListener("click", () => act.guess(input.value / 100, `${input.value} %`));
};

// ---------------------------------------------------------------- task and answer

const drawTask = ({ task, phase }) => {
  write(part.task, task);
  part.task.hidden = !task.length;
  if (phase !== "drag") return;
  part.task.append(" ");
  const button = put(part.task, "button", { type: "button", class: "link", "data-part": "lesson-show" }, "Do it for me");
  button.addEventListener("click", () => act.show());
};

// Said to a screen reader once: the region is there before it is filled.
const drawAnswer = ({ answer, chart, summary }) => {
  const key = JSON.stringify([answer, summary]);
  if (part.answer.dataset.key === key) return;
  part.answer.dataset.key = key;
  part.answer.replaceChildren();
  if (summary) drawSummary(summary);
  if (!answer) return;
  write(put(part.answer, "p", { class: "ls-verdict" }), ["You said ", [answer.said], ". Measured: ", [answer.measured], "."]);
  if (chart) (chart.kind === "curve" ? drawCurve : drawBars)(part.answer, chart);
  write(put(part.answer, "p", { class: "ls-reveal" }), answer.pieces);
};

const drawSummary = (scenes) => {
  const list = put(part.answer, "ol", { class: "ls-summary" });
  for (const { title, said, measured } of scenes) {
    const item = put(list, "li");
    put(item, "b", {}, title);
    write(put(item, "span"), measured ? [`You: ${said}. Measured: `, [measured], "."] : ["Skipped."]);
  }
};
