// @ts-check
// The details of Tune, one click away: effective lambda after rounding, relations of the agents' changes, and the same
// counts in other implementations. Drawn while they are open.
import { agentDots, BARS_HINT, groupedBars } from "./bars.js";
import { hasLambda, lossesOf, retainedToNearest, roundingCurve, roundingSentence, stochasticError, usualFormat } from "./canvas/model/rounding.js";
import { dtypeName, layerTitle } from "./canvas/model/words.js";
import { marker, named, put } from "./nodes.js";
import { count, factor, fixed, percent, ratio, sum } from "./numbers.js";

let root = null;
let shown = null; // the last drawing: { profile, state, result }
let format = null; // index of the output dtype of the layer chart
let measure = "conflict"; // or "cancelled"
const pointed = { rounding: null, relations: null };

const part = (name) => root.querySelector(`[data-part="${name}"]`);
const emptied = (name) => { const node = part(name); node.replaceChildren(); return node; };
const isOpen = (name) => part(`${name}-more`).open;

// redraw: redraws the whole step in the next frame.
export const mountDetails = (element, redraw) => {
  root = element;
  root.addEventListener("click", (event) => {
    const format_ = event.target.closest("[data-format]");
    const measure_ = event.target.closest("[data-measure]");
    if (format_) format = Number(format_.dataset.format);
    else if (measure_) measure = measure_.dataset.measure;
    else return;
    redraw();
  });
  part("dialects-more").addEventListener("toggle", redraw);
  for (const name of ["rounding", "relations"]) {
    part(`${name}-more`).addEventListener("toggle", redraw);
    part(`${name}-chart`).addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !shown) return;
      event.preventDefault();
      const last = shown.profile.layers.length - 1;
      const from = pointed[name] === null ? (step > 0 ? -1 : last + 1) : pointed[name];
      pointed[name] = Math.min(last, Math.max(0, from + step));
      redraw();
    });
  }
};

export const drawDetails = (profile, state, result) => {
  shown = { profile, state, result };
  drawRounding();
  drawRelations();
  drawDialects();
};

// ---------------------------------------------------------------- rounding

const drawRounding = () => {
  const { profile, state, result } = shown;
  const line = part("rounding-line");
  const isKnown = profile.rounding && hasLambda(result.agents);
  part("rounding-more").hidden = !isKnown;
  line.dataset.tone = profile.rounding && lossesOf(profile, state.point, result.agents).length ? "note" : "plain";
  line.textContent = profile.rounding
    ? roundingSentence(profile, state.point, result.agents)
    : "This analysis has no statistics of rounding. Analyze the models again to see what is retained.";
  if (!isKnown || !isOpen("rounding")) return;
  drawRetainedTable();
  drawRetainedByLayer();
};

const headRow = (name, first) => {
  const head = emptied(name);
  put(head, "th", { scope: "col" }, first);
  shown.profile.agents.forEach((name, t) => {
    named(put(head, "th", { scope: "col" }), t, name);
  });
};

const drawRetainedTable = () => {
  const { profile, state, result } = shown;
  headRow("retained-head", "Stored as");
  const body = emptied("retained");
  const row = (name, cells) => {
    const line = put(body, "tr");
    put(line, "th", { scope: "row" }, name);
    for (const [text, more] of cells) {
      const cell = put(line, "td", {}, text);
      if (more) put(cell, "small", {}, more);
    }
  };
  row("requested", result.agents.map((a) => [factor(a.lambda)]));
  const error = (size) => (size >= 0.0005 ? ` ± ${fixed(size, 3)}` : "");
  profile.rounding.dtypes.forEach((dtype, d) => {
    const curves = result.agents.map((agent, t) =>
      agent.lambda === null ? null : roundingCurve(profile, state.point, t, d));
    row(`${dtypeName(dtype)}, to nearest`, result.agents.map((agent, t) => {
      const retained = retainedToNearest(curves[t], agent.lambda, profile.rounding.precision[d]);
      return retained ? [fixed(retained.value, 3), error(retained.high - retained.value)] : ["–"];
    }));
    row(`${dtypeName(dtype)}, stochastic`, result.agents.map((agent, t) => {
      const spread = stochasticError(curves[t], agent.lambda);
      return spread === null ? ["–"] : [factor(agent.lambda), error(spread)];
    }));
  });
};

