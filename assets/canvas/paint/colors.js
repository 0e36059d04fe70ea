// @ts-check
// The page's colors for drawing on a canvas, read again when light and dark are switched.

const NAMES = ["ink", "panel", "sunken", "hair", "unique", "shared", "unchanged", "outline", "left", "good", "bad", "accent-ink"];

let known = null;

export const forgetColors = () => { known = null; };

/** @returns {any} */
export const colors = () => {
  if (known) return known;
  const style = getComputedStyle(document.body);
  const read = (name) => style.getPropertyValue(`--ram-${name}`).trim();
  known = {
    ...Object.fromEntries(NAMES.map((name) => [name, read(name)])),
    agents: Array.from({ length: 8 }, (_, t) => read(`agent-${t}`)),
  };
  return known;
};

export const agentColor = (t) => colors().agents[t % 8];
