// What the merge can do, measured: a dumbbell a skill, of the measured setting nearest to the one shown.
import { put } from "../nodes.js";
import { layDumbbell, mountDumbbell, mountLegend, paintDumbbell } from "./dumbbell.js";
import { canTellRetained } from "./outcome.js";
import { settingsText } from "./pin.js";
import { onPaint, shown, state } from "./store.js";
import { baseOf, marksOf, rightOf, scoreOf, settingsOf, specialistOf } from "./table.js";
import { hideTip, showTip } from "./tip.js";

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
    put(box, "p", { class: "cv-empty" }, "Not tested yet. The counts above are exact; test the skills in Check.");
    mountWhere();
    return;
  }
  mountLegend(head);
  const list = put(box, "div", { class: "cv-skill-list" });
  rows = skills.domains.map((name, domain) => ({ ...mountDumbbell(list, name), domain, last: "" }));
  mountWhere();
};

const mountWhere = () => {
  const line = put(box, "div", { class: "cv-where-line" });
  where = put(line, "p", { class: "cv-where" });
  // The app's: merge this setting and ask. An exported page has none.
  measure ||= document.getElementById("measure-box");
  if (measure) line.append(measure);
};

// Everything that does not depend on the setting; at the width there is.
export const laySkills = () => {
  const { skills } = state.profile || {};
  if (!skills) return;
  for (const row of rows) layRow(row, skills);
};

const layRow = (row, skills) => {
  const { svg, domain } = row;
  const specialist = specialistOf(skills, domain);
  const isLaid = layDumbbell(row, {
    base: marksOf(skills, baseOf(skills), domain), agent: skills.specialists[domain],
    specialist: specialist && marksOf(skills, specialist, domain),
  });
  if (!isLaid) return;
  svg.onpointermove = (event) => {
    const { item } = event.target.dataset;
    if (item === undefined) hideTip();
    else showTip(event, `${domain}|${item}|${skills.rows.indexOf(shown.near.row)}`, (tip) => fillTip(tip, skills, domain * skills.n + Number(item)));
  };
  svg.onpointerleave = hideTip;
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
  if (settings.method === "ties" && profile.energy && !canTellRetained(profile, settings)) return "ties";
  return profile.skills && !near?.isExact ? "skills" : "";
};

const paintSkills = () => {
  const { near, nearPinned } = shown;
  const { skills } = state.profile;
  box.dataset.ask = askable(state.profile, state.settings, near);
  if (!skills) {
    where.textContent = box.dataset.ask ? "TIES needs a pass over the files." : "";
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
  const before = pinned && marksOf(skills, pinned, row.domain);
  const right = paintDumbbell(row, marksOf(skills, near.row, row.domain), before);
  if (isFirst) requestAnimationFrame(() => requestAnimationFrame(() => row.merge.classList.add("cv-moves")));
  Object.assign(row.row.dataset, { right, asked: skills.n, measured: near.isExact ? "here" : "nearest" });
  const gain = pinned ? right - rightOf(before) : 0;
  row.against.textContent = !pinned ? "" : gain === 0 ? "as A" : `${gain > 0 ? "▲ +" : "▼ −"}${Math.abs(gain)} vs A`;
  row.against.className = gain > 0 ? "cv-good-ink" : gain < 0 ? "cv-warn-ink" : "cv-muted";
};

// For the strip on a phone: the first skills with their shares, or null.
export const skillShares = () => {
  const { skills } = state.profile;
  if (!skills || !shown.near) return null;
  return skills.domains.slice(0, 3).map((name, d) => ({ name, share: scoreOf(skills, shown.near.row, d) / skills.n }));
};
