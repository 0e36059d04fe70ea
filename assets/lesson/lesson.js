// The lesson on the canvas: predict, drag, and see what was measured. Which scene is open, what is loaded
// for it, and when its answer is reached. The canvas knows nothing of it; the store tells what is shown.
import { relayout } from "../canvas/canvas.js";
import { choose, hold, onPaint, redraw, state } from "../canvas/store.js";
import { brief } from "../canvas/model/words.js";
import { remember } from "../tune.js";
import { bringCard, bringControl, drawCard, focusCard, mountCard, unmountCard } from "./card.js";
import { answerOf, forget, openScene, setAnswer, setOpenScene } from "./progress.js";
import { missingOf } from "./record.js";
import { SCENES } from "./scenes.js";

const LOCKED = ".cv-methods, .cv-curve, .cv-weights"; // until something was said
const END = SCENES.length; // after the last scene: what was said, and what was measured

let run = null; // { index, isStarted, isLoading, isMoved, phase, key }
let openStep = () => {};
const records = new Map(); // set -> its record, null where there is none, undefined while it comes

const canvas = () => document.querySelector(".cv-root");

// ---------------------------------------------------------------- entering and leaving

const OWN = "The lesson opens agents of its own in place of your models, which are to be analyzed again afterwards. Go on?";

// asked: a number from 1, a scene's id, or nothing for the scene that was open last.
export const takeLesson = (asked) => {
  if (state.profile && !state.profile.set && !window.confirm(OWN)) return;
  go(placeOf(asked) ?? placeOf(openScene()) ?? 0);
};

// open(step): goes to a step of the page.
export const mountLesson = (open) => { openStep = open; };

const placeOf = (asked) => {
  const found = SCENES.findIndex(({ id }, i) => id === asked || String(i + 1) === asked);
  return found < 0 ? null : found;
};

const setOf = (index) => SCENES[Math.min(index, END - 1)].set;

const isLoaded = () => state.profile?.set === setOf(run.index);

const go = (index) => {
  const isMoved = run !== null;
  run = { index, isMoved, isStarted: false, isLoading: false, key: "" };
  if (index < END) setOpenScene(SCENES[index].id);
  state.lesson = Math.min(index + 1, END);
  if (isLoaded()) openStep("tune");
  else {
    run.isLoading = true;
    document.querySelector(`.opens-${setOf(index)}`).click(); // which opens Tune as well
  }
  redraw();
};

const leave = () => {
  run = null;
  state.lesson = null;
  lock(false);
  unmountCard();
  canvas().classList.remove("ls-on");
  delete canvas().dataset.shows;
  document.documentElement.classList.remove("ls-lesson");
  relayout();
  remember();
};

// ---------------------------------------------------------------- what is known

const factsAt = (settings) => {
  const { profile } = state;
  return { profile, settings, skills: profile.skills || null, record: records.get(profile.set) || null };
};

// Whether table and record of what is loaded have come, or will not.
const isHere = () => {
  const { set: example, skills, skills_at: at } = state.profile;
  if (!records.has(example)) {
    records.set(example, undefined);
    fetch(`ram/record/${example}.json`).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null)
      .then((record) => { records.set(example, record); redraw(); });
  }
  return records.get(example) !== undefined && Boolean(skills || !at);
};

const phaseOf = (scene) => {
  if (!isHere()) return "wait";
  if (missingOf(scene, factsAt(state.settings)).length) return "missing";
  const { said, settings } = answerOf(scene.id);
  return settings ? "answer" : said ? "drag" : "predict";
};

// ---------------------------------------------------------------- following the canvas

let isHeld = false; // what is dragged must not move away under the finger
document.addEventListener("pointerdown", () => { isHeld = true; }, true);
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => {
    isHeld = false;
    if (run) redraw();
  }, true);
}

const follow = () => {
  if (!run) return;
  if (!isLoaded()) {
    if (!run.isLoading) leave(); // other models were loaded meanwhile
    return;
  }
  run.isLoading = false;
  mount();
  if (run.index === END) {
    draw("end");
    return;
  }
  const scene = SCENES[run.index];
  const phase = phaseOf(scene);
  if (!run.isStarted && phase !== "wait") start(scene, phase);
  else if (phase === "drag" && !isHeld && scene.isReached(factsAt(state.settings))) answer(scene);
  draw(phaseOf(scene));
};
onPaint(follow);

