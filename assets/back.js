// Stands in the page's head and runs before anything else is fetched: a reloaded page tells at once
// that it is coming back, and goes on telling until it is there, so that the server keeps its job.
// (A closed tab says nothing.) See ram_studio/app/public/presence.py.
(() => {
  let key = null;
  try { key = sessionStorage.getItem("ram-key"); } catch { /* storage refused */ }
  const EVERY_MS = 1500, LONGEST_MS = 90_000, began = Date.now();
  const tell = () => {
    if (!key || window.RAM_ENTERED || Date.now() - began > LONGEST_MS) return;
    fetch(`ram/here/${key}`, { cache: "no-store" }).catch(() => {});
    setTimeout(tell, EVERY_MS);
  };
  tell();
})();
