// Moving between the steps, the theme, and what a browser tab remembers.
(() => {
  "use strict";
  const RAM = window.RAM;
  const STEPS = ["load", "look", "tune", "merge", "check"];

  RAM.go = (step) => {
    if (!STEPS.includes(step)) return;
    const moved = document.body.dataset.step !== step;
    document.body.dataset.step = step;
    for (const name of STEPS) {
      const button = document.getElementById(`to-${name}`);
      if (!button) continue;
      if (name === step) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
      button.classList.toggle("passed", STEPS.indexOf(name) < STEPS.indexOf(step));
    }
    if (moved) window.scrollTo(0, 0);
    RAM.redraw();
    if (moved) tab("step", step);
    if (step !== "load") RAM.remember();
    // Figures drawn while their step was hidden measure themselves again.
    requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
  };

  // Go to a step as if its button in the stepper was pressed, with whatever else that does.
  RAM.open = (step) => {
    const button = STEPS.includes(step) && document.getElementById(`to-${step}`);
    if (button) setTimeout(() => button.click(), 30);
  };

  // ---------------------------------------------------------------- a tab's memory

  const tab = (key, value) => {
    try {
      if (value !== undefined) sessionStorage.setItem(`ram-${key}`, value);
      return sessionStorage.getItem(`ram-${key}`);
    } catch { return null; } // storage refused: a reload then starts anew
  };

  // 128 random bits that name this tab's work on the server, so that a reload finds it again.
  RAM.tabKey = () => {
    const known = tab("key");
    if (known) return known;
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    const key = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
    tab("key", key);
    return key;
  };

  // After the first answer of the server: where to start. A link opens Tune, a reload the same step.
  RAM.enter = () => {
    RAM.go(document.body.dataset.step || "load");
    if (!RAM.hasProfile()) return;
    const [entry] = performance.getEntriesByType("navigation");
    const last = entry && entry.type === "reload" ? tab("step") : null;
    const linked = new URL(window.location.href).searchParams.has("example");
    const step = STEPS.includes(last) ? last : linked ? "tune" : null;
    if (!step) return;
    RAM.open(step);
  };

  RAM.toggleTheme = () => {
    const dark = document.body.classList.toggle("dark");
    try { localStorage.setItem("ram-theme", dark ? "dark" : "light"); } catch { /* private window */ }
  };

  const start = () => {
    if (!document.body.dataset.step) document.body.dataset.step = "load";
    let wanted = null;
    try { wanted = localStorage.getItem("ram-theme"); } catch { /* private window */ }
    if (wanted && !new URL(window.location.href).searchParams.get("__theme")) {
      document.body.classList.toggle("dark", wanted === "dark");
    }
    document.addEventListener("click", (event) => {
      if (event.target.closest("#theme")) RAM.toggleTheme();
      const link = event.target.closest("[data-go]");
      if (link) RAM.go(link.dataset.go);
    });
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
