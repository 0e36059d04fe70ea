// @ts-check
// The models' answers: for each skill a real question, with the answers of base, its agent, A and this merge. Each dot
// is a question and shows it; one that just broke is shown unless the user picked another.
import { sliderPlace } from "../../keys.js";
import { marker, onDrag, put, putButton, saySlider, setText } from "../../nodes.js";
import { brief, percent } from "../../numbers.js";
import { answerOf, wilson } from "../model/data.js";
import { titleOf, usualOf } from "../model/methods.js";
import { exactRow, paperRow } from "../model/nearest.js";
import { expectationOf } from "../model/verdict.js";
import { capital } from "../model/words.js";
import { agentColor, colors } from "./colors.js";
import { answerPieces, shortPrompt } from "./text.js";
import { onPaint, redraw, shown, state } from "../store.js";

const FLAG = 1400; // ms to show "just broke"
const wide = matchMedia("(min-width: 1800px)"); // there is room for a second question
const MANY = 6; // with this many fewer than the paper's setting, a lost question is shown

let box = null;
let cards = [];
/** @type {string | null} the cards' questions */
let asked = null;

export const mountAnswers = (root) => {
  box = put(root, "section", { class: "cv-answers", "data-part": "answers", "aria-label": "What the models answer" });
  onPaint(paintAnswers);
  return box;
};

/** The cards of the loaded models: one per skill, or one per agent where nothing was asked. New merges with answers to
 * the same questions remove neither a card nor the focus in it, nor a picked question. */
export const setAnswers = () => {
  const { profile } = state;
  const questions = profile.skills && JSON.stringify([profile.skills.domains, profile.skills.prompts]);
  if (questions && questions === asked && profile === cards[0].profile) {
    for (const one of cards) one.first = bestExample(one.d);
    return;
  }
  asked = questions;
  box.replaceChildren();
  cards = profile.skills ? profile.skills.domains.map(mountSkill) : [];
  if (!profile.skills) {
    if (!profile.skills_at) mountExpectation();
    profile.agents.forEach(mountUntested);
  }
  box.classList.toggle("many", box.children.length > 4);
};

// ---------------------------------------------------------------- nothing asked yet

const mountExpectation = () => {
  const { first, why, evidence, limits } = expectationOf(state.profile);
  const card = put(box, "article", { class: "cv-panel cv-card cv-expected", "data-part": "expected" });
  put(put(card, "header"), "h2", {}, "What to expect");
  const lines = put(card, "div", { class: "cv-expect" });
  put(put(lines, "p"), "b", {}, first);
  for (const text of [why, evidence, limits]) if (text) put(lines, "p", {}, text);
  put(lines, "p", { class: "cv-ask" }, "Test now asks base, agents and twelve merges the same questions. You can stop at any time.");
};

const mountUntested = (name, t) => {
  const { overlap, default_index: usual, total } = state.profile;
  const [own, ...rest] = overlap[usual][t];
  const changed = rest.reduce((a, b) => a + b, own);
  const card = put(box, "article", { class: "cv-panel cv-card cv-untested" });
  const head = put(put(card, "header"), "h2");
  marker(head, t);
  head.append(` ${name}`);
  put(card.firstChild, "span", { class: "cv-score" }, put(card, "small", {}, "not tested"));
  const words = put(card, "p", { class: "cv-empty" }, "Changed ");
  put(words, "b", {}, brief(total ? changed / total : 0));
  words.append(" of the weights; ");
  put(words, "b", { class: "cv-unique-ink" }, brief(changed ? own / changed : 0));
  words.append(" of these alone.");
};

// ---------------------------------------------------------------- mounting a skill

// The most telling question: the agent learned it, average and sum lose it, RAM+ (and RAM, if possible) solves it;
// else one that the agent learned.
const bestExample = (d) => {
  const { profile } = state;
  const { skills } = profile;
  const own = skills.specialists[d] ?? skills.base;
  const lost = ["average", "sum"].map((name) => exactRow(profile, usualOf(name, profile))).filter(Boolean);
  const ramRows = [paperRow(profile), exactRow(profile, usualOf("ram", profile))];
  const learned = skills.order[d].filter((i) => own.right[i] && !skills.base.right[i]);
  const short = (list) => list.reduce((a, b) => (a === undefined || skills.prompts[b].length < skills.prompts[a].length ? b : a), undefined);
  const examples = learned.filter((i) => ramRows[0]?.right[i] && lost.every((row) => !row.right[i]));
  return short(examples.filter((i) => ramRows[1]?.right[i])) ?? short(examples) ?? learned[0] ?? skills.order[d][0];
};

