// @ts-check
// A student's view: join with a code, answer twice, see the measured value. The room stores the answer, so a reload finds
// it again; the browser stores only a random id, for this tab.
import { put, putButton, write } from "../nodes.js";
import { tabMemory } from "../storage.js";
import { call, follow } from "./api.js";
import { drawAnswers } from "./cloud.js";
import { answerText, drawClock, drawQuestion, focusOn, headline, main, measuredText, plainText, speak } from "./view.js";

const CANVAS = "ram-canvas"; // the tab for exploring
const TAKEN = "Your teacher has your canvas.";
let link = /** @type {any} */ (null);
let code = "";
let student = "";
let drawn = "";
let canvas = /** @type {Window | null} */ (null);
let isCut = false; // the connection is lost, with a notice

const storeId = (value) => tabMemory.write(`room-${code}`, value);

const notice = (text) => {
  const node = main().querySelector("[data-part=notice]") ?? put(main(), "p", { class: "rm-notice", "data-part": "notice" });
  node.textContent = text;
  /** @type {HTMLElement} */ (node).hidden = !text;
  if (text) speak(text);
};

// ---------------------------------------------------------------- joining

const drawForm = (error = "") => {
  drawn = "";
  headline("Join a room");
  main().replaceChildren();
  put(main(), "h1", { tabindex: "-1" }, "Join a room");
  const form = put(main(), "form", { class: "rm-join" });
  put(form, "label", { for: "code" }, "Code of six letters");
  const input = put(form, "input", {
    id: "code", maxlength: "20", required: "", autocomplete: "off", autocapitalize: "characters", spellcheck: "false", "aria-describedby": "code-error",
    value: error && code,
  });
  put(form, "p", { id: "code-error", class: "rm-bad", role: "alert" }, error);
  put(form, "button", { type: "submit", class: "rm-main" }, "Join");
  put(main(), "p", { class: "rm-muted" }, "No name, no account. Your answers stay anonymous.");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = `#${input.value.replace(/\s/g, "").toUpperCase()}`; // the screen shows it spaced
    if (wanted === window.location.hash.toUpperCase()) enter(); // once more: nothing changes there
    else window.location.hash = wanted;
  });
  input.focus();
  input.select();
};

const enter = async () => {
  link?.stop();
  const newCode = window.location.hash.slice(1).toUpperCase();
  code = newCode;
  if (!/^[A-Z]{6}$/.test(code)) {
    drawForm(code && "A code has six letters.");
    return;
  }
  student = tabMemory.read(`room-${code}`) ?? "";
  try {
    if (!student) {
      const joined = await call(`/${newCode}/join`, { body: {} });
      if (code !== newCode) return; // another room was requested meanwhile
      student = joined.student;
      storeId(student);
    }
  } catch (error) {
    if (code === newCode) drawForm(/** @type {Error} */ (error).message);
    return;
  }
  link?.stop();
  link = follow({ path: `/${code}`, headers: { "Room-Student": student }, take: draw, lost });
};

const lost = (refusal) => {
  if (refusal.status === 403) {
    storeId("");
    enter();
  } else if (refusal.status === 404) drawForm(refusal.message);
  else tellConnection(refusal.status === 304 ? "" : refusal.message);
};

// Other notices stay until the next view.
const tellConnection = (text) => {
  if (text || isCut) notice(text);
  isCut = Boolean(text);
};

// ---------------------------------------------------------------- views

const draw = (state) => {
  const { phase, place, question, result } = state;
  headline(`Room ${state.code}`, state.is_rehearsal);
  const key = JSON.stringify([phase, place, question?.id, result, phase === "reveal" && state.link]);
  if (key !== drawn) {
    drawn = key;
    main().replaceChildren();
    main().dataset.phase = phase;
    VIEWS[phase](state);
    focusOn("h1");
  }
  tellConnection("");
  tellSent(state);
};

const VIEWS = {
  lobby: () => {
    put(main(), "h1", { tabindex: "-1" }, "You are in");
    put(main(), "p", {}, "The first question appears here when your teacher asks it.");
    speak("You are in the room. Wait for the first question.");
  },
  ask: (state) => {
    drawQuestion(main(), state);
    put(main(), "p", { class: "rm-muted" }, "Read it. The vote opens in a moment.");
    speak(`Question ${state.place + 1}: ${plainText(state.question.ask)}`);
  },
  first: (state) => drawVote(state, "First vote. Answer alone. Your teacher sees answers without names."),
  talk: (state) => {
    drawQuestion(main(), state);
    put(main(), "p", { class: "rm-task" }, "Talk with your neighbors. Convince them, or be convinced.");
    drawClock(main(), () => link.left(state.ends_at));
    speak("Talk with your neighbors. Then you vote again.");
  },
  second: (state) => drawVote(state, "Second vote. Answer again, changed or not."),
  reveal: (state) => {
    const { question, result } = state;
    drawQuestion(main(), state);
    put(main(), "p", { class: "rm-verdict", "data-part": "measured" }, `Measured: ${measuredText(question, result.truth)}`);
    put(main(), "p", { "data-part": "mine" }, mineText(state));
    drawAnswers(main(), question, result.rounds, result.truth);
    write(put(main(), "p", {}), result.reveal);
    if (result.explore) drawExplore(state);
    speak(`Measured: ${measuredText(question, result.truth)}. ${mineText(state)}`);
  },
  done: () => {
    put(main(), "h1", { tabindex: "-1" }, "The lesson is over");
    put(main(), "p", {}, "Nothing was stored. You can continue alone:");
    put(put(main(), "p"), "a", { class: "rm-main", href: "./?lesson=1" }, "Open the lesson");
    speak("The lesson is over.");
  },
};