const drawRetainedByLayer = () => {
  const { profile, result } = shown;
  const { rounding, layers } = profile;
  const d = format === null ? usualFormat(profile) : format;
  for (const button of root.querySelectorAll("[data-format]")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.format) === d));
  }
  const share = (g, t) => {
    const lambda = result.agents[t].lambda;
    const curve = rounding.layers[g][t][d];
    if (lambda === null || !curve) return null;
    return retainedToNearest(curve, lambda, rounding.precision[d]).value / lambda;
  };
  const readout = () => drawReadout("rounding", layers, share);
  agentDots(part("rounding-chart"), {
    labels: layers, agents: profile.agents.length, value: share,
    aria: `Share of the intended change that ${dtypeName(rounding.dtypes[d])} keeps, by layer and agent`,
    pointed: pointed.rounding,
    onPoint: (g) => { pointed.rounding = g; readout(); },
  });
  readout();
};

const drawReadout = (name, layers, value) => {
  const box = emptied(`${name}-readout`);
  const g = pointed[name];
  if (g === null || g >= layers.length) {
    box.textContent = BARS_HINT;
    return;
  }
  put(box, "b", {}, layerTitle(layers[g]));
  const item = (label, share, t) => {
    const node = put(box, "span", { class: "item" });
    if (t !== null) marker(node, t);
    node.append(`${label} ${orDash(share)}`);
  };
  if (name === "relations" && measure === "conflict") {
    item("opposite signs", value(g, 0), null);
    return;
  }
  shown.profile.agents.forEach((agent, t) => item(agent, value(g, t), t));
};

// ---------------------------------------------------------------- relations

const over = (part_, whole) => (part_ === null || part_ === undefined || !whole ? null : part_ / whole);
const orDash = (value) => (value === null ? "–" : percent(value));

const drawRelations = () => {
  const { profile, state } = shown;
  const relations = profile.relations;
  part("relations").hidden = profile.agents.length < 2;
  part("relations-more").hidden = !relations;
  const line = part("relations-line");
  if (!relations) {
    line.textContent = "This analysis has no statistics of signs and sizes. Analyze the models again to "
      + "see them.";
    return;
  }
  const k = state.point;
  const conflict = relations.conflict ? over(relations.conflict[k], relations.shared[k]) : null;
  const mass = relations.cancelled
    ? over(2 * sum(relations.cancelled[k]), sum(relations.shared_magnitude[k])) : null;
  line.textContent = relations.shared[k]
    ? `${orDash(conflict)} of the shared weights are pulled in opposite directions; in their mean `
      + `${orDash(mass)} of the shared change cancels out.`
    : "At this ε no weight is shared, so nothing can cancel out.";
  if (!isOpen("relations")) return;
  drawAgents();
  drawCosines();
  drawBounds();
  drawPairs();
  drawConflictByLayer();
};

const agentHead = (row, t) => {
  named(put(row, "th", { scope: "row" }), t, shown.profile.agents[t]);
};

const drawAgents = () => {
  const { profile, state, result } = shown;
  const { shared_magnitude, cancelled } = profile.relations;
  const body = emptied("agree-agents");
  result.agents.forEach((agent, t) => {
    const row = put(body, "tr");
    agentHead(row, t);
    put(row, "td", {}, ratio(agent.rho));
    put(row, "td", {}, ratio(agent.rhoM));
    const lost = cancelled
      ? over(cancelled[state.point][t], shared_magnitude[state.point][t]) : null;
    put(row, "td", {}, orDash(lost));
  });
};

