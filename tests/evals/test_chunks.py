"""Long texts read piece by piece with a bounded memory."""

import re
from dataclasses import replace

import pytest
from chat_model import make_chat_model
from loopback_endpoint import serve

from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.chunks import NO_MEMORY, ChunkReader, ChunkSizes, cut
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings

PART = re.compile(r"<(problem|memory|section)> ?\n(.*?)\n</\1>", re.DOTALL)


def parts(body) -> dict[str, str]:
    """Return what a request shows: problem, memory and, while reading, section."""
    return dict(PART.findall(body["messages"][0]["content"]))


@pytest.mark.parametrize("text", ["", " \n", "one", " a  bb\nccc dddd eeeee ", "word " * 300])
@pytest.mark.parametrize("most", [1, 3, 40])
def test_a_text_is_cut_between_words_into_pieces_that_fit(text, most):
    found = cut(text, most, lambda part: -(-len(part) // 4))
    assert "".join(found) == (text if text.strip() else "")
    for piece, following in zip(found, [*found[1:], None], strict=False):
        assert len(piece) <= 4 * most or len(piece.split()) == 1
        # No piece could have taken the next word too.
        if following is not None:
            whole = piece + re.match(r"\s*\S+", following).group()
            assert len(whole) > 4 * most


def test_chunks_and_memories_are_sent_in_turn_and_stored(tmp_path):
    settings = SuiteSettings(lambda text: -(-len(text) // 4), 2, 2026, (1000,))
    questions = ALL_SUITES["memory"].make(settings)
    assert [q.category for q in questions] == ["needle 1000", "needles 1000"]
    right = {q.reading[1]: q.gold for q in questions}
    silent = []

    def answer(body):
        seen = parts(body)
        if "section" not in seen:
            return f"I remember. \\boxed{{{right[seen['problem']]}}}"
        if "third" in seen["memory"] and not silent:
            silent.append(seen)
            return " "
        return {NO_MEMORY: "first", "first": "second", "second": "third"}.get(
            seen["memory"], "<think>what now?</think>later"
        )

    options = {"limit": 2, "lengths": (1000,), "mode": "memagent"}
    options |= {"chunk_tokens": 200, "memory_tokens": 30}
    with AnswerStore(tmp_path / "s") as store, serve(answer) as server:
        engine = EndpointEngine(server.url, "m", parallel=1)
        report = evaluate({"m": engine}, "memory", store=store, **options)
        bodies = [body for _, _, body in server.requests]
        (run,) = store.runs()
    assert report.models["m"].domains["memory"].score == 1.0
    assert [a.text for a in report.models["m"].answers["memory"]] == [q.gold for q in questions]
    sizes = {"mode": "memagent", "chunk_tokens": 200, "memory_tokens": 30, "answer_tokens": 1024}
    assert sizes.items() <= run.settings.items()
    assert sizes.items() <= report.models["m"].settings.items()
    for question in questions:
        own = [body for body in bodies if parts(body)["problem"] == question.reading[1]]
        *reading, last = own
        assert len(reading) >= 4
        assert "".join(parts(body)["section"] for body in reading) == question.reading[0]
        assert all(body["max_tokens"] == 30 for body in reading)
        assert all(len(parts(body)["section"]) <= 800 for body in reading)
        said = [NO_MEMORY, "first", "second", "third"]
        if silent[0]["problem"] == question.reading[1]:
            # Where it wrote nothing, the old memory stayed.
            said.append("third")
        said += ["later"] * len(own)
        assert [parts(body)["memory"] for body in own] == said[: len(own)]
        # As many as MemAgent gives; the suite's own 64 would cut off its working.
        assert last["max_tokens"] == 1024
        assert question.reading[0][:40] not in last["messages"][0]["content"]


def test_a_token_budget_holds_for_the_last_answer_too():
    with serve(lambda body: "7") as server:
        options = {"limit": 1, "lengths": (1000,), "mode": "memagent", "max_tokens": 50}
        evaluate({"m": EndpointEngine(server.url)}, "memory", **options)
        *reading, last = [body["max_tokens"] for _, _, body in server.requests]
    assert (set(reading), last) == ({1024}, 50)


def test_only_what_was_read_otherwise_is_asked_again(store):
    with serve(lambda body: "7") as server:
        counts, options = [], {"limit": 2, "lengths": (1000,), "store": store}
        for sizes in (None, (300, 20), (300, 20), (300, 21), None):
            names = ("mode", "chunk_tokens", "memory_tokens")
            how = {} if sizes is None else dict(zip(names, ("memagent", *sizes), strict=True))
            before, engine = len(server.requests), EndpointEngine(server.url, "m")
            evaluate({"m": engine}, "memory,math", **how, **options)
            counts.append(len(server.requests) - before)
    # Math has no texts: its two questions are asked once.
    assert counts[0] == 4
    assert counts[1] == counts[3] >= 8
    assert counts[2] == counts[4] == 0


def test_a_refused_chunk_ends_its_question_and_says_where():
    def answer(body):
        seen = parts(body)
        is_second = seen["memory"] == "first" and "section" in seen
        return (400, b"no such thing") if is_second else "first"

    options = {"limit": 1, "lengths": (1000,), "mode": "memagent"}
    options |= {"chunk_tokens": 400, "memory_tokens": 20}
    with serve(answer) as server:
        report = evaluate({"m": EndpointEngine(server.url)}, "memory", **options)
    (found,) = report.models["m"].answers["memory"]
    assert found.finish == "refused"
    assert re.search(r"at chunk 2 of \d: the server refused it with status 400", found.note)


def test_a_small_model_reads_what_is_longer_than_its_context(tmp_path):
    engine = LocalEngine(make_chat_model(tmp_path / "model", context=520), device="cpu")
    settings = SuiteSettings(engine.count_tokens, 1, 1, (700,))
    (question,) = ALL_SUITES["memory"].make(settings)
    question = replace(question, max_new_tokens=6)
    reader = ChunkReader(engine, ChunkSizes(100, 8, 6))
    long = (ChunkSizes(300, 8, 6), ChunkSizes(100, 8))
    for too_long in (engine, *(ChunkReader(engine, sizes) for sizes in long)):
        assert "the model's context is 520" in too_long.context_overflow([question])
    assert not reader.context_overflow([question])
    pieces = cut(question.reading[0], 100, engine.count_tokens)
    assert len(pieces) > 4
    assert all(engine.count_tokens(piece) <= 100 for piece in pieces)
    ((found,),) = reader.answer([question])
    engine.close()
    assert found[0] is question
    reply = found[1]
    assert reply.finish in ("end", "length", "empty")
    # The prompt it answers has what it wrote of the last piece, and no text.
    seen = dict(PART.findall(reply.prompt))
    assert seen.keys() == {"problem", "memory"}
    assert seen["memory"] != NO_MEMORY
    assert engine.count_tokens(seen["memory"]) <= 10
    assert reply.tokens > len(pieces)
