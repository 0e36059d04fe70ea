// Moving between the steps, the theme, and what a browser tab remembers.
import { pageLink } from "./link.js";
import { mountMeasured } from "./measured.js";
import { askedPlace, askNumber, leaveScope, mountScope } from "./microscope.js";
import { onSent } from "./nodes.js";
import * as numbers from "./numbers.js";
import { present } from "./canvas/canvas.js";
import { mountLesson, takeLesson } from "./lesson/lesson.js";
import { mountVerdicts } from "./verdicts.js";
import { outcomeOf } from "./canvas/outcome.js";
import { recipeOf as mergeMethod } from "./canvas/methods.js";
import { state } from "./canvas/store.js";
import { lookAt, mount, remember, setProfile, settings, show, update } from "./tune.js";

const STEPS = ["load", "tune", "merge", "check"];
const PAGES = [...STEPS, "history"];

const go = (step) => {
  if (!PAGES.includes(step)) return;
  const moved = document.body.dataset.step !== step;
  document.body.dataset.step = step;
  for (const name of STEPS) {
    const button = document.getElementById(`to-${name}`);
    if (!button) continue;
    if (name === step) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  }
  if (moved) window.scrollTo(0, 0);
  if (step === "tune") show();
  if (moved) tab("step", step);
  document.getElementById("open-history")?.toggleAttribute("data-current", step === "history");
  if (step === "history") history.replaceState(history.state, "", pageLink(window.location.href, step));
  else if (step !== "load") remember();
  // Figures drawn while their step was hidden measure themselves again.
  requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
};

// A tick says that a step is done, not that it was passed: { step: whether }, from the server.
const mountTicks = (props, watch) => {
  onSent(props, watch, (done) => {
    for (const name of STEPS) document.getElementById(`to-${name}`)?.classList.toggle("done", Boolean(done?.[name]));
  });
};

// Go to a step as if its button in the stepper was pressed, with whatever else that does.
const open = (step) => {
  const button = PAGES.includes(step) && document.getElementById(`to-${step}`);
  if (button) setTimeout(() => button.click(), 30);
};

// ---------------------------------------------------------------- a tab's memory

const tab = (key, value) => {
  try {
    if (value !== undefined) sessionStorage.setItem(`ram-${key}`, value);
    return sessionStorage.getItem(`ram-${key}`);
  } catch { return null; } // storage refused: a reload then starts anew
};

// 128 random bits that name this tab's work on the server, so that a reload finds it again.
const tabKey = async () => {
  ownKey = tab("key");
  if (ownKey && !(await isTaken(ownKey))) return ownKey;
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  ownKey = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
  tab("key", ownKey);
  if (navigator.locks) hold(ownKey);
  return ownKey;
};

// A tab that was duplicated brings its twin's key along: each would drop the other's models. So a
// tab holds a lock of the browser's on its key while it lives; before a reload it is let go, a
// moment late perhaps. Without locks (plain http) a tab asks whether another one has the key, which
// a busy one answers too late.
const HANDOVER_MS = 2000;
const ANSWER_MS = 150;
const CHANNEL = "ram-tabs";
let ownKey = null;

const hold = (key) => new Promise((done) => {
  const until = { signal: AbortSignal.timeout(HANDOVER_MS) };
  const keep = () => { done(true); return new Promise(() => {}); };
  navigator.locks.request(`ram-${key}`, until, keep).catch(() => done(false));
});

const isTaken = async (key) => (navigator.locks ? !(await hold(key)) : askTwins(key));

const askTwins = (key) => new Promise((done) => {
  if (!("BroadcastChannel" in window)) { done(false); return; }
  const channel = new BroadcastChannel(CHANNEL);
  const end = (taken) => { channel.close(); done(taken); };
  channel.onmessage = ({ data }) => { if (data.has === key) end(true); };
  channel.postMessage({ asks: key });
  setTimeout(() => end(false), ANSWER_MS);
});

const answerTwins = () => {
  if (navigator.locks || !("BroadcastChannel" in window)) return;
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = ({ data }) => {
    if (data.asks && data.asks === ownKey) channel.postMessage({ has: ownKey });
  };
};

// After the first answer of the server: where to start. A link opens its step, or Tune; a reload the same
// step with the job that still runs: `job` names the button that shows it again. view: what the link
// says, as deep_link.py understood it.
const enter = ({ job, view }) => {
  window.RAM_ENTERED = true; // back.html.j2 need not tell any more that this page is coming
  answerTwins();
  if (job) document.getElementById(job)?.click();
  go(document.body.dataset.step || "load");
  const [entry] = performance.getEntriesByType("navigation");
  const last = entry && entry.type === "reload" ? tab("step") : null;
  const linked = new URL(window.location.href).searchParams.has("set") ? "tune" : null;
  const step = PAGES.includes(last) ? last : view.step || linked;
  lookAt(view);
  if (view.lesson && (!step || step === "tune")) {
    takeLesson(last ? null : view.lesson); // the address may be a moment late
    if (view.present) present(true);
    return;
  }
  // Without models there is nothing to show but the past.
  if (!step || !(state.profile || step === "history")) return;
  open(step);
};

const toggleTheme = () => {
  const dark = document.body.classList.toggle("dark");
  try { localStorage.setItem("ram-theme", dark ? "dark" : "light"); } catch { /* private window */ }
};

const start = () => {
  mountLesson(open);
  if (!document.body.dataset.step) document.body.dataset.step = "load";
  let wanted = null;
  try { wanted = localStorage.getItem("ram-theme"); } catch { /* private window */ }
  if (wanted && !new URL(window.location.href).searchParams.get("__theme")) {
    document.body.classList.toggle("dark", wanted === "dark");
  }
  document.addEventListener("click", (event) => {
    if (event.target.closest("#theme")) toggleTheme();
    if (event.target.closest("#present")) present(true);
    const opens = event.target.closest("[data-open]");
    if (opens) open(opens.dataset.open);
    const lesson = event.target.closest("[data-lesson]");
    if (lesson) {
      event.preventDefault();
      leaveScope();
      takeLesson();
    }
    const link = event.target.closest("[data-go]");
    if (link) go(link.dataset.go);
  });
};

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();

// What the page's events and its tests call: Gradio runs snippets of script, which cannot import.
window.RAM = {
  ...numbers, askedPlace, askNumber, enter, go, mergeMethod, mount, mountMeasured, mountScope, mountTicks, mountVerdicts, open, outcomeOf, setProfile,
  settings, tabKey, update,
};
