// The page's colours for drawing on a canvas, read again when light and dark are switched.

let known = null;

export const forgetColors = () => { known = null; };

export const colors = () => {
  if (known) return known;
  const style = getComputedStyle(document.body);
  const read = (name) => style.getPropertyValue(`--ram-${name}`).trim();
  known = {
    ...Object.fromEntries(["ink", "muted", "panel", "sunken", "hair", "unique", "shared"].map((n) => [n, read(n)])),
    unchanged: read("unchanged"),
    outline: read("outline"),
    left: read("left"),
    agents: Array.from({ length: 8 }, (_, t) => read(`agent-${t}`)),
  };
  return known;
};

export const agentColor = (t) => colors().agents[t % 8];
