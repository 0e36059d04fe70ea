// @ts-check
// Popups: the box beside the pointer, and a button's short menu.
import { put, putButton } from "../../nodes.js";

const GAP = 6;

/** @type {HTMLElement | null} */
let box = null;
/** @type {string | null} */
let shownFor = null;

export const hideTip = () => {
  if (box) box.hidden = true;
  shownFor = null; // the text of the same place may have changed
};

/** Whether a dialog or popover is open, which Escape closes first. */
export const isCovered = () => document.querySelector("dialog[open], :popover-open") !== null;

/** @param {PointerEvent} event @param {string} key @param {(box: HTMLElement) => void} fill writes into it; called only when
 * the key differs from what is shown. */
export const showTip = (event, key, fill) => {
  if (!box?.isConnected) box = put(document.body, "div", { class: "cv-tip", "aria-hidden": "true" });
  box.hidden = false;
  if (shownFor !== key) {
    shownFor = key;
    box.replaceChildren();
    fill(box);
  }
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  box.style.left = `${Math.max(6, Math.min(window.innerWidth - width - 8, event.clientX + 14))}px`;
  box.style.top = `${Math.max(6, Math.min(window.innerHeight - height - 8, event.clientY + 16))}px`;
};

/** @param {Element} parent @param {any} button @param {{ text: string, id: string, run: () => void }[]} items */
export const mountMenu = (parent, button, items) => {
  const menu = put(parent, "div", { class: "cv-menu", popover: "auto", role: "group", "aria-label": button.textContent });
  for (const { text, id, run } of items) {
    putButton(menu, text, () => {
      menu.hidePopover();
      run();
    }, { class: "cv-btn", id });
  }
  button.setAttribute("aria-expanded", "false");
  button.popoverTargetElement = menu;
  menu.addEventListener("toggle", ({ newState }) => {
    const isOpen = newState === "open";
    button.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) return;
    const { left, top, bottom } = button.getBoundingClientRect();
    const under = bottom + GAP + menu.offsetHeight < window.innerHeight;
    menu.style.left = `${Math.max(GAP, Math.min(left, window.innerWidth - menu.offsetWidth - GAP))}px`;
    menu.style.top = `${Math.max(GAP, under ? bottom + GAP : top - menu.offsetHeight - GAP)}px`;
    menu.querySelector("button").focus();
  });
};
