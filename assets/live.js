// The Tune step: its cards and charts, drawn at every move of a slider without asking the server, and
// links that carry the settings.
import { BARS_HINT, groupedBars, layerName } from "./bars.js";
import { cardKept, drawDetails, mountDetails } from "./details.js";
import { settingsRest } from "./microscope.js";
import { marker, named, put } from "./nodes.js";
import { compute, count, epsilon, factor, percent, quotient, ratio } from "./numbers.js";

let profile = null;
let state = { point: null, rule: "ram+", r: 0.1, alpha: 2 };
let root = null;
let grouping = "layer";
let cards = [];
let frame = 0;
let pointed = null;

export const hasProfile = () => profile !== null;

const part = (name) => root && root.querySelector(`[data-part="${name}"]`);

// Gradio calls this when the Tune panel is mounted; `watch` reports new values from the server.
export const mount = (element, props, watch) => {
  root = element;
  watch("value", () => setProfile(props.value));
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-grouping]");
    if (button) setGrouping(button.dataset.grouping);
  });
  part("bars").addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !profile) return;
    event.preventDefault();
    const last = groups().labels.length - 1;
    pointed = pointed === null ? (move > 0 ? 0 : last) : Math.min(last, Math.max(0, pointed + move));
    drawBars();
  });
  mountDetails(element, redraw);
  part("dialects-more").addEventListener("toggle", () => redraw());
  if (props.value) setProfile(props.value);
  if (window.ResizeObserver) new ResizeObserver(() => redraw()).observe(element);
};

const setGrouping = (value) => {
  grouping = value;
  pointed = null;
  redraw();
};

export const setProfile = (value) => {
  const parsed = typeof value === "string" && value ? JSON.parse(value) : value;
  profile = parsed && parsed.agents ? parsed : null;
  pointed = null;
  cards = [];
  if (!root || !profile) return;
  if (state.point === null) state.point = profile.default_index;
  buildCards();
  draw();
  settingsRest();
};

export const update = (point, r, alpha, rule) => {
  state = { point: Number(point), r: Number(r), alpha: Number(alpha), rule: rule || state.rule };
  redraw();
  settingsRest();
  remember();
};

// At most one drawing a frame, always of the latest state: the last move is what stays on screen.
export const redraw = () => {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(); });
};

const buildCards = () => {
  const box = part("cards");
  box.replaceChildren();
  box.dataset.count = profile.agents.length;
  cards = profile.agents.map((name, t) => {
    const card = put(box, "article", { class: "agent-card", "data-agent": name });
    card.style.setProperty("--agent", `var(--ram-agent-${t % 8})`);
    const head = put(card, "header");
    const title = put(head, "h3");
    marker(title, t);
    put(title, "span", { class: "name", title: name }, name);
    const density = put(head, "span", { class: "density" });
    const big = put(card, "p", { class: "lambda" });
    put(big, "span", { class: "symbol" }, "λ");
    const value = put(big, "b");
    const note = put(big, "span", { class: "note" });
    const lines = put(card, "dl", { class: "formula" });
    const row = (symbol) => {
      put(lines, "dt", {}, symbol);
      return put(lines, "dd");
    };
    const rho = row("ρ");
    const lambda = row("λ");
    const bar = put(card, "div", { class: "split", role: "img" });
    const own = put(bar, "i", { class: "own" });
    put(bar, "i", { class: "rest" });
    const legend = put(card, "p", { class: "split-legend" });
    const kept = profile.rounding ? put(card, "p", { class: "split-legend kept" }) : null;
    // Only when the agents are stored in another number format than the base.
    const stored = profile.as_base_dtype_overlap ? put(card, "p", { class: "split-legend" }) : null;
    return { card, density, value, note, rho, lambda, bar, own, legend, kept, stored };
  });
};

const size = (value) => Number(value.toPrecision(3)).toString();

