// @ts-check
// The lesson on the stage: predict, drag, and see the measured answer. It controls the open scene, its models, and when
// its answer is reached. The stage is independent of it; the store has the current state.
import { copyText } from "../keep.js";
import { brief } from "../numbers.js";
import { isPresenting, relayout, reset } from "../canvas/canvas.js";
import { areSame } from "../canvas/model/methods.js";
import { choose, hold, onPaint, redraw, state } from "../canvas/store.js";
import { bringCard, bringControl, drawCard, focusCard, mountCard, unmountCard } from "./card.js";
import { answerOf, answersText, forget, openScene, setAnswer, setOpenScene } from "./progress.js";
import { followKeys } from "./projector.js";
import { missingOf } from "./record.js";
import { SCENES } from "./scenes.js";

/** The lesson's environment: the app's page, or a file. open: goes to the stage; openSet: loads a shipped set there;
 * recordOf: its record, or null; remember: writes the URL; titled: sets the tab's title, null for the default;
 * kit: URL of the teacher's kit.
 * @typedef {{ open: () => void, openSet: (set: string) => void, recordOf: (set: string) => Promise<any>,
 *   remember: () => void, titled: (title: string | null) => void, kit: string }} Host
 * @typedef {import("./scenes.js").Scene} Scene @typedef {import("./scenes.js").Facts} Facts
 * @typedef {{ index: number, panel: string, isMoved: boolean, isStarted: boolean, isLoading: boolean, phase?: string, key: string, view: string }} Run
 * panel: of a projector, "ask", "figure" or "answer" */

const LOCKED = ".cv-methods, .cv-curve, .cv-weights"; // until a guess was made
const END = SCENES.length; // after the last scene: guesses and measured answers

/** @type {Run | null} */
let run = null;
/** @type {Host} */
let host;
/** @type {Map<string, any>} set -> its record, null where there is none, undefined while it comes */
const records = new Map();

const canvas = () => /** @type {HTMLElement} */ (document.querySelector(".cv-root"));

// ---------------------------------------------------------------- entering and leaving

const OWN = "The lesson replaces your models with its own agents. You must analyze yours again afterwards. Continue?";

/** @param {string | null} [sceneName] a number from 1, a scene's id, or nothing for the scene that was open last */
export const takeLesson = (sceneName) => {
  if (state.profile && !state.profile.set && !window.confirm(OWN)) return;
  go(placeOf(sceneName) ?? placeOf(openScene()) ?? 0);
};

/** @param {Host} newHost */
export const mountLesson = (newHost) => { host = newHost; };

const placeOf = (sceneName) => {
  const found = SCENES.findIndex(({ id }, i) => id === sceneName || String(i + 1) === sceneName);
  return found < 0 ? null : found;
};

const setOf = (index) => SCENES[Math.min(index, END - 1)].set;

/** @param {Run} at */
const isLoaded = (at) => state.profile?.set === setOf(at.index);

const go = (index, panel = "ask") => {
  const isMoved = run !== null;
  run = { index, panel, isMoved, isStarted: false, isLoading: false, key: "", view: "" };
  if (index < END) setOpenScene(SCENES[index].id);
  state.lesson = Math.min(index + 1, END);
  if (isLoaded(run)) host.open();
  else {
    run.isLoading = true;
    host.openSet(setOf(index)); // which opens Tune as well
  }
  redraw();
};

const leave = () => {
  run = null;
  state.lesson = null;
  lock(false);
  unmountCard();
  unmark();
  canvas().classList.remove("ls-on");
  for (const key of ["shows", "methods", "panel", "veiled"]) delete canvas().dataset[key];
  document.documentElement.classList.remove("ls-lesson");
  host.titled(null);
  relayout();
  host.remember();
};

// ---------------------------------------------------------------- facts

/** @returns {Facts} */
const factsAt = (settings) => {
  const { profile } = state;
  return { profile, settings, skills: profile.skills || null, record: records.get(profile.set) || null };
};

// Whether table and record of the loaded models are loaded, or do not exist.
const isHere = () => {
  const { set: example, skills, skills_at: at } = state.profile;
  if (!records.has(example)) {
    records.set(example, undefined);
    host.recordOf(example).catch(() => null).then((record) => { records.set(example, record); redraw(); });
  }
  return records.get(example) !== undefined && Boolean(skills || !at);
};

