// @ts-check
// Moving between the steps, the theme, and what a browser tab remembers.
import { mountLanding } from "./landing.js";
import { pageLink } from "./link.js";
import { onSent } from "./nodes.js";
import { browserMemory, tabMemory } from "./storage.js";

const STEPS = ["load", "tune", "merge", "check"];
const PAGES = [...STEPS, "history"];
const TITLE = "RAM Studio";

// ---------------------------------------------------------------- what is fetched later

let coming = null;
/** @type {(studio: any) => void} */
let fetched = () => {};
const isFetched = new Promise((done) => { fetched = done; });

// Fetch what Tune and the steps after it need; all files at once, not one import after the other.
const need = () => {
  coming ??= (() => {
    for (const name of window.RAM_SCRIPTS || []) {
      const link = document.createElement("link");
      Object.assign(link, { rel: "modulepreload", href: `ram/${name}` });
      document.head.append(link);
    }
    return import("./studio.js").then((studio) => {
      studio.mountLesson(open, (title) => {
        scene = title;
        document.title = titleOf(document.body.dataset.step || "load");
      });
      Object.assign(window.RAM, studio.members);
      fetched(studio); // panels that Gradio mounted before are mounted now
      return studio;
    });
  })();
  return coming;
};

/** A member of studio.js that Gradio calls when a panel is there, shown or not: it waits for a need.
 * @param {string} name @returns {(...given: any[]) => Promise<any>} */
const later = (name) => async (...args) => (await isFetched).members[name](...args);

// ---------------------------------------------------------------- steps

let scene = null; // of the lesson, which Tune shows

const titleOf = (step) => {
  if (step === "load") return TITLE;
  return `${(step === "tune" && scene) || `${step[0].toUpperCase()}${step.slice(1)}`} · ${TITLE}`;
};

// Who pressed a step's button goes on reading, or pressing Tab, where the step begins.
const focusStep = (step) => {
  if (navigator.userActivation?.hasBeenActive === false) return; // a link opened it
  const box = document.getElementById(`step-${step}`);
  const heading = box?.querySelector("h2") || box;
  if (!heading) return;
  heading.setAttribute("tabindex", "-1");
  heading.focus({ preventScroll: true });
};

/** @param {string} step */
const go = (step) => {
  if (!PAGES.includes(step) || isLate(step)) return;
  const moved = document.body.dataset.step !== step;
  document.body.dataset.step = step;
  for (const name of STEPS) {
    const button = document.getElementById(`to-${name}`);
    if (!button) continue;
    if (name === step) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  }
  document.title = titleOf(step);
  if (moved) {
    window.scrollTo(0, 0);
    focusStep(step);
    tabMemory.write("step", step);
    if (entryStep() !== step) history.pushState({ step }, "", pageLink(window.location.href, step));
  }
  document.getElementById("open-history")?.toggleAttribute("data-current", step === "history");
  if (step === "history") history.replaceState(history.state, "", pageLink(window.location.href, step));
  else if (step !== "load") {
    need().then(({ remember, show }) => {
      if (step === "tune") show();
      remember();
    });
  }
  // Figures drawn while their step was hidden measure themselves again.
  requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
};

// ---------------------------------------------------------------- Back and Forward

// Each step that was opened is an entry of the browser's history; what is set there is written into it (tune.js).
const entryStep = () => history.state?.step;

const mark = (step) => history.replaceState({ ...history.state, step }, "");

/** @type {string[]} steps whose buttons Back and Forward pressed; Gradio takes a moment to call go */
const pressed = [];

/** Whether a press of Back or Forward arrives when the user has gone on already. @param {string} step */
const isLate = (step) => {
  const at = pressed.indexOf(step);
  if (at >= 0) pressed.splice(at, 1);
  return at >= 0 && entryStep() !== step;
};

