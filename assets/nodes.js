// @ts-check
// Building nodes: elements and the markers of agents.
export const SVG = "http://www.w3.org/2000/svg";

/** Text stays text: nothing is ever parsed as HTML. @param {Element} parent @param {string} tag
 * @param {Record<string, any>} [attributes] @param {(string | number | Node)[]} children @returns {any} */
export const put = (parent, tag, attributes = {}, ...children) => {
  const svg = parent instanceof SVGElement || tag === "svg";
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(.../** @type {string[]} */ (children)); // numbers become text
  parent.append(node);
  return node;
};

/** A button with a click handler. @param {Element} parent @param {string} text @param {(event: any) => any} act
 * @param {Record<string, any>} [attributes] @returns {any} */
export const putButton = (parent, text, act, attributes = {}) => {
  const button = put(parent, "button", { type: "button", ...attributes }, text);
  button.addEventListener("click", act);
  return button;
};

/** Set a text if it differs. @param {Node} node @param {string} text */
export const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };

/** Set the ARIA attributes of a slider, or, without a current position, of a static picture. @param {Element} node
 * @param {{ label: string, least?: number, most?: number, now?: number, text?: string }} said */
export const saySlider = (node, { label, least, most, now, text }) => {
  const [role, tabindex] = now === undefined ? ["img", -1] : ["slider", 0];
  const attributes = { role, tabindex, "aria-label": label, "aria-valuemin": least, "aria-valuemax": most, "aria-valuenow": now, "aria-valuetext": text };
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
  }
};

/** Call take(event) when a pointer presses a node, and while it is dragged. @param {HTMLElement} node
 * @param {(event: PointerEvent) => void} take */
export const onDrag = (node, take) => {
  node.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    node.setPointerCapture(event.pointerId);
    take(event);
  });
  node.addEventListener("pointermove", (event) => { if (node.hasPointerCapture(event.pointerId)) take(event); });
};

/** Outline of an agent's marker in a box of 12 by 12, as in colors.py. @param {number} agent */
export const shape = (agent) => {
  const shapes = window.RAM_SHAPES || ["M1 1h10v10H1Z"];
  return shapes[agent % shapes.length];
};

/** @param {Element} parent @param {number} agent */
export const marker = (parent, agent) => {
  const svg = put(parent, "svg", { class: "marker", viewBox: "0 0 12 12", "aria-hidden": "true" });
  put(svg, "path", { d: shape(agent), style: `fill:var(--ram-agent-${agent % 8})` });
  return svg;
};

/** Pass a panel's Gradio value to take, now and after each change: JSON text, or a value; take(null) for none.
 * @param {{ value: any }} props @param {(name: string, read: () => void) => void} watch @param {(value: any) => void} take */
export const onSent = (props, watch, take) => {
  const read = () => {
    const { value } = props;
    take((typeof value === "string" && value ? JSON.parse(value) : value) || null);
  };
  watch("value", read);
  read();
};

/** A text with the agent's marker before it. @param {HTMLElement} parent @param {number} agent @param {string} text */
export const named = (parent, agent, text) => {
  marker(parent, agent);
  parent.append(text);
  return parent;
};

/** Text in parts, with [text] strong; numbers and units are not separated. @param {HTMLElement} node @param {any[]} pieces */
export const write = (node, pieces) => {
  const unbroken = (text) => text.replaceAll(" %", "\u00a0%");
  node.replaceChildren();
  for (const piece of pieces) {
    if (Array.isArray(piece)) put(node, "b", {}, ...piece.map(unbroken));
    else node.append(unbroken(piece));
  }
  return node;
};
