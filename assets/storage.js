// @ts-check
// What a tab and a browser remember, below names of this app's. Where storage is refused, as some private windows do,
// they remember nothing.

/** @param {() => Storage} storage asked for anew each time: a browser may refuse it when it is named */
const memory = (storage) => {
  /** @param {string} key @returns {string | null} */
  const read = (key) => {
    try { return storage().getItem(`ram-${key}`); } catch { return null; }
  };
  return {
    read,
    /** What is stored as JSON; null where it is not. @param {string} key */
    readJson: (key) => {
      try { return JSON.parse(read(key) ?? "null"); } catch { return null; }
    },
    /** @param {string} key @param {string} value */
    write: (key, value) => {
      try { storage().setItem(`ram-${key}`, value); } catch { /* refused, or full */ }
    },
    /** @param {string} key */
    forget: (key) => {
      try { storage().removeItem(`ram-${key}`); } catch { /* refused */ }
    },
  };
};

/** Until the tab is closed. */
export const tabMemory = memory(() => sessionStorage);

/** Of all tabs, for good. */
export const browserMemory = memory(() => localStorage);
