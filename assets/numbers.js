// @ts-check
// The arithmetic of the Tune step and how numbers read, the same as in Python (tests compare them).
// Knows nothing of the page.

/** @param {number[]} values @returns {number} */
export const sum = (values) => values.reduce((a, b) => a + b, 0);

const RULES = {
  "ram": () => 1,
  "ram+": (rho, r, alpha) => 1 + r * Math.min(Math.max(rho, 0), alpha),
  "ram+s": (rho, r) => 1 + r * (rho === Infinity ? 1 : rho / (1 + rho)),
};
RULES["ram+m"] = RULES["ram+"]; // of another rho: by magnitudes

// Sizes instead of counts; null where the analysis has no magnitudes by region.
const byMagnitude = (profile, point, t) => {
  const relations = profile.relations;
  if (!relations) return null;
  return quotient(relations.shared_magnitude[point][t], relations.unique_magnitude[point][t]);
};

const quotient = (shared, unique) => {
  if (unique === 0) return shared > 0 ? Infinity : 0;
  return shared / unique;
};

/** rho and lambda of every agent at one grid point; the same numbers as Analysis.preview. others[j]: elements of the
 * agent that exactly j other agents changed as well.
 * @param {any} profile @param {number} point @param {string} rule @param {number} r @param {number} alpha */
export const compute = (profile, point, rule, r, alpha) => {
  const agents = profile.agents.map((name, t) => {
    const others = profile.overlap[point][t];
    const unique = others[0];
    const shared = sum(others.slice(1));
    const rho = quotient(shared, unique);
    const rhoM = byMagnitude(profile, point, t);
    const active = unique + shared;
    return {
      name, unique, shared, active, others, rho, rhoM,
      total: profile.total,
      density: profile.total ? active / profile.total : 0,
      // null: the rule needs magnitudes that this analysis does not have.
      lambda: rule === "ram+m" && rhoM === null ? null : RULES[rule](rule === "ram+m" ? rhoM : rho, r, alpha),
      dialects: {
        paper: RULES["ram+"](rho, 0.1, 2),
        script: 1 + (1.2 - 1) * Math.min(1, rho),
        mergekit: profile.mergekit ? profile.mergekit[point][t] : null,
      },
    };
  });
  // An element shared by j + 1 agents is counted once by each of them.
  const byCount = profile.agents.map((_, j) => sum(agents.map((agent) => agent.others[j])) / (j + 1));
  return { epsilon: profile.epsilon_grid[point], rule, r, alpha, agents, byCount };
};

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
