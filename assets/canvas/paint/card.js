// The report card: mechanism and outcome of a setting as one picture, drawn from what is on the page; and
// how pictures are saved.
import { put, SVG } from "../../nodes.js";
import { settingsText } from "../model/methods.js";
import { state } from "../store.js";
import { snapshot } from "./snapshot.js";

const EDGE = 20;
const HEAD = 56;
const FOOT = 30;
const SCALE = 2; // of the PNG

// A picture of elements of the page, { text, width, height }, text an SVG. at: { left, top, width, height }, of
// the page; write(text, color): adds what stands around them, text(x, y, style, words, anchor).
export const picture = (elements, { left, top, width, height }, write) => {
  const body = getComputedStyle(document.body);
  const color = (name) => body.getPropertyValue(`--ram-${name}`).trim();
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(key, value);
  put(svg, "rect", { width, height, fill: color("panel") });
  const font = getComputedStyle(elements[0].parentElement).fontFamily.replaceAll('"', "'");
  write((x, y, css, words, anchor = "start") =>
    put(svg, "text", { x, y, "text-anchor": anchor, style: `font-family:${font};${css}` }, words), color, svg);
  svg.append(snapshot(elements, { left, top }));
  return { text: new XMLSerializer().serializeToString(svg), width, height };
};

const card = () => {
  const title = settingsText(state.settings, state.profile);
  const columns = [...document.querySelectorAll(".cv > section")];
  const boxes = columns.map((n) => n.getBoundingClientRect()).filter((b) => b.width);
  const left = Math.min(...boxes.map((b) => b.left));
  const top = Math.min(...boxes.map((b) => b.top));
  const width = Math.ceil(Math.max(...boxes.map((b) => b.right)) - left) + 2 * EDGE;
  const height = Math.ceil(Math.max(...boxes.map((b) => b.bottom)) - top) + HEAD + FOOT;
  const at = { left: left - EDGE, top: top - HEAD, width, height };
  return picture(columns, at, (text, color, svg) => {
    put(svg, "title", {}, `RAM Studio: ${title}`);
    text(EDGE, 34, `font-size:18px;font-weight:700;fill:${color("ink")}`, title);
    text(width - EDGE, 34, `font-size:14px;fill:${color("muted")}`, state.profile.agents.join(" + "), "end");
    text(EDGE, height - 10, `font-size:12px;fill:${color("muted")}`, "RAM Studio · Reinforced Agent Merging, arXiv 2601.13572");
  });
};

export const download = (name, blob) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
};

// SVG text as a PNG; a data: address, because a canvas that drew another one may not be read.
const pngOf = async ({ text, width, height }) => {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = width * SCALE;
  canvas.height = height * SCALE;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
};

// kind: "svg" or "png".
export const save = async (name, kind, drawn) =>
  download(`ram-${name}.${kind}`, kind === "png" ? await pngOf(drawn) : new Blob([drawn.text], { type: "image/svg+xml" }));

// What menus offer of the card.
export const pictures = ["png", "svg"].map((kind) => ({
  text: `Picture (${kind.toUpperCase()})`, id: `card-${kind}`, run: () => state.profile && save("card", kind, card()),
}));
