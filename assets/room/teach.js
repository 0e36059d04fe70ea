// @ts-check
// The teacher's view: open a room, lead the class with one button, watch answers arrive, save the report.
import { put, putButton, write } from "../nodes.js";
import { call, follow, textOf } from "./api.js";
import { drawAnswers } from "./cloud.js";
import { leadRoom, leaveRoom } from "../led_room.js";
import { lessonQuestions } from "./questions.js";
import { CLASS, rehearse } from "./rehearse.js";
import { drawReport } from "./report.js";
import { drawClock, drawQuestion, focusOn, headline, main, measuredText, PHASES, speak } from "./view.js";

const NEXT = {
  lobby: "Ask the first question", ask: "Open the vote", first: "Close the vote, let them talk", talk: "Open the second vote",
  second: "Reveal", reveal: "Next question", done: "Show the report",
};
const TALK = [30, 60, 90, 120, 180, 300]; // seconds to talk

let link = /** @type {any} */ (null);
let [code, token] = ["", ""];
let state = /** @type {any} */ (null);
let parts = /** @type {any} */ (null);
let isCut = false; // the connection is lost, with a notice
let isNoted = true; // whether expected answers are unfolded, as the teacher left the last one
let simulate = /** @type {((state: any) => void) | null} */ (null);

const headers = () => ({ "Room-Token": token });
const message = (error) => /** @type {Error} */ (error).message;

// ---------------------------------------------------------------- opening

const drawOpening = async (error = "") => {
  headline("Teach this live");
  main().replaceChildren();
  main().dataset.phase = "opening";
  put(main(), "h1", { tabindex: "-1" }, "Teach this live");
  put(main(), "p", {}, "Students join with a code, on phones or laptops. They predict, talk, vote again, and then see what was measured.");
  put(main(), "p", { class: "rm-muted" }, "No names, no accounts. Answers stay in this server's memory until you end the room, two hours at most.");
  const form = put(main(), "form", { class: "rm-open" });
  const set = put(form, "fieldset");
  put(set, "legend", {}, "Questions");
  const list = put(set, "div", { class: "rm-list", "aria-busy": "true" }, "Reading what was measured …");
  const talk = put(put(form, "label", {}, "Time to talk "), "select", { name: "talk" });
  for (const seconds of TALK) put(talk, "option", { value: seconds, ...(seconds === 90 ? { selected: "" } : {}) }, `${seconds} seconds`);
  const row = put(form, "p", { class: "rm-row" });
  const open = put(row, "button", { type: "submit", class: "rm-main", disabled: "", "data-part": "open" }, "Open a room");
  const again = put(row, "button", { type: "submit", value: "rehearse", disabled: "", "data-part": "rehearse" }, `Rehearse with ${CLASS} simulated students`);
  const failed = put(form, "p", { class: "rm-bad", role: "alert" }, error);
  let questions = /** @type {any[]} */ ([]);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const chosen = questions.filter(({ id }) => form.querySelector(`[name="${id}"]`)?.checked);
    if (!chosen.length) {
      failed.textContent = "Choose at least one question.";
      return;
    }
    const isRehearsal = event.submitter === again;
    try {
      const made = await call("", { body: { questions: chosen, talk_seconds: Number(talk.value), is_rehearsal: isRehearsal } });
      history.replaceState(null, "", `${window.location.pathname}${window.location.search}#${made.code}.${made.token}`);
      enter();
    } catch (refused) { failed.textContent = message(refused); }
  });
  try {
    questions = await lessonQuestions();
  } catch {
    failed.textContent = "The questions could not be read from the server. Reload the page.";
    return;
  }
  list.replaceChildren();
  list.removeAttribute("aria-busy");
  for (const { id, title } of questions) {
    const label = put(list, "label", { class: "rm-tick-row" });
    put(label, "input", { type: "checkbox", name: id, checked: "" });
    put(label, "span", {}, title);
  }
  open.disabled = again.disabled = false;
};

// ---------------------------------------------------------------- leading

const enter = () => {
  link?.stop();
  simulate = null; // simulated students belong to one room
  const found = /^#([A-Za-z]{6})\.([\w-]{20,64})$/.exec(window.location.hash);
  if (!found) {
    drawOpening(window.location.hash ? "This is not a teacher's link. Open a new room." : "");
    return;
  }
  [, code, token] = found;
  drawConsole();
  link = follow({ path: `/${code}/teacher`, headers: headers(), take: draw, lost });
};

