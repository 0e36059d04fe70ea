// Figures of the details as files: as they are drawn, on the page's own background, in either theme.
import { download, pngOf } from "./canvas/card.js";
import { snapshot, svgNode } from "./canvas/snapshot.js";

const EDGE = 12;
const HEAD = 34;

const figureSvg = (drawn, title) => {
  const { left, top, width: inner, height: tall } = drawn.getBoundingClientRect();
  const [width, height] = [Math.ceil(inner) + 2 * EDGE, Math.ceil(tall) + HEAD + EDGE];
  const body = getComputedStyle(document.body);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(key, value);
  svgNode(svg, "rect", { width, height, fill: body.getPropertyValue("--ram-panel").trim() });
  svgNode(svg, "text", {
    x: EDGE, y: 23, style: `font:700 15px ${body.fontFamily.replaceAll('"', "'")};fill:${body.getPropertyValue("--ram-ink").trim()}`,
  }).textContent = title;
  svg.append(snapshot([drawn], { left: left - EDGE, top: top - HEAD }));
  return { text: new XMLSerializer().serializeToString(svg), width, height };
};

const save = async (button) => {
  const box = button.closest("[data-figure], .chart");
  const drawn = box?.querySelector(".js-plotly-plot, .bars");
  if (!drawn?.querySelector("svg")) return;
  const title = box.dataset.figure || box.querySelector("h3").textContent;
  const figure = figureSvg(drawn, title);
  const kind = button.dataset.save;
  const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  download(`ram-${name}.${kind}`, kind === "png" ? await pngOf(figure) : new Blob([figure.text], { type: "image/svg+xml" }));
};

export const mountSaving = (root) => root.addEventListener("click", (event) => {
  const button = event.target.closest("[data-save]");
  if (button) save(button);
});