/** @param {Scene} scene */
const phaseOf = (scene) => {
  if (!isHere()) return "wait";
  if (missingOf(scene, factsAt(state.settings)).length) return "missing";
  const { said, settings } = answerOf(scene.id);
  return settings ? "answer" : said !== undefined ? "drag" : "predict";
};

// ---------------------------------------------------------------- following the stage

let isHeld = false; // the dragged control must not move away
document.addEventListener("pointerdown", () => { isHeld = true; }, true);
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => {
    isHeld = false;
    if (run) redraw();
  }, true);
}

const follow = () => {
  if (!run) return;
  if (!isLoaded(run)) {
    if (run.isLoading) return;
    leave(); // other models were loaded meanwhile, to which the scene's settings do not apply
    reset();
    return;
  }
  run.isLoading = false;
  mount();
  if (run.index === END) {
    draw(run, "end");
    return;
  }
  const scene = SCENES[run.index];
  const phase = phaseOf(scene);
  if (!run.isStarted && phase !== "wait") start(run, scene, phase);
  else if (phase === "drag" && !isHeld && scene.isReached(factsAt(state.settings))) answer(scene);
  veil(scene, phaseOf(scene));
  draw(run, phaseOf(scene));
};
onPaint(follow);

const mount = () => {
  const root = canvas();
  if (root.classList.contains("ls-on")) return;
  root.classList.add("ls-on");
  document.documentElement.classList.add("ls-lesson");
  const turn = (value) => run && choose({ [SCENES[run.index].dial ?? "r"]: value });
  mountCard(root, SCENES.map(stepOf), { go, back, next, guess, turn, show, again, leave, copy }, host.kit);
  relayout();
};

/** Six scenes are numbered; the last word is not. @param {Scene} scene @param {number} i */
const stepOf = ({ title, isLastWord }, i) =>
  ({ title, mark: isLastWord ? "+" : String(i + 1), label: isLastWord ? title : `Scene ${i + 1}: ${title}` });

/** @param {Run} at @param {Scene} scene @param {string} phase */
const start = (at, scene, phase) => {
  at.isStarted = true;
  const facts = factsAt(state.settings);
  if (phase === "missing") return;
  // After this frame, so that all its drawings belong to one state.
  queueMicrotask(() => {
    if (scene.dial) hold(scene.dial);
    choose(phase === "answer" ? answerOf(scene.id).settings : scene.start(facts), "method");
  });
};

const guess = (value, said) => {
  if (!run) return;
  setAnswer(SCENES[run.index].id, { value, said });
  redraw();
};

const show = () => {
  if (run) choose(SCENES[run.index].target(factsAt(state.settings)));
};

/** @param {Scene} scene */
const answer = (scene) => {
  const settings = { ...state.settings };
  setAnswer(scene.id, { settings, measured: shortText(scene, factsAt(settings)) });
};

/** The measured answer as one of the choices. @param {Scene} scene @param {Facts} facts */
const measuredText = (scene, facts) => {
  const { value, text } = scene.measured(facts);
  return scene.guess === "share" ? text : `${scene.guess[value]}, ${text}`;
};

/** @param {Scene} scene @param {Facts} facts */
const shortText = (scene, facts) => {
  const { value } = scene.measured(facts);
  return scene.guess === "share" ? brief(value) : scene.guess[value];
};

const again = () => {
  forget();
  go(0);
};

const copy = async (kind, name) => (await copyText(answersText(kind, name.trim(), SCENES))
  ? `Copied as ${kind === "csv" ? "CSV" : "text"}.` : "The browser did not let this page copy. Select the list above.");

// ---------------------------------------------------------------- next and back, one panel at a time on a projector

const next = () => {
  if (!run || !isLoaded(run)) return;
  const { index, panel } = run;
  const scene = SCENES[index];
  const phase = scene && isPresenting() ? phaseOf(scene) : "";
  if (panel === "ask" && phase === "predict") guess(null, ""); // the class raises hands, without an input
  if (panel === "ask" && ["predict", "drag", "answer"].includes(phase)) turnTo("figure");
  else if (panel === "figure" && phase === "drag") show();
  else if (panel === "figure" && phase === "answer") turnTo("answer");
  else if (index < END) go(index + 1);
};

const back = () => {
  if (!run) return;
  const { index, panel } = run;
  if (isPresenting() && panel !== "ask") turnTo(panel === "answer" ? "figure" : "ask");
  else if (index) go(index - 1, isPresenting() ? "answer" : "ask");
};