const mountSkill = (name, d) => {
  const { skills } = state.profile;
  const card = put(box, "article", { class: "cv-panel cv-card", "data-skill": name, "data-asked": skills.n });
  const head = put(card, "header");
  const title = put(head, "h2");
  if (skills.agents[d] !== null) marker(title, skills.agents[d]);
  title.append(` ${name}`);
  const flag = put(head, "span", { class: "cv-flag" }, "just broke");
  const against = put(head, "span", { class: "cv-against" });
  const score = put(head, "span", { class: "cv-score" });
  const turns = put(head, "span", { class: "cv-turn" });
  const dots = put(card, "div", { class: "cv-dots" });
  const canvas = put(dots, "canvas", { "aria-hidden": "true" });
  const prompt = put(card, "p", { class: "cv-prompt" });
  const grid = put(card, "div", { class: "cv-answer-list" });
  const lines = mountLines(grid, ["base", "agent", "a", "merge"]);
  const gold = mountGold(grid);
  const first = bestExample(d);
  const one = { d, profile: state.profile, card, flag, against, score, dots, canvas, prompt, lines, gold, picked: first, first, isHeld: false, until: 0, drawn: null };
  for (const [step, text, label] of /** @type {[number, string, string][]} */ ([[-1, "‹", "previous"], [1, "›", "next"]])) {
    const turn = () => pick(one, (placeOf(one) + step + skills.n) % skills.n);
    putButton(turns, text, turn, { class: "cv-btn", "aria-label": `${label} question of ${name}` });
  }
  if (skills.order[d].some((i) => skills.prompts[i].includes("\n"))) mountWhole(one, turns);
  wire(one);
  return one;
};

// Questions of several lines, and their answers, do not fit a card: a button shows all of one.
const mountWhole = (one, turns) => {
  const { skills } = one.profile;
  const [name, id] = [skills.domains[one.d], `cv-whole-${one.d}`];
  const text = put(one.card, "section", { id, popover: "auto", class: "cv-whole", "data-part": "whole", "aria-label": `A whole question of ${name}` });
  const button = put(turns, "button", { type: "button", class: "cv-btn cv-read", popovertarget: id, "aria-label": `Read the whole question of ${name}` }, "Read");
  turns.prepend(button);
  text.addEventListener("beforetoggle", (event) => { if (/** @type {ToggleEvent} */ (event).newState === "open") showWhole(one, text); });
};

const showWhole = (one, text) => {
  const { skills } = one.profile;
  const { picked, d } = one;
  const pair = (term, words, mark) => {
    put(list, "dt", {}, term);
    put(list, "dd", mark === undefined ? {} : { "data-right": mark }, words);
  };
  text.replaceChildren();
  put(text, "h2", {}, `${skills.domains[d]}, question ${placeOf(one) + 1} of ${skills.n}`);
  put(text, "p", {}, skills.prompts[picked]);
  const list = put(text, "dl");
  pair("right answer", skills.gold[picked]);
  const own = skills.specialists[d];
  const every = [["base", skills.base], ...(own ? [[`${own.name} agent`, own]] : []), ...(shown.near ? [[mergeName(), shown.near.row]] : [])];
  for (const [who, row] of every) pair(`${row.right[picked] ? "✓" : "✗"} ${who}`, answerOf(skills, row, picked).trim() || "(no answer)", Number(row.right[picked]));
  put(text, "button", { type: "button", class: "cv-btn", popovertarget: text.id, popovertargetaction: "hide" }, "Close");
};

// In wide cards a second one: the next that only one of this merge and the agent solves; else the next.
const mountSecond = (card) => {
  const second = put(card, "div", { class: "cv-second", "data-part": "second", title: "The next question on which this merge and the agent differ, if there is one" });
  const prompt = put(second, "p", { class: "cv-prompt" });
  return { box: second, prompt, lines: mountLines(put(second, "div", { class: "cv-answer-list" }), ["agent", "merge"]) };
};

const mountLines = (grid, every) => Object.fromEntries(every.map((who) => [who, mountLine(grid, who)]));

const mountLine = (grid, who) => {
  const row = put(grid, "div", { class: `cv-line-${who}`, "data-answer": who });
  return { row, who: put(row, "span", { class: "cv-who" }), mark: put(row, "span", { class: "cv-mark", role: "img" }), text: put(row, "span", { class: "cv-text" }), label: "", key: "" };
};

// The right answer, if none of the shown answers is right.
const mountGold = (grid) => {
  const row = put(grid, "div", { class: "cv-line-gold", "data-part": "right-answer" });
  put(row, "span", { class: "cv-who" }, "right answer");
  put(row, "span");
  return { row, text: put(row, "span", { class: "cv-text" }) };
};

// ---------------------------------------------------------------- picking a question

const placeOf = (one) => state.profile.skills.order[one.d].indexOf(one.picked);

