// @ts-check
// How numbers read on the canvas: short, with a unit. Exact counts and thresholds read as in numbers.js.

/** A share in few digits: 47 %, 2.9 %, 0.24 %, 99.8 %. @param {number} share @param {number} [digits] */
export const brief = (share, digits) => {
  const p = 100 * share;
  if (p === 0) return "0 %";
  if (p < 0.01) return "<0.01 %";
  if (digits === undefined && p > 99.5 && p < 99.995) return `${p.toFixed(p > 99.95 ? 2 : 1)} %`;
  return `${p.toFixed(digits ?? (p < 1 ? 2 : p < 10 ? 1 : 0))} %`;
};

export const power = (exponent) =>
  `10${String(exponent).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d])}`;

/** A point of the epsilon grid, rounded to what one says: 0, 10⁻⁵, 7·10⁻³. @param {number} epsilon */
export const epsilonText = (epsilon) => {
  if (!epsilon) return "0";
  let exponent = Math.floor(Math.log10(epsilon) + 1e-9);
  let head = epsilon / 10 ** exponent;
  if (head > 9.7) [exponent, head] = [exponent + 1, 1];
  const digits = Math.abs(head - Math.round(head)) < 0.06 ? Math.round(head) : Number(head.toFixed(1));
  return `${digits === 1 ? "" : `${digits}·`}${power(exponent)}`;
};

export const plain = (value) => String(Number(Number(value).toFixed(3)));

export const ratioText = (rho) => {
  if (rho === null) return "–";
  if (rho === Infinity) return "∞";
  return rho.toFixed(rho < 10 ? 2 : rho < 100 ? 1 : 0);
};

export const lambdaText = (lambda) => (lambda === null ? "–" : lambda.toFixed(lambda < 10 ? 3 : 1));

/** How many times a part is applied: 0.69, 2.8, 12. @param {number} x */
export const timesText = (x) => x.toFixed(x >= 9.95 ? 0 : x >= 1.95 ? 1 : 2);

/** "a", "a and b", "a, b and c". @param {string[]} items */
export const listText = (items) =>
  (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : items[0] || "");

/** "1 question", "2 questions". @param {number} n @param {string} noun */
export const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export const rowName = (layer) => ({ embedding: "emb", other: "norm" })[layer] || layer;

export const layerTitle = (layer) =>
  (/^\d+$/.test(layer) ? `Layer ${layer}` : { embedding: "Embedding", other: "Norms", head: "Head" }[layer] || layer);
