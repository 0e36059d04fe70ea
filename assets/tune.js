// @ts-check
// The Tune step on the app's page: the stage, the value of record that other steps, links and recipes read and set, and
// links.
import { isPresenting, mountCanvas, present, relayout, reset, setCanvasProfile } from "./canvas/canvas.js";
import { linkOf } from "./canvas/model/links.js";
import { METHODS, settingsText } from "./canvas/model/methods.js";
import { weightsLine } from "./canvas/model/weights.js";
import { pictures } from "./canvas/paint/pictures.js";
import { accept, choose, hold, onChange, onPaint, redraw, setPin, shown, state } from "./canvas/store.js";
import { drawDetails, mountDetails } from "./details.js";
import { mountSaving } from "./figures.js";
import { copyText, download } from "./keep.js";
import { ledRoom } from "./led_room.js";
import { fetchTable, tableOf } from "./measured.js";
import { leaveScope, openScope, openWeight, settingsRest } from "./microscope.js";
import { onSent } from "./nodes.js";

const REST = 120; // ms after a move until the value of record is updated
const WRITE = 200; // ms after a move until the URL is updated

let root = null;
let [timer, writing, saying] = [0, 0, 0];
let recorded = ""; // the value of record after its last change
/** @type {string[]} the stage's later values, in order: each is expected back as a change */
const sent = [];
let formState = ""; // the last values sent to Merge's form
/** @type {any} its value before the stage was ready */
let wanted = null;

const press = (id) => document.getElementById(id)?.click();

/** Gradio calls this when the panel is mounted; `watch` reports new values from the server. */
export const mount = (element, props, watch) => {
  root = element;
  const dialog = element.querySelector(".cv-details");
  mountCanvas(element.querySelector(".cv-root"), {
    openLayer: (layer) => {
      record();
      openScope(state.profile.layers[layer]);
    },
    buttons: [
      { at: "curve", text: "Reset", id: "reset", run: reset },
      { at: "weights", text: "Details", id: "open-details", run: () => openDetails(dialog) },
      { at: "verdict", text: "Share", id: "share", menu: [
        { text: "Copy link", id: "copy-link", run: copyLink },
        ...pictures,
        { text: "This page as a file", id: "save-page", run: savePage },
      ] },
      ...(ledRoom() ? [{ at: "verdict", text: "Ask the class", id: "ask-class", run: askClass }] : []),
      { at: "verdict", text: "Next: merge", css: "cv-main next", "data-open": "merge" },
    ],
  });
  const measure = document.getElementById("measure-box");
  if (measure) element.querySelector(".cv-acts").prepend(measure);
  mountDetails(dialog, redraw);
  mountSaving(document);
  const details = document.getElementById("open-details");
  for (const event of ["pointerenter", "focus"]) details.addEventListener(event, readFigures, { once: true });
  onPaint(paintElsewhere);
  onPaint(rememberView);
  onChange(follow);
  // A following click then finds the value of record up to date with the stage.
  document.addEventListener("pointerup", record);
  onSent(props, watch, setProfile);
};

// The figure library is large: it is loaded while the server computes, or the pointer approaches.
const readFigures = () => {
  const { RAM_FIGURES } = /** @type {any} */ (window);
  if (RAM_FIGURES) import(String(new URL(RAM_FIGURES, document.baseURI))).catch(() => {});
};

// Gradio lays out the server's figures beside the stage; they are shown in the dialog with the rest.
const openDetails = (dialog) => {
  const figures = document.getElementById("details-figures");
  if (figures) dialog.append(figures);
  readFigures();
  dialog.showModal();
  record();
  press("draw-details");
  redraw();
};

export const setProfile = (profile) => {
  setCanvasProfile(profile);
  leaveScope();
  if (!profile) return;
  if (wanted) accept(wanted);
  wanted = null;
  settingsRest();
  fetchTable(profile);
};

// ---------------------------------------------------------------- the value of record

const follow = () => {
  clearTimeout(timer);
  timer = window.setTimeout(record, REST);
  settingsRest();
  remember();
};

const record = () => {
  clearTimeout(timer);
  if (state.settings && settings() !== (sent.at(-1) ?? recorded)) press("record-settings");
};

/** Read by Gradio when the button above is clicked: one JSON value. */
export const giveSettings = () => {
  const text = settings();
  if (text !== (sent.at(-1) ?? recorded)) sent.push(text);
  return text;
};

const settings = () => JSON.stringify({ ...state.settings, ...METHODS[state.settings.method].fixed });

/** The value of record with epsilon 0, for Merge. */
export const dropEpsilon = () => {
  choose({ point: 0 });
  return settings();
};

