"""Several wordings of a question: what is asked stays the same, and the spread is told."""

import json

import pytest
from loopback_endpoint import serve

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.paraphrases import MOST, SUITES, reword_question
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.score import as_json
from ram_studio.evals.run import evaluate
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings


@pytest.mark.parametrize("name", sorted(SUITES))
def test_wordings_differ_and_what_is_right_stays(name):
    settings = SuiteSettings(lambda text: -(-len(text) // 4), 10, 3, (1000,))
    for question in ALL_SUITES[name].make(settings):
        others = [reword_question(question, number) for number in range(1, MOST)]
        assert len({one.prompt for one in (question, *others)}) == MOST
        assert len({one.digest for one in (question, *others)}) == MOST
        for one in others:
            assert (one.id, one.spec, one.tools) == (question.id, question.spec, question.tools)
            # Every line but a few is the question's own.
            before, after = (set(q.prompt.split()) for q in (question, one))
            assert len(before - after) <= 14


def test_spread_is_beside_the_mean_and_nothing_asked_twice(store):
    golds = {q.prompt.partition("\n")[0]: q.gold
             for q in ALL_SUITES["math"].make(SuiteSettings(len, 8, 2026))}  # fmt: skip

    def answer(body):
        text = body["messages"][0]["content"]
        right = golds[text.partition("\n")[0]]
        # At a loss for half of the questions in the last wording.
        is_lost = "Show how you get there" in text and list(golds.values()).index(right) % 2
        return "Answer: 0" if is_lost else f"Answer: {right}"

    with serve(answer) as server:
        models = {"m": EndpointEngine(server.url, "m")}
        how = {"limit": 8, "paraphrases": 3, "store": store}
        first, again = (EvalResult.of(evaluate(models, "math", **how)) for _ in range(2))
        assert len(server.requests) == 24
        # Wordings are runs of their own: History's score is that of the usual one.
        assert sorted(run.settings.get("wording", 0) for run in store.runs()) == [0, 1, 2]
    for result in (first, again):
        found = result.models["m"].domains["math"]
        assert (found.n, found.score) == (8, 1.0)
        assert found.paraphrases.scores[:2] == (1.0, 1.0)
        lost = 1 - found.paraphrases.scores[2]
        assert found.paraphrases.spread == pytest.approx(lost)
        assert 0.2 < lost < 0.8
        assert found.paraphrases.mean == pytest.approx(1 - lost / 3)
        (row,) = result.sample_rows
        assert row[0] == "math: mean of 3 wordings"
        assert row[1][0].endswith(f"spread {lost:.3f}")
        assert result.report.models["m"].settings["paraphrases"] == 3
    assert json.dumps(as_json(first)["models"]["m"]["domains"]["math"]["paraphrases"])


def test_published_suites_are_asked_in_their_own_wording_alone():
    assert not SUITES & {"gsm8k", "humaneval", "bfcl-live", "demo"}
    with pytest.raises(EvaluationError, match="paraphrases is 4; choose 1 to 3"):
        EvalSettings(paraphrases=4)