// The browser no longer leads this room, and the URL does not name it.
const forget = () => {
  leaveRoom();
  history.replaceState(null, "", `${window.location.pathname}${window.location.search}`);
};

const lost = (refusal) => {
  if (refusal.status === 304) tellConnection("");
  else if (refusal.status === 403 || refusal.status === 404) {
    forget();
    drawOpening(refusal.message);
  } else tellConnection(refusal.message);
};

// The reason of a refused action stays until the next action.
const tellConnection = (text) => {
  if (text || isCut) parts.notice.textContent = text;
  isCut = Boolean(text);
};

const act = async (action, more = {}) => {
  parts.notice.textContent = "";
  try {
    const answer = await call(`/${code}/teacher`, { body: { action, ...more }, headers: headers() });
    if (answer.ended) end(answer);
    else link.take(answer);
  } catch (error) {
    parts.notice.textContent = message(error);
    link.now();
  }
};

const drawConsole = () => {
  main().replaceChildren();
  const head = put(main(), "section", { class: "rm-console", "aria-label": "Room" });
  const join = put(head, "div", { class: "rm-joining" });
  put(join, "img", { class: "rm-qr", src: `room/api/${code}/qr.svg`, alt: `QR code of the link to room ${code}` });
  const how = put(join, "div");
  put(how, "p", { class: "rm-code", "data-part": "code" }, code);
  const address = put(how, "p", { class: "rm-link", "data-part": "link" });
  const here = put(how, "p", { "data-part": "present" });
  const pages = put(how, "p", { class: "rm-row" });
  put(pages, "a", { href: `room/screen#${code}`, target: "ram-screen", class: "rm-button", "data-part": "screen" }, "Open the screen");
  put(pages, "a", { href: "./?set=shared-style", target: "ram-canvas", class: "rm-button", "data-part": "canvas" }, "Open the canvas");
  const lead = put(head, "div", { class: "rm-lead" });
  const phase = put(lead, "p", { class: "rm-phase", "data-part": "phase" });
  const next = putButton(lead, "", () => (state.phase === "done" ? report() : act("next", { place: state.place, phase: state.phase })), { class: "rm-main", "data-part": "next" });
  const row = put(lead, "p", { class: "rm-row" });
  const reveal = putButton(row, "Reveal now", () => act("reveal"), { "data-part": "reveal-now" });
  const reset = putButton(row, "Ask again", () => { if (window.confirm("Forget the answers to this question and ask it again?")) act("reset"); }, { "data-part": "reset" });
  putButton(row, "End the room", () => { if (window.confirm("End the room for everybody? You keep the report.")) act("end"); }, { "data-part": "end" });
  const notice = put(lead, "p", { class: "rm-bad", role: "alert" });
  const stage = put(main(), "section", { class: "rm-stage", "aria-label": "Question" });
  const live = put(main(), "section", { class: "rm-live", "aria-label": "Answers, only visible to you" });
  const links = put(main(), "section", { class: "rm-links", "aria-label": "Canvases of students" });
  const plan = put(main(), "nav", { "aria-label": "Questions" });
  parts = { address, here, phase, next, reveal, reset, notice, stage, live, links, plan, drawn: new Map() };
};

/** Redraw a part when its data changed. @param {string} name @param {any} shown @param {(node: HTMLElement) => void} paint */
const renew = (name, shown, paint) => {
  const key = JSON.stringify(shown);
  if (parts.drawn.get(name) === key) return;
  parts.drawn.set(name, key);
  const node = parts[name];
  const controls = () => [...node.querySelectorAll("button, a, summary")];
  const focused = controls().indexOf(document.activeElement);
  node.replaceChildren();
  paint(node);
  controls()[focused]?.focus({ preventScroll: true }); // votes may arrive during keyboard navigation
};

