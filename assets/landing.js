// @ts-check
// The landing page's figure: three scenes of 8 seconds in total, a pause button, and the caveats. All numbers are already
// in the page (landing.html.j2); here only the visible scene changes.

/** @param {HTMLElement} movie @param {number} scene Show this scene. */
const show = (movie, scene) => {
  /** @type {HTMLButtonElement[]} */
  const tabs = [...movie.querySelectorAll(".movie-tabs button")].map((tab) => /** @type {HTMLButtonElement} */ (tab));
  tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String(i === scene)));
  movie.dataset.scene = String(scene);
  const { own, shared, solved } = tabs[scene].dataset;
  movie.style.setProperty("--own", own ?? "1");
  movie.style.setProperty("--shared", shared ?? "1");
  for (const node of movie.querySelectorAll("[data-of]")) {
    /** @type {HTMLElement} */ (node).hidden = /** @type {HTMLElement} */ (node).dataset.of !== String(scene);
  }
  const scores = (solved ?? "").split(" ");
  movie.querySelectorAll("[data-skill]").forEach((skill, i) => {
    const score = /** @type {HTMLElement} */ (skill.querySelector("[data-part=score]"));
    const asked = Number(/\d+/.exec(score.nextSibling?.textContent ?? "")?.[0]);
    score.textContent = scores[i];
    const bar = /** @type {HTMLElement} */ (skill.querySelector(".movie-bar i"));
    bar.style.width = `${(100 * Number(scores[i])) / asked}%`;
  });
};

/** @param {HTMLElement} movie @param {boolean} isPlaying */
const play = (movie, isPlaying) => {
  movie.classList.toggle("playing", isPlaying);
  /** @type {HTMLElement} */ (movie.querySelector(".movie-pause")).textContent = isPlaying ? "Pause" : "Play";
};

/**
 * Play the figure, unless the user prefers reduced motion: then it shows its last scene until Play.
 * @param {HTMLElement} root The landing page.
 */
export const mountLanding = (root) => {
  const movie = /** @type {HTMLElement | null} */ (root.querySelector(".movie"));
  if (!movie || root.dataset.mounted) return;
  root.dataset.mounted = "1";
  const tabs = [...movie.querySelectorAll(".movie-tabs button")];
  tabs.forEach((tab, i) => tab.addEventListener("click", () => { play(movie, false); show(movie, i); }));
  // The bar below a scene's name is its clock: it stops while the page is hidden.
  movie.addEventListener("animationend", (event) => {
    if (event.animationName === "movie-time") show(movie, (Number(movie.dataset.scene) + 1) % tabs.length);
  });
  movie.querySelector(".movie-pause")?.addEventListener("click", () => play(movie, !movie.classList.contains("playing")));
  const caveats = /** @type {HTMLDialogElement | null} */ (root.querySelector(".caveats"));
  root.querySelector("[data-caveats]")?.addEventListener("click", () => caveats?.showModal());
  if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  show(movie, 0);
  play(movie, true);
};
