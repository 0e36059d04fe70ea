// @ts-check
// The verdict on top, and for phones and projectors: scores with a small copy of the curve as slider.
import { marker, put, putButton, setText } from "../../nodes.js";
import { wilson } from "../model/data.js";
import { METHODS, titleOf } from "../model/methods.js";
import { along } from "../model/nearest.js";
import { lostText, verdictOf } from "../model/verdict.js";
import { choose, dialInHand, hold, onPaint, shown, state } from "../store.js";
import { line, makeSlider, paintSpoken } from "./curve.js";

const SAY_AFTER = 600; // ms after the last move
const EDGE = 12;

let part = null;
let saying = 0;

/** A non-breaking space before %. */
const unbroken = (text) => text.replace(/(\d) %/g, "$1\u00a0%");

export const mountVerdict = (root) => {
  const box = put(root, "section", { class: "cv-panel cv-verdict", "data-part": "verdict", "aria-label": "Outcome" });
  const big = put(box, "b", { class: "cv-big" });
  const of = put(box, "span", { class: "cv-of" });
  const sentence = put(box, "p", { class: "cv-say" });
  const [lead, rest, note] = [put(sentence, "b", { "data-part": "verdict-text" }), put(sentence, "span"), put(sentence, "small")];
  const acts = put(box, "div", { class: "cv-acts" });
  const none = putButton(acts, "Use epsilon 0", () => {
    choose({ point: 0 });
    hold("point");
    acts.querySelector("button:not([hidden], [data-part=epsilon-0])")?.focus(); // this button disappears
  }, { class: "cv-btn", "data-part": "epsilon-0" });
  // The sentence itself is not a live region, as it would be announced at every move.
  const status = put(root, "p", { class: "unseen", role: "status" });
  part = { box, big, of, lead, rest, note, acts, none, status };
  onPaint(paintVerdict);
  return part;
};

const paintVerdict = () => {
  const { profile } = state;
  const { result, near, factors, pinned } = shown;
  const { key, tone, lead, rest, note } = verdictOf(profile, result, near, factors);
  const { box } = part;
  Object.assign(box.dataset, { verdict: key, tone });
  setText(part.big, near ? String(near.row.total) : "?");
  const gain = near && pinned?.near ? near.row.total - pinned.near.row.total : 0;
  const ends = near ? wilson(near.row.total, profile.skills.asked).map((end) => Math.round(end * profile.skills.asked)) : [];
  setText(part.of, near ? `of ${profile.skills.asked} solved,\n95 %: ${ends[0]}–${ends[1]}${gain ? `\n${gain > 0 ? "+" : "−"}${Math.abs(gain)} vs A` : ""}` : "not tested");
  setText(part.lead, unbroken(lead));
  setText(part.rest, unbroken(` ${rest.trim()}`));
  setText(part.note, unbroken(note));
  part.note.title = part.note.textContent;
  part.none.hidden = !lostText(profile, result);
  clearTimeout(saying);
  saying = window.setTimeout(() => { setText(part.status, `${near ? `${near.row.total} of ${profile.skills.asked}. ` : ""}${lead} ${rest} ${near?.isExact ? "" : note}`); }, SAY_AFTER);
};

/** A small copy of the curve, also a slider. Returns its draw function. */
export const mountMini = (parent) => {
  const plot = put(parent, "div", { class: "cv-mini" });
  let [laid, dot] = ["", null];
  makeSlider(plot, () => [EDGE, plot.clientWidth - EDGE]);
  return () => {
    const dial = dialInHand();
    const { profile, settings } = state;
    plot.hidden = !dial;
    const [width, height] = [plot.clientWidth, plot.clientHeight];
    if (!dial || !width) return;
    const x = (value) => EDGE + (width - 2 * EDGE) * dial.x(value);
    const y = (share) => height - 5 - (height - 12) * share;
    const others = METHODS[settings.method].dials.filter((key) => key !== dial.key).map((key) => settings[key]);
    const key = JSON.stringify([settings.method, dial.key, others, settings.weights, width, height, profile.skills?.rows.length]);
    if (key !== laid) {
      laid = key;
      plot.replaceChildren();
      const svg = put(plot, "svg", { "aria-hidden": "true" });
      put(svg, "line", { x1: EDGE, x2: width - EDGE, y1: height - 5, y2: height - 5, class: "cv-rail" });
      const points = profile.skills ? along(profile, settings, dial.key) : [];
      put(svg, "path", { d: line(points.map(({ value, row }) => [x(value), y(row.total / profile.skills.asked)])), class: "cv-mean" });
      dot = put(svg, "g");
      put(dot, "line", { y1: 0, y2: height, class: "cv-hand" });
      put(dot, "circle", { r: 9, class: "cv-knob" });
    }
    dot.setAttribute("transform", `translate(${x(settings[dial.key])} 0)`);
    dot.lastChild.setAttribute("cy", String(shown.near ? y(shown.near.row.total / profile.skills.asked) : height / 2));
    paintSpoken(plot, dial);
  };
};

/** Scores and the dial in one strip at the foot of a phone's page. */
export const mountDock = (root) => {
  const dock = put(root, "div", { class: "cv-dock", id: "ram-strip" });
  const row = put(dock, "div", { class: "cv-dock-row", "aria-hidden": "true" });
  const drawMini = mountMini(dock);
  onPaint(() => {
    if (!dock.checkVisibility()) return;
    const { profile, settings } = state;
    const { near } = shown;
    row.replaceChildren();
    if (near) {
      profile.skills.domains.forEach((name, d) => {
        const item = put(row, "span", { title: name });
        if (profile.skills.agents[d] !== null) marker(item, profile.skills.agents[d]);
        put(item, "b", {}, ` ${near.row.score[d]}`);
      });
      put(put(row, "span"), "b", {}, `${near.row.total} of ${profile.skills.asked}`);
    } else put(row, "span", {}, "not tested");
    const dial = dialInHand();
    const words = put(row, "span", { class: "cv-muted" }, dial ? `${dial.symbol} ` : titleOf(settings, profile.agents.length));
    if (dial) put(words, "b", {}, dial.text(settings[dial.key]));
    drawMini();
  });
};
