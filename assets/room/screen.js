// @ts-check
// The projector's view: how to join, the question and the number of answers, then the measured value. It contains no
// secret: its URL may be public.
import { put, write } from "../nodes.js";
import { follow } from "./api.js";
import { drawAnswers } from "./cloud.js";
import { drawClock, drawQuestion, headline, main, measuredText, PHASES, plainText, speak } from "./view.js";

const code = window.location.hash.slice(1).toUpperCase();
let link = /** @type {any} */ (null);
let drawn = "";

/** What students type, of their link. @param {string} to */
const address = (to) => { const { host, pathname } = new URL(to); return `${host}${pathname}`; };

const draw = (state) => {
  headline(`Room ${state.code}`, state.is_rehearsal);
  const key = JSON.stringify([state.phase, state.place, state.question?.id, state.result, state.shown]);
  if (key !== drawn) {
    drawn = key;
    main().replaceChildren();
    main().dataset.phase = state.phase;
    if (state.shown) drawCanvas(state);
    else if (state.phase === "lobby") drawLobby();
    else if (state.phase === "done") drawEnd(PHASES.done);
    else drawAsked(state);
    const how = put(main(), "p", { class: "rm-foot" });
    write(how, ["Join: ", [state.code], ` at ${address(state.link)}`]);
  }
  tellCounts(state);
};

const drawLobby = () => {
  put(main(), "h1", {}, "Join the room");
  put(main(), "p", { class: "rm-code", "data-part": "code" }, code);
  put(main(), "img", { class: "rm-qr", src: `room/api/${code}/qr.svg`, alt: `QR code of the link to room ${code}` });
  put(main(), "p", { "data-part": "counts" });
  speak(`Join the room with the code ${[...code].join(" ")}.`);
};

const drawAsked = (state) => {
  const { phase, question, result } = state;
  drawQuestion(main(), state);
  if (!result) put(main(), "p", { class: "rm-task" }, PHASES[phase]);
  if (question.choices && !result) {
    const list = put(main(), "ol", { class: "rm-options" });
    for (const text of question.choices) put(list, "li", {}, text);
  }
  if (phase === "talk") drawClock(main(), () => link.left(state.ends_at));
  if (result) {
    const measured = measuredText(question, result.truth);
    put(main(), "p", { class: "rm-verdict", "data-part": "measured" }, `Measured: ${measured}`);
    drawAnswers(main(), question, result.rounds, result.truth);
    write(put(main(), "p", { class: "rm-why" }), result.reveal);
    speak(`Measured: ${measured}`);
  } else {
    put(main(), "p", { class: "rm-count", "data-part": "counts" });
    speak(`${PHASES[phase]}. ${plainText(question.ask)}`);
  }
};

const drawEnd = (text) => {
  put(main(), "h1", {}, text);
  speak(`${text}.`);
};

const drawCanvas = ({ shown }) => {
  put(main(), "h1", { class: "rm-unseen" }, "A student's canvas");
  put(main(), "iframe", { class: "rm-canvas", title: "A student's canvas", src: `./${shown}` });
};

const tellCounts = ({ phase, counts, present }) => {
  const node = main().querySelector("[data-part=counts]");
  if (!node) return;
  const n = counts[phase];
  node.textContent = n === undefined ? `${present} here` : `${n} of ${Math.max(n, present)} answered`;
};

const lost = (refusal) => {
  if (refusal.status === 304) return;
  if (refusal.status !== 404) {
    speak(refusal.message);
    return;
  }
  drawn = "";
  main().replaceChildren();
  drawEnd("This room has ended");
};

window.addEventListener("hashchange", () => window.location.reload());
link = follow({ path: `/${code || "-"}`, headers: {}, take: draw, lost });