const draw = (answer) => {
  state = answer;
  const { phase, place, question, expected, rounds, counts, present, joined } = state;
  leadRoom(code, token);
  headline(`Room ${code}, teacher`, state.is_rehearsal);
  main().dataset.phase = phase;
  tellConnection("");
  parts.address.textContent = state.is_reachable ? state.link
    : "Only this machine reaches the room. Start the app with --host 0.0.0.0 to let a class in.";
  parts.here.textContent = `${present} here, ${joined} joined`;
  const n = counts[phase];
  parts.phase.textContent = n === undefined ? PHASES[phase] : `${PHASES[phase]}: ${n} of ${Math.max(n, present)} answered`;
  const isLast = phase === "reveal" && place + 1 === state.questions;
  parts.next.textContent = isLast ? "Finish" : NEXT[phase];
  parts.reveal.disabled = !["ask", "first", "talk", "second"].includes(phase);
  if (parts.reveal.disabled && document.activeElement === parts.reveal) parts.next.focus({ preventScroll: true });
  const isFirst = !parts.drawn.size;
  parts.reset.disabled = !question;
  renew("stage", [phase, place, question, expected], drawStage);
  if (isFirst) focusOn("h1"); // the form that opened the room is gone
  renew("live", [question, rounds], (box) => {
    if (rounds && rounds.first.answers + rounds.second.answers) drawAnswers(box, question, rounds, expected.truth);
  });
  renew("links", [phase, state.links, state.shown], drawLinks);
  renew("plan", [place, phase, state.plan], drawPlan);
  if (state.is_rehearsal) simulate ??= rehearse(code);
  simulate?.(state);
};

const drawStage = (box) => {
  const { phase, question, expected } = state;
  speak(PHASES[phase]);
  if (!question) {
    put(box, "h1", { tabindex: "-1" }, phase === "done" ? PHASES.done : "Let students in, then begin");
    return;
  }
  drawQuestion(box, state);
  if (phase === "talk") drawClock(box, () => link.left(state.ends_at));
  const notes = put(box, "details", { class: "rm-notes" });
  notes.open = isNoted;
  notes.addEventListener("toggle", () => { isNoted = notes.open; });
  put(notes, "summary", {}, "Expected answer, only visible to you");
  put(notes, "p", { class: "rm-verdict" }, `Measured: ${measuredText(question, expected.truth)}`);
  write(put(notes, "p"), expected.reveal);
  if (expected.note) put(notes, "p", { class: "rm-muted" }, expected.note);
};

const drawLinks = (box) => {
  if (state.phase !== "reveal" || !state.links.length) return;
  put(box, "h2", {}, "Canvases of students");
  const list = put(box, "ul");
  state.links.forEach((found, i) => {
    const item = put(list, "li", { class: "rm-row" });
    const isShown = state.shown === found;
    putButton(item, isShown ? "Take off the screen" : "Show on the screen", () => act("show", { link: isShown ? null : found }), {
      "aria-label": `${isShown ? "Take off the screen" : "Show on the screen"}: canvas ${i + 1}`,
    });
    put(item, "a", { href: `./${found}`, target: "ram-canvas" }, [...new URLSearchParams(found)].map((entry) => entry.join(" ")).join(", "));
  });
};

const drawPlan = (box) => {
  put(box, "h2", {}, "Questions");
  const list = put(box, "ol", { class: "rm-plan" });
  state.plan.forEach(({ title, answers }, i) => {
    const isHere = i === state.place && state.phase !== "lobby" && state.phase !== "done";
    const item = putButton(put(list, "li"), title, () => act("go", { place: i }), isHere ? { "aria-current": "step" } : {});
    if (answers) put(item, "span", { class: "rm-muted" }, ` ${answers} answered`);
  });
};

// ---------------------------------------------------------------- after

const report = async () => {
  try {
    const [answer, csv] = await Promise.all([call(`/${code}/report`, { headers: headers() }), textOf(`/${code}/report?as=csv`, headers())]);
    main().querySelector("[data-part=report]")?.remove();
    drawReport(main(), answer, csv);
    focusOn("#report-title");
  } catch (error) { parts.notice.textContent = message(error); }
};

const end = ({ report: answer, csv }) => {
  link.stop();
  forget();
  headline("The room has ended");
  main().replaceChildren();
  main().dataset.phase = "ended";
  put(main(), "h1", { tabindex: "-1" }, "The room has ended");
  put(main(), "p", { class: "rm-screen-only" }, "Nothing is left on the server. Keep the report now: this page forgets it when you leave.");
  drawReport(main(), answer, csv);
  focusOn("h1");
};

window.addEventListener("hashchange", enter);
enter();