const mount = () => {
  const root = canvas();
  if (root.classList.contains("ls-on")) return;
  root.classList.add("ls-on");
  document.documentElement.classList.add("ls-lesson");
  mountCard(root, SCENES.map(stepOf), {
    go, leave, guess, again, show: () => choose(SCENES[run.index].target(factsAt(state.settings))),
  });
  relayout();
};

// Six scenes are counted; the last word is none of them.
const stepOf = ({ title, isLastWord }, i) =>
  ({ title, mark: isLastWord ? "+" : String(i + 1), label: isLastWord ? title : `Scene ${i + 1}: ${title}` });

const start = (scene, phase) => {
  run.isStarted = true;
  const facts = factsAt(state.settings);
  if (phase === "missing") return;
  // After this frame: the others that are drawn in it belong to one state.
  queueMicrotask(() => {
    if (scene.dial) hold(scene.dial);
    choose(phase === "answer" ? answerOf(scene.id).settings : scene.start(facts));
  });
};

const guess = (value, said) => {
  const scene = SCENES[run.index];
  setAnswer(scene.id, { value, said });
  redraw();
};

const answer = (scene) => {
  const settings = { ...state.settings };
  setAnswer(scene.id, { settings, measured: shortText(scene, factsAt(settings)) });
};

// What was measured in the words of the choices.
const measuredText = (scene, facts) => {
  const { value, text } = scene.measured(facts);
  return scene.guess === "share" ? text : `${scene.guess[value]}, ${text}`;
};

const shortText = (scene, facts) => {
  const { value } = scene.measured(facts);
  return scene.guess === "share" ? brief(value) : scene.guess[value];
};

const again = () => {
  forget();
  go(0);
};

// ---------------------------------------------------------------- drawing

const lock = (isLocked) => {
  for (const part of canvas().querySelectorAll(LOCKED)) part.inert = isLocked;
};

const draw = (phase) => {
  const { index } = run;
  const scene = SCENES[index];
  const said = scene ? answerOf(scene.id) : {};
  const key = [index, phase, said.said].join("|");
  if (key === run.key) return;
  run.key = key;
  lock(phase === "predict");
  canvas().dataset.shows = scene ? scene.shows : "answers parts";
  for (const control of document.querySelectorAll(".ls-target")) control.classList.remove("ls-target");
  if (phase === "drag") {
    for (const control of scene.controls) document.querySelector(control)?.classList.add("ls-target");
  }
  drawCard({
    index, phase,
    done: SCENES.map(({ id }) => Boolean(answerOf(id).settings)),
    ...(scene ? viewOf(scene, phase, said) : endView()),
  });
  if (run.isMoved) focusCard();
  run.isMoved = false;
  // Once it is laid out: the card is elsewhere while one drags.
  const control = phase === "drag" ? document.querySelector(scene.controls[0]) : null;
  requestAnimationFrame(() => (control ? bringControl(control) : bringCard()));
  // What was pressed to predict is gone; what is to be moved is next.
  if (control && run.phase === "predict") control.focus({ preventScroll: true });
  run.phase = phase;
  remember();
};

const NOTHING = { ask: [], guess: null, said: null, task: [], answer: null, chart: null };

const viewOf = (scene, phase, { value, said, settings }) => {
  const view = { ...NOTHING, title: scene.title, said: value ?? null };
  if (phase === "wait") return { ...view, ask: ["What was measured is being loaded."] };
  const facts = factsAt(settings || state.settings);
  if (phase === "missing") {
    return { ...view, ask: [`This scene needs ${missingOf(scene, facts).join(" and ")}, which were not measured yet. Go on with the next one.`] };
  }
  Object.assign(view, { ask: scene.ask(facts), guess: scene.guess });
  if (phase === "predict") return { ...view, task: ["Guess first. Then the canvas moves."] };
  if (phase === "drag") return { ...view, task: scene.task(facts) };
  const measured = measuredText(scene, facts);
  return {
    ...view,
    answer: { said, measured, pieces: scene.reveal(facts) },
    chart: { ...scene.chart(facts), guess: scene.guess === "share" ? value : null },
  };
};

const endView = () => ({
  ...NOTHING,
  title: "What you said, and what was measured",
  summary: SCENES.map(({ id, title }) => ({ title, ...answerOf(id) })),
});
