// @ts-check
// Questions and answers for display: missing parts of an answer are gaps, extra parts are marked. Pure.

/** A question without its skill's prefix, its last word and blanks before punctuation. @param {string} prompt */
export const promptText = (prompt) => prompt.replace(/^\w+: /, "").replace(/ answer:$/, "").replace(/ ([,.])/g, "$1");

const LONG = 240; // characters of a question that do not fit a card

/** A card's text of a question: only the last line of a long one, which is the actual question.
 * @param {string} prompt */
export const shortPrompt = (prompt) => {
  const last = prompt.trim().split("\n").at(-1) ?? "";
  return prompt.length > LONG && last.length < prompt.trim().length ? `… ${last}` : promptText(prompt);
};

const MOST = 400; // characters compared; longer answers are shown unchanged

const WORDS = 8; // with this many blanks, answers are compared by words, not characters

/** The units by which answers are compared. @param {string} gold @returns {(text: string) => string[]} */
const unitsOf = (gold) => (gold.split(" ").length > WORDS ? (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [] : (text) => [...text]);

// The longest common run of units, from each pair of positions.
const common = (a, b) => {
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  }
  return lengths;
};

/** An answer compared with the right one, as [kind, text]: kind "" for right parts, "extra" or "gap". */
const differences = (text, gold) => {
  const units = unitsOf(gold);
  const [a, b] = [units(text), units(gold)];
  const lengths = common(a, b);
  const pieces = [];
  const add = (kind, piece) => {
    if (pieces.at(-1)?.[0] === kind && kind !== "gap") pieces.at(-1)[1] += piece;
    else pieces.push([kind, piece]);
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add("", a[i]);
      [i, j] = [i + 1, j + 1];
    } else if (i < a.length && (j >= b.length || lengths[i + 1][j] >= lengths[i][j + 1])) {
      add("extra", a[i]);
      i += 1;
    } else {
      const from = j;
      do j += 1; while (j < b.length && a[i] !== b[j] && (i >= a.length || lengths[i + 1][j] < lengths[i][j + 1]));
      const missing = b.slice(from, j).join("");
      add("gap", missing.length > 2 ? "…" : "_".repeat(missing.length));
    }
  }
  return pieces;
};

/** An answer for display, [kind, text]; a final full stop is style and counts as right.
 * @param {string} text @param {string} gold @param {boolean} right */
export const answerPieces = (text, gold, right) => {
  const [body, wanted] = [text, gold].map((answer) => answer.trim().replace(/( ?\.)+$/, ""));
  if (!body) return [["none", text.trim() ? "“.” and nothing else" : "(no answer)"]];
  const stop = / ?\.$/.test(text.trim()) ? [["stop", " ."]] : [];
  const isLong = body.length > MOST || gold.length > MOST;
  return [...(right || isLong ? [["", body]] : differences(body, wanted)), ...stop];
};
