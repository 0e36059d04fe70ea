// @ts-check
// The page's colors for drawing on a canvas, read again when the theme changes.

const NAMES = ["ink", "panel", "sunken", "hair", "unique", "shared", "unchanged", "outline", "left", "good", "bad", "accent-ink"];

let cache = null;

export const forgetColors = () => { cache = null; };

/** @returns {any} */
export const colors = () => {
  if (cache) return cache;
  // Computed values: system colors have names, which a canvas would resolve differently.
  const probe = document.body.appendChild(document.createElement("span"));
  const read = (name) => {
    probe.style.color = `var(--ram-${name})`;
    return getComputedStyle(probe).color;
  };
  cache = {
    ...Object.fromEntries(NAMES.map((name) => [name, read(name)])),
    agents: Array.from({ length: 8 }, (_, t) => read(`agent-${t}`)),
  };
  probe.remove();
  return cache;
};

export const agentColor = (t) => colors().agents[t % 8];
