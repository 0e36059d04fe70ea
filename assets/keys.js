// @ts-check
// What arrow keys do: along a slider, and in a group of which one is chosen. Knows nothing of the page.

/** The place to which a key moves a slider that stands at one of the places 0 to last, or null for another key; page:
 * what Page Up and Page Down move. @param {string} key @param {number} at @param {number} last @param {number} page */
export const sliderPlace = (key, at, last, page) => {
  const to = {
    ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageUp: at + page, PageDown: at - page, Home: 0, End: last,
  }[key];
  return to === undefined ? null : Math.max(0, Math.min(last, to));
};

/** Let arrow keys go round a group, one step at a time. @param {HTMLElement} group @param {(step: 1 | -1) => void} go */
export const stepByArrows = (group, go) => group.addEventListener("keydown", (event) => {
  const step = /** @type {1 | -1 | undefined} */ ({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key]);
  if (!step) return;
  event.preventDefault();
  go(step);
});
