// @ts-check
// Pictures for download. A part of the page as SVG: boxes, texts and drawings at their positions, with their styles;
// text stays text, fitted to its width if another font is used. And the report card: mechanism and outcome of a
// setting as one picture, drawn from the page.
import { download } from "../../keep.js";
import { put, SVG } from "../../nodes.js";
import { settingsText } from "../model/methods.js";
import { state } from "../store.js";

const EDGE = 20;
const HEAD = 56;
const FOOT = 30;
const SCALE = 2; // of the PNG

// ---------------------------------------------------------------- of elements

const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "paint-order", "display", "visibility", "transform",
];

const isClear = (color) => color === "transparent" || /, 0\)$/.test(color);

const round = (x) => Math.round(10 * x) / 10;

const inlined = (drawn, copy) => {
  const style = getComputedStyle(drawn);
  for (const name of STYLES) {
    const value = style.getPropertyValue(name);
    if (value && value !== "none" || name === "fill" || name === "display") copy.style.setProperty(name, value);
  }
  for (const name of ["class", "id", "data-item", "role", "aria-label"]) copy.removeAttribute(name);
  [...drawn.children].forEach((child, i) => inlined(child, copy.children[i]));
};

const drawBox = (parent, style, { x, y, width, height }) => {
  const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, height / 2);
  const border = parseFloat(style.borderTopWidth) || 0;
  const hasTop = border > 0 && !isClear(style.borderTopColor);
  const hasBorder = hasTop && parseFloat(style.borderRightWidth) > 0;
  const color = isClear(style.backgroundColor) ? "none" : style.backgroundColor;
  if (width && height && (hasBorder || color !== "none")) {
    const inset = hasBorder ? border / 2 : 0;
    put(parent, "rect", {
      x: round(x + inset), y: round(y + inset), width: round(width - 2 * inset), height: round(height - 2 * inset), rx: radius,
      style: `fill:${color};${hasBorder ? `stroke:${style.borderTopColor};stroke-width:${border}` : ""}`,
    });
  }
  if (hasTop && !hasBorder) {
    put(parent, "line", { x1: round(x), x2: round(x + width), y1: round(y), y2: round(y), style: `stroke:${style.borderTopColor};stroke-width:${border}` });
  }
  const side = parseFloat(style.borderLeftWidth) || 0;
  if (hasBorder || !side || isClear(style.borderLeftColor)) return;
  const isDashed = style.borderLeftStyle === "dashed";
  put(parent, "line", {
    x1: round(x + side / 2), x2: round(x + side / 2), y1: round(y), y2: round(y + height),
    style: `stroke:${style.borderLeftColor};stroke-width:${side};${isDashed ? "stroke-dasharray:6 4" : ""}`,
  });
};

// Lines of a text node, at the browser's line breaks.
const linesOf = (text) => {
  const lines = [];
  const range = document.createRange();
  for (const { index, 0: word } of text.data.matchAll(/\S+/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    for (const box of range.getClientRects()) {
      const last = lines.at(-1);
      if (last && Math.abs(last.top - box.top) < 3) {
        last.words.push(word);
        last.right = box.right;
      } else lines.push({ words: [word], left: box.left, right: box.right, top: box.top, bottom: box.bottom });
      break; // a word has one line
    }
  }
  return lines;
};

const drawText = (parent, text, style, origin) => {
  const size = parseFloat(style.fontSize);
  for (const { words, left, right, top, bottom } of linesOf(text)) {
    put(parent, "text", {
      x: round(left - origin.left), y: round((top + bottom) / 2 - origin.top + 0.35 * size), textLength: round(right - left),
      lengthAdjust: "spacingAndGlyphs",
      style: `fill:${style.color};font:${style.fontWeight} ${size}px ${style.fontFamily.replaceAll('"', "'")}`,
    }, words.join(" "));
  }
};

const drawBefore = (parent, element, at) => {
  const style = getComputedStyle(element, "::before");
  if (style.content === "none" || style.position !== "absolute") return;
  const [x, y, width, height] = ["left", "top", "width", "height"].map((key) => parseFloat(style[key]) || 0);
  drawBox(parent, style, { x: at.x + x, y: at.y + y, width, height });
};

const draw = (parent, element, origin) => {
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || element.classList.contains("unseen")) return;
  if (element.matches("input, dialog, [popover], [data-card=no]")) return;
  const at = { x: box.left - origin.left, y: box.top - origin.top, width: box.width, height: box.height };
  const group = style.opacity === "1" ? parent : put(parent, "g", { opacity: style.opacity });
  if (style.opacity === "0") return;
  if (element instanceof SVGElement) {
    const copy = /** @type {SVGElement} */ (element.cloneNode(true));
    inlined(element, copy);
    copy.style.removeProperty("opacity");
    for (const [key, value] of [["x", at.x], ["y", at.y], ["width", at.width], ["height", at.height]]) copy.setAttribute(key, String(round(value)));
    copy.setAttribute("overflow", "visible");
    group.append(copy);
    return;
  }
  if (element instanceof HTMLCanvasElement) {
    put(group, "image", { x: round(at.x), y: round(at.y), width: round(at.width), height: round(at.height), href: element.toDataURL() });
    return;
  }
  drawBox(group, style, at);
  drawBefore(group, element, at);
  for (const child of element.childNodes) {
    if (child instanceof Text) drawText(group, child, style, origin);
    else if (child instanceof Element) draw(group, child, origin);
  }
};

/** Elements as a group of an SVG; left, top: position of its corner on the page. */
const snapshot = (elements, { left, top }) => {
  const group = document.createElementNS(SVG, "g");
  for (const element of elements) draw(group, element, { left, top });
  return group;
};

// ---------------------------------------------------------------- files

// A picture of elements of the page, { text, width, height }, text an SVG. at: { left, top, width, height }, of
// the page; write(text, color): adds surrounding texts, text(x, y, style, words, anchor).
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

// SVG text as a PNG; from a data: URL, because a canvas with another image cannot be read.
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

// The card's menu items.
export const pictures = ["png", "svg"].map((kind) => ({
  text: `Picture (${kind.toUpperCase()})`, id: `card-${kind}`, run: () => state.profile && save("card", kind, card()),
}));
