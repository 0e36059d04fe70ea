"""How often the retention interval holds the truth, and the verdict is wrong, in simulations.

Items have a common difficulty and each model its own luck; 2,000 experiments per line, seeded.

    python benchmarks/retention.py
"""

import numpy as np
from scipy.stats import norm

from ram_studio.evals.report.retention import (
    LEVEL,
    MARGIN,
    kept_interval,
    pattern_counts,
    scores_of,
    shown_above,
)

EXPERIMENTS = 2000
DRAWS = 1000
ITEMS = (50, 100, 300)
# Shares of right answers of base, specialist and merge, and the correlation of their difficulty.
COVERED = (((0.2, 0.6, 0.56), 0.5), ((0.3, 0.8, 0.55), 0.5), ((0.1, 0.4, 0.4), 0.7))
AT_THE_MARGIN = (((0.2, 0.6, 0.55), 0.5), ((0.3, 0.9, 0.85), 0.8), ((0.1, 0.4, 0.35), 0.7))


def chances(scores: tuple[float, ...], shared: float, exactly: float | None = None) -> np.ndarray:
    """Return the chance of each pattern; exactly: move the merge to this difference."""
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal((400_000, 1)), rng.standard_normal((400_000, 3))
    latent = np.sqrt(shared) * common + np.sqrt(1 - shared) * own
    right = latent < norm.ppf(scores)
    if exactly is not None:
        wanted = right[:, 1].mean() - exactly
        right[:, 2] = latent[:, 2] < np.quantile(latent[:, 2], wanted)
    return pattern_counts(right) / len(right)


def main() -> None:
    """Print both tables."""
    rng = np.random.default_rng(1)
    print("items  base specialist merge   interval holds the truth")
    for n in ITEMS:
        for scores, shared in COVERED:
            p = chances(scores, shared)
            base, best, after = scores_of(p)
            truth = (after - base) / (best - base)
            drawn = rng.multinomial(n, p, size=EXPERIMENTS)
            ends = [kept_interval(c, draws=DRAWS, seed=i) for i, c in enumerate(drawn)]
            held = np.mean([low <= truth <= high for low, high in ends])
            print(f"{n:5}  {scores}   {100 * held:.1f} %", flush=True)
    print("items  base specialist merge   wrongly survived   wrongly damaged")
    for n in ITEMS:
        for scores, shared in AT_THE_MARGIN:
            p = chances(scores, shared, MARGIN)
            drawn = rng.multinomial(n, p, size=50_000)
            kept = np.mean(shown_above(drawn, 2, 1, -MARGIN) < LEVEL)
            lost = np.mean(shown_above(drawn, 1, 2, MARGIN) < LEVEL)
            print(f"{n:5}  {scores}   {100 * kept:.2f} %   {100 * lost:.2f} %", flush=True)


if __name__ == "__main__":
    main()
