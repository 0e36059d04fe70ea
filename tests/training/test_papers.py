"""What pages quote of the shipped records is what these say, and the lesson's script runs."""

import re
import runpy
from pathlib import Path

import pytest
from recorded_figures import PAGES, written

ROOT = Path(__file__).parents[2]


def test_the_teachers_page_answers_every_scene():
    scenes = (ROOT / "assets" / "lesson" / "scenes.js").read_text(encoding="utf-8")
    (listed,) = re.findall(r"export const SCENES = \[(.*?)\]", scenes, flags=re.S)
    page = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    (answers,) = re.findall(r"<!-- answers -->\n(.*?)<!-- /answers -->", page, flags=re.S)
    answered = re.findall(r"^\| (\d+|last word) \|", answers, flags=re.M)
    assert answered == [*map(str, range(1, len(listed.split(",")))), "last word"]


@pytest.mark.parametrize("page", PAGES)
def test_pages_quote_records_and_models_as_they_are(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.search(r"<!-- (shared_style|answers|results) -->", text)
    assert written(text) == text, "run `make docs`"


def test_the_lessons_script_prints_its_table(capsys):
    main = runpy.run_path(str(ROOT / "examples" / "lesson_table.py"))["main"]
    main(["--set", "independent", "--prompts", "2"])
    counts, table = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in counts.splitlines()[1:]] == ["coding", "tool", "memory"]
    rows = {line[:22].strip(): line[22:].split() for line in table.splitlines()[2:]}
    assert list(rows)[:4] == ["base", "coding", "tool", "memory"]
    # What the independent agents learned, on two prompts each; follow is no skill.
    assert rows["coding"][0] == rows["RAM+"][0] == "1.000"
    for row in rows.values():
        code, tool, memory, skills, _ = map(float, row)
        assert skills == pytest.approx((code + tool + memory) / 3, abs=1e-3)
