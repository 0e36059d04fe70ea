// @ts-check
// The controls: methods with all their measured scores, the dials of the chosen one, and the comparison A.
import { stepByArrows } from "../../keys.js";
import { put, putButton, setText } from "../../nodes.js";
import { dialOf, MAIN, METHODS, methodOf, MORE, nameOf, nameSays, nameTitle, titleOf } from "../model/methods.js";
import { bestOf, nearestRow, rowsOf, startOf } from "../model/nearest.js";
import { counted } from "../model/words.js";
import { choose, dialInHand, hold, onPaint, setPin, shown, state, weigh } from "../store.js";
import { mountMenu } from "./popups.js";

let chips = [];
let more = null;
let part = null;

const nameNow = () => nameOf(state.settings, state.profile.agents.length);

/** The methods side by side; the average of one agent is its sum. */
const mainNames = () => (state.profile.agents.length > 1 ? MAIN : MAIN.filter((name) => name !== "average"));

/** The checked button: for a scale between average and sum the nearer one. */
const checkedName = () => {
  const name = nameNow();
  if (name !== "task-arithmetic") return name;
  return state.settings.scale > 0.6 || !mainNames().includes("average") ? "sum" : "average";
};

/** Choose a method by its name, at its initial settings; RAM's rules take over each other's dials. */
const chooseMethod = (name) => {
  const { isRam } = METHODS[methodOf(name)];
  const { point, r, alpha } = state.settings;
  const ramDials = isRam && METHODS[state.settings.method].isRam ? { point, r, alpha } : {};
  choose({ ...startOf(state.profile, name), ...ramDials, weights: state.settings.weights }, "method");
};

// ---------------------------------------------------------------- methods

export const mountMethods = (root) => {
  const box = put(root, "div", { class: "cv-methods" });
  const group = put(box, "div", { class: "cv-method-list", role: "radiogroup", "aria-label": "Merge method", "aria-keyshortcuts": "M" });
  chips = MAIN.map((name) => {
    const chip = putButton(group, "", () => chooseMethod(name), { role: "radio", "data-choose": name });
    const line = put(chip, "span", { class: "cv-method-name" });
    const made = { name, chip, title: put(line, "b"), score: put(line, "b", { class: "cv-method-score" }), strip: put(chip, "canvas", { "aria-hidden": "true" }), drawn: "" };
    return made;
  });
  stepByArrows(group, (step) => {
    nextMethod(step);
    chips[MAIN.indexOf(nameNow())]?.chip.focus();
  });
  more = put(box, "button", { type: "button", class: "cv-more" });
  more.append(put(more, "b", {}, "More"), " ▾");
  mountMenu(box, more, [
    ...MORE.map((name) => ({ text: nameTitle(name), id: `method-${name}`, run: () => chooseMethod(name) })),
    { text: "Weights of agents and layers", id: "open-weights", run: () => weigh(state.weighed ?? 0) },
  ]);
  onPaint(paintMethods);
  return box;
};

export const nextMethod = (step) => {
  const names = mainNames();
  const at = names.indexOf(checkedName());
  const from = at < 0 && step < 0 ? 0 : at; // a method behind More: start at either end
  chooseMethod(names[(from + step + names.length) % names.length]);
};

const paintMethods = () => {
  const { profile, settings, pin } = state;
  const n = profile.agents.length;
  const checked = checkedName();
  const names = mainNames();
  const isMain = MAIN.includes(checked);
  for (const one of chips) {
    const { name, chip, title, score } = one;
    const isOn = name === checked;
    chip.hidden = !names.includes(name);
    chip.setAttribute("aria-checked", String(isOn));
    chip.tabIndex = isOn || (!isMain && name === MAIN[0]) ? 0 : -1;
    chip.classList.toggle("pinned", pin !== null && nameOf(pin, n) === name);
    setText(title, isOn ? titleOf(settings, n) : nameTitle(name));
    const row = profile.skills && (isOn ? shown.near?.row : startRow(profile, name));
    setText(score, row ? String(row.total) : "");
    drawStrip(one, row, isOn);
  }
  setText(more.querySelector("b"), isMain ? "More" : METHODS[checked].title);
  more.classList.toggle("chosen", !isMain);
};

const startRow = (profile, name) => nearestRow(profile, startOf(profile, name))?.row;

