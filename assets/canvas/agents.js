// What the merge makes of each agent: lambda, rho, and how much of its update is kept.
import { marker, named, put } from "../nodes.js";
import { count, factor } from "../numbers.js";
import { METHODS } from "./methods.js";
import { onPaint, shown, state } from "./store.js";
import { focusAgent } from "./stage.js";
import { LITTLE } from "./verdict.js";
import { brief, retainedText, lambdaText, ratioText, timesText } from "./words.js";

const MOST_KEPT = 1.25; // at the end of a bar
const MOST_ELSE = 10;
const FAR = 1.5;
const ALIGNED = 0.1; // of an update that the others bring along with theirs
const PIECES = {
  unique: "unique", boost: "boost", shared: "shared", below: "outline",
  lostUnique: "unique-soft", lostShared: "shared-soft", lostBelow: "unchanged",
};
const LEGEND = [
  ["unique", "unique"], ["shared", "shared"], ["lost", "lost to averaging"], ["unchanged", "below ε"], ["else", "interference"],
];

let part = {};
let rows = [];

export const mountAgents = (column) => {
  const box = put(column, "div", { class: "cv-retained" });
  const title = put(box, "h2");
  const legend = put(box, "p", { class: "cv-legend" });
  let left = null;
  for (const [css, text] of LEGEND) {
    const item = put(legend, "span", css === "else" ? { title: "Everything else in the merge, as a multiple of the agent's own update" } : {});
    put(item, "i", { class: `cv-swatch cv-${css}` });
    const words = put(item, "span", {}, text);
    if (css === "unchanged") left = words;
  }
  const list = put(box, "div", { class: "cv-agents" });
  const note = put(box, "p", { class: "cv-note", "data-part": "along", hidden: "" });
  const formula = put(box, "p", { class: "cv-formula", "data-part": "lambda-formula" });
  part = { title, legend, list, note, formula, left };
  onPaint(paintAgents);
};

export const setAgents = () => {
  const { agents } = state.profile;
  part.list.replaceChildren();
  part.formula.dataset.key = ""; // other models may have the same names
  part.list.classList.toggle("many", agents.length > 5);
  rows = agents.map((name, t) => mountRow(name, t));
};

const mountRow = (name, t) => {
  const box = put(part.list, "button", { type: "button", class: "cv-agent", "aria-pressed": "false", "data-agent": name });
  box.addEventListener("click", () => focusAgent(state.focus === t ? null : t));
  const title = put(box, "span", { class: "cv-name" });
  marker(title, t);
  put(title, "span", { title: name }, name);
  const lambda = put(box, "span", { class: "cv-lambda" });
  put(lambda, "i", {}, "λ");
  const value = put(lambda, "b");
  const bar = put(box, "svg", { class: "cv-retained-bar", height: "16" });
  const pieces = Object.fromEntries(Object.entries(PIECES).map(([key, css]) =>
    [key, put(bar, "rect", { y: "1", height: "14", class: `cv-piece cv-fill-${css}` })]));
  const tick = put(bar, "line", { y1: "-2", y2: "18", class: "cv-whole" });
  const ghost = put(bar, "path", { class: "cv-ghost-bar" });
  const over = put(bar, "path", { class: "cv-over" });
  const retained = put(box, "span", { class: "cv-number" });
  const changed = put(box, "span", { class: "cv-sub" });
  const rho = put(box, "span", { class: "cv-sub" });
  const line = put(box, "svg", { class: "cv-else-bar", height: "8" });
  const rest = put(line, "rect", { y: "2", height: "4", rx: "2", class: "cv-fill-muted" });
  const restGhost = put(line, "line", { y1: "0", y2: "8", class: "cv-whole" });
  const others = put(box, "span", { class: "cv-sub cv-end" });
  return { box, value, bar, pieces, tick, ghost, over, retained, changed, rho, rest, restGhost, others, width: 0 };
};

// Widths are measured once a layout, not in a move.
export const layAgents = () => { for (const row of rows) row.width = 0; };

const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };

const paintAgents = () => {
  const { result, pinned } = shown;
  const { hasRetained } = result;
  part.list.classList.toggle("bare", !hasRetained);
  part.legend.hidden = !hasRetained;
  setText(part.title, hasRetained ? "How much of each agent's update remains" : "Each agent in the merge");
  setText(part.left, state.settings.method === "ties" ? "trimmed" : "below ε");
  result.agents.forEach((agent, t) => paintRow(rows[t], agent, pinned?.agents[t].retained ? pinned.agents[t] : null));
  paintAlong(result.agents);
  paintFormula();
};

// An agent's own part says too little where the others move the same way.
const paintAlong = (agents) => {
  const aligned = agents.filter((a) => a.along >= ALIGNED);
  part.note.hidden = !aligned.length;
  if (!aligned.length) return;
  const least = aligned.reduce((a, b) => (a.retained.sum + a.along < b.retained.sum + b.along ? a : b));
  const whole = retainedText(least.retained.sum + least.along);
  const whose = aligned.length === agents.filter((a) => a.retained).length ? `at least ${whole} of every update` : `${whole} of ${least.name}’s update`;
  const { note } = part;
  if (note.dataset.key === whose) return;
  note.dataset.key = whose;
  note.replaceChildren();
  // The shorter words where the window is low.
  put(note, "span", { class: "cv-long" }, "Including the part shared with agents that moved the same way, the merge retains ");
  put(note, "span", { class: "cv-short" }, "Including the shared part: ");
  note.append(whose);
  put(note, "span", { class: "cv-long" }, "; kept counts own parts only.");
};

