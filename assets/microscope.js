// @ts-check
// The microscope: a drawer over the outcome, so that the line of epsilon stays visible and cells change while it is
// dragged. The server sends weights and texts; which weights count is decided here.
import { isCovered } from "./canvas/paint/popups.js";
import { focusRows } from "./canvas/paint/weights.js";
import { onPaint, redraw, state } from "./canvas/store.js";
import { layerTitle } from "./canvas/model/words.js";
import { marker, named, onSent, put, putButton, setText } from "./nodes.js";

const PAUSE = 300;
const JUMP = 5000; // longest wait for a jump whose result changes nothing
const MOST_MARKERS = 4;

let root = null;
let spoken = null; // announcement if the focus is elsewhere; a focused cell announces its label
let data = null;
let at = 0;
let timer = 0;
let asks = 0;
let wantedPlace = ""; // a clicked layer, or "TENSOR ELEMENT"
let layer = ""; // shown in the header
let isDue = false; // settings moved, and new weights were not requested yet
let isLate = false; // settings moved while a request was running
let drawnFor = null; // the grid point of the cells

export const mountScope = (element, props, watch) => {
  root = element.querySelector(".scope");
  spoken = element.querySelector("[role=status]");
  onSent(props, watch, setData);
  onPaint(paintCells);
  // A pending update waits for the jump's answer: otherwise the old weights could arrive after it, and stay.
  document.addEventListener("click", (event) => {
    if (!isDue || !/** @type {Element} */ (event.target).closest("#scope-jump")) return;
    settingsRest(JUMP);
    isLate = true;
  }, true);
  // With any focus, unless a dialog is open above it.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isOpen() || isCovered()) return;
    event.stopPropagation();
    closeScope();
  }, true);
};

const isOpen = () => document.body.classList.contains("scope-open");

// Show a layer's weights; the focus moves into the drawer.
export const openScope = (name) => {
  layer = name;
  ask(name);
};

// Show a weight: { tensor, element }.
export const openWeight = ({ tensor, element }) => {
  layer = "";
  ask(`${tensor} ${element}`);
};

const ask = (place) => {
  wantedPlace = place;
  document.body.classList.add("scope-open");
  data = null;
  drawHead("Reading the files …").focus({ preventScroll: true });
  document.getElementById("scope-ask")?.click();
};

// Read by Gradio when the button above is clicked.
export const askedPlace = () => wantedPlace;

// Number of each request: the server answers only the last one, in any order of arrival.
export const askNumber = () => { asks += 1; return asks; };

const closeScope = () => {
  leaveScope();
  focusRows();
};

// Other models were loaded: the weights shown belong to the previous ones.
export const leaveScope = () => {
  document.body.classList.remove("scope-open");
  setWeight(null);
};

// Links contain the weight shown.
const setWeight = (weight) => {
  state.weight = weight;
  redraw();
};

// After a change of Tune's settings or models: request the same weights again, if visible.
export const settingsRest = (pause = PAUSE) => {
  clearTimeout(timer);
  isDue = true;
  timer = setTimeout(() => {
    isDue = false;
    const button = document.getElementById("scope-refresh");
    isLate = isOpen() && !data;
    if (button && data && isOpen()) button.click();
  }, pause);
};

const setData = (parsed) => {
  const isSame = data !== null && parsed?.tensor === data.tensor && parsed.elements[at]?.at === data.elements[at]?.at;
  // The weight in focus stays when the numbers are updated.
  const hasFocus = root.contains(document.activeElement);
  data = parsed?.elements ? parsed : null;
  if (!data) {
    if (!parsed) return;
    const close = drawHead(""); // the reason for no weights is below
    if (hasFocus) close.focus({ preventScroll: true });
    return;
  }
  layer = data.layer;
  if (!isSame) at = Math.min(data.focus, data.elements.length - 1);
  draw();
  if (hasFocus) cell(at).focus({ preventScroll: true });
  else speakCell();
  if (isLate) settingsRest();
};

const cell = (i) => root.querySelector(`[data-element="${i}"]`);

const speakCell = () => { if (isOpen()) setText(spoken, cell(at).getAttribute("aria-label")); };

const ruleNow = () => data.methods.find((m) => m.label === data.rule);

/** A weight's merged value by Tune's current rule. */
const madeText = (i) => {
  const [base, stored] = [data.elements[i].base, ruleNow()?.stored[i] ?? null];
  return stored === null ? "" : stored === base ? `, stays ${base}` : `, ${base} becomes ${stored}`;
};