const mineText = ({ question, mine }) => {
  const votes = [mine.first, mine.second].filter((value) => value !== null).map((value) => answerText(question, value));
  if (!votes.length) return "You did not vote on this one.";
  return `You said: ${votes.length === 1 || votes[0] === votes[1] ? votes[0] : votes.join(", then ")}.`;
};

// ---------------------------------------------------------------- voting

const tellSent = ({ phase, question, mine }) => {
  const node = main().querySelector("[data-part=sent]");
  if (!node || (phase !== "first" && phase !== "second")) return;
  const value = mine[phase];
  node.textContent = value === null ? "" : `Sent: ${answerText(question, value)}. You can change it until the vote closes.`;
};

const drawVote = (state, task) => {
  drawQuestion(main(), state);
  put(main(), "p", { class: "rm-task" }, task);
  const form = put(main(), "form", { class: "rm-vote" });
  const before = state.mine[state.phase] ?? state.mine.first;
  const read = state.question.choices ? drawChoices(form, state.question, before) : drawSlider(form, state.question, before);
  put(form, "button", { type: "submit", class: "rm-main", "data-part": "send" }, "Send my answer");
  put(form, "p", { class: "rm-sent", "data-part": "sent" });
  speak(`${task} ${plainText(state.question.ask)}`);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const value = read();
    if (value === null) return;
    try {
      const body = { place: state.place, round: state.phase, value };
      link.take(await call(`/${code}/vote`, { body, headers: { "Room-Student": student } }));
      speak(`Sent: ${answerText(state.question, value)}.`);
    } catch (error) {
      notice(/** @type {Error} */ (error).message);
      link.now();
    }
  });
};

const drawChoices = (form, { choices }, before) => {
  const set = put(form, "fieldset");
  put(set, "legend", { class: "rm-unseen" }, "Your answer");
  const inputs = choices.map((text, i) => {
    const label = put(set, "label", { class: "rm-choice" });
    const input = put(label, "input", { type: "radio", name: "answer", value: i, required: "" });
    input.checked = before === i;
    put(label, "span", {}, text);
    return input;
  });
  return () => {
    const at = inputs.findIndex((input) => input.checked);
    return at < 0 ? null : at;
  };
};

const drawSlider = (form, question, before) => {
  const { low, high, step } = question.line;
  const row = put(form, "div", { class: "rm-slide" });
  put(row, "label", { for: "guess" }, "Your guess");
  const output = put(row, "output", { for: "guess" });
  const input = put(row, "input", { id: "guess", type: "range", min: low, max: high, step });
  input.value = before ?? (low + high) / 2;
  const showValue = () => {
    output.textContent = answerText(question, Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  showValue();
  input.addEventListener("input", showValue);
  return () => Number(input.value);
};

// ---------------------------------------------------------------- exploring

const drawExplore = ({ result, link: sent }) => {
  const box = put(main(), "section", { class: "rm-explore", "aria-label": "Explore" });
  put(box, "p", {}, "Try it yourself on the canvas. Found something? Send it: your teacher may show it, without a name.");
  const row = put(box, "p", { class: "rm-row" });
  putButton(row, "Open the canvas", () => { canvas = window.open(new URL(result.explore, document.baseURI), CANVAS); }, { "data-part": "explore" });
  putButton(row, sent ? "Send it again" : "Send my canvas", () => handIn(), { "data-part": "hand-in" });
  const more = put(box, "details");
  put(more, "summary", {}, "Paste a link instead");
  const form = put(more, "form", { class: "rm-row" });
  put(form, "label", { class: "rm-unseen", for: "pasted" }, "Link of a canvas");
  const input = put(form, "input", { id: "pasted", type: "text", autocomplete: "off", placeholder: "Share, Copy link" });
  put(form, "button", { type: "submit" }, "Send");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    handIn(input.value);
  });
  put(box, "p", { class: "rm-sent" }, sent ? TAKEN : "");
};

/** The query of the canvas in the other tab, or of a pasted link; "" if it is not this app's. @param {string} [pasted] */
const queryOf = (pasted) => {
  try {
    const url = new URL(pasted ?? String(canvas?.location.href), document.baseURI);
    url.searchParams.delete("__theme");
    return url.origin === window.location.origin ? url.search : "";
  } catch {
    return ""; // the tab is closed, or not a link
  }
};

/** @param {string} [pasted] */
const handIn = async (pasted) => {
  const query = queryOf(pasted);
  if (!query) {
    notice(pasted === undefined ? "Open the canvas first, from here." : "This is not a link to this app's canvas.");
    return;
  }
  try {
    link.take(await call(`/${code}/link`, { body: { link: query }, headers: { "Room-Student": student } }));
    focusOn("[data-part=hand-in]"); // everything was redrawn
    speak(TAKEN);
  } catch (error) {
    notice(/** @type {Error} */ (error).message);
  }
};

window.addEventListener("hashchange", enter);
enter();