// The ratio that the rule uses, with its numbers, and the other one in a word.
const ratioText = (node, agent, t) => {
  node.replaceChildren();
  const isBySize = state.rule === "ram+m" && agent.rhoM !== null;
  const [top, bottom] = isBySize
    ? [profile.relations.shared_magnitude, profile.relations.unique_magnitude]
      .map((sums) => size(sums[state.point][t]))
    : [count(agent.shared), count(agent.unique)];
  put(node, "span", {}, isBySize ? "sum |τ| shared ÷ sum |τ| unique" : "shared ÷ unique");
  put(node, "span", {}, `= ${top} ÷ ${bottom} = `)
    .append(Object.assign(document.createElement("b"), {
      textContent: ratio(isBySize ? agent.rhoM : agent.rho),
    }));
  if (agent.rhoM === null) return;
  put(node, "span", { class: "aside" }, isBySize
    ? `by count: ${ratio(agent.rho)}` : `by size of change: ${ratio(agent.rhoM)}`);
};

const factorText = (node, agent) => {
  const { rule, r, alpha } = state;
  let general = "1";
  let filled = "";
  if (rule === "ram+" || rule === "ram+m") {
    const rho = rule === "ram+" ? agent.rho : agent.rhoM;
    general = "1 + r · min(ρ, α)";
    filled = rho === null ? "" : `= 1 + ${r} · min(${ratio(rho)}, ${alpha})`;
  } else if (rule === "ram+s") {
    general = "1 + r · ρ ÷ (1 + ρ)";
    const soft = agent.rho === Infinity ? 1 : agent.rho / (1 + agent.rho);
    filled = `= 1 + ${r} · ${soft.toFixed(3)}`;
  }
  node.replaceChildren();
  put(node, "span", {}, general);
  if (filled) put(node, "span", {}, filled);
};

const drawCard = (parts, agent, t) => {
  const { card } = parts;
  card.dataset.epsilon = String(profile.ladder[state.point]);
  card.dataset.rho = String(agent.rho);
  card.dataset.rhoM = String(agent.rhoM);
  card.dataset.lambda = String(agent.lambda);
  parts.density.textContent = `changed ${percent(agent.density)}`;
  parts.value.textContent = factor(agent.lambda);
  const capped = (state.rule === "ram+" && agent.rho > state.alpha)
    || (state.rule === "ram+m" && agent.rhoM > state.alpha);
  let note = "";
  if (!agent.active) note = "changed nothing";
  else if (agent.lambda === null) note = "analyze again: this sketch has no sizes by region";
  else if (capped) note = "capped by α";
  else if (state.rule === "ram") note = "no rescaling";
  parts.note.textContent = note;
  ratioText(parts.rho, agent, t);
  factorText(parts.lambda, agent);
  const own = agent.active ? agent.unique / agent.active : 0;
  parts.own.style.width = `${100 * own}%`;
  parts.bar.classList.toggle("empty", !agent.active);
  parts.legend.textContent = agent.active
    ? `${percent(own)} alone · ${percent(1 - own)} shared` : "no weight moved by more than ε";
  parts.bar.setAttribute("aria-label", parts.legend.textContent);
  if (parts.kept) drawKept(parts.kept, agent, t);
  if (parts.stored) {
    const [unique, ...rest] = profile.as_base_dtype_overlap[state.point][t];
    const shared = rest.reduce((a, b) => a + b, 0);
    const share = percent(profile.total ? (unique + shared) / profile.total : 0);
    parts.stored.textContent = `rounded to the base's format: changed ${share}, `
      + `ρ ${ratio(quotient(shared, unique))}`;
  }
};

