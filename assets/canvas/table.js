// The table of measured settings: what was asked, what was right, and which row a setting shows.
//
// A shipped table has n prompts a skill, domains, rows, prompts, gold, answers. A row: kind "source" or
// "merge", method, settings, k (grid point, null without epsilon), right: one character 0 or 1 a
// prompt, domain after domain, answers: an index into answers[prompt] each. Nothing is ever interpolated
// between rows.
import { METHODS, shownAs } from "./methods.js";
import { outcomeOf } from "./outcome.js";

const Z = 1.96;

// The 95 % interval of a share, after Wilson.
export const wilson = (right, n) => {
  const p = right / n;
  const scale = 1 + Z ** 2 / n;
  const center = (p + Z ** 2 / 2 / n) / scale;
  const half = (Z * Math.sqrt((p * (1 - p)) / n + Z ** 2 / 4 / n ** 2)) / scale;
  return [Math.max(0, center - half), Math.min(1, center + half)];
};

// What the canvas uses of a shipped table: its rows under the canvas's names of methods, and for every
// domain the agent that learned it (its index, or null where none is better than the base beyond noise).
export const skillsOf = (table, profile) => {
  const rows = table.rows.flatMap((row) => {
    const method = row.kind === "source" ? row.method : shownAs(row.method, row.settings, profile.agents.length);
    return method === null || (METHODS[method]?.isRam && row.k === null) ? [] : [{ ...row, method, point: row.k }];
  });
  const skills = { ...table, rows, agents: profile.agents };
  skills.specialists = table.domains.map((_, domain) => {
    const scores = profile.agents.map((name) => scoreOf(skills, sourceRow(skills, name), domain));
    const best = scores.indexOf(Math.max(...scores));
    const [, high] = wilson(scoreOf(skills, baseOf(skills), domain), table.n);
    return scores[best] / table.n > high ? best : null;
  });
  return skills;
};

// A table with the merges of another one on the same questions: those measured since, which come first.
export const withRows = (table, more) => {
  const answers = table.answers.map((texts) => [...texts]);
  const place = (i, text) => {
    const known = answers[i].indexOf(text);
    return known < 0 ? answers[i].push(text) - 1 : known;
  };
  const rows = more.rows.map((row) => ({ ...row, answers: row.answers.map((a, i) => place(i, more.answers[i][a])) }));
  return { ...table, answers, rows: [...rows, ...table.rows] };
};

export const rightOf = (marks) => {
  let right = 0;
  for (const mark of marks) if (mark === "1") right += 1;
  return right;
};

// A row's answers in a domain, one character a prompt.
export const marksOf = (skills, row, domain) => row.right.slice(domain * skills.n, (domain + 1) * skills.n);

export const scoreOf = (skills, row, domain) => rightOf(marksOf(skills, row, domain));

const known = new WeakMap(); // skills -> index

const sourceRow = (skills, name) => skills.rows.find((row) => row.kind === "source" && row.method === name);

export const baseOf = (skills) => sourceRow(skills, "base");

// The row of the agent that a domain was trained for, or null.
export const specialistOf = (skills, domain) => {
  const agent = skills.specialists[domain];
  return agent === null ? null : sourceRow(skills, skills.agents[agent]);
};

export const settingsOf = (row) => ({
  point: row.point ?? 0, r: row.settings.r ?? 0, alpha: row.settings.alpha ?? 2, method: row.method,
});

const indexOf = (profile) => {
  const { skills } = profile;
  if (known.has(skills)) return known.get(skills);
  const merges = skills.rows.filter((row) => row.kind === "merge");
  const counts = profile.overlap.map(String);
  const rows = merges.filter((row) => METHODS[row.method]?.isRam).map((row) => ({
    row, counts: counts[row.point], place: placeOf(profile, row.point),
    lambdas: outcomeOf(profile, settingsOf(row)).agents.map((a) => a.lambda),
  }));
  const index = { rows, counts, merges };
  known.set(skills, index);
  return index;
};

const placeOf = (profile, point) => (point ? Math.log10(profile.epsilon_grid[point]) : -8.5);

// The measured row that a setting shows: { row, isExact }, or null without a table. Settings with the
// same counts and lambdas are the same weights; otherwise the nearest by log10 epsilon and lambda.
export const nearestRow = (profile, result) => {
  const { skills } = profile;
  if (!skills) return null;
  const { rows, counts, merges } = indexOf(profile);
  if (!result.isRam) {
    const row = merges.find((r) => r.method === result.settings.method);
    return row ? { row, isExact: true } : null;
  }
  if (!result.changed) return { row: baseOf(skills), isExact: true };
  const { point } = result.settings;
  const place = placeOf(profile, point);
  let best = null;
  for (const { row, lambdas, ...known } of rows) {
    const far = lambdas.reduce((d, lambda, t) =>
      (result.agents[t].unique ? d + Math.abs(lambda - result.agents[t].lambda) : d), 0);
    const away = known.counts === counts[point] ? 0 : Math.abs(known.place - place);
    const distance = 4 * away + 3 * far;
    if (!best || distance < best.distance - 1e-9) best = { row, distance };
  }
  return best && { row: best.row, isExact: best.distance < 1e-6 };
};

// Grid points at which something was measured.
export const measuredPoints = (profile) =>
  (profile.skills ? [...new Set(indexOf(profile).rows.map(({ row }) => row.point))] : []);
