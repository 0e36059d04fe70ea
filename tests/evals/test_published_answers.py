"""Answers that authors published with their data sets, judged here: their own figures come out.

The folder that RAM_STUDIO_PUBLISHED_ANSWERS names holds

    gsm8k.jsonl, example_model_solutions.jsonl    openai/grade-school-math (MIT), data/test.jsonl
        and the file of that name: four models' solutions, each marked by the authors
    ifeval.jsonl, gpt4.jsonl    google-research, instruction_following_eval/data (Apache-2.0):
        input_data.jsonl and input_response_data_gpt4_20231107_145030.jsonl

docs/published.md has the figures.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ram_studio.evals.question import Question
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings

FOLDER = os.environ.get("RAM_STUDIO_PUBLISHED_ANSWERS")

pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="RAM_STUDIO_PUBLISHED_ANSWERS names no folder with published answers"
)


def rows_of(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(str(FOLDER), file).read_text("utf-8").splitlines()]


def questions(name: str) -> tuple[Question, ...]:
    return ALL_SUITES[name].questions(SuiteSettings(len, data=FOLDER))


def test_gsm8ks_authors_mark_all_their_answers_alike() -> None:
    asked, rows = questions("gsm8k"), rows_of("example_model_solutions.jsonl")
    right: dict[str, int] = {}
    for question, row in zip(asked, rows, strict=True):
        assert row["question"].strip() in question.prompt
        for model, said in row.items():
            if isinstance(said, dict):
                verdict = ALL_SUITES["gsm8k"].judge(question, said["solution"], "off")
                assert verdict.is_correct is said["is_correct"], (question.id, model)
                right[model] = right.get(model, 0) + verdict.is_correct
    assert right == {
        "6b_finetuning": 286,
        "6b_verification": 515,
        "175b_finetuning": 458,
        "175b_verification": 742,
    }


def test_gpt4s_answers_to_ifeval_score_as_published() -> None:
    suite, asked = ALL_SUITES["ifeval"], questions("ifeval")
    said = [row["response"] for row in rows_of("gpt4.jsonl")]
    verdicts = [suite.judge(q, text, "off") for q, text in zip(asked, said, strict=True)]
    assert suite.summary is not None
    found = suite.summary({}, [verdict.facts for verdict in verdicts])
    published = {
        "prompt level, strict": 0.7689,
        "instruction level, strict": 0.8357,
        "prompt level, loose": 0.7930,
        "instruction level, loose": 0.8537,
    }
    assert found == pytest.approx(published, abs=0.005)
    assert sum(verdict.is_correct for verdict in verdicts) == 417
