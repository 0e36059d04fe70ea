// The left column: the method, its dials, and what leads on.
import { put } from "../nodes.js";
import { epsilon } from "../numbers.js";
import { lambdaFormula, METHODS, usesDial } from "./methods.js";
import { choose, onPaint, state } from "./store.js";

const NAMES = Object.keys(METHODS);
const DIALS = [
  { key: "point", id: "dial-epsilon", use: "epsilon", symbol: "ε", word: "threshold", aria: "epsilon, threshold of change", most: 57, step: 1 },
  { key: "r", id: "dial-r", use: "r", symbol: "r", word: "strength", aria: "r, strength of the rescaling", most: 1, step: 0.01 },
  { key: "alpha", id: "dial-alpha", use: "alpha", symbol: "α", word: "cap on ρ", aria: "alpha, cap on rho", most: 10, step: 0.05 },
];

let chips = [];
let says = null;
let dials = [];

export const mountControls = (column) => {
  const box = put(column, "div", { class: "cv-method-box" });
  put(box, "h2", {}, "Merge method");
  const group = put(box, "div", { class: "cv-methods", role: "radiogroup", "aria-label": "Method" });
  chips = NAMES.map((method) => {
    const chip = put(group, "button", { type: "button", role: "radio", "data-method": method }, METHODS[method].title);
    chip.addEventListener("click", () => choose({ method }));
    return chip;
  });
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 2, ArrowLeft: -1, ArrowUp: -2 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = NAMES.indexOf(state.settings.method);
    choose({ method: NAMES[(at + step + NAMES.length) % NAMES.length] });
    chips[NAMES.indexOf(state.settings.method)].focus();
  });
  says = put(box, "p", { class: "cv-says" });
  const list = put(column, "div", { class: "cv-dials" });
  dials = DIALS.map((dial) => mountDial(list, dial));
  onPaint(paintControls);
};

const mountDial = (list, dial) => {
  const box = put(list, "div", { class: "cv-dial" });
  const head = put(box, "div", { class: "cv-dial-head" });
  const label = put(head, "label", { for: dial.id });
  put(label, "em", {}, dial.symbol);
  label.append(dial.word);
  // The threshold is a grid point; r and alpha can be typed.
  const value = dial.key === "point" ? put(head, "b")
    : put(head, "input", { type: "number", min: "0", max: dial.most, step: "any", "aria-label": `${dial.aria}, as a number`, id: `${dial.id}-number` });
  const track = put(box, "div", { class: "cv-track" });
  const ghost = put(track, "i", { class: "cv-ghost", hidden: "" });
  const input = put(track, "input", { type: "range", id: dial.id, min: "0", max: dial.most, step: dial.step, "aria-label": dial.aria });
  input.addEventListener("input", () => choose({ [dial.key]: Number(input.value) }));
  if (dial.key !== "point") {
    value.addEventListener("change", () => {
      if (value.value !== "" && Number.isFinite(Number(value.value))) choose({ [dial.key]: Number(value.value) });
      else value.value = String(state.settings[dial.key]);
    });
  }
  return { ...dial, box, value, ghost, input };
};

const paintControls = ({ profile, settings, pin }) => {
  chips.forEach((chip) => {
    const isOn = chip.dataset.method === settings.method;
    chip.setAttribute("aria-checked", String(isOn));
    chip.tabIndex = isOn ? 0 : -1;
    chip.classList.toggle("pinned", pin !== null && pin.method === chip.dataset.method);
  });
  if (says.dataset.method !== settings.method) {
    says.dataset.method = settings.method;
    describe(settings.method);
  }
  for (const dial of dials) paintDial(dial, profile, settings, pin);
};

const describe = (method) => {
  says.replaceChildren();
  const { isRam, says: sentence } = METHODS[method];
  if (!isRam) {
    says.append(sentence);
    return;
  }
  const line = (word, css, rest) => {
    const row = put(says, "span", { class: "cv-says-line" });
    if (word) put(row, "b", { class: css }, word);
    row.append(rest);
  };
  line("unique", "cv-unique-ink", method === "ram" ? " kept as it is" : " × λ");
  line("", "", lambdaFormula(method));
  line("shared", "cv-shared-ink", " averaged");
};

const paintDial = (dial, profile, settings, pin) => {
  const { input, value, box, ghost, key, most } = dial;
  const now = settings[key];
  if (Number(input.value) !== now) input.value = now;
  input.style.setProperty("--cv-at", `${(100 * now) / most}%`);
  box.classList.toggle("unused", !usesDial(settings.method, dial.use));
  if (key === "point") {
    const text = epsilon(profile.epsilon_grid[now]);
    if (value.textContent !== text) value.textContent = text;
    input.setAttribute("aria-valuetext", text);
  } else if (document.activeElement !== value && Number(value.value) !== now) value.value = String(now);
  else if (value.value === "") value.value = String(now);
  ghost.hidden = pin === null;
  if (pin) ghost.style.left = `calc(9px + (100% - 18px) * ${pin[key] / most})`;
};
