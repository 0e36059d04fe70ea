// @ts-check
// The page's address, without what it shows: the theme stays, everything else is written anew.
const THEME = "__theme";

/** The address now with only these entries; what is null is left out. @param {string} now @param {any[][]} entries */
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

/** The address of a page that shows no models, such as the past. @param {string} now @param {string} step */
export const pageLink = (now, step) => addressOf(now, [["step", step]]);
