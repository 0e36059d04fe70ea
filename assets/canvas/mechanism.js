// The stage at one setting: the two sheets pasted at the line, overlap bars, the curves of what is kept.
import { shape } from "../nodes.js";
import { sum } from "../numbers.js";
import { agentColor, colors } from "./colors.js";
import { retainedCurves } from "./outcome.js";
import { plots } from "./plots.js";

const OWN_GAP = 1.5;

const outlines = new Map();
const marker = (t) => {
  if (!outlines.has(t % 8)) outlines.set(t % 8, new Path2D(shape(t)));
  return outlines.get(t % 8);
};

// Shares of unique and shared weights of a layer (null: of all layers), of all or of the changed ones.
const barParts = (profile, point, layer, barsOf) => {
  const rows = layer === null ? profile.layers.map((_, l) => l) : [layer];
  let unique = 0;
  let shared = 0;
  let all = 0;
  for (const l of rows) {
    const counts = profile.layer_count[point][l];
    unique += counts[1];
    shared += sum(counts.slice(2));
    all += profile.layer_total[l];
  }
  const whole = Math.max(1, barsOf === "all" ? all : unique + shared);
  return [unique / whole, shared / whole];
};

const drawBar = (pen, { left, width }, y, height, parts, ghost) => {
  const { unchanged, unique, shared, panel, ink } = colors();
  const [first, second] = parts;
  pen.fillStyle = unchanged;
  pen.fillRect(left, y, width, height);
  pen.fillStyle = unique;
  pen.fillRect(left, y, first * width, height);
  pen.fillStyle = shared;
  pen.fillRect(left + first * width, y, second * width, height);
  const isTall = height > 7;
  if (first > 0 && second > 0 && isTall) {
    pen.fillStyle = panel;
    pen.fillRect(left + first * width - OWN_GAP / 2, y, OWN_GAP, height);
  }
  if (!ghost) return;
  pen.fillStyle = ink;
  const more = isTall ? 3 : 0;
  for (const edge of [ghost[0], ghost[0] + ghost[1]]) {
    pen.fillRect(left + edge * width - OWN_GAP / 2, y - more, OWN_GAP, height + 2 * more);
  }
};

const drawBars = (pen, geometry, state) => {
  const { profile, settings, pin, focus, barsOf } = state;
  const { rowHeight, rowsTop, bars } = geometry;
  const height = Math.max(2.5, Math.min(16, rowHeight * 0.72));
  profile.layers.forEach((_, l) => {
    const y = rowHeight > 22 ? rowsTop + (l + 1) * rowHeight - height - 3 : rowsTop + l * rowHeight + (rowHeight - height) / 2;
    const ghost = pin && barParts(profile, pin.point, l, barsOf);
    drawBar(pen, bars, y, height, barParts(profile, settings.point, l, barsOf), ghost);
    if (focus === null || geometry.isStrip || !profile.layer_total[l]) return;
    const x = bars.left + (profile.layer_active[settings.point][l][focus] / profile.layer_total[l]) * bars.width;
    disc(pen, x, y + height / 2, Math.min(5, height / 2 + 1.5), colors().panel);
    disc(pen, x, y + height / 2, Math.min(3.6, height / 2), agentColor(focus));
  });
  drawBar(pen, bars, geometry.axis - 18, 18, barParts(profile, settings.point, null, barsOf),
    pin && barParts(profile, pin.point, null, barsOf));
};

const disc = (pen, x, y, radius, color) => {
  pen.fillStyle = color;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.fill();
};

let curves = null;
let curvesOf = "";

// The same for every epsilon: worked out anew only when anything else changes.
const curvesFor = ({ profile, settings }) => {
  const { method, r, alpha } = settings;
  const key = [method, r, alpha].join();
  if (curvesOf !== key) {
    curves = retainedCurves(profile, settings);
    curvesOf = key;
  }
  return curves;
};

export const forgetCurves = () => { curvesOf = ""; };

const drawRetained = (pen, geometry, state, shown) => {
  const { settings, pin, focus } = state;
  const retained = curvesFor(state);
  if (!retained) return;
  // An agent that changed nothing has no curve.
  const drawn = retained.flatMap((values, t) => (values[0] === null ? [] : [[values, t]]));
  drawn.forEach(([values, t]) => {
    pen.globalAlpha = focus === null || focus === t ? 1 : 0.25;
    pen.strokeStyle = agentColor(t);
    pen.lineWidth = focus === t ? 2.6 : 1.8;
    pen.beginPath();
    let isFirst = true;
    values.forEach((value, point) => {
      if (!geometry.isOnAxis(point)) return;
      const [x, y] = [geometry.points[point], geometry.retainedY(value)];
      if (isFirst) pen.moveTo(x, y);
      else pen.lineTo(x, y);
      isFirst = false;
    });
    pen.stroke();
  });
  pen.globalAlpha = 1;
  if (pin && shown.pinned.hasRetained) {
    shown.pinned.agents.filter((agent) => agent.retained).forEach((agent) => {
      const [x, y] = [geometry.points[pin.point], geometry.retainedY(agent.retained.sum)];
      disc(pen, x, y, 4, colors().panel);
      pen.strokeStyle = agentColor(agent.t);
      pen.lineWidth = 1.6;
      pen.stroke();
    });
  }
  drawn.forEach(([values, t]) => {
    const [x, y] = [geometry.points[settings.point], geometry.retainedY(values[settings.point])];
    disc(pen, x, y, 6, colors().panel);
    pen.fillStyle = agentColor(t);
    pen.save();
    pen.translate(x - 5, y - 5);
    pen.scale(0.84, 0.84);
    pen.fill(marker(t));
    pen.restore();
  });
};

export const drawMechanism = (canvas, geometry, state, shown, isHeld) => {
  const { ratio } = geometry;
  const pen = canvas.getContext("2d");
  const [width, height] = [canvas.width, canvas.height];
  const x = geometry.points[state.settings.point];
  const edge = shown.result.isRam ? Math.round(x * ratio) : 0;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, width, height);
  if (edge) {
    pen.fillStyle = colors().left;
    pen.fillRect(geometry.left * ratio, geometry.top * ratio, edge - geometry.left * ratio, (geometry.bottom - geometry.top) * ratio);
  }
  if (state.layer !== null) drawPointed(pen, geometry, state.layer, width, isHeld);
  if (edge) pen.drawImage(plots.cold, 0, 0, edge, height, 0, 0, edge, height);
  if (edge < width) pen.drawImage(plots.hot, edge, 0, width - edge, height, edge, 0, width - edge, height);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawBars(pen, geometry, state);
  if (shown.near && shown.near.row.point && geometry.isOnAxis(shown.near.row.point)) {
    disc(pen, geometry.points[shown.near.row.point], geometry.bottom - 0.5, 4, colors().ink);
  }
  if (geometry.hasRetained) drawRetained(pen, geometry, state, shown);
};

// The row under the pointer or the keyboard.
const drawPointed = (pen, geometry, layer, width, isHeld) => {
  const { ratio, rowHeight, rowsTop } = geometry;
  const [y, height] = [(rowsTop + layer * rowHeight) * ratio, Math.max(rowHeight, 4) * ratio];
  pen.fillStyle = colors().sunken;
  pen.fillRect(0, y, width, height);
  if (!isHeld) return;
  pen.strokeStyle = colors().ink;
  pen.lineWidth = 2 * ratio;
  pen.strokeRect(ratio, y, width - 2 * ratio, height);
};
