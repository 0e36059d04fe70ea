// @ts-check
// The lesson as one file, for example on a USB stick: the stage, and the measurements of all sets, without a server.
import { setCanvasProfile, setTable } from "./canvas/canvas.js";
import { data, head } from "./exported.js";
import { mountLesson, takeLesson } from "./lesson/lesson.js";

const TITLE = "RAM Studio";

/** Unpack the data of kit.py: by set { profile, table, record }. @param {string} packed @returns {Promise<Record<string, any>>} */
const unpacked = async (packed) => {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

const sets = await unpacked(data.sets);

mountLesson({
  open: () => {},
  openSet: (name) => {
    const { profile, table } = sets[name];
    profile.set = name;
    setCanvasProfile(profile);
    setTable(profile, table);
  },
  recordOf: async (name) => sets[name].record,
  remember: () => {},
  titled: (title) => { document.title = title ? `${title} · ${TITLE}` : TITLE; },
  kit: "#kit",
});

const again = document.createElement("button");
Object.assign(again, { type: "button", className: "cv-btn", textContent: "Lesson" });
again.addEventListener("click", () => takeLesson());
head.querySelector("button")?.before(again);

document.addEventListener("click", (event) => {
  const what = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-print]"));
  if (!what) return;
  window.location.hash = what.dataset.print ?? "";
  setTimeout(() => window.print());
});

takeLesson();