// A small meter: what the base's format keeps of the asked rescale, rounded to nearest.
const drawKept = (box, agent, t) => {
  const kept = cardKept(profile, state.point, t, agent.lambda);
  box.replaceChildren();
  box.hidden = !kept || kept.asked <= 1;
  card(t).dataset.kept = kept ? String(kept.kept) : "";
  if (box.hidden) return;
  // Where the range is as wide as the rescaling itself, nothing can be said yet.
  if (kept.width >= kept.asked - 1) {
    box.append(`what ${kept.dtype} keeps: known after the merge`);
    return;
  }
  const share = Math.min(1, Math.max(0, (kept.kept - 1) / (kept.asked - 1)));
  const meter = put(box, "span", { class: "meter" });
  put(meter, "i").style.width = `${100 * share}%`;
  box.append(`stored in ${kept.dtype}: λ ${factor(kept.kept)}`);
};

const card = (t) => cards[t].card;

const groups = () => {
  const wanted = grouping === "module" && profile.modules ? "module" : "layer";
  return {
    wanted,
    labels: wanted === "module" ? profile.modules : profile.layers,
    totals: wanted === "module" ? profile.module_total : profile.layer_total,
    active: wanted === "module" ? profile.module_active : profile.layer_active,
  };
};

const drawBars = () => {
  const box = part("bars");
  const { wanted, labels, totals, active } = groups();
  for (const button of root.querySelectorAll("[data-grouping]")) {
    button.setAttribute("aria-pressed", String(button.dataset.grouping === wanted));
  }
  const share = (point, g, t) => (totals[g] ? active[point][g][t] / totals[g] : 0);
  // The scale is that of epsilon 0, so a rising epsilon visibly takes the bars down.
  let top = 0;
  labels.forEach((_, g) => profile.agents.forEach((__, t) => { top = Math.max(top, share(0, g, t)); }));
  groupedBars(box, {
    labels,
    isRotated: wanted === "module",
    series: profile.agents.map((_, t) => `var(--ram-agent-${t % 8})`),
    value: (g, t) => share(state.point, g, t),
    top,
    aria: `Share of weights each agent changed, in ${labels.length} groups; details on pointing`,
    pointed,
    onPoint: (g) => { pointed = g; drawReadout(); },
  });
  drawReadout();
};

const drawReadout = () => {
  const box = part("readout");
  const { wanted, labels, totals, active } = groups();
  box.replaceChildren();
  if (pointed === null || pointed >= labels.length) {
    box.textContent = BARS_HINT;
    return;
  }
  const label = labels[pointed];
  const name = wanted === "layer" ? layerName(label) : label;
  put(box, "b", {}, name);
  profile.agents.forEach((agent, t) => {
    const share = totals[pointed] ? active[state.point][pointed][t] / totals[pointed] : 0;
    named(put(box, "span", { class: "item" }), t, `${agent} ${percent(share)}`);
  });
};

const drawOverlap = (result) => {
  const bar = part("overlap");
  const legend = part("overlap-legend");
  const sum = result.byCount.reduce((a, b) => a + b, 0);
  bar.replaceChildren();
  legend.replaceChildren();
  bar.classList.toggle("empty", sum === 0);
  result.byCount.forEach((count, j) => {
    const share = sum ? count / sum : 0;
    const piece = put(bar, "i");
    piece.style.width = `${100 * share}%`;
    piece.style.background = `var(--ram-overlap-${Math.min(j, 7)})`;
    const item = put(legend, "span", { class: "item" });
    put(item, "i", { class: "swatch", style: `background:var(--ram-overlap-${Math.min(j, 7)})` });
    const name = j === 0 ? "one agent"
      : j + 1 === profile.agents.length ? `all ${j + 1}` : `${j + 1} agents`;
    item.append(`${name} `);
    put(item, "b", {}, percent(share));
  });
  bar.setAttribute("aria-label", legend.textContent);
  const changed = profile.total ? sum / profile.total : 0;
  part("changed").textContent = `${percent(changed)} of all weights (${count(sum)}) changed by anyone`;
};

const drawDialects = (result) => {
  if (!part("dialects-more").open) return;
  const body = part("dialects");
  body.replaceChildren();
  result.agents.forEach((agent, t) => {
    const row = put(body, "tr");
    named(put(row, "th", { scope: "row" }), t, agent.name);
    const cell = (value, strong) => put(row, "td", strong ? { class: "strong" } : {}, factor(value));
    cell(agent.lambda, true);
    cell(agent.dialects.paper);
    cell(agent.dialects.script);
    cell(agent.dialects.mergekit);
  });
};

