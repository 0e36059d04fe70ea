// @ts-check
// Figures of the details as files, as drawn on the page's background, in either theme.
import { picture, save } from "./canvas/paint/pictures.js";

const EDGE = 12;
const HEAD = 34;

/** @param {HTMLElement} button with the format in data-save */
const saveFigure = (button) => {
  const box = /** @type {HTMLElement | null} */ (button.closest("[data-figure], .chart"));
  const drawn = box?.querySelector(".js-plotly-plot, .bars");
  if (!drawn?.querySelector("svg")) return;
  const title = box.dataset.figure || box.querySelector("h3").textContent;
  const { left, top, width, height } = drawn.getBoundingClientRect();
  const at = { left: left - EDGE, top: top - HEAD, width: Math.ceil(width) + 2 * EDGE, height: Math.ceil(height) + HEAD + EDGE };
  const figure = picture([drawn], at, (text, color) => text(EDGE, 23, `font-size:15px;font-weight:700;fill:${color("ink")}`, title));
  save(title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, ""), button.dataset.save, figure);
};

/** @param {Element | Document} root */
export const mountSaving = (root) => root.addEventListener("click", (event) => {
  const button = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-save]"));
  if (button) saveFigure(button);
});
