// The arithmetic of the Tune step and how numbers read, the same as in Python (tests compare them).
// Knows nothing of the page. Loaded first: it makes the one object that the other scripts share.
window.RAM = {};
(() => {
  "use strict";
  const RAM = window.RAM;

  const RULES = {
    "ram": () => 1,
    "ram+": (rho, r, alpha) => 1 + r * Math.min(Math.max(rho, 0), alpha),
    "ram+s": (rho, r) => 1 + r * (rho === Infinity ? 1 : rho / (1 + rho)),
  };

  // rho and lambda of every agent at one ladder point; the same numbers as Sketch.preview.
  // others[j]: elements of the agent that exactly j other agents changed as well.
  RAM.compute = (profile, point, rule, r, alpha) => {
    const agents = profile.agents.map((name, t) => {
      const others = profile.overlap[point][t];
      const unique = others[0];
      let shared = 0;
      for (let j = 1; j < others.length; j += 1) shared += others[j];
      const rho = unique === 0 ? (shared > 0 ? Infinity : 0) : shared / unique;
      const active = unique + shared;
      return {
        name, unique, shared, active, others, rho,
        total: profile.total,
        density: profile.total ? active / profile.total : 0,
        lambda: RULES[rule](rho, r, alpha),
        dialects: {
          paper: RULES["ram+"](rho, 0.1, 2),
          script: 1 + (1.2 - 1) * Math.min(1, rho),
          mergekit: profile.mergekit ? profile.mergekit[point][t] : null,
        },
      };
    });
    // An element shared by j + 1 agents is counted once by each of them.
    const byCount = profile.agents.map(
      (_, j) => agents.reduce((sum, agent) => sum + agent.others[j], 0) / (j + 1)
    );
    return { epsilon: profile.ladder[point], rule, r, alpha, agents, byCount };
  };

  // ---------------------------------------------------------------- numbers as text

  RAM.digits = (value, n) => value.toFixed(n);

  RAM.count = (n) => {
    if (n < 1e6) return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, " ");
    const [size, unit] = n < 1e9 ? [1e6, "M"] : [1e9, "B"];
    const value = n / size;
    return `${RAM.digits(value, value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
  };

  RAM.percent = (share) => {
    const p = 100 * share;
    if (p === 0) return "0 %";
    if (p < 0.01) return "< 0.01 %";
    return `${RAM.digits(p, p < 1 ? 2 : p < 99.95 ? 1 : 0)} %`;
  };

  RAM.ratio = (rho) => {
    if (rho === Infinity) return "∞";
    return RAM.digits(rho, rho < 10 ? 3 : rho < 100 ? 2 : 1);
  };

  RAM.epsilon = (value) => {
    if (value === 0) return "0";
    const exponent = Math.floor(Math.log10(value) + 1e-9);
    if (exponent >= -3) return String(Number(value.toPrecision(3)));
    const head = Number((value / 10 ** exponent).toPrecision(3));
    const up = String(-exponent).split("").map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]).join("");
    return head === 1 ? `10⁻${up}` : `${head} · 10⁻${up}`;
  };
})();
