// Where things are on the stage: one x axis of log10 |tau|, under it the layers, under them what is kept.
// Lengths are CSS pixels; `scale` is the size of the text against the usual 14 px.

const PHONE = 900;
const ZERO_ROOM = 20; // left of the axis: thresholds too small to be on it, and 0
const KEPT_TOP = 1.3; // share at the top of the retained row

const fontScale = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--cv-fs")) || 1;

export const isPhone = () => window.innerWidth < PHONE;

export const phoneHeight = (rows, hasRetained) =>
  34 + 108 + 24 + Math.min(rows * 30, Math.max(180, rows * 6)) + (hasRetained ? 96 : 14);

// size: { width, height } of the stage. Returns places, and x(log10 |tau|).
export const geometryOf = (size, profile, histogram, hasRetained) => {
  const { width, height } = size;
  const phone = isPhone();
  const scale = phone ? 1 : fontScale();
  const { logs, low, high } = histogram;
  const barWidth = phone ? 78 : Math.min(150 * scale, width * 0.24);
  const left = 40 * scale;
  const right = width - barWidth - (phone ? 10 : 18);
  const axisLeft = left + ZERO_ROOM;
  const topHeight = phone ? 108 : Math.min(132, Math.max(96, height * 0.18));
  const top = 34 * scale;
  const axis = top + topHeight;
  const retainedHeight = hasRetained ? (phone ? 64 : Math.min(92, height * 0.13)) : 0;
  const bottom = height - 6;
  const retainedTop = bottom - retainedHeight;
  const rowsTop = axis + 30 * scale;
  const rowsBottom = hasRetained ? retainedTop - 30 * scale : bottom;
  const rowHeight = (rowsBottom - rowsTop) / profile.layers.length;
  const x = (log) => axisLeft + ((log - low) / (high - low)) * (right - axisLeft);
  const place = (point) => {
    if (point === 0) return left + 3;
    return logs[point] < low ? left + 3 + (point / 60) * 14 : Math.min(right, x(logs[point]));
  };
  return {
    width, height, phone, scale, left, right, top, topHeight, axis, rowsTop, rowsBottom, rowHeight, retainedTop, bottom,
    retainedHeight, hasRetained, low, high, x,
    numbersTop: Math.max(0, axis - 22 - (phone ? 40 : 64 * scale)),
    bars: { left: width - barWidth, width: barWidth },
    isStrip: rowHeight < 9,
    points: profile.epsilon_grid.map((_, point) => place(point)),
    isOnAxis: (point) => !point || (logs[point] >= low && logs[point] <= high + 0.001),
    retainedY: (share) => bottom - (Math.min(KEPT_TOP, share) / KEPT_TOP) * retainedHeight,
    baseline: (layer) => rowsTop + (layer + 1) * rowHeight - (rowHeight > 20 ? 3 : 1),
    ratio: Math.min(2, window.devicePixelRatio || 1),
  };
};

export const rowAt = (geometry, y, rows) => {
  const { rowsTop, rowsBottom, rowHeight } = geometry;
  return y > rowsTop && y < rowsBottom ? Math.min(rows - 1, Math.floor((y - rowsTop) / rowHeight)) : null;
};

// The grid point nearest to a place on the axis.
export const pointAt = (geometry, x) => {
  let best = 0;
  geometry.points.forEach((place, point) => {
    if (geometry.isOnAxis(point) && Math.abs(place - x) < Math.abs(geometry.points[best] - x)) best = point;
  });
  return best;
};
