// @ts-check
// Downloads of files, and copying of text.

/** @param {string} name @param {Blob} blob */
export const download = (name, blob) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
};

/** Copy a text, also on a page over plain http without a clipboard. Return whether it was copied.
 * @param {string} text */
export const copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    const isCopied = document.execCommand("copy");
    box.remove();
    focused?.focus({ preventScroll: true });
    return isCopied;
  }
};
