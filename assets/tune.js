// The Tune step on the app's page: the canvas, Gradio's sliders as the values of record, and links.
import { isPresenting, mountCanvas, relayout, reset, setCanvasProfile } from "./canvas/canvas.js";
import { download, pictures } from "./canvas/card.js";
import { setPin } from "./canvas/pin.js";
import { focusAgent } from "./canvas/stage.js";
import { accept, onChange, onPaint, redraw, sameSettings, shown, state } from "./canvas/store.js";
import { drawDetails, mountDetails } from "./details.js";
import { mountSaving } from "./figures.js";
import { linkOf } from "./link.js";
import { fetchTable, tableOf } from "./measured.js";
import { leaveScope, openScope, openWeight, settingsRest } from "./microscope.js";
import { onSent } from "./nodes.js";
import { epsilon } from "./numbers.js";

const REST = 120; // ms after which the sliders follow a move
const WRITE = 200; // ms after which the address does

let root = null;
let timer = 0;
let recorded = { ...state.settings }; // what the sliders last said or were told

// Gradio calls this when the panel is mounted; `watch` reports new values from the server.
export const mount = (element, props, watch) => {
  root = element;
  const dialog = element.querySelector(".cv-details");
  mountCanvas(element.querySelector(".cv-root"), {
    openLayer: (layer) => {
      record();
      openScope(state.profile.layers[layer]);
    },
    buttons: [
      { text: "Reset", id: "reset", run: reset },
      { text: "Share", id: "share", menu: [
        { text: "Copy link", id: "copy-link", run: copyLink },
        ...pictures,
        { text: "This page as a file", id: "save-page", run: savePage },
      ] },
      { text: "Details", id: "open-details", css: "cv-wide", run: () => openDetails(dialog) },
      { text: "Next: merge", css: "cv-main next", "data-open": "merge" },
    ],
  });
  mountDetails(dialog, redraw);
  mountSaving(document);
  const details = document.getElementById("open-details");
  for (const event of ["pointerenter", "focus"]) details.addEventListener(event, readFigures, { once: true });
  onPaint(paintElsewhere);
  onPaint(rememberView);
  onChange(follow);
  // Whatever is pressed next finds the sliders where the canvas is.
  document.addEventListener("pointerup", record);
  onSent(props, watch, setProfile);
};

// What draws figures is large: it is read while the server works on them, or a hand is on its way.
const readFigures = () => {
  if (window.RAM_FIGURES) import(new URL(window.RAM_FIGURES, document.baseURI)).catch(() => {});
};

// What the server draws is laid out by Gradio beside the canvas, and shown in the dialog with the rest.
const openDetails = (dialog) => {
  const figures = document.getElementById("details-figures");
  if (figures) dialog.append(figures);
  readFigures();
  dialog.showModal();
  record();
  document.getElementById("draw-details")?.click();
  redraw();
};

export const setProfile = (profile) => {
  setCanvasProfile(profile);
  leaveScope();
  if (!profile) return;
  settingsRest();
  fetchTable(profile);
};

// ---------------------------------------------------------------- the values of record

const follow = () => {
  clearTimeout(timer);
  timer = setTimeout(record, REST);
  settingsRest();
  remember();
};

const record = () => {
  clearTimeout(timer);
  if (sameSettings(recorded, state.settings)) return;
  recorded = { ...state.settings };
  document.getElementById("record-settings")?.click();
};

// Read by Gradio when the button above is pressed.
export const settings = () => {
  const { point, r, alpha, method } = state.settings;
  return [point, r, alpha, method];
};

// A slider of record changed: by a link, a recipe, a reload, or because the canvas said so.
export const update = (point, r, alpha, method) => {
  const said = { point: Number(point), r: Number(r), alpha: Number(alpha), method: method || state.settings.method };
  if (sameSettings(said, recorded)) return; // an echo
  recorded = said;
  accept(said);
  settingsRest();
  remember();
};

const paintElsewhere = () => {
  if (root.querySelector(".cv-details").open) drawDetails(state.profile, state.settings, shown.result);
  const { profile, settings: { point, r, alpha } } = state;
  for (const node of document.querySelectorAll("[data-live=settings]")) {
    node.textContent = `ε ${epsilon(profile.epsilon_grid[point])} · r ${r} · α ${alpha}`;
  }
};

// The step was opened: it is measured only when it is seen.
export const show = () => { if (root && state.profile) relayout(); };

// ---------------------------------------------------------------- links

const link = () => linkOf(window.location.href, document.body.dataset.step, { ...state, isPresented: isPresenting() });

// The same canvas as one HTML file, with what is shown and measured now: the server sends the page, which
// has room for data where its script of JSON says null.
const savePage = async () => {
  const { profile, settings, pin, focus } = state;
  if (!profile) return;
  try {
    const answer = await fetch("ram/canvas.html");
    if (!answer.ok) throw new Error(answer.status);
    const data = { title: profile.agents.join(", "), profile: { ...profile, skills: undefined }, table: tableOf(profile), settings, pin, focus };
    const text = JSON.stringify(data).replaceAll("<", "\\u003c");
    const page = (await answer.text()).replace(/(id="ram-data">)null(?=<)/, (_, head) => head + text);
    download("ram-canvas.html", new Blob([page], { type: "text/html" }));
  } catch {
    say("The page could not be read from the server: try again.");
  }
};

let writing = 0;
export const remember = () => {
  clearTimeout(writing);
  writing = setTimeout(() => {
    if (state.profile && document.body.dataset.step !== "load") history.replaceState(history.state, "", link());
  }, WRITE);
};

// What a link carries besides the settings.
const VIEW = ["pin", "focus", "weight", "lesson"];
let viewed = {};
const rememberView = () => {
  if (VIEW.every((key) => viewed[key] === state[key])) return;
  viewed = Object.fromEntries(VIEW.map((key) => [key, state[key]]));
  remember();
};

// Show what a link says, as deep_link.py understood it.
export const lookAt = ({ pin, focus, tensor, element }) => {
  if (!state.profile) return;
  viewed = {};
  if (pin) setPin(pin);
  focusAgent(focus);
  if (tensor) openWeight({ tensor, element });
};

const say = (text) => {
  const box = root.querySelector("[data-part=link]");
  box.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { box.textContent = ""; }, 6000);
};

const copyLink = async () => {
  if (!state.profile) return;
  const url = link().toString();
  history.replaceState(history.state, "", url);
  try {
    await navigator.clipboard.writeText(url);
    say(state.profile?.set
      ? "Link copied. It opens this example with these settings."
      : "Link copied. It carries the settings; your models stay on this machine.");
  } catch {
    say("The link is in the address bar: copy it from there.");
  }
};
