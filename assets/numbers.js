// @ts-check
// Formats of numbers on the page: epsilon, percent, ratio and factor as in Python's numbers.py, brief as in its verdict
// (a test compares them). Independent of the page.

/** @param {number[]} values @returns {number} */
export const sum = (values) => values.reduce((a, b) => a + b, 0);

/** A number with this many decimals, rounded half to even as in Python; toFixed rounds half up.
 * @param {number} x @param {number} places */
export const fixed = (x, places) => {
  const halves = x * 2 ** (places + 1); // an odd integer only for a number halfway between two
  if (!Number.isInteger(halves) || halves % 2 === 0) return x.toFixed(places);
  const below = Math.floor(x * 10 ** places);
  return ((below + Math.abs(below % 2)) / 10 ** places).toFixed(places);
};

/** @param {number} n */
export const count = (n) => {
  if (n < 1e6) return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
  const [size, unit] = n < 1e9 ? [1e6, "M"] : [1e9, "B"];
  const value = n / size;
  return `${fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
};

/** A share: 47.3 %, 0.24 %, or in a given number of digits. @param {number} share @param {number} [digits] */
export const percent = (share, digits) => {
  const p = 100 * share;
  if (p === 0) return "0 %";
  return p < 0.01 ? "< 0.01 %" : `${fixed(p, digits ?? (p < 1 ? 2 : 1))} %`;
};

/** A share in few digits: 47 %, 2.9 %, 0.24 %, 99.8 %. @param {number} share */
export const brief = (share) => {
  const p = 100 * share;
  const isNearlyAll = p > 99.5 && p < 99.995;
  return percent(share, isNearlyAll ? (p > 99.95 ? 2 : 1) : p < 1 ? 2 : p < 10 ? 1 : 0);
};

/** A rho; null where the analysis does not have it. @param {number | null} rho */
export const ratio = (rho) => {
  if (rho === null) return "–";
  return rho === Infinity ? "∞" : fixed(rho, rho < 10 ? 3 : rho < 100 ? 2 : 1);
};

/** A lambda; null where the rule needs sizes that the analysis does not have. @param {number | null} lambda */
export const factor = (lambda) => (lambda === null ? "–" : fixed(lambda, 3));

/** How many times a part is applied: 0.69, 2.8, 12. @param {number} x */
export const times = (x) => fixed(x, x >= 9.95 ? 0 : x >= 1.95 ? 1 : 2);

/** A setting, in at most three places. @param {number | string} value */
export const plain = (value) => String(Number(fixed(Number(value), 3)));

const SNAP = 0.004; // largest relative distance of a grid point from its displayed number

/** An epsilon: 0, 10⁻⁵, 7·10⁻³, 2.34·10⁻⁵. @param {number} value */
export const epsilon = (value) => {
  if (!value) return "0";
  let exponent = Math.floor(Math.log10(value) + 1e-9);
  let head = value / 10 ** exponent;
  const short = Math.round(10 * head) / 10;
  head = Math.abs(short / head - 1) < SNAP ? short : Number(head.toPrecision(3));
  if (head >= 10) [exponent, head] = [exponent + 1, 1];
  const power = `10${String(exponent).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d])}`;
  return head === 1 ? power : `${head}·${power}`;
};
