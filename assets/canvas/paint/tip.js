// The box beside the pointer.
import { put } from "../../nodes.js";

let box = null;
let shownFor = null;

export const hideTip = () => {
  if (box) box.hidden = true;
};

// fill(box): writes into it; called only when the key differs from what is shown.
export const showTip = (event, key, fill) => {
  if (!box) box = put(document.body, "div", { class: "cv-tip", "aria-hidden": "true" });
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
