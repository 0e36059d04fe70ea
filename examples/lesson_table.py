"""Repeat the lesson's table: a base, its agents and ways of merging them, on the same questions.

    python examples/lesson_table.py                        # agents with a shared style, one minute
    python examples/lesson_table.py --set dense --prompts 50

Everything happens on your own machine; the merges go to a temporary folder. The scores are shares
of held-out questions, strictly right or wrong; "skills" is the mean of code, tool and memory. With
the default of 100 prompts a skill, differences of less than about five points mean nothing.
"""

import argparse
import tempfile
from pathlib import Path

import ram_studio as rs

SKILLS = ("coding", "tool", "memory")
SETS = ("shared-style", "independent", "dense")
WAYS = {
    "average": ("task-arithmetic", {}),
    "sum": ("task-arithmetic", {"scale": 1.0}),
    "TIES": ("ties", {"density": 0.2, "scale": 1.0}),
    "DARE + TIES": ("dare-ties", {"drop_rate": 0.5, "density": 0.3, "scale": 0.5}),
    "DARE + TIES, untrimmed": ("dare-ties", {"drop_rate": 0.1, "density": 1.0, "scale": 0.7}),
    "RAM": ("ram", {}),
    "RAM+": ("ram+", {"r": 0.1, "alpha": 2.0}),
}


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, merge, ask and print the table."""
    parser = argparse.ArgumentParser(description="Repeat the lesson's table.")
    parser.add_argument("--set", choices=SETS, default="shared-style")
    parser.add_argument("--prompts", type=int, default=100, help="held-out questions a skill")
    options = parser.parse_args(arguments)

    base = rs.asset_path("independent", "base")  # one base for all sets
    agents = {name: rs.asset_path(options.set, name) for name in SKILLS}

    # One pass over the files counts which agents changed which weights.
    analysis = rs.analyze(base, agents)
    print("agent      changed  of these unique  lambda of RAM+")
    for name, agent in analysis.preview(rule="ram+", r=0.1, alpha=2.0)["agents"].items():
        unique = agent["unique"] / agent["active"]
        print(f"{name:10} {agent['density']:7.1%}  {unique:14.1%}  {agent['lambda']:.3f}")

    with tempfile.TemporaryDirectory() as folder:
        models = {"base": base, **agents}
        sources = {"base": str(base), "agents": {name: str(path) for name, path in agents.items()}}
        for name, (method, settings) in WAYS.items():
            recipe = rs.make_recipe({**sources, "method": method, "settings": settings})
            out = Path(folder) / name.replace(" ", "-")
            rs.merge(recipe, out, analysis=analysis)
            models[name] = out
        report = rs.evaluate(models, "demo", limit=options.prompts, device="cpu")

    table = report.to_frame().pivot(index="model", columns="domain", values="score")
    table = table.loc[list(models), ["code", "tool", "memory", "follow"]]
    table.insert(3, "skills", table[["code", "tool", "memory"]].mean(axis=1))
    print(f"\n{table.to_string(float_format='{:.3f}'.format)}")


if __name__ == "__main__":
    main()
