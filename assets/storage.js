// @ts-check
// A tab's and a browser's storage, with this app's prefix. Where storage is refused, as in some private windows, nothing
// is stored.

/** @param {() => Storage} storage requested each time: a browser may refuse access to it */
const memory = (storage) => {
  /** @param {string} key @returns {string | null} */
  const read = (key) => {
    try { return storage().getItem(`ram-${key}`); } catch { return null; }
  };
  return {
    read,
    /** The stored JSON value; null without one. @param {string} key */
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

/** For all tabs, permanently. */
export const browserMemory = memory(() => localStorage);
