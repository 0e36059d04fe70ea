// @ts-check
// Initial and target settings of scenes on the canvas.
import { nameOf, usualOf } from "../canvas/model/methods.js";
import { nothingCounts } from "./figures.js";

/** @typedef {import("./scenes.js").Facts} Facts @typedef {import("../canvas/model/methods.js").Settings} Settings */

/** The paper's settings, with changes. @param {Facts} facts @param {Partial<Settings>} [changes] @returns {Settings} */
export const usual = ({ profile }, changes = {}) => ({ ...usualOf(profile.defaults.rule, profile), ...changes });

/** No change counts: the merge is the base. @param {Facts} facts */
export const asBase = (facts) => usual(facts, { point: nothingCounts(facts.profile) });

/** @param {Facts} facts */
export const average = ({ profile }) => usualOf("average", profile);

/** @param {Facts} facts */
export const sumUp = ({ profile }) => usualOf("sum", profile);

/** Whether the canvas shows a method, by its button's name. @param {Facts} facts @param {string} name */
export const isShown = ({ profile, settings }, name) => nameOf(settings, profile.agents.length) === name;
