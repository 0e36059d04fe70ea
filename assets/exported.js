// @ts-check
// The stage as one file: the same modules as in the app, with embedded data and without a server.
import { mountCanvas, present, reset, setCanvasProfile, setTable } from "./canvas/canvas.js";
import { pictures } from "./canvas/paint/pictures.js";
import { accept, hold, setPin, state } from "./canvas/store.js";

/** @type {any} of canvas_page.py */
export const data = JSON.parse(document.getElementById("ram-data")?.textContent ?? "null");

const toggleTheme = () => document.body.classList.toggle("dark");
if (window.matchMedia("(prefers-color-scheme: dark)").matches) toggleTheme();

/** @type {HTMLElement} */
export const head = document.querySelector(".ex-head") ?? document.body;
head.querySelector("[data-act=theme]")?.addEventListener("click", toggleTheme);
head.querySelector("[data-act=present]")?.addEventListener("click", () => present(true));

mountCanvas(document.querySelector(".cv-root"), {
  openLayer: null,
  buttons: [
    { at: "curve", text: "Reset", id: "reset", run: reset },
    { at: "verdict", text: "Share", id: "share", menu: pictures },
  ],
});

if (data?.profile) {
  document.title = `RAM Studio: ${data.title}`;
  /** @type {HTMLElement} */ (head.querySelector("h1")).textContent = document.title;
  setCanvasProfile(data.profile);
  if (data.table) setTable(data.profile, data.table);
  if (data.settings) accept(data.settings);
  else reset();
  if (data.dial) hold(data.dial);
  if (data.pin) setPin(data.pin);
}

/** @type {any} */ (window).RAM = { state };
