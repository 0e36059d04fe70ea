// @ts-check
// What is measured of the loaded models: the shipped table, and rows that the user's work added.
import { setTable } from "./canvas/canvas.js";
import { withRows } from "./canvas/model/data.js";
import { state } from "./canvas/store.js";
import { onSent } from "./nodes.js";

/** @type {WeakMap<any, any>} profile -> its table, when the file has come */
const shipped = new WeakMap();
/** @type {any} what the server says, see measure_panel.py */
let received = null;

/** Gradio calls this when the panel is mounted. */
export const mountMeasured = (props, watch) => {
  onSent(props, watch, (value) => {
    received = value;
    showTable();
  });
};

/** A file of its own: the counts are there before it, and sessions do not carry it. */
export const fetchTable = (profile) => {
  showTable();
  if (!profile.skills_at) return;
  fetch(profile.skills_at).then((answer) => answer.json()).then((table) => {
    shipped.set(profile, table);
    showTable();
  }).catch(() => {}); // the page is being left: nothing is shown as measured
};

/** The shipped table of a profile with what was measured since; of models without one what base, agents and
 * merges all answered; or null. */
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
