// The report card: mechanism and outcome of a setting as one picture, drawn from what is on the page.
import { settingsText } from "./pin.js";
import { snapshot, svgNode } from "./snapshot.js";
import { state } from "./store.js";

const EDGE = 20;
const HEAD = 56;
const FOOT = 30;
const SCALE = 2; // of the PNG

const title = () => settingsText(state.profile, state.settings);

// The card as SVG text, with its size.
export const cardSvg = () => {
  const columns = [...document.querySelectorAll(".cv-mech, .cv-out")];
  const boxes = columns.flatMap((column) => [column, ...column.children]).map((n) => n.getBoundingClientRect()).filter((b) => b.width);
  const left = Math.min(...boxes.map((b) => b.left));
  const top = Math.min(...boxes.map((b) => b.top));
  const width = Math.ceil(Math.max(...boxes.map((b) => b.right)) - left) + 2 * EDGE;
  const height = Math.ceil(Math.max(...boxes.map((b) => b.bottom)) - top) + HEAD + FOOT;
  const body = getComputedStyle(document.body);
  const color = (name) => body.getPropertyValue(`--ram-${name}`).trim();
  const font = getComputedStyle(columns[0]).fontFamily.replaceAll('"', "'");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(key, value);
  svgNode(svg, "title").textContent = `RAM Studio: ${title()}`;
  svgNode(svg, "rect", { width, height, fill: color("panel") });
  const text = (x, y, css, words, anchor = "start") => {
    svgNode(svg, "text", { x, y, "text-anchor": anchor, style: `font-family:${font};${css}` }).textContent = words;
  };
  text(EDGE, 34, `font-size:18px;font-weight:700;fill:${color("ink")}`, title());
  text(width - EDGE, 34, `font-size:14px;fill:${color("muted")}`, state.profile.agents.join(" + "), "end");
  const drawn = snapshot(columns, { left: left - EDGE, top: top - HEAD });
  svg.append(drawn);
  text(EDGE, height - 10, `font-size:12px;fill:${color("muted")}`, "RAM Studio · Reinforced Agent Merging, arXiv 2601.13572");
  return { text: new XMLSerializer().serializeToString(svg), width, height };
};

export const download = (name, blob) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
};

// SVG text as a PNG; a data: address, because a canvas that drew another one may not be read.
export const pngOf = async ({ text, width, height }) => {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = width * SCALE;
  canvas.height = height * SCALE;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
};

export const saveCard = async (kind) => {
  if (!state.profile) return;
  const card = cardSvg();
  download(`ram-card.${kind}`, kind === "png" ? await pngOf(card) : new Blob([card.text], { type: "image/svg+xml" }));
};
