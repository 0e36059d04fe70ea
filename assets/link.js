// The page's address: the step, and what Tune shows. ram_studio/app/tune/deep_link.py reads it, says what
// each key means and checks what stands there; here it is only written.

const THEME = "__theme";

const bare = (now) => {
  const url = new URL(now);
  const theme = url.searchParams.get(THEME);
  url.search = "";
  url.hash = "";
  return { url, theme };
};

const written = ({ url, theme }, entries) => {
  for (const [key, value] of entries) {
    if (value !== null && value !== undefined) url.searchParams.set(key, String(value));
  }
  if (theme) url.searchParams.set(THEME, theme);
  return url;
};

// The address of what is shown. now: the present one, whose theme stays; shown: the store's state.
export const linkOf = (now, step, { profile, settings, pin, focus, weight, lesson, isPresented }) => {
  const epsilon = (point) => profile.epsilon_grid[point];
  // A scene of the lesson has models and settings of its own.
  if (lesson && step === "tune") return written(bare(now), [["lesson", lesson], ["present", isPresented ? 1 : null]]);
  return written(bare(now), [
    ["step", step === "tune" ? null : step],
    ["set", profile.set],
    ["epsilon", epsilon(settings.point)], ["r", settings.r], ["alpha", settings.alpha], ["rule", settings.method],
    ["pin", pin && [pin.method, epsilon(pin.point), pin.r, pin.alpha].join("_")],
    ["focus", focus === null ? null : profile.agents[focus]],
    ["tensor", weight && weight.tensor], ["element", weight && weight.element],
  ]);
};

// The address of a page that shows no models, such as the past.
export const pageLink = (now, step) => written(bare(now), [["step", step]]);