/** The value of record changed: by a link, a recipe, a reload, or the stage. It may be partial. */
export const update = (text) => {
  if (!text || text === recorded) return;
  recorded = text;
  const echo = sent.indexOf(text);
  sent.splice(0, echo + 1); // earlier ones are outdated
  if (echo >= 0) return; // the stage may have newer settings
  const parsed = JSON.parse(text);
  if (state.profile) accept(parsed);
  else wanted = { ...wanted, ...parsed };
  follow(); // it then contains all settings
};

/** The values for Merge's form after another method or setting is chosen here: [method, weights, ...a value for each of
 * its own controls]. controls: [{ name, methods }], method, weights and values: the form's current ones. */
export const mergeForm = (controls, text, method, weights, values) => {
  const parsed = text ? JSON.parse(text) : {};
  const { dials = [], fixed = {} } = METHODS[parsed.method] ?? {};
  const own = { ...fixed, ...Object.fromEntries(dials.filter((key) => key !== "point").map((key) => [key, parsed[key]])) };
  const before = formState;
  const line = weightsLine(parsed.weights);
  formState = JSON.stringify([parsed.method, own, line]);
  if (!parsed.method || formState === before || document.body.dataset.step === "merge") return [method, weights, ...values];
  return [parsed.method, line, ...controls.map(({ name, methods }, i) => (methods.includes(parsed.method) ? own[name] ?? values[i] : values[i]))];
};

const paintElsewhere = () => {
  if (root.querySelector(".cv-details").open) drawDetails(state.profile, state.settings, shown.result);
  for (const node of document.querySelectorAll("[data-live=settings]")) node.textContent = settingsText(state.settings, state.profile);
};

/** The step was opened: its layout needs visibility, and it gets the focus of a presentation started by a link. */
export const show = () => {
  if (!root || !state.profile) return;
  relayout();
  if (isPresenting()) present(true);
};

// ---------------------------------------------------------------- links

const link = () => linkOf(window.location.href, document.body.dataset.step, { ...state, isPresented: isPresenting() });

// The same stage as one HTML file, with the current settings and measurements: the server sends the page, with null in
// its JSON script as a placeholder for the data.
const savePage = async () => {
  const { profile, pin, dial } = state;
  if (!profile) return;
  try {
    const answer = await fetch("ram/canvas.html");
    if (!answer.ok) throw new Error(String(answer.status));
    const bare = { ...profile, skills: undefined, dials: undefined, axis: undefined };
    const data = { title: profile.agents.join(", "), profile: bare, table: tableOf(profile), settings: state.settings, pin, dial };
    const text = JSON.stringify(data).replaceAll("<", "\\u003c");
    const page = (await answer.text()).replace(/(id="ram-data">)null(?=<)/, (_, head) => head + text);
    download("ram-canvas.html", new Blob([page], { type: "text/html" }));
  } catch {
    showNote("The page could not be read from the server: try again.");
  }
};

export const remember = () => {
  clearTimeout(writing);
  writing = window.setTimeout(() => {
    if (state.profile && document.body.dataset.step !== "load") history.replaceState(history.state, "", link());
  }, WRITE);
};

// The parts of a link besides the settings.
const VIEW = ["pin", "weight", "lesson", "dial"];
let viewed = {};
const rememberView = () => {
  if (VIEW.every((key) => viewed[key] === state[key])) return;
  viewed = Object.fromEntries(VIEW.map((key) => [key, state[key]]));
  remember();
};

/** Show a link parsed by deep_link.py. */
export const lookAt = ({ pin, dial, tensor, element }) => {
  if (!state.profile) return;
  viewed = {};
  if (pin) setPin(pin);
  if (dial && METHODS[state.settings.method].dials.includes(dial)) hold(dial);
  if (tensor) openWeight({ tensor, element });
};

const showNote = (text) => {
  const box = root.querySelector("[data-part=link]");
  box.textContent = text;
  clearTimeout(saying);
  saying = window.setTimeout(() => { box.textContent = ""; }, 6000);
};

// Only where this browser leads a room: the stage's merge becomes its next question.
const askClass = async () => {
  if (!state.profile) return;
  const room = await import("./room/ask.js");
  showNote(await room.askClass(state.profile, state.settings));
};

const copyLink = async () => {
  if (!state.profile) return;
  const url = String(link());
  history.replaceState(history.state, "", url);
  if (!(await copyText(url))) showNote("The link is in the address bar: copy it from there.");
  else if (state.profile.set) showNote("Link copied. It opens this example with these settings.");
  else showNote("Link copied. It carries the settings; your models stay on this machine.");
};