const pick = (one, place) => {
  one.picked = state.profile.skills.order[one.d][Math.max(0, Math.min(state.profile.skills.n - 1, place))];
  one.isHeld = true;
  redraw("pick");
};

const wire = (one) => {
  const { dots } = one;
  onDrag(dots, ({ clientX }) => {
    const { left, width } = dots.getBoundingClientRect();
    pick(one, Math.floor(((clientX - left) / width) * state.profile.skills.n));
  });
  dots.addEventListener("keydown", (event) => {
    const to = sliderPlace(event.key, placeOf(one), state.profile.skills.n - 1, 10);
    if (event.key === "Escape" && one.isHeld) {
      one.isHeld = false;
      one.picked = one.first;
      redraw("pick");
    } else if (to !== null) pick(one, to);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
};

// The automatic choice of a question; a picked one stays.
const bringForward = (one, skills, row, pinned) => {
  const { d } = one;
  const own = skills.specialists[d] ?? skills.base;
  const { previous, how } = shown;
  const moved = previous && previous !== row;
  if (!one.isHeld && how === "method") {
    one.picked = one.first;
    const isLow = row.score[d] < (paperRow(state.profile)?.score[d] ?? 0) - MANY;
    if (isLow && row.right[one.picked]) one.picked = skills.order[d].find((i) => !row.right[i] && own.right[i] && !skills.base.right[i]) ?? one.picked;
  } else if (!one.isHeld && moved && row.right[one.picked]) {
    const broke = skills.order[d].filter((i) => previous.right[i] && !row.right[i]);
    one.picked = broke.find((i) => own.right[i]) ?? broke[0] ?? one.picked;
  }
  if (!one.isHeld && pinned && pinned.right[one.picked] === row.right[one.picked]) {
    one.picked = skills.order[d].find((i) => pinned.right[i] && !row.right[i]) ?? one.picked;
  }
  if (moved && how === "drag" && previous.right[one.picked] && !row.right[one.picked]) {
    one.until = performance.now() + FLAG;
    setTimeout(() => { if (performance.now() >= one.until) one.flag.classList.remove("on"); }, FLAG + 50);
  }
};

// ---------------------------------------------------------------- painting

const paintAnswers = () => {
  const { skills } = state.profile;
  if (!skills) return;
  const row = shown.near?.row ?? null; // null: no measured row for this merge
  const pinned = shown.pinned?.near?.row ?? null;
  for (const one of cards) {
    if (row) bringForward(one, skills, row, pinned);
    paintCard(one, skills, row, pinned);
    paintSecond(one, skills, row);
    drawDots(one, skills, row, pinned);
  }
};

const paintScore = (box, row, d, n) => {
  const score = row ? String(row.score[d]) : "";
  if (box.dataset.of === score) return;
  box.dataset.of = score;
  box.replaceChildren(score);
  put(box, "small", {}, row ? ` of ${n}` : "not tested");
  const [low, high] = row ? wilson(row.score[d], n) : [];
  box.title = row ? `95 % interval ${percent(low, 0)} to ${percent(high, 0)}` : "";
};

const paintCard = (one, skills, row, pinned) => {
  const { d, card, picked, lines, dots } = one;
  const right = Boolean(row?.right[picked]);
  const isLost = row !== null && !right;
  const own = skills.specialists[d];
  card.dataset.solved = row ? row.score[d] : "";
  card.dataset.item = skills.items[picked];
  card.classList.toggle("lost", isLost);
  paintScore(one.score, row, d, skills.n);
  const gain = row && pinned ? row.score[d] - pinned.score[d] : 0;
  setText(one.against, gain ? `${gain > 0 ? "+" : "−"}${Math.abs(gain)} vs A` : "");
  one.against.classList.toggle("cv-warn-ink", gain < 0);
  one.flag.classList.toggle("on", performance.now() < one.until && isLost);
  setText(one.prompt, shortPrompt(skills.prompts[picked]));
  const { gold } = skills;
  const showLine = (who, label, of) => sayLine(lines[who], skills, picked, label, of);
  showLine("base", ["base"], skills.base);
  showLine("agent", own ? [skills.agents[d], `${own.name} agent`] : [], own);
  showLine("a", pinned ? ["A", titleOf(state.pin, state.profile.agents.length)] : [], pinned);
  showLine("merge", [mergeName()], row);
  one.gold.row.hidden = [own, pinned, row].some((of) => of?.right[picked]);
  setText(one.gold.text, one.gold.row.hidden ? "" : gold[picked]);
  const words = row
    ? `${capital(mergeName())}: ${answerOf(skills, row, picked).trim() || "no answer"}, ${right ? "right" : "wrong"}. ${row.score[d]} of ${skills.n} solved.`
    : "This merge was not tested.";
  saySlider(dots, {
    label: `${skills.domains[d]}: question shown, of ${skills.n}`, least: 1, most: skills.n, now: placeOf(one) + 1,
    text: `${skills.prompts[picked]} Right answer: ${gold[picked]}. ${words}`,
  });
};

const mergeName = () => (shown.near?.isExact ? "this merge" : "nearest merge");

const paintSecond = (one, skills, row) => {
  const isShown = wide.matches && row !== null;
  if (one.second) one.second.box.hidden = !isShown;
  if (!isShown) return;
  one.second ??= mountSecond(one.card);
  const { box: second, prompt, lines } = one.second;
  const [order, own] = [skills.order[one.d], skills.specialists[one.d]];
  const rest = [...order.slice(placeOf(one) + 1), ...order.slice(0, placeOf(one))];
  const item = rest.find((i) => (own ?? skills.base).right[i] !== row.right[i]) ?? rest[0];
  second.dataset.item = skills.items[item];
  setText(prompt, shortPrompt(skills.prompts[item]));
  if (own) sayLine(lines.agent, skills, item, [skills.agents[one.d], `${own.name} agent`], own);
  else sayLine(lines.agent, skills, item, ["base"], skills.base);
  sayLine(lines.merge, skills, item, [mergeName()], row);
};

const sayLine = (line, { answers, gold }, item, label, of) => {
  line.row.hidden = !of;
  if (of) paintLine(line, label, answers[item][of.said[item]], gold[item], Boolean(of.right[item]));
};

// label: [text], [agent, text] or ["A", text].
const paintLine = (line, label, text, gold, right) => {
  const [label_, key] = [label.join("|"), `${gold}|${text}|${right}`];
  if (line.label !== label_) {
    line.label = label_;
    line.who.replaceChildren();
    if (typeof label[0] === "number") marker(line.who, label[0]);
    else if (label.length > 1) put(line.who, "span", { class: "cv-tag" }, "A");
    put(line.who, "span", {}, label.at(-1));
  }
  if (line.key === key) return;
  line.key = key;
  line.row.dataset.right = Number(right);
  line.mark.textContent = right ? "✓" : "✗";
  line.mark.setAttribute("aria-label", right ? "right" : "wrong");
  line.text.replaceChildren();
  line.text.title = text.trim();
  const pieces = answerPieces(text, gold, right);
  const length = pieces.reduce((all, [, piece]) => all + piece.length, 0);
  line.text.classList.toggle("long", length > 22 && length <= 34);
  line.text.classList.toggle("longer", length > 34);
  for (const [kind, piece] of pieces) put(line.text, "span", kind ? { class: `cv-${kind}` } : {}, piece);
};

const drawDots = (one, skills, row, pinned) => {
  const { canvas, d, picked } = one;
  one.size ??= { width: canvas.clientWidth, height: canvas.clientHeight };
  const { width, height } = one.size;
  const key = [row?.id, pinned?.id, picked, width, shown.near?.isExact].join();
  if (!width || key === one.drawn) return;
  one.drawn = key;
  const ratio = Math.min(2, devicePixelRatio || 1);
  if (canvas.width !== Math.round(width * ratio)) [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const pen = canvas.getContext("2d");
  const { ink, outline, good, bad } = colors();
  const step = width / skills.n;
  const radius = Math.min(step * 0.38, height * 0.3);
  const ring = (x, y, r, color, line) => { pen.beginPath(); pen.arc(x, y, r, 0, 7); pen.strokeStyle = color; pen.lineWidth = line; pen.stroke(); };
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  if (!row) return;
  skills.order[d].forEach((i, j) => {
    const [x, y, right] = [(j + 0.5) * step, height / 2 - 1.5, row.right[i]];
    if (right) {
      pen.beginPath();
      pen.arc(x, y, radius, 0, 7);
      pen.fillStyle = skills.agents[d] === null ? ink : agentColor(skills.agents[d]);
      pen.globalAlpha = shown.near.isExact ? 1 : 0.55;
      pen.fill();
      pen.globalAlpha = 1;
    } else ring(x, y, radius, outline, 1.1);
    if (pinned && pinned.right[i] !== right) ring(x, y, radius + 0.8 * right, right ? good : bad, 2);
    if (i !== picked) return;
    ring(x, y, radius + 2.2, ink, 1.6);
    pen.fillStyle = ink;
    pen.beginPath();
    for (const [dx, dy] of [[0, -4.5], [4, 0], [-4, 0]]) pen.lineTo(x + dx, height + dy);
    pen.fill();
  });
};

/** Widths are measured once per layout, not while dragging. */
export const layAnswers = () => { for (const one of cards) [one.size, one.drawn] = [undefined, null]; };
