// @ts-check
// Two bars per agent: the factors of its own changes and of its shared changes in the merge. One figure for all methods,
// with fixed scales; a tick is at 1.
import { marker, put, putButton, setText } from "../../nodes.js";
import { factor, fixed, ratio, times } from "../../numbers.js";
import { onPaint, setWeight, shown, state, weigh, weightOf } from "../store.js";
import { nameOf, nameSays } from "../model/methods.js";
import { LEAST, MOST, scaled, STEP, weightText } from "../model/weights.js";
import { lossesOf } from "../model/rounding.js";

const KINDS = [
  { key: "own", css: "unique", most: 1.6, word: "own part", about: "Weights that only this agent changed; × 1: as trained", isOff: (x) => x < 0.75 || x > 1.6 },
  { key: "shared", css: "shared", most: 3.2, word: "shared part", about: "Weights that others changed, too; × 1: as one agent", isOff: (x) => x > 1.3 },
];

let part = null;
let rows = [];

export const mountParts = (root) => {
  const box = put(root, "section", { class: "cv-panel cv-parts", "data-part": "parts", "aria-label": "How much of each agent's change is applied" });
  const top = put(box, "div", { class: "cv-top" });
  put(top, "h2", {}, "What the merge applies");
  putButton(top, "Remove", () => weigh(null), { class: "cv-btn cv-weigh-off", id: "weights-off", title: "Count every agent once in every layer" });
  const head = put(box, "div", { class: "cv-two" });
  for (const { css, word, about } of KINDS) {
    const title = put(head, "div", { class: "cv-value", title: about });
    put(title, "b", { class: `cv-${css}-ink` }, word);
    put(title, "span", { class: "cv-muted" }, "│ × 1");
  }
  const list = put(box, "div", { class: "cv-agents" });
  const note = put(box, "p", { class: "cv-note" });
  part = { box, list, note };
  onPaint(paintParts);
  return part;
};

export const setParts = () => {
  part.list.replaceChildren();
  rows = state.profile.agents.map((name, t) => {
    const box = put(part.list, "div", { class: "cv-agent", "data-agent": name, role: "group" });
    const who = put(box, "div", { class: "cv-agent-name" });
    marker(who, t);
    put(who, "b", { title: name }, name);
    const rho = put(who, "span", { class: "cv-muted" });
    const lambda = put(who, "b", { class: "cv-lambda cv-unique-ink" });
    const weight = mountWeight(box, name, t);
    const two = put(box, "div", { class: "cv-two" });
    return { box, rho, lambda, weight, bars: KINDS.map((kind) => mountBar(two, kind)) };
  });
  part.list.classList.toggle("many", rows.length > 4);
};

// An agent's weight: a slider, and a button that removes or restores the agent.
const mountWeight = (box, name, t) => {
  const line = put(box, "div", { class: "cv-weigh" });
  let before = 1;
  const mute = putButton(line, "Mute", () => {
    const now = weightOf(t);
    if (now !== 0) before = now;
    setWeight(t, now === 0 ? before : 0);
  }, { class: "cv-btn", "data-mute": name, "aria-label": `Mute ${name}` });
  const slider = put(line, "input", { type: "range", min: LEAST, max: MOST, step: STEP, "data-weigh": name, "aria-label": `Weight of ${name}` });
  const value = put(line, "b");
  slider.addEventListener("input", () => setWeight(t, scaled(weightOf(t), Number(slider.value))));
  slider.addEventListener("focus", () => weigh(t));
  line.addEventListener("dblclick", () => setWeight(t, 1));
  return { line, mute, slider, value };
};

const paintWeight = ({ line, mute, slider, value }, t) => {
  const weight = weightOf(t);
  const mean = String(Array.isArray(weight) ? weight.reduce((a, b) => a + b) / weight.length : weight);
  line.classList.toggle("held", state.weighed === t);
  mute.setAttribute("aria-pressed", String(weight === 0));
  if (Number(slider.value) !== Number(mean)) slider.value = mean;
  slider.setAttribute("aria-valuetext", weightText(weight));
  setText(value, `× ${weightText(weight)}`);
};

