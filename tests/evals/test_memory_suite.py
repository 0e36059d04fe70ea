"""Long-context memory: lengths to measure, questions that can be answered, capped answers."""

import pytest

from ram_studio.errors import EvaluationError
from ram_studio.evals.suites import SuiteSettings
from ram_studio.evals.suites.memory import KINDS, MAX_NEW_TOKENS, TEMPLATE_TOKENS, judge, make
from ram_studio.resources import asset_path


def count(text: str) -> int:
    return -(-len(text) // 4)


def test_prompts_fill_the_length_and_never_exceed_it():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(asset_path("independent", "base"))

    def own(text: str) -> int:
        return len(tokenizer.encode(text, verbose=False))

    for length, counted, limit, spare in (
        *((length, count, None, 30) for length in (600, 1000, 4096, 32_768)),
        (131_072, count, 4, 30),
        (3000, own, 4, 80),
    ):
        for question in make(SuiteSettings(counted, lengths=(length,), limit=limit)):
            tokens = counted(question.prompt) + MAX_NEW_TOKENS + TEMPLATE_TOKENS
            assert length - spare < tokens <= length


def test_the_answer_is_in_the_text_once_and_passes():
    for question in make(SuiteSettings(count, lengths=(1000, 2000))):
        wanted = question.spec["wanted"]
        for word in wanted:
            assert word in question.prompt
        assert judge(question, question.gold).is_correct
        assert judge(question, f"It is: {question.gold.lower()}.").is_correct
        assert not judge(question, question.prompt).is_correct
        assert not judge(question, question.gold[:-1]).is_correct
        wrong = question.spec["wrong"]
        if wrong:
            assert "also said" in judge(question, f"{question.gold}, {wrong[0]}").note


def test_chains_and_hops_lead_to_the_wanted_answer():
    for question in make(SuiteSettings(count, lengths=(1000,))):
        sentences = question.prompt.replace("\n", " ").split(". ")
        if question.category.startswith("variables"):
            value = question.prompt.rsplit("value ", 1)[1].split("?")[0]
            values: dict[str, str] = {}
            for sentence in sentences:
                if sentence.startswith("Let "):
                    name, source = sentence[4:].split(" = ")
                    values[name] = values.get(source, source)
            assert {n for n, v in values.items() if v == value} == set(question.spec["wanted"])
        if question.category.startswith("hops"):
            person = question.prompt.rsplit("friend of ", 1)[1].split("?")[0]
            start = f"The best friend of {person} is "
            friend = next(s[len(start) :] for s in sentences if s.startswith(start))
            start = f"{friend} lives beside the "
            place = next(s[len(start) :] for s in sentences if s.startswith(start))
            start = f"The house beside the {place} has a door painted "
            door = next(s[len(start) :] for s in sentences if s.startswith(start))
            assert [door] == question.spec["wanted"]


def test_only_seed_and_length_change_the_questions():
    settings = SuiteSettings(count, lengths=(800,), seed=1)
    assert make(settings) == make(settings)
    assert make(settings) != make(SuiteSettings(count, lengths=(800,), seed=2))
    both = make(SuiteSettings(count, lengths=(800, 1600), seed=1))
    assert [q for q in both if q.category.endswith(" 800")] == list(make(settings))


def test_a_limit_has_every_kind_and_lengths_stay_below_64():
    few = make(SuiteSettings(count, lengths=(800, 1600), limit=8))
    assert len(few) == 8
    assert len({q.category for q in few}) == 8
    many = make(SuiteSettings(count, lengths=tuple(range(800, 4800, 500))))
    assert len(many) == 64
    assert {q.category.split()[0] for q in many} == set(KINDS)


def test_a_late_answer_is_cut_off():
    question = make(SuiteSettings(count, lengths=(1000,), limit=1))[0]
    assert not judge(question, "Well, let me think about that. " * 20 + question.gold).is_correct
    assert judge(question, f"1,{'0' * 3}... {int(question.gold):,}").is_correct


@pytest.mark.parametrize(
    ("lengths", "message"),
    [((), "Give one or more"), ((0,), "Give one or more"), ((100,), "too short.*needs")],
)
def test_impossible_lengths_are_refused(lengths, message):
    with pytest.raises(EvaluationError, match=message):
        make(SuiteSettings(count, lengths=lengths))
