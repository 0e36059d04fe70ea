// @ts-check
// Every measured merge by its factors: own part on x, shared part on y, darker where more is solved. A single scale
// moves along one line through the base; RAM+ is off it.
import { sliderPlace } from "../../keys.js";
import { put, saySlider } from "../../nodes.js";
import { settingsText, usualOf } from "../model/methods.js";
import { exactRow, paperRow, placeOnMap, rivalRow } from "../model/nearest.js";
import { factorsOf, outcomeOf } from "../model/outcome.js";
import { counted } from "../model/words.js";
import { choose, onPaint, shown, state } from "../store.js";
import { colors } from "./colors.js";
import { unitOf } from "./curve.js";
import { hideTip, showTip } from "./popups.js";

const [MOST_OWN, MOST_SHARED] = [2, 3]; // larger ones are drawn at the edge
const REACH = 17; // px from a dot
const PAGE = 10; // dots
// Possible positions of a name beside its mark: dx and dy in units, and the text anchor.
const PLACES = /** @type {[number, number, string][]} */ ([
  [0.75, 0.35, "start"], [-0.75, 0.35, "end"], [0, -0.75, "middle"], [0, 1.45, "middle"], [0, -1.9, "middle"], [0, 2.55, "middle"],
  [-0.4, -1.1, "start"], [-0.4, -2.2, "start"], [0.6, -3.3, "start"],
]);

let part = null;
let frame = null;
let laid = "";
let dots = [];
let marks = null;
let pointed = -1; // index of the dot selected by keys; dots are ordered by score

export const mountMap = (root) => {
  const box = put(root, "section", { class: "cv-panel cv-map", "data-part": "map", "aria-labelledby": "map-title" });
  const head = put(box, "div", { class: "cv-top" });
  const title = put(head, "h2", { id: "map-title" });
  const plot = put(box, "div", { class: "cv-plot" });
  const canvas = put(plot, "canvas", { "aria-hidden": "true" });
  const svg = put(plot, "svg", { "aria-hidden": "true" });
  const note = put(box, "p", { class: "cv-note" });
  part = { box, title, plot, canvas, svg, note };
  plot.addEventListener("pointermove", (event) => {
    const dot = hit(event);
    plot.style.cursor = dot ? "pointer" : "";
    if (!dot || event.pointerType === "touch") hideTip();
    else showDotTip(event, dot);
  });
  plot.addEventListener("pointerleave", hideTip);
  plot.addEventListener("keydown", byKey);
  plot.addEventListener("blur", () => { point(-1); hideTip(); });
  plot.addEventListener("click", (event) => pick(hit(event)));
  onPaint(paintMap);
  return part;
};

const wordsOf = ({ row }) => [`${row.total} of ${state.profile.skills.asked}`, settingsText(row.set, state.profile)];

const showDotTip = (event, dot) => showTip(event, `map${dot.row.id}`, (tip) => {
  const [solved, how] = wordsOf(dot);
  put(tip, "b", {}, solved);
  tip.append(` ${how}`);
});

/** Select a dot by keys; without a selection they begin at the merge shown. */
const point = (at) => {
  pointed = at;
  const place = at < 0 ? placeNow() : at;
  saySlider(part.plot, dots.length ? {
    label: "Measured merges, by questions solved; Enter chooses one", least: 1, most: dots.length, now: place + 1, text: wordsOf(dots[place]).join(" solved: "),
  } : { label: part.title.textContent });
  move(marks.pointed, dots[at]?.at);
};

const placeNow = () => Math.max(0, dots.findIndex(({ row }) => row === shown.near?.row));

const byKey = (event) => {
  if (event.key === "Enter") pick(dots[pointed]);
  const to = dots.length ? sliderPlace(event.key, pointed < 0 ? placeNow() : pointed, dots.length - 1, PAGE) : null;
  if (to === null) return;
  event.preventDefault();
  point(to);
  const { left, top } = part.plot.getBoundingClientRect();
  const [own, shared] = dots[to].at;
  showDotTip({ clientX: left + X(own), clientY: top + Y(shared) }, dots[to]);
};

const pick = (dot) => { if (dot) choose(dot.row.set, "method"); };

export const layMap = () => { laid = ""; };

const X = (own) => frame.x0 + ((frame.x1 - frame.x0) * Math.max(0, Math.min(own, MOST_OWN))) / MOST_OWN;
const Y = (shared) => frame.y1 - ((frame.y1 - frame.y0) * Math.max(0, Math.min(shared, MOST_SHARED))) / MOST_SHARED;

