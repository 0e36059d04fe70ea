// How numbers read on the canvas: short, with a unit. Exact counts and thresholds read as in numbers.js.

// A share in few digits: 47 %, 2.9 %, 0.24 %, 99.8 %.
export const brief = (share, digits) => {
  const p = 100 * share;
  if (p === 0) return "0 %";
  if (p < 0.01) return "<0.01 %";
  if (digits === undefined && p > 99.5 && p < 99.995) return `${p.toFixed(p > 99.95 ? 2 : 1)} %`;
  return `${p.toFixed(digits ?? (p < 1 ? 2 : p < 10 ? 1 : 0))} %`;
};

// A share of an update: whole per cents from ten on.
export const retainedText = (share) => brief(share, share > 0 && share < 0.0995 ? 1 : 0);

// A point of the epsilon grid within a sentence: 0, 1e-5, 0.002.
export const thresholdText = (epsilon) => {
  const value = Number(epsilon.toPrecision(3));
  return value && value < 1e-4 ? value.toExponential() : String(value);
};

export const ratioText = (rho) => {
  if (rho === null) return "–";
  if (rho === Infinity) return "∞";
  return rho.toFixed(rho < 10 ? 2 : rho < 100 ? 1 : 0);
};

export const lambdaText = (lambda) => (lambda === null ? "–" : lambda.toFixed(lambda < 10 ? 3 : 2));

export const timesText = (x) => `×${x.toFixed(x < 10 ? 1 : 0)}`;

export const power = (exponent) =>
  `10${String(exponent).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d])}`;

// "a", "a and b", "a, b and c".
export const listText = (items) =>
  items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : items[0] || "";

export const rowName = (layer) => ({ embedding: "emb", other: "norm" })[layer] || layer;

export const layerTitle = (layer) =>
  (/^\d+$/.test(layer) ? `Layer ${layer}` : { embedding: "Embedding", other: "Norms", head: "Head" }[layer] || layer);
