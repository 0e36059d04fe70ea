// @ts-check
// Small charts by layer: bars from zero, and dots on their own scale.
// Drawn at the box's width, so that labels keep their size on a phone.
import { rowName } from "./canvas/model/words.js";
import { put, shape } from "./nodes.js";

export const BARS_HINT = "Point at a layer to read its numbers, or use the arrow keys.";

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1];

const nice = (top) => STEPS.find((step) => step >= top) || 1;

// The common frame of both charts: scale, grid, labels, and zones for the pointer.
const frame = (box, { labels, aria, low, high, pointed, onPoint }) => {
  const width = Math.max(280, box.clientWidth || 640);
  const height = width < 480 ? 170 : 190;
  const edge = { left: 48, right: 6, top: 8, bottom: 24 };
  const y = (value) =>
    edge.top + (height - edge.top - edge.bottom) * (1 - (value - low) / (high - low));
  const slot = (width - edge.left - edge.right) / labels.length;
  box.replaceChildren();
  const svg = put(box, "svg", { width, height, role: "img", "aria-label": aria });
  for (let tick = 0; tick <= 4; tick += 1) {
    const value = low + ((high - low) * tick) / 4;
    put(svg, "line", { x1: edge.left, x2: width - edge.right, y1: y(value), y2: y(value), class: "grid" });
    if (tick % 2 === 0) {
      const percent = Number((100 * value).toPrecision(3));
      put(svg, "text", { x: edge.left - 6, y: y(value) + 4, class: "axis end" }, `${percent} %`);
    }
  }
  const every = Math.ceil(30 / slot);
  const zones = labels.map((label, g) => {
    const zone = put(svg, "g", { class: "zone", tabindex: "-1" });
    put(zone, "rect", {
      x: edge.left + slot * g, y: edge.top, width: slot, height: height - edge.top - edge.bottom,
      class: pointed === g ? "hit on" : "hit",
    });
    if (g % every === 0) {
      put(svg, "text", { x: edge.left + slot * (g + 0.5), y: height - edge.bottom + 15, class: "axis middle" }, rowName(label));
    }
    const show = () => {
      if (zone.firstChild.classList.contains("on")) return;
      svg.querySelectorAll(".hit").forEach((node, i) => node.classList.toggle("on", i === g));
      onPoint(g);
    };
    zone.addEventListener("pointerenter", show);
    zone.addEventListener("pointerdown", show);
    return { zone, start: edge.left + slot * g };
  });
  return { svg, zones, slot, y, left: edge.left, right: width - edge.right };
};

/** onPoint(g): the pointer is on a layer; pointed: that layer, or null. @typedef {{ labels: string[], aria: string,
 *   pointed: number | null, onPoint: (g: number) => void }} Chart */

/** series: a color each; value(g, s): a share, 0 to 1; top: the largest shown. @param {HTMLElement} box
 * @param {Chart & { series: string[], top: number, value: (g: number, s: number) => number }} chart */
export const groupedBars = (box, chart) => {
  const { series, top, value } = chart;
  const { zones, slot, y } = frame(box, { ...chart, low: 0, high: nice(top) });
  const width = Math.max(1, Math.min(26, (slot * 0.8) / series.length));
  zones.forEach(({ zone, start }, g) => series.forEach((color, s) => {
    const share = value(g, s);
    put(zone, "rect", {
      x: start + (slot - width * series.length) / 2 + width * s, width: Math.max(0.6, width - (width > 4 ? 1 : 0)),
      y: y(share), height: Math.max(share > 0 ? 1 : 0, y(0) - y(share)), class: "bar", style: `fill:${color}`,
    });
  }));
};

/** A marker per agent and group; value(g, t): a share, or null for none. 100 % is a dashed line. @param {HTMLElement} box
 * @param {Chart & { agents: number, value: (g: number, t: number) => number | null }} chart */
export const agentDots = (box, chart) => {
  const values = chart.labels.map((_, g) => Array.from({ length: chart.agents }, (__, t) => chart.value(g, t)));
  const seen = values.flat().filter((value) => value !== null);
  const low = Math.floor(20 * Math.min(1, ...seen) - 0.2) / 20;
  const high = Math.ceil(20 * Math.max(1, ...seen) + 0.2) / 20;
  const { svg, zones, slot, y, left, right } = frame(box, { ...chart, low, high });
  put(svg, "line", { x1: left, x2: right, y1: y(1), y2: y(1), class: "whole" });
  const step = Math.min(11, (slot * 0.8) / chart.agents);
  const size = Math.max(5, Math.min(10, step * 1.1));
  zones.forEach(({ zone, start }, g) => values[g].forEach((value, t) => {
    if (value === null) return;
    const x = start + (slot - step * chart.agents) / 2 + step * (t + 0.5) - size / 2;
    const transform = `translate(${x} ${y(value) - size / 2}) scale(${size / 12})`;
    put(zone, "path", { d: shape(t), style: `fill:var(--ram-agent-${t % 8})`, transform });
  }));
};
