// @ts-check
// What rounding keeps of lambda, and how numbers read, the same as in Python (tests compare them).
// Knows nothing of the page.

/** @param {number[]} values @returns {number} */
export const sum = (values) => values.reduce((a, b) => a + b, 0);

// ---------------------------------------------------------------- rounding (as in rounding_meter.py)

const TIE = 1e-4;

/** What rounding to nearest keeps of lambda, and how far off that can be; null without a unique element. precision:
 * of the output's dtype, in bits. @param {any} curve @param {number} lambda @param {number} precision */
export const retainedToNearest = (curve, lambda, precision) => {
  if (!curve) return null;
  let value = 0;
  let ties = 0;
  let edges = 0;
  for (const [delta, share] of curve.cells) {
    const steps = (lambda - 1) * delta;
    const below = Math.floor(steps);
    const isTie = Math.abs(steps - below - 0.5) < TIE;
    const rounded = isTie ? below + 0.5 : below + (steps - below > 0.5 ? 1 : 0);
    value += share * (1 + rounded / delta);
    if (isTie) ties += (share * 0.5) / delta;
    edges += share / delta;
  }
  value += curve.loose * lambda;
  const width = lambda <= 2
    ? curve.spread + ties
    : 2 * curve.spread + (lambda - 1) * 2 ** -precision + edges + ties;
  return { value, low: value - width, high: value + width };
};

/** The standard error of what stochastic rounding keeps, whose mean is lambda itself.
 * @param {any} curve @param {number} lambda @returns {number | null} */
export const stochasticError = (curve, lambda) => {
  if (!curve) return null;
  let variance = curve.noise / 4;
  for (const [delta, , noise] of curve.cells) {
    const steps = (lambda - 1) * delta;
    const part = steps - Math.floor(steps);
    variance += noise * part * (1 - part);
  }
  return Math.sqrt(variance);
};

/** The curve of agent t in output dtype d (index into profile.rounding.dtypes), or null.
 * @param {any} profile @param {number} point @param {number} t @param {number} d */
export const roundingCurve = (profile, point, t, d) => {
  const { points, curves } = profile.rounding.agents[t][d];
  return curves[points[point]];
};

// ---------------------------------------------------------------- numbers as text

/** @param {number} n */
export const count = (n) => {
  if (n < 1e6) return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
  const [size, unit] = n < 1e9 ? [1e6, "M"] : [1e9, "B"];
  const value = n / size;
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
};

/** @param {number} share */
export const percent = (share) => {
  const p = 100 * share;
  if (p === 0) return "0 %";
  if (p < 0.01) return "< 0.01 %";
  return `${p.toFixed(p < 1 ? 2 : p < 99.95 ? 1 : 0)} %`;
};

/** @param {number} rho */
export const ratio = (rho) => {
  if (rho === Infinity) return "∞";
  return rho.toFixed(rho < 10 ? 3 : rho < 100 ? 2 : 1);
};

/** @param {number} value */
export const epsilon = (value) => {
  if (value === 0) return "0";
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  if (exponent >= -3) return String(Number(value.toPrecision(3)));
  const head = Number((value / 10 ** exponent).toPrecision(3));
  const up = String(-exponent).split("").map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]).join("");
  return head === 1 ? `10⁻${up}` : `${head} · 10⁻${up}`;
};

/** A lambda; null where the rule needs sizes that the analysis does not have. @param {number | null} lambda */
export const factor = (lambda) => (lambda === null ? "–" : lambda.toFixed(3));

/** @param {string} dtype */
export const dtypeName = (dtype) =>
  ({ BF16: "bfloat16", F16: "float16", F32: "float32" })[dtype] || dtype;
