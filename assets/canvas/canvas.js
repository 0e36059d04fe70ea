// Tune as one canvas: choose on the left, the mechanism in the middle, the outcome on the right. The same
// on the app's page and in an exported file; nothing here knows Gradio.
import { marker, put } from "../nodes.js";
import { epsilon } from "../numbers.js";
import { layAgents, mountAgents, setAgents } from "./agents.js";
import { mountControls } from "./controls.js";
import { isPhone } from "./geometry.js";
import { forgetCurves } from "./mechanism.js";
import { mountMenu } from "./menu.js";
import { METHODS } from "./methods.js";
import { mountPin } from "./pin.js";
import { laySkills, mountSkills, setSkills, skillShares } from "./skills.js";
import { layStage, mountStage, recolor, setStageProfile } from "./stage.js";
import { choose, clean, onPaint, readTable, redraw, shown, state } from "./store.js";
import { nearestRow, skillsOf } from "./table.js";
import { verdictOf } from "./verdict.js";
import { retainedText } from "./words.js";

const SAY_AFTER = 600; // ms after the last move

let part = {};
let saying = 0;
let laidOut = "";

// openLayer(layer), or null where there are no single weights to see; buttons: [{ id, text, css, run, menu or
// data }] at the foot of the left column, which differ between the page and an exported file.
export const mountCanvas = (root, { openLayer, buttons }) => {
  root.classList.add("cv");
  const column = (css, label) => put(root, "section", { class: `cv-col ${css}`, "aria-label": label });
  const left = column("cv-choose", "Settings");
  mountControls(left);
  mountPin(left);
  const foot = put(left, "div", { class: "cv-foot" });
  for (const { text, css, run, menu, ...attributes } of buttons) {
    const button = put(foot, "button", { type: "button", class: `cv-btn ${css || ""}`, ...attributes }, text);
    if (run) button.addEventListener("click", run);
    if (menu) mountMenu(foot, button, menu);
  }
  mountStage(column("cv-mech", "Mechanism"), openLayer);
  const right = column("cv-out", "Outcome");
  const verdict = put(right, "p", { class: "cv-verdict", "data-part": "verdict" });
  const lead = put(verdict, "b", { "data-part": "verdict-text" });
  const rest = put(verdict, "span");
  const said = put(right, "p", { class: "unseen", role: "status" });
  mountAgents(right);
  mountSkills(right);
  const strip = put(root, "div", { class: "cv-strip", id: "ram-strip", "aria-hidden": "true" });
  const leave = put(root, "button", { type: "button", class: "cv-btn cv-leave" }, "Leave presentation");
  leave.addEventListener("click", () => present(false));
  part = { root, verdict, lead, rest, said, strip };
  readTable(nearestRow);
  onPaint(paintVerdict);
  onPaint(paintStrip);
  new ResizeObserver(() => requestAnimationFrame(layOut)).observe(right);
  new MutationObserver(recolor).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isPresenting()) present(false);
  });
  document.fonts?.ready.then(relayout);
};

// A new set of models, or null. What was chosen stays.
export const setCanvasProfile = (profile) => {
  state.profile = profile;
  state.pin = null;
  state.layer = null;
  state.weight = null;
  if (!profile) return;
  state.settings = clean(state.settings);
  if (state.focus >= profile.agents.length) state.focus = null;
  setAgents();
  setSkills();
  setStageProfile();
  relayout();
};

// The table of measured settings of these models, when it has come.
export const setTable = (profile, table) => {
  if (profile !== state.profile) return;
  profile.skills = skillsOf(table, profile);
  setSkills();
  relayout();
};

// What TIES keeps of each agent, when it was merged.
export const setTies = (profile, ties) => {
  if (profile !== state.profile || profile.ties) return;
  profile.ties = ties;
  forgetCurves();
  redraw();
};

const layOut = () => {
  const size = `${part.root.clientWidth}x${part.root.clientHeight}`;
  if (size === laidOut) return;
  laidOut = size;
  relayout();
};

// The canvas ends where the window does, whatever stands above it.
const fillWindow = () => {
  const top = Math.round(part.root.getBoundingClientRect().top + window.scrollY);
  if (top > 0) part.root.style.setProperty("--cv-height", isPhone() ? "auto" : `calc(100vh - ${top + 12}px)`);
};

export const relayout = () => {
  fillWindow();
  layAgents();
  laySkills();
  layStage();
  redraw();
};

export const reset = () => {
  const { defaults, default_index: point } = state.profile;
  choose({ point, r: defaults.r, alpha: defaults.alpha, method: defaults.rule });
};

// ---------------------------------------------------------------- presentation

export const isPresenting = () => document.documentElement.classList.contains("cv-present");

export const present = (isOn) => {
  document.documentElement.classList.toggle("cv-present", isOn);
  requestAnimationFrame(relayout);
};

// ---------------------------------------------------------------- verdict and strip

// A number stands in one line with its %.
const unbroken = ({ key, tone, lead, pieces }) => {
  const tied = (text) => text.replace(/(\d) %/g, "$1\u00a0%");
  return { key, tone, lead: tied(lead), pieces: pieces.map(([text, isStrong]) => [tied(text), isStrong]) };
};

const paintVerdict = () => {
  const { key, tone, lead, pieces } = unbroken(verdictOf(state.profile, shown.result, shown.near));
  Object.assign(part.verdict.dataset, { verdict: key, tone });
  const said = `${lead}|${pieces.map(([text, strong]) => `${text}${strong}`).join("")}`;
  if (part.verdict.dataset.key === said) return;
  part.verdict.dataset.key = said;
  part.lead.textContent = lead;
  part.rest.replaceChildren();
  for (const [text, isStrong] of pieces) {
    if (isStrong) put(part.rest, "b", {}, text);
    else part.rest.append(text);
  }
  // Not a live region on the sentence itself: it would talk all the time.
  clearTimeout(saying);
  saying = setTimeout(() => { part.said.textContent = part.verdict.textContent; }, SAY_AFTER);
};

// Line and outcome on one screen while dragging on a phone.
const paintStrip = () => {
  const { profile, settings } = state;
  const shares = skillShares();
  const { strip } = part;
  strip.replaceChildren();
  const head = put(strip, "div", { class: "cv-strip-row" });
  put(head, "b", {}, `ε ${epsilon(profile.epsilon_grid[settings.point])}`);
  put(head, "span", { class: "cv-muted" }, `${METHODS[settings.method].title}${shares && !shown.near.isExact ? " · nearest measured" : ""}`);
  const row = put(strip, "div", { class: "cv-strip-row" });
  const item = (label, text, share) => {
    const box = put(row, "span", { class: "cv-strip-item" });
    const line = put(box, "span");
    label(line);
    put(line, "b", {}, text);
    if (share === null) return;
    put(put(box, "span", { class: "cv-strip-bar" }), "i").style.width = `${Math.min(100, 100 * share)}%`;
  };
  if (shares) {
    shares.forEach(({ name, share }) => item((line) => line.append(`${name} `), `${Math.round(100 * share)} %`, share));
    return;
  }
  shown.result.agents.slice(0, 4).forEach((agent, t) => {
    const text = agent.retained ? retainedText(agent.retained.sum) : `λ ${agent.lambda === null ? "–" : agent.lambda.toFixed(2)}`;
    item((line) => { marker(line, t); line.append(" "); }, text, agent.retained ? agent.retained.sum : null);
  });
};
