// A and B: one setting pinned, another beside it.
import { put } from "../nodes.js";
import { epsilon } from "../numbers.js";
import { METHODS, usesDial } from "./methods.js";
import { choose, onPaint, redraw, state } from "./store.js";

let box = null;

// A setting in words: RAM+ ε 10⁻⁵ r 0.1 α 2.
export const settingsText = (profile, settings) => {
  const { method, point, r, alpha } = settings;
  const parts = [METHODS[method].title];
  if (METHODS[method].isRam) parts.push(`ε ${epsilon(profile.epsilon_grid[point])}`);
  if (usesDial(method, "r")) parts.push(`r ${r}`);
  if (usesDial(method, "alpha")) parts.push(`α ${alpha}`);
  return parts.join(" ");
};

const pinNow = () => setPin({ ...state.settings });

export const setPin = (settings) => {
  state.pin = settings;
  redraw();
};

const swap = () => {
  const pinned = state.pin;
  pinNow();
  choose(pinned);
};

export const mountPin = (column) => {
  box = put(column, "div", { class: "cv-pin", role: "group", "aria-label": "Compare two settings" });
  box.addEventListener("click", (event) => {
    const { act } = event.target.closest("[data-act]")?.dataset || {};
    if (act === "pin") pinNow();
    if (act === "swap") swap();
    if (act === "unpin") setPin(null);
    // The button that was pressed is gone.
    if (act) requestAnimationFrame(() => box.querySelector("button")?.focus({ preventScroll: true }));
  });
  onPaint(paintPin);
};

const paintPin = ({ profile, pin }) => {
  const key = pin ? settingsText(profile, pin) : "none";
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren();
  const button = (parent, act, text) => put(parent, "button", { type: "button", class: "cv-btn", "data-act": act }, text);
  if (!pin) {
    const only = button(box, "pin", "");
    put(only, "span", { class: "cv-tag" }, "A");
    only.append(" Pin as A to compare");
    return;
  }
  const line = put(box, "p", { class: "cv-pinned" });
  put(line, "span", { class: "cv-tag" }, "A");
  line.append(` ${settingsText(profile, pin)}`);
  const row = put(box, "div", { class: "cv-row" });
  button(row, "swap", "Swap A/B");
  button(row, "unpin", "Unpin");
};
