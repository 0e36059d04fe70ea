// @ts-check
// The measured merge for a setting, the measured ones along a dial, and the best of a method. Nothing is interpolated
// between rows. Independent of the page.
import { areSame, dialOf, methodOf, METHODS, usualOf } from "./methods.js";
import { factorsOf, outcomeOf } from "./outcome.js";
import { ownWeights } from "./weights.js";

/** @typedef {import("./data.js").Row} Row @typedef {{ row: Row, isExact: boolean }} Near */

const indexes = new WeakMap(); // skills -> index

const placeOf = (profile, point) => (point ? Math.log10(profile.epsilon_grid[point]) : -8.5);

const lambdasOf = (profile, settings) => outcomeOf(profile, settings).agents.map((a) => a.lambda);

// The key of measured merges by RAM's rules, apart from lambda: counts and weights.
const keyOf = (counts, { point, weights }) => `${counts[point]} ${JSON.stringify(ownWeights(weights))}`;

const indexOf = (profile) => {
  const { skills } = profile;
  if (indexes.has(skills)) return indexes.get(skills);
  const counts = profile.overlap.map(String);
  const ramRows = (rows) => rows.filter((row) => METHODS[row.set.method].isRam)
    .map((row) => ({ row, counts: counts[row.set.point], place: placeOf(profile, row.set.point), lambdas: lambdasOf(profile, row.set) }));
  const rows = ramRows(skills.merges);
  const byKey = new Map();
  for (const one of [...rows, ...ramRows(skills.weighted)]) {
    const key = keyOf(counts, one.row.set);
    byKey.set(key, [...(byKey.get(key) ?? []), one]);
  }
  const index = { rows, counts, byKey, curves: new Map(), best: new Map() };
  indexes.set(skills, index);
  return index;
};

const apart = (profile, point, a, b) => a.reduce((far, lambda, t) =>
  (profile.overlap[point][t][0] ? far + Math.abs(lambda - b[t]) : far), 0);

/** The measured merge equal to a setting: by RAM's rules equal counts, lambdas and weights mean equal merges. */
export const exactRow = (profile, settings) => {
  const { skills } = profile;
  if (!METHODS[settings.method].isRam) {
    if (settings.method === "task-arithmetic" && !settings.scale) return skills.base;
    return skills.rows.find(({ set }) => set && areSame(set, settings)) ?? null;
  }
  const { byKey, counts } = indexOf(profile);
  if (profile.overlap[settings.point].every((others) => others.every((x) => !x))) return skills.base;
  const lambdas = lambdasOf(profile, settings);
  if (lambdas.includes(null)) return null;
  return byKey.get(keyOf(counts, settings))?.find((one) => apart(profile, settings.point, one.lambdas, lambdas) < 1e-6)?.row ?? null;
};

/** The measured row for a setting, or null: for RAM's rules the nearest by log10 epsilon and lambda, for others by
 * their dials. With weights only an equal merge counts. @returns {Near | null} */
export const nearestRow = (profile, settings) => {
  if (!profile.skills) return null;
  const exact = exactRow(profile, settings);
  if (exact) return { row: exact, isExact: true };
  if (ownWeights(settings.weights)) return null;
  const rows = METHODS[settings.method].isRam ? ramDistances(profile, settings) : dialDistances(profile, settings);
  const best = rows.reduce((a, b) => (b.far < a.far - 1e-9 ? b : a), { row: null, far: Infinity });
  return best.row && { row: best.row, isExact: false };
};

const ramDistances = (profile, settings) => {
  const { rows, counts } = indexOf(profile);
  const [place, lambdas] = [placeOf(profile, settings.point), lambdasOf(profile, settings)];
  return rows.map((one) => ({
    row: one.row,
    far: (one.counts === counts[settings.point] ? 0 : 4 * Math.abs(one.place - place)) + 3 * apart(profile, settings.point, one.lambdas, lambdas),
  }));
};

const dialDistances = (profile, settings) => {
  const dials = METHODS[settings.method].dials.map((key) => dialOf(profile, settings.method, key));
  return profile.skills.merges.filter(({ set }) => set.method === settings.method)
    .map((row) => ({ row, far: dials.reduce((far, dial) => far + Math.abs(dial.x(row.set[dial.key]) - dial.x(settings[dial.key])), 0) }));
};

/** The measured rows along one dial, all others fixed: [{ value, row }]. */
export const along = (profile, settings, key) => {
  const { method } = settings;
  const { curves } = indexOf(profile);
  const id = JSON.stringify([method, key, ownWeights(settings.weights), ...METHODS[method].dials.filter((other) => other !== key).map((other) => settings[other])]);
  if (!curves.has(id)) {
    const { steps } = dialOf(profile, method, key);
    const points = steps.flatMap((value) => { const row = exactRow(profile, { ...settings, [key]: value }); return row ? [{ value, row }] : []; });
    if (method === "task-arithmetic" && !ownWeights(settings.weights) && points[0]?.value !== 0) points.unshift({ value: 0, row: profile.skills.base });
    curves.set(id, points);
  }
  return curves.get(id);
};

const most = (rows) => rows.reduce((a, b) => (!a || b.total > a.total ? b : a), null);

export const rowsOf = (profile, name) => profile.skills.merges.filter(({ set }) => set.method === methodOf(name));

/** The best measured setting of a method, by its name or a place's. @returns {Row | null} */
export const bestOf = (profile, name) => {
  const { best } = indexOf(profile);
  if (!best.has(name)) best.set(name, most(rowsOf(profile, name)));
  return best.get(name);
};

/** The initial settings of a method: the paper's for RAM's rules, the best measured ones for rivals. */
export const startOf = (profile, name) => {
  const usual = usualOf(name, profile);
  if (METHODS[usual.method].isRam || usual.method === "task-arithmetic" || !profile.skills) return usual;
  return { ...usual, ...bestOf(profile, name)?.set };
};

/** RAM+ as in the paper, and the best method outside the RAM family, chosen on these questions. */
export const paperRow = (profile) => exactRow(profile, usualOf("ram+", profile));
export const rivalRow = (profile) => {
  const { best } = indexOf(profile);
  if (!best.has("rival")) best.set("rival", most(profile.skills.merges.filter(({ set }) => !METHODS[set.method].isRam)));
  return best.get("rival");
};

/** The position of a measured merge on the map: [own part applied, shared part applied], or null. */
export const placeOnMap = (profile, row) => {
  if (!row.set) return row === profile.skills.base ? [0, 0] : null;
  const found = factorsOf(profile, outcomeOf(profile, row.set), { row, isExact: true });
  return found && [found.ownMean, found.sharedMean];
};