// Agents whose change of an element counts at this epsilon.
const changedBy = (element) => {
  const epsilon = state.profile.epsilon_grid[state.settings.point];
  return element.sizes.flatMap((size, t) => (size > epsilon ? [t] : []));
};

const whoText = (element, changed) => {
  if (changed.length) {
    const word = changed.length > 1 ? "shared by" : "unique to";
    return `${word} ${changed.map((t) => data.agents[t]).join(", ")}`;
  }
  return element.moved.length ? "moved too little to count" : "changed by no agent";
};

/** Returns the button that closes the drawer. @param {string} facts */
const drawHead = (facts) => {
  root.replaceChildren();
  const head = put(root, "header", { class: "scope-head-line" });
  const words = put(head, "div");
  put(words, "h3", {}, `Microscope${layer && ` · ${layerTitle(layer)}`}`);
  put(words, "p", { class: "fine facts" }, facts);
  return putButton(head, "×", closeScope, { class: "cv-btn cv-icon", id: "close-microscope", "aria-label": "Close the microscope" });
};

const draw = () => {
  drawHead(data.facts);
  put(root, "p", { class: "fine scope-tensor" }, data.tensor);
  const label = `Weights of ${data.tensor}; arrow keys move, details of the current one are below`;
  const grid = put(root, "div", { class: "scope-grid", role: "grid", "aria-label": label });
  for (const [head, places] of data.rows) {
    const row = put(grid, "div", { class: "scope-row", role: "row" });
    put(row, "span", { class: "scope-head", role: "rowheader" }, head);
    for (const i of places) {
      put(row, "button", { type: "button", role: "gridcell", class: "scope-cell", tabindex: "-1", "data-element": i });
    }
  }
  const legend = put(root, "p", { class: "cv-legend" });
  for (const [css, text] of [["sunken", "unchanged"], ["unique-soft", "unique"], ["shared-soft", "shared"]]) {
    const item = put(legend, "span");
    put(item, "i", { class: `cv-swatch cv-back-${css}` });
    item.append(text);
  }
  put(legend, "span", {}, "flips as ε moves");
  put(root, "div", { class: "scope-detail" });
  grid.addEventListener("keydown", move);
  const point = (event) => {
    const target = event.target.closest("[data-element]");
    if (target) pointAt(Number(target.dataset.element));
  };
  grid.addEventListener("focusin", point);
  grid.addEventListener("click", point);
  drawnFor = null;
  paintCells();
  pointAt(at, true);
};

// Cells at the current epsilon; only changed ones are updated.
const paintCells = () => {
  if (!data || !isOpen() || !state.profile || drawnFor === state.settings.point) return;
  drawnFor = state.settings.point;
  data.elements.forEach((element, i) => {
    const changed = changedBy(element);
    const key = changed.join();
    const box = cell(i);
    if (box.dataset.key === key) return;
    const isFlip = box.dataset.key !== undefined; // its merged value is unknown before the server's next answer
    box.dataset.key = key;
    box.dataset.count = changed.length;
    box.setAttribute("aria-label", `${element.at}, ${whoText(element, changed)}${isFlip ? "" : madeText(i)}`);
    box.replaceChildren();
    if (!changed.length && element.moved.length) box.textContent = "·";
    const shown = changed.length > MOST_MARKERS ? MOST_MARKERS - 1 : changed.length;
    changed.slice(0, shown).forEach((t) => marker(box, t));
    if (shown < changed.length) put(box, "span", { class: "more" }, `+${changed.length - shown}`);
    if (i !== at || !isFlip) return;
    drawDetail(root.querySelector(".scope-detail"));
    speakCell();
  });
};

const move = (event) => {
  const row = data.rows.findIndex(([, places]) => places.includes(at));
  const places = data.rows[row][1];
  const column = places.indexOf(at);
  const beside = (r) => {
    const there = data.rows[Math.min(data.rows.length - 1, Math.max(0, r))][1];
    return there[Math.min(column, there.length - 1)];
  };
  const next = {
    ArrowLeft: () => Math.max(0, at - 1),
    ArrowRight: () => Math.min(data.elements.length - 1, at + 1),
    ArrowUp: () => beside(row - 1),
    ArrowDown: () => beside(row + 1),
    Home: () => places[0],
    End: () => places[places.length - 1],
  }[event.key];
  if (!next) return;
  event.preventDefault();
  cell(next()).focus();
};