// Every measured setting of a method as a line between none and all solved; redrawn after a choice or a new layout, and
// while dragging only for the active method.
const drawStrip = (one, row, isOn) => {
  const { strip, name, chip } = one;
  const { profile } = state;
  strip.hidden = !row;
  const key = [row?.id, isOn, profile.skills?.rows.length, one.width].join();
  if (key === one.drawn) return;
  one.drawn = key;
  chip.title = nameSays(name, profile.agents.length);
  if (!row) return;
  one.width ??= strip.clientWidth;
  const [width, height] = [one.width, 9];
  if (!width) { one.drawn = ""; return; }
  const ratio = Math.min(2, devicePixelRatio || 1);
  [strip.width, strip.height] = [width * ratio, height * ratio];
  const pen = strip.getContext("2d");
  const { asked } = profile.skills;
  const rows = rowsOf(profile, name);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = getComputedStyle(chip).color;
  pen.globalAlpha = 0.25;
  pen.fillRect(0, height - 1, width, 1);
  pen.globalAlpha = Math.max(0.12, Math.min(0.5, 8 / rows.length));
  for (const { total } of rows) pen.fillRect(Math.round(((width - 2) * total) / asked), 1, 1.4, height - 2);
  pen.globalAlpha = 1;
  pen.fillRect(((width - 3) * row.total) / asked, 0, 3, height);
  const best = bestOf(profile, name);
  chip.title += ` ${counted(rows.length, "setting")} measured; best ${best?.total ?? 0} of ${asked}.`;
};

export const layMethods = () => { for (const one of chips) [one.width, one.drawn] = [undefined, ""]; };

// ---------------------------------------------------------------- dials

/** The dials of the method beside the curve's title, and the active one as a number field. */
export const mountDials = (head) => {
  const group = put(head, "div", { class: "cv-dials", role: "radiogroup", "aria-label": "Active dial" });
  const typed = put(head, "input", { type: "number", step: "any", min: "0", class: "cv-typed", id: "dial-number" });
  part = { group, typed, key: "" };
  typed.addEventListener("change", () => {
    const value = Number(typed.value);
    if (typed.value !== "" && Number.isFinite(value)) choose({ [state.dial]: value });
    typed.value = String(state.settings[state.dial]); // the accepted value, within the dial's limits
  });
  stepByArrows(group, (step) => {
    const buttons = [...group.children];
    const at = buttons.findIndex((button) => button.dataset.key === state.dial);
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.click();
    next.focus();
  });
  onPaint(paintDials);
};

const idOf = (key) => `dial-${{ point: "epsilon", drop_rate: "drop" }[key] ?? key}`;

const paintDials = () => {
  const { profile, settings } = state;
  const { group, typed } = part;
  if (part.key !== settings.method) {
    part.key = settings.method;
    group.replaceChildren();
    for (const key of METHODS[settings.method].dials) {
      const { symbol, title } = dialOf(profile, settings.method, key);
      const button = putButton(group, "", () => hold(key), { role: "radio", id: idOf(key), "data-key": key, title, "aria-label": title });
      put(button, "span", {}, symbol);
      put(button, "b");
    }
  }
  for (const button of group.children) {
    const { key } = button.dataset;
    button.setAttribute("aria-checked", String(key === state.dial));
    button.tabIndex = key === state.dial ? 0 : -1;
    setText(button.lastChild, dialOf(profile, settings.method, key).text(settings[key]));
  }
  const dial = dialInHand();
  typed.hidden = !dial || dial.key === "point";
  if (typed.hidden) return;
  typed.setAttribute("aria-label", `${dial.title}, as a number`);
  if (document.activeElement !== typed && Number(typed.value) !== settings[dial.key]) typed.value = String(settings[dial.key]);
};

// ---------------------------------------------------------------- A

export const togglePin = () => setPin(state.pin ? null : { ...state.settings });

const swap = () => {
  const pinned = state.pin;
  setPin({ ...state.settings });
  choose(pinned, "method");
};

export const mountPin = (box) => {
  const pin = putButton(box, "", togglePin, { class: "cv-btn", "data-act": "pin", "aria-keyshortcuts": "P", title: "Key P, while the stage has the focus" });
  const swapped = putButton(box, "Swap", swap, { class: "cv-btn cv-wide", "data-act": "swap", hidden: "" });
  onPaint(() => {
    swapped.hidden = !state.pin;
    const words = state.pin ? "Unpin " : "Pin as ";
    if (pin.dataset.words === words) return;
    pin.dataset.words = words;
    pin.replaceChildren(words);
    put(pin, "span", { class: "cv-tag" }, "A");
  });
};