const drawVerdict = () => {
  const box = part("verdict");
  const verdict = profile.verdicts ? profile.verdicts[state.point] : null;
  box.hidden = !verdict;
  if (!verdict) return;
  box.dataset.tone = verdict.tone;
  const text = part("verdict-text");
  if (text.textContent !== verdict.text) text.textContent = verdict.text;
};

const drawStrip = (result) => {
  const strip = document.getElementById("ram-strip");
  if (!strip) return;
  strip.replaceChildren();
  const list = put(strip, "div", { class: "items" });
  put(list, "span", { class: "item" }, `ε ${epsilon(result.epsilon)}`);
  result.agents.forEach((agent, t) => {
    const item = put(list, "span", { class: "item" });
    marker(item, t);
    put(item, "span", { class: "name" }, agent.name);
    item.append(" λ ");
    put(item, "b", {}, factor(agent.lambda));
  });
};

const drawSettings = () => {
  for (const node of document.querySelectorAll("[data-live=epsilon]")) {
    node.textContent = epsilon(profile ? profile.ladder[state.point] : 0);
  }
  // The slider counts ladder points; what it stands for is said aloud and shown beside it.
  for (const input of document.querySelectorAll("#epsilon input")) {
    if (input.type === "range") input.setAttribute("aria-valuetext", epsilon(profile.ladder[state.point]));
    else input.tabIndex = -1;
  }
  const alpha = document.getElementById("alpha");
  const r = document.getElementById("r");
  // Not disabled: only faded, with the reason in its help text, so nothing jumps.
  if (alpha) alpha.classList.toggle("unused", state.rule !== "ram+" && state.rule !== "ram+m");
  if (r) r.classList.toggle("unused", state.rule === "ram");
  for (const node of document.querySelectorAll("[data-live=settings]")) {
    node.textContent = `ε ${epsilon(profile.ladder[state.point])} · r ${state.r} · α ${state.alpha}`;
  }
};

const draw = () => {
  if (!profile || !root || state.point === null) return;
  state.point = Math.min(Math.max(0, state.point), profile.ladder.length - 1);
  if (cards.length !== profile.agents.length) buildCards();
  const result = compute(profile, state.point, state.rule, state.r, state.alpha);
  result.agents.forEach((agent, t) => drawCard(cards[t], agent, t));
  drawVerdict();
  drawBars();
  drawOverlap(result);
  drawDialects(result);
  drawDetails(profile, state, result);
  drawStrip(result);
  drawSettings();
};

// ---------------------------------------------------------------- links

export const link = () => {
  const url = new URL(window.location.href);
  const keep = url.searchParams.get("__theme");
  url.search = "";
  if (profile && profile.example) url.searchParams.set("example", profile.example);
  url.searchParams.set("epsilon", String(profile ? profile.ladder[state.point] : 1e-5));
  url.searchParams.set("r", String(state.r));
  url.searchParams.set("alpha", String(state.alpha));
  url.searchParams.set("rule", state.rule);
  if (keep) url.searchParams.set("__theme", keep);
  return url;
};

let timer = 0;
export const remember = () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (profile && document.body.dataset.step !== "load") {
      history.replaceState(history.state, "", link());
    }
  }, 200);
};

const say = (text) => {
  const box = part("link");
  if (!box) return;
  box.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { box.textContent = ""; }, 6000);
};

export const copyLink = async () => {
  const link = link().toString();
  history.replaceState(history.state, "", link);
  try {
    await navigator.clipboard.writeText(link);
    say(profile && profile.example
      ? "Link copied. It opens this example with these settings."
      : "Link copied. It carries the settings; your models stay on this machine.");
  } catch {
    say("The link is in the address bar: copy it from there.");
  }
};