const hit = (event) => {
  if (!frame || !dots.length) return null;
  const { left, top } = part.plot.getBoundingClientRect();
  const [x, y] = [event.clientX - left, event.clientY - top];
  const far = ({ at: [own, shared] }) => Math.hypot(X(own) - x, Y(shared) - y);
  const best = dots.reduce((a, b) => (far(b) <= far(a) ? b : a));
  return far(best) < REACH ? best : null;
};

/** The area that two boxes share. */
const overlap = (a, b) => {
  const shared = (from, size) => Math.max(0, Math.min(a[from] + a[size], b[from] + b[size]) - Math.max(a[from], b[from]));
  return shared("x", "width") * shared("y", "height");
};

const rgb = (color) => (color.match(/\d+/g) ?? [128, 128, 128]).slice(0, 3).map(Number);

const drawDots = (width, height) => {
  const { canvas } = part;
  const { profile } = state;
  const ratio = Math.min(2, devicePixelRatio || 1);
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const [from, to] = [rgb(colors().unchanged), rgb(colors().good)];
  pen.globalAlpha = 0.85;
  for (const { row, at } of dots) {
    const share = row.total / profile.skills.asked;
    const depth = Math.max(0, share * 1.15 - 0.15) ** 1.6;
    pen.fillStyle = `rgb(${from.map((c, i) => Math.round(c + (to[i] - c) * depth)).join()})`;
    pen.beginPath();
    pen.arc(X(at[0]), Y(at[1]), frame.unit * (0.13 + 0.16 * share), 0, 7);
    pen.fill();
  }
};

const draw = () => {
  const { profile } = state;
  const { svg } = part;
  const { unit, x0, x1, y0, y1 } = frame;
  svg.replaceChildren();
  const text = (x, y, words, css = "", anchor = "middle") => put(svg, "text", { x, y, class: css, "text-anchor": anchor }, words);
  put(svg, "path", { d: `M${x0} ${y0}V${y1}H${x1}`, class: "cv-tick", fill: "none" });
  for (const own of [0, 0.5, 1, 1.5, 2]) text(X(own), y1 + 1.15 * unit, own === 2 ? "×2" : String(own));
  for (const shared of [0, 1, 2, 3]) text(x0 - 5, Y(shared) + 4, shared === 3 ? "×3" : String(shared), "", "end");
  text((x0 + x1) / 2, y1 + 2.3 * unit, "own part applied", "strong cv-fill-unique-ink");
  text(x0 - 1.3 * unit, y0 - 0.7 * unit, "shared part applied", "strong cv-fill-shared-ink", "start");
  const scale = drawScale();
  const usual = (rule) => exactRow(profile, usualOf(rule, profile));
  /** @type {[any, string, any[]][]} */
  const named = profile.skills ? [
    [paperRow(profile), "RAM+", [0.1, 1.45, "middle"]], [usual("sum"), "Sum", [0.6, 0.35, "start"]],
    [usual("average"), "Average", [0.75, -0.55, "start"]], [rivalRow(profile), "best other", [0, 2.55, "middle"]],
  ] : [];
  const marked = named.flatMap(([row, name, wanted], i) => {
    const at = row && placeOnMap(profile, row);
    if (!at || named.findIndex(([other]) => other === row) < i) return [];
    put(svg, "circle", { cx: X(at[0]), cy: Y(at[1]), r: 0.3 * unit, class: "cv-map-mark" });
    const names = named.filter(([other]) => other === row).map(([, own]) => own);
    return [{ x: X(at[0]), y: Y(at[1]), words: `${names.join(", ")} ${row.total}`, wanted }];
  });
  // No name covers another, or a mark: the first free position, else the one with the least overlap.
  const occupied = marked.map(({ x, y }) => ({ x: x - 0.5 * unit, y: y - 0.5 * unit, width: unit, height: unit }));
  const covers = (box) => {
    const isInside = box.x >= x0 && box.x + box.width <= x1 + 0.6 * unit && box.y >= y0 - unit && box.y + box.height <= y1;
    return occupied.reduce((area, other) => area + overlap(box, other), isInside ? 0 : unit ** 4);
  };
  for (const { x, y, words, wanted } of marked) {
    const node = /** @type {SVGTextElement} */ (text(0, 0, words, "strong cv-halo"));
    const stand = (/** @type {any[]} */ [dx, dy, anchor]) => {
      for (const [key, value] of Object.entries({ x: x + dx * unit, y: y + dy * unit, "text-anchor": anchor })) node.setAttribute(key, String(value));
      return node.getBBox();
    };
    const places = [wanted, ...PLACES].map((place) => ({ place, covered: covers(stand(place)) }));
    occupied.push(stand(places.reduce((best, one) => (one.covered < best.covered ? one : best)).place));
  }
  if (scale) nameScale(scale, occupied, text);
  const pinned = put(svg, "g");
  put(pinned, "circle", { r: 0.55 * unit, class: "cv-map-pin" });
  put(pinned, "text", { y: 4, "text-anchor": "middle", class: "strong" }, "A");
  const now = put(svg, "g", { class: "cv-moves" });
  put(now, "circle", { r: 0.62 * unit, class: "cv-map-now" });
  marks = { now, pinned, pointed: put(svg, "circle", { r: 0.4 * unit, class: "cv-map-now" }) };
  return scale !== null;
};

