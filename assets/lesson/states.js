// Settings of the canvas that scenes begin with or lead to.
import { nothingCounts } from "./figures.js";

// The paper's settings, with changes.
export const usual = ({ profile }, changes = {}) => {
  const { defaults, default_index: point } = profile;
  return { point, r: defaults.r, alpha: defaults.alpha, method: defaults.rule, ...changes };
};

// No change counts: the merge is the base.
export const asBase = (facts) => usual(facts, { point: nothingCounts(facts.profile) });

export const average = (facts) => usual(facts, { method: "task-arithmetic-mean" });

export const sumUp = (facts) => usual(facts, { method: "task-arithmetic-sum" });
