// Building nodes: elements, markers of agents, texts with values filled in.
(() => {
  "use strict";
  const RAM = window.RAM;
  const SVG = "http://www.w3.org/2000/svg";
  const SHAPES = window.RAM_SHAPES || ["M1 1h10v10H1Z"];

  // The page's texts, from wording.py.
  RAM.text = window.RAM_TEXT || {};

  RAM.fill = (template, values) =>
    String(template).replace(/\{(\w+)\}/g, (_, key) => (key in values ? values[key] : ""));

  // Text stays text: nothing is ever parsed as HTML.
  RAM.put = (parent, tag, attributes = {}, ...children) => {
    const svg = parent instanceof SVGElement || tag === "svg";
    const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    parent.append(node);
    return node;
  };

  // Outline of an agent's marker in a box of 12 by 12.
  RAM.shape = (agent) => SHAPES[agent % SHAPES.length];

  RAM.marker = (parent, agent) => {
    const svg = RAM.put(parent, "svg", { class: "marker", viewBox: "0 0 12 12", "aria-hidden": "true" });
    RAM.put(svg, "path", {
      d: RAM.shape(agent), style: `fill:var(--ram-agent-${agent % 8})`,
    });
    return svg;
  };
})();
