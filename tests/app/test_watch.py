"""Each shipped set opens with a sentence whose figures are those of its record."""

import json
import re
import shutil
from pathlib import Path

import pytest

from ram_studio.app.load import watch
from ram_studio.app.load.watch import caution_html, record_of, watch_html
from ram_studio.app.load.work import cautions_of
from ram_studio.app.session import sets
from ram_studio.app.session.sets import TITLES
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.resources import asset_path
from training.shipped import rivals


def percents(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"([\d.]+) %", text)]


@pytest.mark.parametrize("set_name", TITLES)
def test_every_figure_to_watch_is_in_the_record(set_name):
    record = record_of(set_name)
    parts = ("scores", "merges", "others")
    rows = [row for part in parts for row in record.get(part, {}).values()]
    known = [row[name] for row in rows for name in row]
    if set_name == "real":  # its record has no averages
        rows += [row for own in record["other_seeds"].values() for row in own["merges"].values()]
        known += [sum(row.values()) / len(row) for row in rows]
    else:
        agents = record["agents"].values()
        known += [agent["unique_share"] for agent in agents]
        # The weights panel's share is of all weights.
        known += [sum(a["density"] * a["unique_share"] for a in agents)]
    for seed in record.get("seeds", {}).values():
        known += [row["average"] for row in seed["rows"].values()]
    found = percents(watch_html(set_name))
    assert len(found) >= 3
    for figure in found:
        assert any(abs(100 * value - figure) <= 0.0501 for value in known), figure


def test_the_default_set_names_the_best_of_all_tuned_rivals():
    record = record_of("shared-style")
    seed = record["seeds"][str(record["seed"])]
    name = watch.best_rival(seed)
    # The page and the build speak of the same rows, also of those beyond the paper's ranges.
    tuned = {*rivals.TUNED, *rivals.BEYOND}
    assert {*seed["chosen"]} == tuned
    assert seed["rows"][name]["average"] == max(seed["rows"][rival]["average"] for rival in tuned)
    text = " ".join(watch_html("shared-style").split())
    assert f"best tuned rival ({name}) {100 * seed['rows'][name]['average']:.1f} %" in text
    is_open = seed["rows"][name]["versus"]["outcome"] == "inconclusive"
    assert ("no significant difference from RAM+" in text) == is_open


def test_the_real_set_says_whether_its_rival_differs():
    record, table = record_of("real"), sets.shipped_table("real")
    rows = [row["right"] for row in table["rows"] if row["kind"] == "merge"]
    for scores, right in zip(record["merges"].values(), rows, strict=True):
        assert right.count("1") == round(sum(scores.values()) * table["n"])
    text = " ".join(watch_html("real").split())
    # As docs/real_set.md has it.
    assert (
        "best tuned rival (Task Arithmetic, scale 0.8) 79.3 %, no significant difference from RAM+."
    ) in text
    said = "Against RAM+ it gains 15 questions and loses 5: p 0.041, corrected for all merges 1."
    assert said in text


def test_what_to_know_of_own_models_stands_above_the_canvas(tmp_path: Path) -> None:
    shutil.copytree(asset_path("independent", "tool"), tmp_path / "tool")
    file = tmp_path / "tool" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": "{{ 1 }}"}))
    fit = load(asset_path("independent", "base"), {"tool": tmp_path / "tool"})
    found = cautions_of(fit, analyze_report(fit, device="cpu"))
    assert any("chat template" in text for text in found)
    said = caution_html((*found, "<b>More</b>"))
    assert found[0].split(":")[0].replace('"', "&#34;") in said
    assert f"{len(found)} more in Load" in said
    assert "<b>More" not in said
    assert caution_html(()) == ""