const turnTo = (panel) => {
  if (!run) return;
  run.panel = panel;
  redraw();
};

followKeys(() => run && isPresenting(), { next, back, left: () => host.remember() });

// ---------------------------------------------------------------- drawing

const lock = (isLocked) => {
  for (const part of /** @type {NodeListOf<HTMLElement>} */ (canvas().querySelectorAll(LOCKED))) part.inert = isLocked;
};

const unmark = () => {
  for (const control of document.querySelectorAll(".ls-target")) control.classList.remove("ls-target");
};

/** The initial state of a scene is not its answer: answers wait for a change.
 * @param {Scene} scene @param {string} phase */
const veil = (scene, phase) => {
  const isStart = ["predict", "drag"].includes(phase) && areSame(state.settings, scene.start(factsAt(state.settings)));
  canvas().toggleAttribute("data-veiled", phase === "wait" || phase === "predict" || isStart);
};

/** @param {Run} at @param {string} phase */
const draw = (at, phase) => {
  const { index } = at;
  /** @type {Scene | undefined} */
  const scene = SCENES[index];
  const said = scene ? answerOf(scene.id) : {};
  const isShown = isPresenting();
  const view = [index, phase, at.panel, isShown].join("|");
  const key = [view, said.said].join("|");
  if (key === at.key) return;
  const isNew = view !== at.view; // otherwise only the guess changed
  Object.assign(at, { key, view });
  lock(phase === "predict");
  Object.assign(canvas().dataset, { shows: scene?.figure ?? "none", panel: at.panel });
  canvas().toggleAttribute("data-methods", Boolean(scene?.isWithMethods));
  unmark();
  drawCard({
    ...NOTHING, index, phase, isShown, isFirst: !index && (!isShown || at.panel === "ask"),
    done: SCENES.map(({ id }) => Boolean(answerOf(id).settings)),
    ...(scene ? viewOf(scene, phase, said) : endView()),
  });
  host.titled(scene ? stepOf(scene, index).label : "Lesson");
  if (at.isMoved) focusCard();
  at.isMoved = false;
  const controls = phase === "drag" && scene ? scene.controls.map((control) => document.querySelector(control)) : [];
  for (const control of controls) control?.classList.add("ls-target");
  // After layout: the card has another position while dragging.
  const control = /** @type {HTMLElement | null} */ (controls[0] ?? null);
  if (isNew) requestAnimationFrame(() => {
    relayout("size");
    if (control) bringControl(control);
    else bringCard();
  });
  // The button of the prediction is gone; focus the control to move.
  if (control && at.phase === "predict" && !isPresenting()) control.focus({ preventScroll: true });
  at.phase = phase;
  host.remember();
};

/** @type {import("./card.js").View} */
const NOTHING = {
  index: 0, phase: "", isFirst: true, isShown: false, done: [], title: "", example: null, ask: [], guess: null, said: null, dial: null, task: [], answer: null, chart: null, summary: null,
};

/** @param {Scene} scene @param {string} phase @param {import("./progress.js").Answer} given */
const viewOf = (scene, phase, { value = null, said = "", settings }) => {
  const view = { title: scene.title, said: value };
  if (phase === "wait") return { ...view, ask: ["The measurements are loading."] };
  const facts = factsAt(settings || state.settings);
  if (phase === "missing") {
    return { ...view, ask: [`This scene needs ${missingOf(scene, facts).join(" and ")}, which were not measured yet. Continue with the next one.`] };
  }
  Object.assign(view, { ask: scene.ask(facts), guess: scene.guess, example: scene.example?.(facts) ?? null });
  if (phase === "predict") return { ...view, task: ["Guess first. Then the figure moves."] };
  if (phase === "drag") return { ...view, task: scene.task(facts), dial: dialOf(scene, facts) };
  return {
    ...view,
    answer: { said, measured: measuredText(scene, facts), pieces: scene.reveal(facts) },
    chart: { ...scene.chart(facts), guess: scene.guess === "share" ? value : null },
  };
};

/** @param {Scene} scene @param {Facts} facts */
const dialOf = ({ dial, most }, { settings }) => (dial && most ? { name: dial, most, value: settings[dial] } : null);

const endView = () => ({
  title: "Your guesses, and what was measured",
  summary: SCENES.map(({ id, title }) => ({ title, ...answerOf(id) })),
});