// Base, average and sum are on one line, as a scale applies both parts equally.
const drawScale = () => {
  const { profile } = state;
  const { ownMean = null, sharedMean = null } = factorsOf(profile, outcomeOf(profile, usualOf("sum", profile))) ?? {};
  if (ownMean === null || sharedMean === null) return null;
  const slope = sharedMean / ownMean;
  const end = Math.min(MOST_OWN, MOST_SHARED / slope);
  const [x, y] = [X(end), Y(end * slope)];
  put(part.svg, "path", { d: `M${X(0)} ${Y(0)}L${x} ${y}`, class: "cv-scale-line" });
  return { x, y };
};

// Along the line, above or below it, where its name covers no other.
const nameScale = ({ x, y }, occupied, text) => {
  const { unit } = frame;
  const [dx, dy] = [x - X(0), y - Y(0)];
  const far = Math.hypot(dx, dy);
  const label = text(0, 0, "any scale");
  const half = label.getBBox().width / 2 / far;
  const room = 0.5 * unit;
  // The middle of its letters: `aside` units from the line, positive above it.
  const isFree = (/** @type {number[]} */ [at, aside]) => Array.from({ length: 9 }, (_, i) => at + half * (i / 4 - 1)).every((place) => {
    const [px, py] = [X(0) + dx * place + (dy / far) * aside * unit, Y(0) + dy * place - (dx / far) * aside * unit];
    return !occupied.some((box) => px > box.x - room && px < box.x + box.width + room && py > box.y - room && py < box.y + box.height + room);
  });
  const places = [0.8, -0.8].flatMap((aside) => [0.76, 0.86, 0.66, 0.56, 0.46].filter((at) => at + half < 1.02).map((at) => [at, aside]));
  const [at, aside] = places.find(isFree) ?? [0.76, 0.8];
  label.setAttribute("y", String((0.35 - aside) * unit));
  label.setAttribute("transform", `translate(${X(0) + dx * at} ${Y(0) + dy * at}) rotate(${(Math.atan2(dy, dx) * 180) / Math.PI})`);
};

const paintMap = () => {
  const { profile } = state;
  const { factors, pinned } = shown;
  const key = [profile.skills ? profile.skills.rows.length : 0, Boolean(profile.parts || profile.sum)].join();
  if (laid !== key) {
    const unit = unitOf(part.plot);
    const [width, height] = [part.plot.clientWidth, part.plot.clientHeight];
    if (width < 20) return;
    frame = { unit, x0: 1.9 * unit, x1: width - 0.6 * unit, y0: 1.5 * unit, y1: height - 2.75 * unit };
    laid = key;
    const rows = profile.skills?.merges ?? [];
    dots = rows.flatMap((row) => { const at = placeOnMap(profile, row); return at ? [{ row, at }] : []; }).sort((a, b) => a.row.total - b.row.total);
    drawDots(width, height);
    const hasScale = draw();
    part.title.textContent = profile.skills ? "Every measured merge" : "Position of this merge";
    part.note.textContent = !profile.parts && !dots.length ? "This analysis lacks the data for this map: analyze again."
      : dots.length ? `${counted(dots.length, "merge")}; greener: more solved.` : hasScale ? "Any scale lies on the dashed line." : "";
    point(-1);
  }
  if (pointed < 0 && shown.near?.row !== shown.previous) point(-1);
  const placed = (found) => found && [found.ownMean, found.sharedMean];
  move(marks.now, placed(factors));
  move(marks.pinned, placed(pinned?.factors));
};

const move = (mark, at) => {
  mark.style.display = at ? "" : "none";
  if (at) mark.setAttribute("transform", `translate(${X(at[0])} ${Y(at[1])})`);
};
