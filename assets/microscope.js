// The microscope's grid of weights and the panel about the one pointed at. The server sends the
// texts; this draws them, moves by pointer and arrow keys, and asks again when settings rest.
import { marker, named, put } from "./nodes.js";
const PAUSE = 300;
const MOST_MARKERS = 4;

let root = null;
let data = null;
let at = 0;
let timer = 0;

export const mountScope = (element, props, watch) => {
  root = element.querySelector(".scope") || element;
  watch("value", () => setData(props.value));
  setData(props.value);
};

// After Tune's settings or the models changed: the same weights again, if anybody sees them.
export const settingsRest = () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const button = document.getElementById("scope-refresh");
    if (button && data && root.offsetParent !== null) button.click();
  }, PAUSE);
};

const setData = (value) => {
  const parsed = typeof value === "string" && value ? JSON.parse(value) : value;
  data = parsed && parsed.elements ? parsed : null;
  if (!root) return;
  // The keyboard stays where it was when the numbers are renewed.
  const held = root.contains(document.activeElement);
  root.replaceChildren();
  if (!data) return;
  at = Math.min(data.focus, data.elements.length - 1);
  draw();
  if (held) cell(at).focus({ preventScroll: true });
};

const cell = (i) => root.querySelector(`[data-element="${i}"]`);

const whoText = (element) => {
  if (element.changed.length) {
    return `changed by ${element.changed.map((t) => data.agents[t]).join(", ")}`;
  }
  return element.moved.length ? "moved too little to count" : "changed by nobody";
};

const draw = () => {
  put(root, "p", { class: "fine facts" }, data.facts);
  const sides = put(root, "div", { class: "scope-sides" });
  const left = put(sides, "div", { class: "scope-left" });
  const label = `Weights of ${data.tensor}; arrow keys move, the panel beside shows the one pointed at`;
  const grid = put(left, "div", { class: "scope-grid", role: "grid", "aria-label": label });
  for (const [head, places] of data.rows) {
    const row = put(grid, "div", { class: "scope-row", role: "row" });
    put(row, "span", { class: "scope-head", role: "rowheader" }, head);
    for (const i of places) drawCell(row, i);
  }
  drawLegend(left);
  put(sides, "div", { class: "scope-detail", "aria-live": "polite" });
  grid.addEventListener("keydown", move);
  const point = (event) => {
    const target = event.target.closest("[data-element]");
    if (target) pointAt(Number(target.dataset.element));
  };
  grid.addEventListener("pointerover", point);
  grid.addEventListener("focusin", point);
  grid.addEventListener("click", point);
  pointAt(at, true);
};

const drawCell = (row, i) => {
  const element = data.elements[i];
  const count = element.changed.length;
  const box = put(row, "button", {
    type: "button", role: "gridcell", class: "scope-cell", tabindex: "-1",
    "data-element": i, "data-count": count, "aria-label": `${element.at}, ${whoText(element)}`,
  });
  if (!count) {
    box.textContent = element.moved.length ? "·" : "";
    return;
  }
  box.style.setProperty("--cell", `var(--ram-overlap-${Math.min(count - 1, 7)})`);
  const shown = count > MOST_MARKERS ? MOST_MARKERS - 1 : count;
  element.changed.slice(0, shown).forEach((t) => marker(box, t));
  if (shown < count) put(box, "span", { class: "more" }, `+${count - shown}`);
};

const drawLegend = (parent) => {
  const legend = put(parent, "p", { class: "legend" });
  data.agents.forEach((name, t) => {
    named(put(legend, "span", { class: "item" }), t, name);
  });
  const most = Math.max(1, ...data.elements.map((e) => e.changed.length));
  for (let n = 1; n <= most; n += 1) {
    const item = put(legend, "span", { class: "item" });
    put(item, "i", { class: "swatch", style: `background:var(--ram-overlap-${Math.min(n - 1, 7)})` });
    item.append(n === 1 ? "one agent" : `${n} agents`);
  }
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
  drawDetail(root.querySelector(".scope-detail"));
};

const drawDetail = (box) => {
  const element = data.elements[at];
  box.replaceChildren();
  const head = put(box, "header");
  put(head, "h3", {}, element.at);
  put(head, "span", { class: "muted" }, element.place);
  const who = put(box, "p", { class: "scope-who" });
  if (!element.changed.length) who.textContent = whoText(element);
  else {
    who.append("changed by ");
    for (const t of element.changed) {
      named(put(who, "span", { class: "item" }), t, data.agents[t]);
    }
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

// The rule chosen in Tune, as one line.
const drawRule = (box) => {
  const method = data.methods.find((m) => m.method === data.rule);
  if (!method) return;
  const line = put(box, "p", { class: "scope-formula", "data-part": "formula" });
  put(line, "b", {}, `${method.name} `);
  formula(line, method);
  if (method.note[at]) put(box, "p", { class: "fine" }, method.note[at]);
};

const tableOf = (box, columns, css) => {
  const scroll = put(box, "div", { class: "table-scroll" });
  const table = put(scroll, "table", { class: `plain ${css}` });
  const row = put(put(table, "thead"), "tr");
  for (const column of columns) put(row, "th", { scope: "col" }, column);
  return put(table, "tbody");
};

const drawValues = (box, element) => {
  const body = tableOf(box, ["", "value", "change"], "scope-values");
  const add = (name, t, value, change) => {
    const row = put(body, "tr");
    const head = put(row, "th", { scope: "row" });
    if (t !== null) marker(head, t);
    head.append(name);
    put(row, "td", {}, value);
    put(row, "td", t !== null && element.changed.includes(t) ? { class: "strong" } : {}, change);
  };
  add("base", null, element.base, "");
  data.agents.forEach((name, t) => add(name, t, element.values[t], element.taus[t]));
};

const drawMethods = (box) => {
  const body = tableOf(box, ["Method", "Stored", "Moved by"], "scope-methods");
  for (const method of data.methods) {
    const css = method.method === data.rule ? { class: "own" } : {};
    const row = put(body, "tr", css);
    put(row, "th", { scope: "row" }, method.name);
    put(row, "td", { class: "strong" }, method.stored[at]);
    const [asked, kept] = [method.asked[at], method.kept[at]];
    put(row, "td", {}, asked === kept ? kept : `asked ${asked}, kept ${kept}`);
    const line = put(put(body, "tr"), "td", { colspan: "3", class: "worked" });
    line.append(method.formula[at]);
    if (method.result[at]) line.append(` = ${method.result[at]}`);
    if (method.note[at]) line.append(` (${method.note[at]})`);
  }
  put(box, "p", { class: "fine" }, "Moved by: in steps of the stored format, from the base's value to "
    + "its next number. Asked is before rounding, kept after.");
  if (!data.hidden.length) return;
  const hidden = put(box, "details", { class: "fine" });
  put(hidden, "summary", {}, `Not shown: ${data.hidden.map(([name]) => name).join(", ")}`);
  for (const [name, reason] of data.hidden) {
    const line = put(hidden, "p");
    put(line, "b", {}, `${name}. `);
    line.append(reason);
  }
};