const pointAt = (i, force) => {
  if (i === at && !force) return;
  for (const other of root.querySelectorAll(".scope-cell[aria-selected]")) {
    other.removeAttribute("aria-selected");
    other.tabIndex = -1;
  }
  at = i;
  const box = cell(i);
  box.setAttribute("aria-selected", "true");
  box.tabIndex = 0;
  if (isOpen()) setWeight({ tensor: data.tensor, element: data.elements[at].index });
  drawDetail(root.querySelector(".scope-detail"));
};

const drawDetail = (box) => {
  const element = data.elements[at];
  box.replaceChildren();
  const head = put(box, "header");
  put(head, "h3", {}, element.at);
  put(head, "span", { class: "muted" }, element.place);
  const who = put(box, "p", { class: "scope-who" });
  const changed = changedBy(element);
  if (!changed.length) who.textContent = whoText(element, changed);
  else {
    const css = changed.length > 1 ? "cv-shared-ink" : "cv-unique-ink";
    put(who, "b", { class: css }, changed.length > 1 ? "shared" : "unique");
    who.append(changed.length > 1 ? " by" : " to");
    for (const t of changed) named(put(who, "span", { class: "item" }), t, data.agents[t]);
  }
  drawRule(box);
  drawValues(box, element);
  drawMethods(box);
};

const formula = (parent, method) => {
  const drawn = method.is_drawn ? ", drawn at random" : "";
  put(parent, "span", {}, method.formula[at]);
  if (method.result[at]) put(parent, "span", {}, ` = ${method.result[at]}`);
  put(parent, "span", { class: "arrow" }, ` → stored as ${method.stored[at]} (${method.dtype}${drawn})`);
};

// Tune's current rule, as one line.
const drawRule = (box) => {
  const method = ruleNow();
  if (!method) return;
  const line = put(box, "p", { class: "scope-formula", "data-part": "formula" });
  put(line, "b", {}, `${method.name} `);
  formula(line, method);
  if (method.note[at]) put(box, "p", { class: "fine" }, method.note[at]);
};

const tableOf = (box, columns, css) => {
  const scroll = put(box, "div", { class: "table-scroll", tabindex: "0" });
  const table = put(scroll, "table", { class: `plain ${css}` });
  const row = put(put(table, "thead"), "tr");
  for (const column of columns) put(row, "th", { scope: "col" }, column);
  return put(table, "tbody");
};

const drawValues = (box, element) => {
  const body = tableOf(box, ["model", "value", "change"], "scope-values");
  const add = (name, t, value, change) => {
    const row = put(body, "tr");
    const head = put(row, "th", { scope: "row" });
    if (t !== null) marker(head, t);
    head.append(name);
    put(row, "td", {}, value);
    put(row, "td", t !== null && changedBy(element).includes(t) ? { class: "strong" } : {}, change);
  };
  add("base", null, element.base, "");
  data.agents.forEach((name, t) => add(name, t, element.values[t], element.taus[t]));
};

const drawMethods = (box) => {
  const body = tableOf(box, ["Method", "Stored", "Moved by"], "scope-methods");
  for (const method of data.methods) {
    const css = method.label === data.rule ? { class: "own" } : {};
    const row = put(body, "tr", css);
    put(row, "th", { scope: "row" }, method.name);
    put(row, "td", { class: "strong" }, method.stored[at]);
    const [requested, effective] = [method.requested[at], method.effective[at]];
    put(row, "td", {}, requested === effective ? effective : `requested ${requested}, effective ${effective}`);
    const line = put(put(body, "tr"), "td", { colspan: "3", class: "worked" });
    line.append(method.formula[at]);
    if (method.result[at]) line.append(` = ${method.result[at]}`);
    if (method.note[at]) line.append(` (${method.note[at]})`);
  }
  put(box, "p", { class: "fine" }, "Moved by: in steps of the stored format, from the base's value to "
    + "its next number. Requested is before rounding, effective after.");
  if (!data.hidden.length) return;
  const hidden = put(box, "details", { class: "fine" });
  put(hidden, "summary", {}, `Not shown: ${data.hidden.map(([name]) => name).join(", ")}`);
  for (const [name, reason] of data.hidden) {
    const line = put(hidden, "p");
    put(line, "b", {}, `${name}. `);
    line.append(reason);
  }
};