const mountBar = (two, { css, most }) => {
  const cell = put(two, "div", { class: "cv-bar" });
  const svg = put(cell, "svg", { "aria-hidden": "true" });
  put(svg, "rect", { y: "21%", height: "58%", width: "100%", rx: 3, class: "cv-track" });
  const bar = put(svg, "rect", { y: "21%", height: "58%", width: "100%", rx: 3, class: `cv-fill-${css} cv-grows` });
  put(svg, "line", { y1: "4%", y2: "96%", x1: `${100 / most}%`, x2: `${100 / most}%`, class: "cv-whole" });
  const ghost = put(svg, "line", { y1: "0%", y2: "100%", class: "cv-ghost" });
  const value = put(cell, "b", { class: "cv-times" });
  return { bar, ghost, value };
};

const paintParts = () => {
  const { profile, settings } = state;
  const { result, factors, pinned } = shown;
  part.box.classList.toggle("weighing", state.weighed !== null);
  result.agents.forEach((agent, t) => {
    const { box, rho, lambda, weight, bars } = rows[t];
    if (state.weighed !== null) paintWeight(weight, t);
    setText(rho, `ρ ${ratio(agent.ratio)}`);
    setText(lambda, `λ ${factor(agent.lambda)}`);
    const found = KINDS.map(({ key }) => factors?.[key][t] ?? null);
    Object.assign(box.dataset, {
      epsilon: profile.epsilon_grid[settings.point], rho: agent.rho, rhoM: agent.rhoM, lambda: agent.lambda ?? "",
      own: found[0] ?? "", shared: found[1] ?? "",
    });
    KINDS.forEach(({ key, most, isOff }, i) => {
      const { bar, ghost, value } = bars[i];
      const [x, before] = [found[i], pinned?.factors?.[key][t] ?? null];
      bar.style.transform = `scaleX(${Math.min(1, Math.max(0, x ?? 0) / most)})`;
      ghost.style.display = before === null ? "none" : "";
      if (before !== null) for (const end of ["x1", "x2"]) ghost.setAttribute(end, `${100 * Math.min(1, before / most)}%`);
      setText(value, x === null ? "–" : `× ${times(x)}${x > most ? " ›" : ""}`);
      value.classList.toggle("cv-warn-ink", x !== null && isOff(x));
    });
    const words = [`rho ${ratio(agent.ratio)}`, `lambda ${agent.lambda === null ? "none" : factor(agent.lambda)}`];
    if (settings.weights) words.push(`weight ${weightText(weightOf(t))}`);
    KINDS.forEach(({ word }, i) => { if (found[i] !== null) words.push(`${word} applied ${times(found[i])} times`); });
    const label = `${agent.name}: ${words.join(", ")}`;
    if (box.getAttribute("aria-label") !== label) box.setAttribute("aria-label", label);
  });
  setText(part.note, noteOf(profile, result, factors));
};

const noteOf = (profile, result, factors) => {
  if (result.agents.some((a) => result.isRam && a.lambda === null)) return "ρ by size needs statistics that this analysis lacks: analyze again.";
  if (result.settings.weights && !factors) return "Not known for these weights before one merge: press Test now.";
  const says = nameSays(nameOf(result.settings, profile.agents.length), profile.agents.length);
  const lost = result.isRam ? lossesOf(profile, result.settings.point, result.agents) : [];
  const [worst] = lost.sort((a, b) => a.retained / a.requested - b.retained / b.requested);
  if (worst) return `${says} Stored in ${worst.dtype}, λ ${fixed(worst.requested, 2)} acts as ${fixed(worst.retained, 2)}.`;
  return `${says}${!factors || factors.isExact ? "" : " Bars: nearest measured setting."}`;
};