const followEntry = () => {
  const step = entryStep();
  const button = /** @type {HTMLButtonElement | null} */ (document.getElementById(`to-${step}`));
  if (step === document.body.dataset.step || !button || button.disabled) return;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  if (document.documentElement.classList.contains("cv-present")) need().then(({ present }) => present(false));
  pressed.push(step);
  button.click();
};

// A tick says that a step is done, not that it was passed: { step: whether }, from the server.
const mountTicks = (props, watch) => {
  onSent(props, watch, (done) => {
    for (const name of STEPS) document.getElementById(`to-${name}`)?.classList.toggle("done", Boolean(done?.[name]));
  });
};

// ---------------------------------------------------------------- the focus of a job's buttons

// A button that is disabled, or taken away, while it has the focus would leave it to the page: it goes to the button
// that took its place, which is Stop, and then the one that starts the job.
const followButtons = () => {
  /** @type {Element | null} */
  let held = null;
  const usable = (button) => button?.isConnected && !button.disabled && button.checkVisibility();
  const watcher = new MutationObserver(([{ target }]) => {
    const { activeElement } = document;
    if (usable(held) || (activeElement !== held && activeElement !== document.body)) return;
    const row = /** @type {Element} */ (target).closest(".actions");
    const buttons = [.../** @type {NodeListOf<HTMLElement>} */ (row?.querySelectorAll("button.stop, button.primary") ?? [])].filter(usable);
    (buttons.find((button) => button.matches(".stop")) ?? buttons.at(-1))?.focus({ preventScroll: true });
  });
  document.addEventListener("focusin", ({ target }) => {
    held = /** @type {Element} */ (target);
    watcher.disconnect();
    const row = held.closest(".actions");
    if (row && held.matches("button.stop, button.primary")) watcher.observe(row, { subtree: true, childList: true, attributeFilter: ["disabled", "class"] });
  });
};

// Of Gradio's folds only the arrow tells whether they are open.
const tellFolds = () => {
  const heads = document.getElementsByClassName("label-wrap");
  const tell = () => {
    for (const head of heads) head.setAttribute("aria-expanded", String(head.classList.contains("open")));
  };
  new MutationObserver(tell).observe(document.body, { subtree: true, childList: true, attributeFilter: ["class"] });
};

/** Go to a step as if its button in the stepper was pressed, with whatever else that does. @param {string} step */
const open = (step) => {
  const button = PAGES.includes(step) && document.getElementById(`to-${step}`);
  if (button) setTimeout(() => button.click(), 30);
};

// ---------------------------------------------------------------- a tab's work on the server

// 128 random bits that name this tab's work on the server, so that a reload finds it again.
const tabKey = async () => {
  ownKey = tabMemory.read("key");
  if (ownKey && !(await isTaken(ownKey))) return ownKey;
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  ownKey = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
  tabMemory.write("key", ownKey);
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

/** @type {() => void} */
let entered = () => {};
const isEntered = /** @type {Promise<void>} */ (new Promise((done) => { entered = done; }));

/** After the first answer of the server: where to start. A link opens its step, or Tune; a reload the same step with
 * the job that still runs: `job` names the button that shows it again. view: what the link says, as deep_link.py
 * understood it; loaded: whether there are models. @param {{ job: string | null, view: any, loaded: boolean }} told */
const enter = async ({ job, view, loaded }) => {
  answerTwins();
  if (job) document.getElementById(job)?.click();
  go(document.body.dataset.step || "load");
  const [entry] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType("navigation"));
  const last = entry && entry.type === "reload" ? tabMemory.read("step") : null;
  const linked = new URL(window.location.href).searchParams.has("set") ? "tune" : null;
  const step = PAGES.includes(last) ? last : view.step || linked;
  const isLesson = view.lesson && (!step || step === "tune");
  const studio = loaded || isLesson ? await need() : null;
  studio?.lookAt(view);
  const opened = isLesson ? "tune" : loaded || step === "history" ? step : null;
  if (opened) mark(opened);
  window.RAM_ENTERED = true; // back.html.j2 need not tell any more that this page is coming
  entered();
  if (isLesson) {
    studio.takeLesson(last ? null : view.lesson); // the address may be a moment late
    if (view.present) studio.present(true);
    return;
  }
  // Without models there is nothing to show but the past.
  if (!opened) return;
  open(opened);
  if (view.present && step === "tune") studio?.present(true);
};

