// @ts-check
// The address of what Tune shows. ram_studio/app/session/deep_link.py reads it, says what
// each key means and checks what stands there; here it is only written.
import { addressOf } from "../../link.js";
import { METHODS, nameOf } from "./methods.js";
import { weightsLine } from "./weights.js";

// The dials of a setting with their values, as a link has them; a named place has none.
const dialsOf = (profile, settings) => {
  const name = nameOf(settings, profile.agents.length);
  const keys = METHODS[name]?.dials ?? [];
  const weights = weightsLine(settings.weights);
  return [name, [
    ...keys.map((key) => (key === "point" ? ["epsilon", profile.epsilon_grid[settings.point]] : [key, settings[key]])),
    ...(weights ? [["weights", weights]] : []),
  ]];
};

/** The address of what is shown. now: the present one, whose theme stays; state: the store's. */
export const linkOf = (now, step, { profile, settings, dial, pin, weight, lesson, isPresented }) => {
  // A scene of the lesson has models and settings of its own.
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
