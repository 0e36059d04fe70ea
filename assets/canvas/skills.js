// What the merge can do, measured: a row a skill, from the base's score to the specialist's, above one
// dot a prompt. The dots are the axis: the base's circle stands above the end of its own.
import { put, shape } from "../nodes.js";
import { canTellKept } from "./outcome.js";
import { settingsText } from "./pin.js";
import { onPaint, shown, state } from "./store.js";
import { baseOf, isRight, orderOf, scoreOf, settingsOf, specialistOf, wilson } from "./table.js";
import { hideTip, showTip } from "./tip.js";
import { brief } from "./words.js";

const COLUMNS = 30;
const MIDDLE = 8; // y of the line

let box = null;
let rows = [];
let where = null;
let measure = null;

export const mountSkills = (column) => {
  box = put(column, "div", { class: "cv-skills", "data-part": "skills" });
  onPaint(paintSkills);
};

export const setSkills = () => {
  const { skills } = state.profile;
  box.replaceChildren();
  rows = [];
  where = null;
  const head = put(box, "div", { class: "cv-head" });
  put(head, "h2", {}, "What it can do");
  if (!skills) {
    put(box, "p", { class: "cv-empty" }, "Nothing is measured for these models yet. What is above is exact; what a merge can do has to be asked, in Check.");
    mountWhere();
    return;
  }
  const legend = put(head, "span", { class: "cv-legend" });
  const item = (text) => {
    const span = put(legend, "span");
    const svg = put(span, "svg", { width: "12", height: "12", viewBox: "0 0 12 12", "aria-hidden": "true" });
    span.append(` ${text}`);
    return svg;
  };
  put(item("base"), "circle", { cx: "6", cy: "6", r: "4.4", class: "cv-base" });
  put(item("specialist"), "path", { d: shape(0), style: "fill:var(--ram-agent-0)" });
  put(item("merge, 95 %"), "rect", { x: "4", y: "0", width: "4", height: "12", rx: "1", class: "cv-merge" });
  const list = put(box, "div", { class: "cv-skill-list" });
  rows = skills.domains.map((name, domain) => mountRow(list, name, domain));
  mountWhere();
};

const mountWhere = () => {
  const line = put(box, "div", { class: "cv-where-line" });
  where = put(line, "p", { class: "cv-where" });
  // The app's: merge this setting and ask. An exported page has none.
  measure ||= document.getElementById("measure-box");
  if (measure) line.append(measure);
};

const mountRow = (list, name, domain) => {
  const row = put(list, "div", { class: "cv-skill", "data-skill": name });
  const title = put(row, "div", { class: "cv-skill-name" });
  put(title, "b", {}, name);
  const of = put(title, "span");
  const svg = put(row, "svg", { role: "img" });
  const numbers = put(row, "div", { class: "cv-skill-number" });
  const percent = put(numbers, "b");
  const against = put(numbers, "span");
  return { row, of, svg, percent, against, domain, name, width: 0, dots: [], last: "" };
};

// Everything that does not depend on the setting; at the width there is.
export const laySkills = () => {
  const { skills } = state.profile || {};
  if (!skills) return;
  for (const row of rows) layRow(row, skills);
};

const layRow = (row, skills) => {
  const { svg, domain } = row;
  const width = svg.clientWidth;
  if (!width) return;
  const step = width / Math.max(COLUMNS, skills.n / 2);
  const specialist = specialistOf(skills, domain);
  const from = scoreOf(skills, baseOf(skills), domain) / skills.n;
  const to = specialist ? scoreOf(skills, specialist, domain) / skills.n : from;
  svg.replaceChildren();
  svg.setAttribute("height", 18 + 2 * step);
  put(svg, "line", { x1: 0, x2: width, y1: MIDDLE, y2: MIDDLE, class: "cv-rail" });
  put(svg, "line", { x1: from * width, x2: to * width, y1: MIDDLE, y2: MIDDLE, class: "cv-span" });
  row.interval = put(svg, "rect", { y: 4.5, height: 7, rx: 3.5, class: "cv-interval" });
  row.ghost = put(svg, "rect", { y: 0, height: 16, width: 5, rx: 1.5, class: "cv-merge-a" });
  put(svg, "circle", { cx: from * width, cy: MIDDLE, r: 4.6, class: "cv-base" });
  row.merge = put(svg, "rect", { x: -2.5, y: -2.5, height: 21, width: 5, rx: 1.5, class: "cv-merge" });
  if (specialist) {
    const agent = skills.specialists[domain];
    const group = put(svg, "g", { transform: `translate(${to * width - 6.5} 1.5) scale(1.08)` });
    put(group, "path", { d: shape(agent), class: "cv-specialist", style: `fill:var(--ram-agent-${agent % 8})` });
  }
  row.dots = orderOf(skills, domain).map((item, i) => {
    const dot = put(svg, "circle", {
      class: "cv-dot", cx: (Math.floor(i / 2) + 0.5) * step, cy: 17 + step / 2 + (i % 2) * step, r: step * 0.36, "data-item": item,
    });
    return { dot, item };
  });
  svg.onpointermove = (event) => {
    const item = event.target.dataset.item;
    if (item === undefined) hideTip();
    else showTip(event, `${item}|${skills.rows.indexOf(shown.near.row)}`, (tip) => fillTip(tip, skills, Number(item)));
  };
  svg.onpointerleave = hideTip;
  row.width = width;
  row.last = "";
};

