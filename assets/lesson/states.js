// Settings of the canvas that scenes begin with or lead to.
import { nameOf, usualOf } from "../canvas/model/methods.js";
import { nothingCounts } from "./figures.js";

// The paper's settings, with changes.
export const usual = ({ profile }, changes = {}) => ({ ...usualOf(profile.defaults.rule, profile), ...changes });

// No change counts: the merge is the base.
export const asBase = (facts) => usual(facts, { point: nothingCounts(facts.profile) });

export const average = ({ profile }) => usualOf("average", profile);

export const sumUp = ({ profile }) => usualOf("sum", profile);

// Whether the canvas shows a method, by the name that its button has.
export const isShown = ({ profile, settings }, name) => nameOf(settings, profile.agents.length) === name;
