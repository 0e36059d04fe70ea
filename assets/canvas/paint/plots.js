// @ts-check
// Every histogram and its labels, drawn once in gray and once in color on two hidden canvases: a move of epsilon
// only pastes the one left and the other right of its line.
import { sum } from "../../numbers.js";
import { epsilonText, rowName } from "../model/words.js";
import { agentColor, colors } from "./colors.js";

const OVERLAID = 9; // px a row from which on outlines are laid over one another; below, a strip

export const plots = { cold: document.createElement("canvas"), hot: document.createElement("canvas") };

const root = (share) => Math.sqrt(Math.min(1, share));

/** One agent's curve over a base line. at: { bottom, height, most, isThin } */
const outline = (pen, { frame, histogram, isHot }, values, at, t) => {
  const color = isHot ? agentColor(t) : colors().outline;
  pen.beginPath();
  histogram.xs.forEach((log, i) => {
    const x = Math.max(frame.x0, frame.ofLog(log));
    if (!i) pen.moveTo(x, at.bottom);
    pen.lineTo(x, at.bottom - root(values[i] / at.most) * at.height);
  });
  pen.lineTo(frame.ofLog(histogram.xs.at(-1)), at.bottom);
  pen.fillStyle = pen.strokeStyle = color;
  pen.globalAlpha = isHot ? 0.1 : 0.05;
  pen.fill();
  pen.globalAlpha = isHot ? 1 : 0.75;
  pen.lineWidth = at.isThin ? 1.25 : 1.8;
  pen.stroke();
  pen.globalAlpha = 1;
};

/** How dark tells how many, all agents together. */
const strip = (pen, { frame, histogram, isHot }, layer, top, height, most) => {
  const snap = (v) => Math.round(v * frame.ratio) / frame.ratio;
  pen.fillStyle = isHot ? colors().ink : colors().outline;
  const y = snap(top);
  for (let i = 0; i < histogram.xs.length - 1; i += 1) {
    const [from, to] = [snap(Math.max(frame.x0, frame.ofLog(histogram.xs[i]))), snap(frame.ofLog(histogram.xs[i + 1]))];
    if (to <= from) continue;
    pen.globalAlpha = root(sum(histogram.layers[layer].map((agent) => agent[i])) / most);
    pen.fillRect(from, y, to - from, Math.max(1, snap(top + height) - y));
  }
  pen.globalAlpha = 1;
};

const largest = (lists) => lists.reduce((most, values) => values.reduce((a, b) => Math.max(a, b), most), 1e-12);

const drawLabels = (pen, frame, profile) => {
  const { unit, x0, base, rowHeight, rowsTop, allBottom } = frame;
  const font = (bold) => { pen.font = `${bold ? 700 : 400} ${0.93 * unit}px ${frame.font}`; pen.fillStyle = bold ? colors().ink : frame.muted; };
  font(true);
  pen.textAlign = "right";
  pen.fillText("all", x0 - 0.45 * unit, allBottom - 2);
  font(false);
  const every = [1, 2, 5, 10, 20].find((n) => rowHeight * n >= 0.95 * unit) ?? 40;
  profile.layers.forEach((layer, l) => {
    if (every > 1 && l % every) return;
    pen.fillText(rowName(layer), x0 - 0.45 * unit, rowsTop + (l + (every > 1 ? 0.5 : 1)) * rowHeight + (every > 1 ? 0.32 * unit : -2));
  });
  pen.textAlign = "center";
  let last = -Infinity;
  for (const k of profile.axis.ticks) {
    const x = frame.x(k);
    if (x - last < 2.4 * unit) continue;
    pen.fillText(epsilonText(profile.epsilon_grid[k]), x, base + 1.2 * unit);
    last = x;
  }
};

export const drawPlots = (frame, profile, histogram) => {
  const moved = (t) => sum(profile.overlap[0][t]);
  // The largest behind, so that none is hidden.
  const order = profile.agents.map((_, t) => t).sort((a, b) => moved(b) - moved(a));
  const most = largest(histogram.layers.flat());
  const together = largest(histogram.layers.map((layer) => histogram.xs.map((_, i) => sum(layer.map((agent) => agent[i])))));
  for (const [kind, sheet] of Object.entries(plots)) {
    [sheet.width, sheet.height] = [frame.width * frame.ratio, frame.height * frame.ratio];
    const pen = sheet.getContext("2d");
    const view = { frame, histogram, isHot: kind === "hot" };
    pen.setTransform(frame.ratio, 0, 0, frame.ratio, 0, 0);
    pen.lineJoin = "round";
    const ruled = (bottom) => { pen.fillStyle = colors().hair; pen.fillRect(frame.x0, bottom, frame.x1 - frame.x0, 1); };
    ruled(frame.allBottom);
    for (const t of order) outline(pen, view, histogram.all[t], { bottom: frame.allBottom, height: frame.allBottom - frame.top - 4, most: largest(histogram.all), isThin: false }, t);
    histogram.layers.forEach((layer, l) => {
      const bottom = frame.rowsTop + (l + 1) * frame.rowHeight;
      if (frame.rowHeight < OVERLAID) {
        strip(pen, view, l, bottom - frame.rowHeight, frame.rowHeight, together);
        return;
      }
      ruled(bottom);
      for (const t of order) outline(pen, view, layer[t], { bottom, height: frame.rowHeight * 0.9, most, isThin: true }, t);
    });
    drawLabels(pen, frame, profile);
  }
};
