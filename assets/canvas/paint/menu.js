// A button with a short menu beside it. items: [{ text, id, run }].
import { put } from "../../nodes.js";

const GAP = 6;

export const mountMenu = (parent, button, items) => {
  const menu = put(parent, "div", { class: "cv-menu", popover: "auto", role: "group", "aria-label": button.textContent });
  for (const { text, id, run } of items) {
    const item = put(menu, "button", { type: "button", class: "cv-btn", id }, text);
    item.addEventListener("click", () => {
      menu.hidePopover();
      run();
    });
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
