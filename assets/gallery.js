// @ts-check
// The gallery's table: sorting, filters, and the scores of one suite. Rows exist already; no HTML is made from texts.
(() => {
  /** @template {HTMLElement} T @param {string} id @returns {T} */
  const at = (id) => /** @type {any} */ (document.getElementById(id));
  const body = /** @type {HTMLElement} */ (document.querySelector("tbody"));
  const rows = [...body.querySelectorAll("tr")];
  const heads = [...document.querySelectorAll("th[aria-sort]")];
  const search = /** @type {HTMLInputElement} */ (at("search"));
  const verified = /** @type {HTMLInputElement} */ (at("verified"));
  const selects = ["base", "method"].map((id) => /** @type {HTMLSelectElement} */ (at(id)));
  const column = /** @type {HTMLSelectElement | null} */ (at("column"));
  let [key, direction] = column ? ["score", -1] : ["title", 1];

  /** The sort key of a row; null for none, which comes last. @param {HTMLElement} row */
  const valueOf = (row) => {
    if (key !== "score" && key !== "above") {
      const value = row.dataset[key];
      return value === undefined || key !== "retained" ? value ?? null : Number(value);
    }
    const name = key === "score" ? "value" : key;
    const cell = /** @type {HTMLElement | null} */ (row.querySelector(`[data-column="${column?.value}"][data-${name}]`));
    return cell ? Number(cell.dataset[name]) : null;
  };

  const sort = () => {
    const valued = rows.map((row, place) => ({ row, place, value: valueOf(row) }));
    valued.sort((a, b) => {
      if (a.value === null || b.value === null) return Number(a.value === null) - Number(b.value === null) || a.place - b.place;
      return (a.value < b.value ? -1 : Number(a.value > b.value)) * direction || a.place - b.place;
    });
    body.append(...valued.map(({ row }) => row));
    for (const head of heads) {
      const own = head.querySelector("button")?.dataset.sort === key;
      head.setAttribute("aria-sort", own ? (direction > 0 ? "ascending" : "descending") : "none");
    }
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const { words: own = "", verified: badge } = row.dataset;
      const fits = words.every((word) => own.includes(word)) && (!verified.checked || badge !== undefined)
        && selects.every((select) => !select.value || row.dataset[select.id] === select.value);
      row.hidden = !fits;
      count += Number(fits);
    }
    const all = `${rows.length} merge${rows.length === 1 ? "" : "s"}`;
    at("count").textContent = count === rows.length ? all : `${count} of ${all}`;
    at("none").hidden = count > 0;
  };

  const chooseColumn = () => {
    for (const cell of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-column]"))) {
      cell.hidden = cell.dataset.column !== column?.value;
    }
    [key, direction] = ["score", -1];
    sort();
  };

  for (const head of heads) {
    head.querySelector("button")?.addEventListener("click", ({ currentTarget }) => {
      const wanted = /** @type {HTMLElement} */ (currentTarget).dataset.sort ?? "title";
      direction = wanted === key ? -direction : wanted === "title" || wanted === "method" ? 1 : -1;
      key = wanted;
      sort();
    });
  }
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const input of [search, verified, ...selects]) input.addEventListener("input", filter);
  column?.addEventListener("input", chooseColumn);
  at("clear").addEventListener("click", () => {
    /** @type {HTMLFormElement} */ (at("filters")).reset();
    if (column) chooseColumn();
    filter();
    search.focus();
  });

  const toggle = () => document.body.classList.toggle("dark");
  at("theme").addEventListener("click", toggle);
  if (window.matchMedia("(prefers-color-scheme: dark)").matches) toggle();
  sort();
  filter();
})();
