"""A merge in parts on the command line, as scripts on many machines spell it."""

from __future__ import annotations

import json

import pytest

from ram_studio.engine.merge_log import past_merges

AGENTS = ("coding", "tool", "memory")
PART = ("merge", "--plan", "p", "--part", "1", "--out", "o")


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_parts_of_a_plan_make_the_merge_of_one_machine(cli, example, recipe, tmp_path, home):
    recipe, size = recipe(), ("--max-shard-size", "500KB")
    assert cli("merge", recipe, "--out", tmp_path / "one", *size)[0] == 0
    assert cli("analyze", *example, "--analysis", tmp_path / "one.analysis")[0] == 0
    plan, out, analysis = (tmp_path / name for name in ("plan.json", "out", "sum.analysis"))
    code, text, _ = cli("plan", recipe, "--parts", 3, "--out", plan, *size, "--json")
    assert code == 0
    listed = json.loads(text)
    assert [part["part"] for part in listed["parts"]] == [1, 2, 3]
    assert all(part["shards"] for part in listed["parts"])
    assert listed["digest"] == json.loads(plan.read_text())["digest"]
    files = [tmp_path / f"{i}.analysis" for i in (1, 2, 3)]
    for i, file in enumerate(files, start=1):
        analyze = ("analyze", "--plan", plan, "--part", i, "--analysis", file, "--relations")
        code, text, _ = cli(*analyze, "--json")
        assert (code, json.loads(text)["part"]) == (0, i)
    code, text, _ = cli("analysis", "add", *files[:2], "--out", analysis)
    assert code == 0
    assert "parts 1, 2 of 3" in text
    merging = ("merge", "--plan", plan, "--analysis", analysis, "--out", out, "--part")
    code, _, err = cli(*merging, 1)
    assert code == 65
    assert "Part 1 of 3: Analysis" in err
    assert cli("analysis", "add", *files, "--out", analysis)[0] == 0
    assert analysis.read_bytes() == (tmp_path / "one.analysis").read_bytes()
    assert "Part 1 of 3: 1 file (" in cli(*merging, 1)[1]
    for i in (3, 1, 2):
        code, text, _ = cli(*merging, i, "--json")
        assert (code, json.loads(text)["part"]) == (0, i)
    code, text, _ = cli("finish", plan, "--out", out, "--json")
    assert code == 0
    assert set(json.loads(text)["agents"]) == set(AGENTS)
    assert files_of(out) == files_of(tmp_path / "one")
    assert cli("verify", out)[0] == 0
    assert len(past_merges(home)) == 2
    code, text, _ = cli(*merging, 2)
    assert "merged already" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("analyze", "--plan", "p"), "--plan was given without --part"),
        (("merge", "--part", "1", "--out", "o"), "--part was given without --plan"),
        (("analyze", "--plan", "p", "--part", "1", "--base", "b"), "leave out --base"),
        ((*PART, "--alpha", "1"), "leave out --alpha"),
        ((*PART, "--set", "r=1", "--tokenizer-from", "a"), "leave out --set, --tokenizer-from"),
        ((*PART, "--allow-base-mismatch", "--stream"), "leave out --stream, --allow-base-mismatch"),
        (("analyze", "--plan", "p", "--part", "1"), "name an analysis file"),
    ],
)
def test_what_does_not_go_with_a_plan_is_a_usage_error(cli, arguments, words):
    code, _, err = cli(*arguments)
    assert code == 2
    assert words in " ".join(err.replace("│", " ").split())