const paintRow = (row, agent, pinned) => {
  const { profile, settings, focus } = state;
  const { box } = row;
  setText(row.value, lambdaText(agent.lambda));
  setText(row.changed, agent.active ? `changed ${brief(agent.density)}` : "changed nothing");
  setText(row.rho, `ρ ${ratioText(agent.ratio)}${agent.isCapped ? " › α" : ""}`);
  box.classList.toggle("far", agent.lambda > FAR);
  box.setAttribute("aria-pressed", String(focus === agent.t));
  Object.assign(box.dataset, {
    epsilon: profile.epsilon_grid[settings.point], rho: agent.rho, rhoM: agent.rhoM, lambda: agent.lambda,
    retained: agent.retained ? agent.retained.sum : "", others: agent.others ?? "",
  });
  const words = [`${agent.name}: lambda ${agent.lambda === null ? "none" : lambdaText(agent.lambda)}`, `rho ${ratioText(agent.ratio)}`, `changed ${brief(agent.density)} of the weights`];
  if (agent.retained) words.push(`${retainedText(agent.retained.sum)} of its update kept`, `everything else ${timesText(agent.others)} its update`);
  if (shown.result.hasRetained) paintRetained(row, agent, pinned);
  const label = words.join(", ");
  if (box.getAttribute("aria-label") !== label) box.setAttribute("aria-label", label);
};

// Of an agent that changed nothing there is nothing to retain: an empty bar.
const paintRetained = (row, { retained, others }, pinned) => {
  row.width ||= row.bar.clientWidth;
  const { width } = row;
  const unit = width / MOST_KEPT;
  let x = 0;
  for (const key of Object.keys(PIECES)) {
    const length = retained ? Math.max(0, Math.min(retained[key] * unit, width - x)) : 0;
    row.pieces[key].setAttribute("x", x.toFixed(1));
    row.pieces[key].setAttribute("width", length.toFixed(1));
    x += length;
  }
  row.tick.setAttribute("transform", `translate(${unit} 0)`);
  row.over.setAttribute("d", retained?.sum > MOST_KEPT ? `M${width - 13} -1l10 9l-10 9` : "");
  setText(row.retained, retained ? retainedText(retained.sum) : "–");
  row.retained.classList.toggle("cv-warn-ink", retained?.sum < LITTLE || retained?.sum > FAR);
  setText(row.others, retained ? `others ${timesText(others)}` : "");
  row.rest.setAttribute("width", retained ? Math.min(width, (others * width) / MOST_ELSE).toFixed(1) : 0);
  row.ghost.setAttribute("d", pinned ? `M.8 -1.5H${Math.min(width, pinned.retained.sum * unit)}V17.5H.8` : "");
  row.restGhost.style.display = pinned ? "" : "none";
  if (pinned) row.restGhost.setAttribute("transform", `translate(${Math.min(width, (pinned.others * width) / MOST_ELSE)} 0)`);
};

// The formula of the focused agent, else of the one with the largest lambda; always in the same place.
const paintFormula = () => {
  const { settings, focus, profile } = state;
  const { agents, isRam } = shown.result;
  const t = focus ?? agents.reduce((best, a) => (a.lambda > agents[best].lambda ? a.t : best), 0);
  const agent = agents[t];
  const box = part.formula;
  const key = [t, settings.method, settings.point, settings.r, settings.alpha, agent.name].join("|");
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren();
  put(named(put(box, "b"), t, ` ${agent.name} `), "span");
  if (!isRam) {
    box.append(`${METHODS[settings.method].title} has no ε, ρ or λ: it treats unique and shared changes alike.`);
    return;
  }
  if (agent.lambda === null) {
    box.append("ρ by size needs statistics that this analysis does not have: analyze again.");
    return;
  }
  const isBySize = settings.method === "ram+m";
  const size = (sums) => String(Number(sums[settings.point][t].toPrecision(3)));
  const [top, bottom] = isBySize
    ? [profile.relations.shared_magnitude, profile.relations.unique_magnitude].map(size)
    : [count(agent.shared), count(agent.unique)];
  box.append("ρ = ");
  put(box, "span", { class: "cv-shared-ink" }, "shared");
  box.append(" ÷ ");
  put(box, "span", { class: "cv-unique-ink" }, "unique");
  box.append(`${isBySize ? ", by Σ|τ|," : ""} = ${top} ÷ ${bottom} = `);
  put(box, "b", {}, ratioText(agent.ratio));
  put(box, "br");
  const filled = {
    "ram": "1: unique changes stay as they are",
    "ram+s": `1 + ${settings.r} · ${(agent.rho === Infinity ? 1 : agent.rho / (1 + agent.rho)).toFixed(3)} = `,
  }[settings.method] ?? `1 + ${settings.r} · min(${ratioText(agent.ratio)}, ${settings.alpha}) = `;
  box.append(`λ = ${filled}`);
  if (settings.method !== "ram") put(box, "b", {}, factor(agent.lambda));
  if (agent.isCapped) put(box, "span", { class: "cv-muted" }, ", capped by α");
};
