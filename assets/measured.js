// @ts-check
// The measured rows of the loaded models: the shipped table, and rows from the user's work.
import { setTable } from "./canvas/canvas.js";
import { withRows } from "./canvas/model/data.js";
import { state } from "./canvas/store.js";
import { onSent } from "./nodes.js";

/** @type {WeakMap<any, any>} profile -> its table, when loaded */
const shipped = new WeakMap();
/** @type {any} the server's value, see measure_panel.py */
let received = null;

/** Gradio calls this when the panel is mounted. */
export const mountMeasured = (props, watch) => {
  onSent(props, watch, (value) => {
    received = value;
    showTable();
  });
};

/** Loaded as a separate file, after the counts and outside of sessions. */
export const fetchTable = (profile) => {
  showTable();
  if (!profile.skills_at) return;
  fetch(profile.skills_at).then((answer) => answer.json()).then((table) => {
    shipped.set(profile, table);
    showTable();
  }).catch(() => {}); // the page is closing: nothing is shown as measured
};

/** The shipped table of a profile with newer rows; for models without one the table of common answers of base, agents
 * and merges; or null. */
export const tableOf = (profile) => {
  const table = shipped.get(profile);
  if (!table) return profile.skills_at ? null : ownTable(profile);
  const more = received?.table;
  const isOfThese = more && more.prompts.join("\n") === table.prompts.join("\n");
  return isOfThese ? withRows(table, more) : table;
};

const ownTable = (profile) => {
  const sources = received?.table?.rows.filter((row) => row.kind === "source").map((row) => row.method) || [];
  return sources.join("\n") === ["base", ...profile.agents].join("\n") ? received.table : null;
};

const showTable = () => {
  const { profile } = state;
  const table = profile && tableOf(profile);
  if (table) setTable(profile, table);
};
