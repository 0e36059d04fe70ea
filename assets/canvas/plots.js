// Every histogram, drawn once in gray and once in color on two hidden canvases: a move of epsilon only
// pastes the one left and the other right of its line.
import { sum } from "../numbers.js";
import { agentColor, colors } from "./colors.js";

const OVERLAID = 20; // rows from this height on: overlaid outlines
const FEW = 9; // layers

export const plots = { cold: document.createElement("canvas"), hot: document.createElement("canvas") };

const root = (share) => Math.sqrt(Math.min(1, share));

const trace = (pen, { geometry, histogram }, values, bottom, height, most) => {
  const { xs } = histogram;
  pen.beginPath();
  xs.forEach((log, i) => {
    const x = Math.max(geometry.left + 6, geometry.x(log));
    if (!i) pen.moveTo(x, bottom);
    pen.lineTo(x, bottom - root(values[i] / most) * height);
  });
  pen.lineTo(geometry.x(xs.at(-1)), bottom);
};

// One agent's curve; focus: the agent that is looked at, or null.
const outline = (pen, view, values, at, t) => {
  const { focus, isHot } = view;
  const isDim = focus !== null && focus !== t;
  const color = isHot ? agentColor(t) : colors().outline;
  trace(pen, view, values, at.bottom, at.height, at.most);
  pen.globalAlpha = isDim ? 0.05 : focus === t ? 0.4 : 0.13;
  pen.fillStyle = color;
  pen.fill();
  if (!isDim || !at.isThin) {
    pen.globalAlpha = isDim ? 0.25 : isHot ? 1 : 0.75;
    pen.strokeStyle = color;
    pen.lineWidth = focus === t ? 2.2 : at.isThin ? 1.25 : 1.8;
    pen.stroke();
  }
  pen.globalAlpha = 1;
};

// Below 9 px a row: how dark tells how many, all agents together.
const strip = (pen, view, layer, top, height) => {
  const { geometry, histogram, focus, isHot } = view;
  const snap = (v) => Math.round(v * geometry.ratio) / geometry.ratio;
  pen.fillStyle = isHot ? (focus !== null ? agentColor(focus) : colors().ink) : colors().outline;
  const y = snap(top);
  for (let i = 0; i < histogram.xs.length - 1; i += 1) {
    const from = snap(Math.max(geometry.left + 6, geometry.x(histogram.xs[i])));
    const to = snap(geometry.x(histogram.xs[i + 1]));
    if (to <= from) continue;
    pen.globalAlpha = root(summed(view, layer, i) / view.mostTogether);
    pen.fillRect(from, y, to - from, snap(top + height) - y);
  }
  pen.globalAlpha = 1;
};

const summed = ({ histogram, focus }, layer, i) =>
  histogram.layers[layer].reduce((s, agent, t) => (focus === null || t === focus ? s + agent[i] : s), 0);

// One ridge a layer: its height all agents together, its bands who they are.
const ridge = (pen, view, layer, bottom, height) => {
  const { geometry, histogram, focus, isHot } = view;
  const most = focus === null ? view.mostTogether : view.mostAlone;
  const sums = histogram.xs.map((_, i) => summed(view, layer, i));
  const heights = sums.map((v) => root(v / most) * height);
  const xs = histogram.xs.map((log) => Math.max(geometry.left + 6, geometry.x(log)));
  trace(pen, view, sums, bottom, height, most);
  pen.fillStyle = colors().panel;
  pen.fill();
  let under = xs.map(() => 0);
  histogram.layers[layer].forEach((agent, t) => {
    if (focus !== null && t !== focus) return;
    const over = under.map((u, i) => u + (sums[i] ? (heights[i] * agent[i]) / sums[i] : 0));
    pen.beginPath();
    xs.forEach((x, i) => (i ? pen.lineTo(x, bottom - over[i]) : pen.moveTo(x, bottom - over[i])));
    for (let i = xs.length - 1; i >= 0; i -= 1) pen.lineTo(xs[i], bottom - under[i]);
    pen.closePath();
    pen.globalAlpha = isHot ? 0.8 : 0.35;
    pen.fillStyle = isHot ? agentColor(t) : colors().outline;
    pen.fill();
    under = over;
  });
  pen.globalAlpha = 1;
  pen.beginPath();
  xs.forEach((x, i) => (i ? pen.lineTo(x, bottom - heights[i]) : pen.moveTo(x, bottom - heights[i])));
  pen.strokeStyle = colors().panel;
  pen.lineWidth = 1.4;
  pen.stroke();
};

const drawRow = (pen, view, layer, order) => {
  const { geometry, histogram } = view;
  const { rowHeight } = geometry;
  const bottom = geometry.baseline(layer);
  const rows = histogram.layers.length;
  const height = Math.min(rowHeight * (rows < 12 ? 0.94 : 2.1), 60);
  if (geometry.isStrip) {
    strip(pen, view, layer, bottom - rowHeight, rowHeight);
  } else if (rowHeight < OVERLAID && view.agents > 1 && rows >= FEW) {
    ridge(pen, view, layer, bottom, height);
  } else {
    pen.strokeStyle = colors().hair;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(geometry.left, bottom + 0.5);
    pen.lineTo(geometry.right, bottom + 0.5);
    pen.stroke();
    const at = { bottom, height, most: view.mostAlone, isThin: true };
    for (const t of order) outline(pen, view, histogram.layers[layer][t], at, t);
  }
};

const largest = (lists) => lists.reduce((most, values) => values.reduce((a, b) => Math.max(a, b), most), 1e-12);

export const drawPlots = (geometry, profile, histogram, focus) => {
  const agents = profile.agents.length;
  const moved = (t) => sum(profile.overlap[0][t]);
  // The largest behind, so that none is hidden.
  const order = profile.agents.map((_, t) => t).sort((a, b) => moved(b) - moved(a));
  const shared = {
    geometry, histogram, focus, agents,
    mostAlone: largest(histogram.layers.flat()),
    mostTogether: largest(histogram.layers.map((layer) =>
      histogram.xs.map((_, i) => layer.reduce((s, agent) => s + agent[i], 0)))),
  };
  const top = { bottom: geometry.axis, height: geometry.topHeight - 8, most: largest(histogram.all), isThin: false };
  for (const [kind, sheet] of Object.entries(plots)) {
    sheet.width = geometry.width * geometry.ratio;
    sheet.height = geometry.height * geometry.ratio;
    const pen = sheet.getContext("2d");
    const view = { ...shared, isHot: kind === "hot" };
    pen.setTransform(geometry.ratio, 0, 0, geometry.ratio, 0, 0);
    pen.lineJoin = "round";
    for (const t of order) outline(pen, view, histogram.all[t], top, t);
    histogram.layers.forEach((_, layer) => drawRow(pen, view, layer, order));
  }
};