const fillTip = (tip, skills, item) => {
  const { row } = shown.near;
  if (!skills.prompts) return;
  put(tip, "b", {}, skills.prompts[item]);
  put(tip, "div", {}, `right: ${skills.gold[item]}`);
  put(tip, "div", {}, `merge: ${skills.answers[item][row.answers[item]]}`);
};

// What "Measure here" would find out: "skills", what "ties" keeps, or nothing.
const askable = (profile, settings, near) => {
  if (settings.method === "ties" && profile.energy && !canTellKept(profile, settings)) return "ties";
  return profile.skills && !near?.isExact ? "skills" : "";
};

const paintSkills = () => {
  const { near, nearPinned } = shown;
  const { skills } = state.profile;
  box.dataset.ask = askable(state.profile, state.settings, near);
  if (!skills) {
    where.textContent = box.dataset.ask ? "What TIES keeps takes a pass over the files." : "";
    return;
  }
  box.dataset.measured = near ? (near.isExact ? "here" : "nearest") : "none";
  if (!near) return;
  for (const row of rows) if (row.width) paintRow(row, skills, near, nearPinned?.row || null);
  box.classList.toggle("near", !near.isExact);
  const key = near.isExact ? "exact" : settingsText(state.profile, settingsOf(near.row));
  if (where.dataset.key === key) return;
  where.dataset.key = key;
  where.replaceChildren();
  if (near.isExact) {
    put(where, "b", {}, "Measured");
    where.append(` at exactly this setting, ${skills.n} prompts each`);
  } else {
    where.append("Shown: nearest measured, ");
    put(where, "b", {}, key);
  }
};

const paintRow = (row, skills, near, pinned) => {
  const key = [skills.rows.indexOf(near.row), pinned ? skills.rows.indexOf(pinned) : "", near.isExact].join("|");
  if (key === row.last) return;
  const isFirst = row.last === "";
  row.last = key;
  const right = scoreOf(skills, near.row, row.domain);
  const [low, high] = wilson(right, skills.n);
  row.interval.setAttribute("x", low * row.width);
  row.interval.setAttribute("width", (high - low) * row.width);
  row.merge.setAttribute("transform", `translate(${(right / skills.n) * row.width} 0)`);
  if (isFirst) requestAnimationFrame(() => requestAnimationFrame(() => row.merge.classList.add("cv-moves")));
  Object.assign(row.row.dataset, { right, asked: skills.n, measured: near.isExact ? "here" : "nearest" });
  row.percent.textContent = brief(right / skills.n, 0);
  row.of.textContent = `${right}/${skills.n}`;
  const before = pinned ? scoreOf(skills, pinned, row.domain) : null;
  row.ghost.style.display = pinned ? "" : "none";
  if (pinned) row.ghost.setAttribute("x", (before / skills.n) * row.width - 2.5);
  const gain = pinned ? right - before : 0;
  row.against.textContent = !pinned ? "" : gain === 0 ? "as A" : `${gain > 0 ? "▲ +" : "▼ −"}${Math.abs(gain)} vs A`;
  row.against.className = gain > 0 ? "cv-good-ink" : gain < 0 ? "cv-warn-ink" : "cv-muted";
  for (const { dot, item } of row.dots) {
    const is = isRight(near.row, item);
    const was = pinned ? isRight(pinned, item) : is;
    const css = `cv-dot${is ? " right" : ""}${is === was ? "" : is ? " gain" : " loss"}`;
    if (dot.getAttribute("class") !== css) dot.setAttribute("class", css);
  }
  row.svg.setAttribute("aria-label", `${row.name}: merge ${right} of ${skills.n} right, 95 % interval ${brief(low, 0)} to ${brief(high, 0)}`);
};

// For the strip on a phone: the first skills with their shares, or null.
export const skillShares = () => {
  const { skills } = state.profile;
  if (!skills || !shown.near) return null;
  return skills.domains.slice(0, 3).map((name, d) => ({ name, share: scoreOf(skills, shown.near.row, d) / skills.n }));
};

