// @ts-check
// The lesson on a projector: the keys of a presenter's remote.

const ON = ["ArrowRight", "PageDown"];
const BACK = ["ArrowLeft", "PageUp"];
const MOVED_BY_ARROWS = "input, textarea, select, [role=slider], [role=radio], [role=radiogroup]";
const PRESSED_BY_SPACE = "button, a, summary, input, textarea";

/** Page keys turn the panels with any focus; arrows and the space bar if no other control uses them.
 * @param {() => unknown} isOn @param {{ next: () => void, back: () => void, left: () => void }} turn left: after Esc */
export const followKeys = (isOn, { next, back, left }) => {
  document.addEventListener("keydown", (event) => {
    if (!isOn() || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = /** @type {Element} */ (event.target);
    if (event.key === "Escape") setTimeout(left);
    const isTaken = event.key === " " ? at.closest(PRESSED_BY_SPACE) : event.key.startsWith("Arrow") && at.closest(MOVED_BY_ARROWS);
    const turn = ON.includes(event.key) || event.key === " " ? next : BACK.includes(event.key) ? back : null;
    if (!turn || isTaken) return;
    event.preventDefault();
    event.stopPropagation();
    turn();
  }, true);
};
