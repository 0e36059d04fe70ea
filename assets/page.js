// @ts-check
// Navigation between the steps, the theme, and a browser tab's state.
import { mountLanding } from "./landing.js";
import { pageLink } from "./link.js";
import { onSent } from "./nodes.js";
import { browserMemory, tabMemory } from "./storage.js";

const STEPS = ["load", "tune", "merge", "check"];
const PAGES = [...STEPS, "history"];
const TITLE = "RAM Studio";

// ---------------------------------------------------------------- deferred modules

let coming = null;
/** @type {(studio: any) => void} */
let fetched = () => {};
const isFetched = new Promise((done) => { fetched = done; });

// Fetch the modules of Tune and later steps; all files in parallel, not one import after the other.
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
      fetched(studio); // mount the panels that Gradio mounted earlier
      return studio;
    });
  })();
  return coming;
};

/** A member of studio.js that Gradio calls when a panel exists, visible or not: it waits until it is needed.
 * @param {string} name @returns {(...given: any[]) => Promise<any>} */
const later = (name) => async (...args) => (await isFetched).members[name](...args);

// ---------------------------------------------------------------- steps

let scene = null; // of the lesson, which Tune shows

const titleOf = (step) => {
  if (step === "load") return TITLE;
  return `${(step === "tune" && scene) || `${step[0].toUpperCase()}${step.slice(1)}`} · ${TITLE}`;
};

// After a click on a step's button, reading and Tab continue at the step's start.
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
  // Figures drawn while their step was hidden update their size.
  requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
};

// ---------------------------------------------------------------- Back and Forward

// Each opened step is an entry of the browser's history, with its settings (tune.js).
const entryStep = () => history.state?.step;

const mark = (step) => history.replaceState({ ...history.state, step }, "");

/** @type {string[]} steps whose buttons Back and Forward clicked; Gradio takes a moment to call go */
const pressed = [];

/** Whether a Back or Forward event arrives after the user has moved on. @param {string} step */
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

// A tick means that a step is done, not visited: { step: whether }, from the server.
const mountTicks = (props, watch) => {
  onSent(props, watch, (done) => {
    for (const name of STEPS) document.getElementById(`to-${name}`)?.classList.toggle("done", Boolean(done?.[name]));
  });
};

// ---------------------------------------------------------------- the focus of a job's buttons

// A focused button that is disabled or removed would lose the focus to the page: it moves to the button that replaces
// it, which is Stop, and later the job's start button.
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

// Gradio's folds show only by an arrow whether they are open: screen readers need the attribute.
const markFolds = () => {
  const heads = document.getElementsByClassName("label-wrap");
  const mark = () => {
    for (const head of heads) {
      const isOpen = String(head.classList.contains("open"));
      // Called in every frame of a drag, which opens none.
      if (head.getAttribute("aria-expanded") !== isOpen) head.setAttribute("aria-expanded", isOpen);
    }
  };
  new MutationObserver(mark).observe(document.body, { subtree: true, childList: true, attributeFilter: ["class"] });
};

/** Go to a step as if its stepper button was clicked, with all effects. @param {string} step */
const open = (step) => {
  const button = PAGES.includes(step) && document.getElementById(`to-${step}`);
  if (button) setTimeout(() => button.click(), 30);
};

// ---------------------------------------------------------------- a tab's work on the server

// 128 random bits that identify this tab's work on the server, so that a reload finds it again.
const tabKey = async () => {
  ownKey = tabMemory.read("key");
  if (ownKey && !(await isTaken(ownKey))) return ownKey;
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  ownKey = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
  tabMemory.write("key", ownKey);
  if (navigator.locks) hold(ownKey);
  return ownKey;
};

// A duplicated tab has the original's key: each would drop the other's models. So a tab holds a browser lock on its key
// while it is open; it is released before a reload, perhaps a moment late. Without locks (plain http) a tab asks whether
// another one has the key, and a busy one may answer too late.
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

/** Choose the first step after the server's first answer. A link opens its step, or Tune; a reload the same step with
 * its running job: `job` is the button that shows it again. view: the link parsed by deep_link.py; loaded: whether
 * there are models. @param {{ job: string | null, view: any, loaded: boolean }} told */
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
  window.RAM_ENTERED = true; // stops the heartbeats of back.html.j2
  entered();
  if (isLesson) {
    studio.takeLesson(last ? null : view.lesson); // the URL may be updated a moment late
    if (view.present) studio.present(true);
    return;
  }
  // Without models only History has content.
  if (!opened) return;
  open(opened);
  if (view.present && step === "tune") studio?.present(true);
};

// ---------------------------------------------------------------- the landing page

// Its links work without scripts; here they avoid a new page, and wait for the app if necessary.
const whenEntered = async (link, act) => {
  link.setAttribute("aria-busy", "true");
  window.RAM_BOOT?.();
  await isEntered;
  link.removeAttribute("aria-busy");
  act();
};

// Gradio calls this when Load exists: the landing page, visible since the first paint, moves into it.
const mountFirst = (element) => {
  const landing = document.getElementById("landing");
  const first = document.getElementById("first-view");
  if (!landing || element.contains(landing)) return;
  // Header and steps are drawn after Load; moving the page earlier would make it jump down.
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
  markFolds();
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

// Actions of links in the page, by their data attribute.
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

// Functions for the page's events and tests: Gradio's script snippets cannot import modules.
window.RAM = {
  enter, go, mountFirst, mountTicks, need, open, tabKey,
  ...Object.fromEntries(["mount", "mountMeasured", "mountScope", "mountVerdicts", "mergeForm", "update"].map((name) => [name, later(name)])),
};

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