// ---------------------------------------------------------------- the landing page

// Its links work by themselves; here they spare a new page, and wait for the app if they have to.
const whenEntered = async (link, act) => {
  link.setAttribute("aria-busy", "true");
  window.RAM_BOOT?.();
  await isEntered;
  link.removeAttribute("aria-busy");
  act();
};

// Gradio calls this when Load is there: the landing page, shown since the first paint, moves into it.
const mountFirst = (element) => {
  const landing = document.getElementById("landing");
  const first = document.getElementById("first-view");
  if (!landing || element.contains(landing)) return;
  // Head and steps are drawn after Load; until they stand, all would jump down to make room for them.
  if (!document.getElementById("to-load")?.checkVisibility()) {
    requestAnimationFrame(() => mountFirst(element));
    return;
  }
  const dialog = landing.querySelector("dialog");
  if (dialog?.open) {
    dialog.addEventListener("close", () => mountFirst(element), { once: true });
    return;
  }
  const focused = landing.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
  element.append(landing);
  first?.remove();
  delete document.documentElement.dataset.first;
  focused?.focus({ preventScroll: true });
};

const toggleTheme = () => {
  const dark = document.body.classList.toggle("dark");
  browserMemory.write("theme", dark ? "dark" : "light");
};

const start = () => {
  if (!document.body.dataset.step) document.body.dataset.step = "load";
  if (!entryStep()) mark("load");
  window.addEventListener("popstate", followEntry);
  followButtons();
  tellFolds();
  const wanted = browserMemory.read("theme");
  if (wanted && !new URL(window.location.href).searchParams.get("__theme")) {
    document.body.classList.toggle("dark", wanted === "dark");
  }
  const landing = document.getElementById("landing");
  if (landing) mountLanding(landing);
  document.addEventListener("pointerover", ({ target }) => {
    if (target instanceof Element && target.closest("[data-opens], [data-lesson]")) need();
  });
  document.addEventListener("click", (event) => {
    /** @returns {HTMLElement | null} */
    const at = (selector) => /** @type {Element} */ (event.target).closest(selector);
    if (at("#theme")) toggleTheme();
    if (at("#present")) need().then(({ present }) => present(true));
    if (at("[data-open]")) open(at("[data-open]").dataset.open);
    if (at("[data-go]")) go(at("[data-go]").dataset.go);
    const link = at("[data-lesson], [data-opens], [data-own], [data-skip]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    whenEntered(link, () => PRESSED[Object.keys(PRESSED).find((key) => key in link.dataset)](link));
  });
};

// What links do in the page, by their data attribute.
const PRESSED = {
  opens: (link) => /** @type {HTMLElement | null} */ (document.querySelector(`.opens-${link.dataset.opens}`))?.click(),
  lesson: async () => {
    const { leaveScope, takeLesson } = await need();
    leaveScope();
    takeLesson();
  },
  own: () => {
    const form = document.getElementById("own-models");
    const head = form?.querySelector("button");
    if (head && !form.querySelector("#base")?.checkVisibility()) head.click();
    form?.scrollIntoView({ block: "start" });
    head?.focus({ preventScroll: true });
  },
  skip: () => focusStep(document.body.dataset.step),
};

// What the page's events and its tests call: Gradio runs snippets of script, which cannot import.
window.RAM = {
  enter, go, mountFirst, mountTicks, need, open, tabKey,
  ...Object.fromEntries(["mount", "mountMeasured", "mountScope", "mountVerdicts", "mergeForm", "update"].map((name) => [name, later(name)])),
};

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
