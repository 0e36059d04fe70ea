// @ts-check
// Texts of the page: lists, counts with nouns, and names of layers and dtypes. Numbers are in numbers.js.

/** "a", "a and b", "a, b and c". @param {string[]} items */
export const listText = (items) =>
  (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : items[0] || "");

/** "1 question", "2 questions". @param {number} n @param {string} noun */
export const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export const rowName = (layer) => ({ embedding: "emb", other: "norm" })[layer] || layer;

export const layerTitle = (layer) =>
  (/^\d+$/.test(layer) ? `Layer ${layer}` : { embedding: "Embedding", other: "Norms", head: "Head" }[layer] || layer);

/** @param {string} dtype */
export const dtypeName = (dtype) =>
  ({ BF16: "bfloat16", F16: "float16", F32: "float32" })[dtype] || dtype;
