// What is measured of the loaded models: the shipped table, rows that the user's work added, and what TIES
// keeps, for which the server has to merge.
import { setTable, setTies } from "./canvas/canvas.js";
import { onPaint, state } from "./canvas/store.js";
import { withRows } from "./canvas/table.js";
import { onSent } from "./nodes.js";

let shipped = null; // { profile, table }, when the file has come
let known = null; // what the server says, see measure_panel.py
let askedFor = null; // the profile for which TIES was asked

// Gradio calls this when the panel is mounted.
export const mountMeasured = (props, watch) => {
  onSent(props, watch, (value) => {
    known = value;
    tell();
  });
  onPaint(askTies);
};

// A file of its own: the counts are there before it, and sessions do not carry it.
export const fetchTable = (profile) => {
  tell();
  if (!profile.skills_at) return;
  fetch(profile.skills_at).then((answer) => answer.json()).then((table) => {
    shipped = { profile, table };
    tell();
  }).catch(() => {}); // the page is being left: nothing is shown as measured
};

// The shipped table of a profile with what was measured since; of models without one what base, agents and
// merges all answered; or null.
export const tableOf = (profile) => {
  if (shipped?.profile !== profile) return profile.skills_at ? null : ownTable(profile);
  const { table } = shipped;
  const more = known?.table;
  const isOfThese = more && more.prompts.join("\n") === table.prompts.join("\n");
  return isOfThese ? withRows(table, more) : table;
};

const ownTable = (profile) => {
  const sources = known?.table?.rows.filter((row) => row.kind === "source").map((row) => row.method) || [];
  return sources.join("\n") === ["base", ...profile.agents].join("\n") ? known.table : null;
};

const tell = () => {
  const { profile } = state;
  if (!profile) return;
  const names = known?.ties && known.agents;
  if (names && names.join("\n") === profile.agents.join("\n")) setTies(profile, known.ties);
  const table = tableOf(profile);
  if (table) setTable(profile, table);
};

// Small sets are merged as soon as TIES is looked at.
const askTies = ({ profile, settings }) => {
  if (settings.method !== "ties" || profile.ties || !profile.energy || !known?.is_quick || askedFor === profile) return;
  askedFor = profile;
  document.getElementById("ask-ties")?.click();
};
