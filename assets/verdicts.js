// @ts-check
// Did the skills survive? The verdicts of a check as dumbbells, in a group for each merge.
import { drawDumbbell, mountDumbbell, mountLegend } from "./canvas/paint/dumbbell.js";
import { hideTip, showTip } from "./canvas/paint/popups.js";
import { onSent, put } from "./nodes.js";
import { percent } from "./numbers.js";
import { rightOf } from "./canvas/model/data.js";

let root = null;
let rows = [];

/** Gradio calls this when the panel is mounted; the value: { note, groups: { merge: cards } }, see check/verdicts.py.
 * @param {HTMLElement} element @param {{ value: any }} props @param {(name: string, read: () => void) => void} watch */
export const mountVerdicts = (element, props, watch) => {
  root = element.querySelector(".dumbbells") || element;
  onSent(props, watch, (sent) => draw(sent?.groups ?? {}, sent?.note ?? ""));
  // A hidden step has no width; a visible one may change it.
  new ResizeObserver(() => requestAnimationFrame(lay)).observe(root);
};

const draw = (groups, note) => {
  root.replaceChildren();
  rows = Object.entries(groups).flatMap(([name, cards]) => {
    const group = put(root, "section", { class: "verdict" });
    const head = put(group, "div", { class: "cv-head" });
    put(head, "h3", {}, `${name}: did the skills survive?`);
    mountLegend(head);
    return cards.map((card) => ({ ...mountRow(group, card), card }));
  });
  if (note) put(root, "p", { class: "fine" }, note);
  lay();
};

const mountRow = (group, card) => {
  const made = mountDumbbell(group, card.domain);
  made.row.dataset.verdict = card.verdict;
  made.against.className = "cv-muted";
  made.against.textContent = card.specialist ? `${card.name} ${percent(rightOf(card.specialist) / card.specialist.length, 0)}` : "";
  const line = put(made.row, "p", { class: "cv-said" });
  put(line, "span", { class: `key ${card.tone}` }, card.verdict);
  line.append(` ${card.said}`);
  made.svg.addEventListener("pointermove", (event) => {
    const { item } = event.target.dataset;
    if (item === undefined) hideTip();
    else showTip(event, `${card.domain}|${item}|check`, (tip) => fillTip(tip, card, item));
  });
  made.svg.addEventListener("pointerleave", hideTip);
  return made;
};

const fillTip = (tip, card, item) => {
  const line = (who, marks) => put(tip, "div", {}, `${who}: ${marks[item] === "1" ? "right" : "wrong"}`);
  line("base", card.base);
  line(card.name, card.specialist);
  line("merge", card.merge);
};

const lay = () => {
  for (const row of rows) {
    const width = row.svg.clientWidth;
    if (!width || width === row.width) continue;
    row.width = width;
    drawDumbbell(row, width, row.card);
  }
};
