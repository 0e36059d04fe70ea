// The methods that the canvas can show. Their names are those of the Compare table; a recipe may
// know one by another name and a setting.

const LAMBDA = {
  "ram+": "λ = 1 + r · min(ρ, α)",
  "ram": "λ = 1",
  "ram+s": "λ = 1 + r · ρ ÷ (1 + ρ)",
  "ram+m": "λ = 1 + r · min(ρ, α), ρ by size",
};

// dials: which of epsilon, r and alpha have an effect. isRam: unique changes times lambda, shared
// ones averaged. factor: what every change is multiplied by, for N agents. says: what it does.
export const METHODS = {
  "ram+": { title: "RAM+", isRam: true, dials: ["epsilon", "r", "alpha"] },
  "ram": { title: "RAM", isRam: true, dials: ["epsilon"] },
  "ram+s": { title: "RAM+s", isRam: true, dials: ["epsilon", "r"] },
  "ram+m": { title: "RAM+m", isRam: true, dials: ["epsilon", "r", "alpha"] },
  "task-arithmetic-mean": {
    title: "Average", dials: [], factor: (n) => 1 / n, says: "every change ÷ number of agents, whoever made it",
  },
  "task-arithmetic-sum": {
    title: "Sum", dials: [], factor: () => 1, says: "all changes added up, nothing divided",
  },
  "ties": {
    title: "TIES", dials: [], says: "largest 20 % of each agent; where signs differ, the majority",
  },
};

export const lambdaFormula = (method) => LAMBDA[method];

export const usesDial = (method, dial) => METHODS[method].dials.includes(dial);

const isNear = (value, wanted) => Math.abs(value - wanted) < 1e-9;

// The canvas's name of a recipe's method and settings for N agents, or null where it shows no such.
export const shownAs = (method, settings, n) => {
  const only = (...names) => Object.keys(settings).every((name) => names.includes(name));
  if (METHODS[method]?.isRam) return only("epsilon", "r", "alpha") ? method : null;
  if (method === "task-arithmetic") {
    const scale = settings.scale ?? 1 / n;
    if (isNear(scale, 1 / n)) return "task-arithmetic-mean";
    return isNear(scale, 1) ? "task-arithmetic-sum" : null;
  }
  const isDefault = isNear(settings.density ?? 0.2, 0.2) && isNear(settings.scale ?? 1, 1);
  return method === "ties" && isDefault && only("density", "scale") ? "ties" : null;
};

// What Merge is told: the method there, and the scale of task arithmetic (null: 1/N).
export const recipeOf = (method) => {
  if (method === "task-arithmetic-mean") return ["task-arithmetic", null];
  if (method === "task-arithmetic-sum") return ["task-arithmetic", 1];
  return [method, null];
};
