"""Each shipped set opens with a sentence whose figures are those of its record."""

import re

import pytest

from ram_studio.app.load.examples import FOLDERS
from ram_studio.app.load.watch import RIVALS, UNTRIMMED, best_rival, record_of, watch_html
from ram_studio.demo import rivals


def percents(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"([\d.]+) %", text)]


@pytest.mark.parametrize("example", FOLDERS)
def test_every_figure_to_watch_is_in_the_record(example):
    record = record_of(example)
    known = [
        row[name]
        for row in (*record["scores"].values(), *record["merges"].values())
        for name in row
    ]
    known += [agent["unique_share"] for agent in record["agents"].values()]
    for seed in record.get("seeds", {}).values():
        known += [row["average"] for row in seed["rows"].values()]
    found = percents(watch_html(example))
    assert len(found) >= 3
    for figure in found:
        assert any(abs(100 * value - figure) <= 0.0501 for value in known), figure


def test_the_house_set_names_its_best_rival_and_tells_of_the_one_outside_the_list():
    record = record_of("house")
    rows = record["seeds"][str(record["seed"])]["rows"]
    name = best_rival(rows)
    assert rows[name]["average"] == max(rows[rival]["average"] for rival in RIVALS)
    text = watch_html("house")
    assert f"({name})" in text
    assert "without trimming" in text
    # The page and the build speak of the same rows.
    assert UNTRIMMED == rivals.UNTRIMMED
    assert {*RIVALS, UNTRIMMED} == {*rivals.TUNED, "average", "sum"}
