// @ts-check
// The URL of Tune's current view, written here. ram_studio/app/session/deep_link.py documents, parses and checks it.
import { addressOf } from "../../link.js";
import { METHODS, nameOf } from "./methods.js";
import { weightsLine } from "./weights.js";

// The dials of a setting with their values, for a link; a named place has none.
const dialsOf = (profile, settings) => {
  const name = nameOf(settings, profile.agents.length);
  const keys = METHODS[name]?.dials ?? [];
  const weights = weightsLine(settings.weights);
  return [name, [
    ...keys.map((key) => (key === "point" ? ["epsilon", profile.epsilon_grid[settings.point]] : [key, settings[key]])),
    ...(weights ? [["weights", weights]] : []),
  ]];
};

/** The URL of the current view. now: the current URL, whose theme stays; state: the store's. */
export const linkOf = (now, step, { profile, settings, dial, pin, weight, lesson, isPresented }) => {
  // A scene of the lesson has its own models and settings.
  if (lesson && step === "tune") return addressOf(now, [["lesson", lesson], ["present", isPresented ? 1 : null]]);
  const [rule, dials] = dialsOf(profile, settings);
  const [pinned, pinnedDials] = pin ? dialsOf(profile, pin) : [null, []];
  return addressOf(now, [
    ["step", step === "tune" ? null : step], ["set", profile.set], ["rule", rule], ...dials,
    ["dial", dial && dial !== METHODS[settings.method].dials[0] ? dial : null],
    ["pin", pin && [pinned, ...pinnedDials.map((entry) => entry.join("="))].join("~")],
    ["tensor", weight && weight.tensor], ["element", weight && weight.element],
  ]);
};
