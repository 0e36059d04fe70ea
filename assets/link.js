// @ts-check
// The page's URL without its state: the theme stays, everything else is rewritten.
const THEME = "__theme";

/** The current URL with only these entries; null ones are left out. @param {string} now @param {any[][]} entries */
export const addressOf = (now, entries) => {
  const url = new URL(now);
  const theme = url.searchParams.get(THEME);
  url.search = "";
  url.hash = "";
  for (const [key, value] of entries) {
    if (value !== null && value !== undefined) url.searchParams.set(key, String(value));
  }
  if (theme) url.searchParams.set(THEME, theme);
  return url;
};

/** The URL of a page without models, such as History. @param {string} now @param {string} step */
export const pageLink = (now, step) => addressOf(now, [["step", step]]);
