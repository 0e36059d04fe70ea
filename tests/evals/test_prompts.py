"""Questions in other words than a suite's own: templates of papers, worked examples, lm-eval's."""

import json

import pytest
import yaml
from chat_model import make_chat_model

from ram_studio.errors import EvaluationError, RamStudioError
from ram_studio.evals.chunks import ChunkSizes
from ram_studio.evals.publish.scores import stored_scores
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.run import evaluate
from ram_studio.evals.settings import EvalSettings

ROWS = {
    "gsm8k": [{"question": "How many?", "answer": "One and one. #### 2"}],
    "gsm8k-shots": [{"question": f"What is {i}?", "answer": f"It is. #### {i}"} for i in "12345"],
    "ruler-squad": [
        {"id": "a", "question": "Who?", "context": "Ada.", "title": "t",
         "answers": {"text": ["Ada"]}}
    ],
}  # fmt: skip
PAPERS = {
    "gsm8k": "Q: {question}\nA:",
    "ruler-squad": "{context}\n\nTell {query} in \\boxed{}.",
    "memagent": {"read": "{prompt} [{memory}] {chunk}", "answer": "{prompt} [{memory}]"},
}


@pytest.fixture
def data(tmp_path):
    for name, rows in ROWS.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    (tmp_path / "papers.yaml").write_text(yaml.safe_dump(PAPERS))
    return tmp_path


def asked(data, suites, **how):
    settings = EvalSettings(suites=suites, data=data, lengths=(400,), **how)
    found = settings.questions(lambda text: len(text.split()))
    return settings, [question.prompt for own in found.values() for question in own]


def test_a_file_words_suites_as_their_papers_do(data):
    prompts = str(data / "papers.yaml")
    _, (own,) = asked(data, "gsm8k")
    assert own == 'How many?\n\nThink step by step. End with a line of the form "#### <number>".'
    settings, texts = asked(data, "gsm8k,ruler-squad", prompts=prompts, mode="memagent", shots=None)
    assert texts[0] == "Q: How many?\nA:"
    # Braces that name nothing stay, and names of papers are ours.
    assert texts[1].endswith("Ada.\n\nTell Who? in \\boxed{}.")
    assert settings.chunk_sizes == ChunkSizes(
        read=PAPERS["memagent"]["read"], answer="{prompt} [{memory}]"
    )
    assert settings.chunk_sizes.key == ChunkSizes().key
    name = settings.wording["prompts"]
    assert name.startswith("papers.yaml ")
    (data / "papers.yaml").write_text(yaml.safe_dump({**PAPERS, "gsm8k": "{question}"}))
    assert EvalSettings(suites="gsm8k", prompts=prompts).wording["prompts"] != name


def test_worked_examples_come_from_a_fixed_split(data):
    _, (text,) = asked(data, "gsm8k", prompts="qa", shots=2)
    assert text == (
        "Question: What is 1?\nAnswer: It is. #### 1\n\n"
        "Question: What is 2?\nAnswer: It is. #### 2\n\nQuestion: How many?\nAnswer:"
    )
    with pytest.raises(
        EvaluationError, match=r"5 worked examples, 6 were requested\. .* gsm8k-shots"
    ):
        asked(data, "gsm8k", shots=6)
    # Of generated suites they are none of the questions, and the same whatever the seed.
    shown = set()
    for seed in (1, 2):
        _, texts = asked(data, "math", seed=seed, shots=1, limit=30)
        (start,) = {text.partition("\n\nAnswer: ")[0] for text in texts}
        assert all(text.count(start) == 1 for text in texts)
        shown.add(start)
    assert len(shown) == 1


def test_results_store_and_card_name_prompts_and_shots(tmp_path, store):
    model = make_chat_model(tmp_path / "m", template=None)
    how = {"suites": "math", "limit": 1, "max_tokens": 1, "device": "cpu"}
    told = [
        EvalResult.of(evaluate({"m": model}, store=store, **how, **more))
        for more in ({}, {"prompts": "qa", "shots": 1})
    ]
    runs = store.runs()
    scores = [stated.settings for _, stated in stored_scores(store, runs[0].fingerprint)]
    own, other = (one.reproducibility.models["m"].settings for one in told)
    assert (own["prompts"], own["shots"]) == ("own", 0)
    assert (other["prompts"], other["shots"]) == ("qa", 1)
    assert "prompts qa; shots 1" in told[1].lines[1]
    # Two runs: neither takes the other's answers.
    assert len(runs) == 2
    assert all("prompts " in one and "shots " in one for one in scores)


def test_lm_eval_asks_suites_that_it_has_the_task_of():
    how = {"prompts": "lm-eval", "shots": 5}
    assert EvalSettings(suites="gsm8k,nq,forgetting", **how).harness_tasks[:2] == (
        "gsm8k",
        "nq_open",
    )
    assert not EvalSettings(suites="gsm8k").is_harness
    with pytest.raises(EvaluationError, match="does not ask suite humaneval here"):
        evaluate({"m": "m"}, suites="humaneval", **how)
    with pytest.raises(EvaluationError, match="does not ask suite math here"):
        evaluate({"m": "m"}, suites="forgetting,math")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"suites": "gsm8k", "prompts": "none.yaml"}, "which is not a file. Choose own, lm-eval"),
        ({"suites": "memory", "shots": 1}, "Suite memory takes no examples. Choose from: math"),
        ({"suites": "tool", "prompts": "qa"}, "Suite tool takes no template"),
        ({"gsm9k": "{question}"}, "suite 'gsm9k' takes no template"),
        ({"gsm8k": "Solve it."}, "template gsm8k has no {question}"),
        ({"memagent": {"read": "{prompt}"}}, "needs two templates"),
        ({"memagent": {"read": "{prompt} {memory}", "answer": "{prompt} {memory}"}}, "no {chunk}"),
        ({"nq": "{question}"}, "has templates for nq, and none of these is asked"),
        ([], "holds no templates"),
    ],
)
def test_prompts_that_cannot_be_say_what_to_give(tmp_path, given, message):
    if "suites" not in given:
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(given))
        given = {"suites": "gsm8k", "prompts": str(tmp_path / "t.yaml")}
    with pytest.raises(RamStudioError, match=message):
        EvalSettings(**given)