const drawCosines = () => {
  const { profile } = shown;
  headRow("cosine-head", "Agent");
  const body = emptied("cosine");
  profile.relations.cosine.forEach((line, t) => {
    const row = put(body, "tr");
    agentHead(row, t);
    line.forEach((value, u) => {
      const cell = put(row, "td", {}, t === u ? "·" : value === null ? "–" : fixed(value, 3).replace("-", "−"));
      const weight = t === u || value === null ? 0 : Math.abs(value);
      cell.style.background = `color-mix(in srgb, var(--ram-accent) ${Math.round(45 * weight)}%, transparent)`;
    });
  });
};

/** The largest number of a list that may be missing or incomplete. */
const largestOf = (values) => Math.max(...(values ?? []).filter((value) => value !== null));

const drawBounds = () => {
  const { cosine_floor: floor, cosine_ceiling: ceiling } = shown.profile.relations;
  const [low, high] = [largestOf(floor), largestOf(ceiling)];
  const most = Number.isFinite(high) ? ` Where both changed, at most ${fixed(high, 2)} is possible.` : "";
  part("cosine-bounds").textContent = Number.isFinite(low) ? `Shuffled updates give ±${fixed(low, 3)}.${most}` : "";
};

const drawPairs = () => {
  const { profile, state } = shown;
  const { pair_both, pair_opposite, pair_magnitude, pair_cancelled } = profile.relations;
  const k = state.point;
  const body = emptied("pairs");
  let p = 0;
  for (let a = 0; a < profile.agents.length; a += 1) {
    for (let b = a + 1; b < profile.agents.length; b += 1, p += 1) {
      const row = put(body, "tr");
      const head = put(row, "th", { scope: "row" });
      for (const t of [a, b]) {
        named(put(head, "span", { class: "item" }), t, profile.agents[t]);
      }
      put(row, "td", {}, count(pair_both[k][p]));
      put(row, "td", {}, orDash(over(pair_opposite[k][p], pair_both[k][p])));
      put(row, "td", {}, orDash(over(pair_cancelled[k][p], pair_magnitude[k][p])));
    }
  }
};

const drawConflictByLayer = () => {
  const { profile } = shown;
  const layer = profile.relations.layer;
  for (const button of root.querySelectorAll("[data-measure]")) {
    button.setAttribute("aria-pressed", String(button.dataset.measure === measure));
  }
  const isConflict = measure === "conflict";
  const known = isConflict ? layer.conflict : layer.cancelled;
  const value = (g, t) => {
    if (!known) return null;
    return isConflict ? over(layer.conflict[g], layer.shared[g])
      : over(layer.cancelled[g][t], layer.shared_magnitude[g][t]);
  };
  const series = isConflict ? ["var(--ram-accent)"]
    : profile.agents.map((_, t) => `var(--ram-agent-${t % 8})`);
  let top = 0;
  profile.layers.forEach((_, g) => series.forEach((__, s) => { top = Math.max(top, value(g, s) || 0); }));
  const readout = () => drawReadout("relations", profile.layers, value);
  groupedBars(part("relations-chart"), {
    labels: profile.layers, series, value: (g, s) => value(g, s) || 0, top: top || 1,
    aria: isConflict ? "Share of shared weights with opposite signs, by layer" : "Share of the shared change that cancels out, by layer and agent",
    pointed: pointed.relations,
    onPoint: (g) => { pointed.relations = g; readout(); },
  });
  readout();
};

// ---------------------------------------------------------------- other implementations

const drawDialects = () => {
  if (!isOpen("dialects")) return;
  const body = emptied("dialects");
  shown.result.agents.forEach((agent, t) => {
    const row = put(body, "tr");
    agentHead(row, t);
    const { paper, script, mergekit } = agent.dialects;
    put(row, "td", { class: "strong" }, factor(agent.lambda));
    for (const value of [paper, script, mergekit]) put(row, "td", {}, factor(value));
  });
};
