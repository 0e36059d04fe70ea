// @ts-check
// Arrow keys: along a slider, and in a radio group. Independent of the page.

/** The new position of a slider, 0 to last, after a key, or null for another key; page: step of Page Up and Page Down.
 * @param {string} key @param {number} at @param {number} last @param {number} page */
export const sliderPlace = (key, at, last, page) => {
  const to = {
    ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageUp: at + page, PageDown: at - page, Home: 0, End: last,
  }[key];
  return to === undefined ? null : Math.max(0, Math.min(last, to));
};

/** Let arrow keys cycle through a group. @param {HTMLElement} group @param {(step: 1 | -1) => void} go */
export const stepByArrows = (group, go) => group.addEventListener("keydown", (event) => {
  const step = /** @type {1 | -1 | undefined} */ ({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key]);
  if (!step) return;
  event.preventDefault();
  go(step);
});
