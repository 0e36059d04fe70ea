"""Endpoints over real HTTP: right answers, bad servers, and a token that leaves no trace."""

import gzip
import itertools
import json
import re
import threading
import tracemalloc

import pytest
from loopback_endpoint import serve
from right_answers import right

from ram_studio.errors import EvaluationError, ServerError, Stopped
from ram_studio.evals.answering import endpoint
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.answering.engine import reason_of
from ram_studio.evals.question import Question, Reply
from ram_studio.evals.report.comparison import PairedCounts
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.history import stored_report
from ram_studio.evals.report.score import as_json
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings

SETTINGS = SuiteSettings(lambda text: -(-len(text) // 4), lengths=(1000,), seed=2026)
SUITES = "tool,math,memory,code,instructions"


def golds() -> dict[str, str]:
    """Prompt -> a right answer, for every suite that has one."""
    suites = [suite for name, suite in GENERAL_SUITES.items() if name != "instructions"]
    return {q.prompt: right(q) for suite in suites for q in suite.make(SETTINGS)}


def asked(body: dict) -> str:
    return body["messages"][0]["content"] if "messages" in body else body["prompt"]


def question(text: str = "Say hi.", **more: object) -> Question:
    return Question(str(more.pop("id", "q")), "d", "c", text, "hi", None, 16, **more)


def ask(engine: EndpointEngine, *questions: Question) -> list:
    replies = {q.id: r for batch in engine.answer(questions) for q, r in batch}
    return [replies[q.id] for q in questions]


def reply_to(body: object) -> Reply:
    """Return what an engine makes of one response body."""
    with serve(lambda _: body) as server:
        (reply,) = ask(EndpointEngine(server.url), question())
    return reply


def test_a_server_that_knows_the_answers_scores_full_marks(store):
    right = golds()

    def answer(body: dict) -> str:
        text = asked(body)
        return next((a for prompt, a in right.items() if prompt in text), "")

    with serve(answer) as server:
        one = {"one": EndpointEngine(server.url)}
        report = evaluate(one, SUITES, limit=4, lengths=(1000,), store=store)
        domains = report.models["one"].domains
        for name in ("tool", "math", "memory", "code"):
            assert domains[name].score == 1.0, report.models["one"].answers[name]
        assert domains["instructions"].score == 0
        assert report.models["one"].answers["instructions"][0].note.startswith("empty answer")
        count = len(server.requests)
        again = evaluate(one, SUITES, limit=4, lengths=(1000,), store=store)
        assert len(server.requests) == count
        assert again.models["one"].answers == report.models["one"].answers


def test_chat_and_plain_requests_are_greedy_and_bounded():
    with serve(lambda body: "hi") as server:
        chat = EndpointEngine(server.url)
        assert ask(chat, question())[0].text == "hi"
        plain = EndpointEngine(server.url, chat="none")
        assert ask(plain, question())[0].prompt == "Say hi.\n\nAnswer:\n"
        assert ask(chat, question(is_raw=True))[0].prompt == "Say hi."
        paths = [path for path, _, _ in server.requests]
        assert paths == ["/v1/chat/completions", "/v1/completions", "/v1/completions"]
        for _, _, body in server.requests:
            assert (body["model"], body["temperature"], body["max_tokens"]) == ("one", 0, 16)


GARBAGE = [
    (b"<html>gateway</html>", "not a completion"),
    (b"", "not a completion: nothing"),
    (b"[" * 100_000, "not a completion"),
    (b'{"choices": []}', "not a completion"),
    (b'{"choices": [{"message": {"content": 5}}]}', "not a completion"),
    (b'{"choices": [null]}', "not a completion"),
    (b"\xff\xfe\x00", "not a completion"),
    ((500, b"CUDA error"), "status 500: CUDA error"),
    ((429, b"slow down"), "status 429"),
    (b"x" * (5 * 1024**2), "exceeded"),
]


@pytest.mark.parametrize(("body", "note"), GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_a_failed_reply_that_is_asked_again(body, note, store, monkeypatch):
    state = {"body": body}
    monkeypatch.setattr(endpoint, "PAUSE_SECONDS", 0.001)
    with serve(lambda _: state["body"]) as server:
        models = {"one": EndpointEngine(server.url)}
        report = evaluate(models, "math", limit=2, store=store)
        answer = report.models["one"].answers["math"][0]
        assert not answer.is_correct
        assert answer.note.startswith("failed: ")
        assert note in answer.note
        assert (answer.finish, report.models["one"].domains["math"].n) == ("failed", 0)
        assert all(run.answered == 0 for run in store.runs())
        state["body"] = f"Answer: {GENERAL_SUITES['math'].make(SETTINGS)[0].gold}"
        mended = evaluate(models, "math", limit=2, store=store)
        assert [a.is_correct for a in mended.models["one"].answers["math"]].count(True) == 1


def test_a_busy_server_is_asked_again_and_a_failing_one_left_out(monkeypatch):
    monkeypatch.setattr(endpoint, "PAUSE_SECONDS", 0.001)
    replies = [(503, b"loading"), (429, b"slow down"), "Answer: 61"]
    with serve(lambda _: replies.pop(0)) as server:
        (reply,) = ask(EndpointEngine(server.url), question())
        assert (reply.finish, reply.text, len(server.requests)) == ("end", "Answer: 61", 3)

    def answer(body: dict) -> object:
        return (500, b"CUDA error") if body["model"] == "bad" else "Answer: 1"

    with serve(answer, ("good", "bad")) as server:
        models = {name: EndpointEngine(server.url, name) for name in ("good", "bad")}
        report = evaluate(models, "math", limit=2)
        assert len(server.requests) == 2 + 2 * (endpoint.RETRIES + 1)
    result = EvalResult.of(report)
    bad = as_json(result)["models"]["bad"]
    assert "(5 tries)" in report.models["bad"].answers["math"][0].note
    assert (bad["domains"]["math"]["score"], bad["average"]["score"]) == (None, None)
    found = {name: count for name, count in bad["domains"]["math"]["outcomes"].items() if count}
    assert found == {"questions": 2, "failed": 2}
    # Not answered is not wrong: there is nothing to compare.
    assert report.compare("good", "bad")["math"] == PairedCounts(0, 0, 0)
    (said,) = result.missing()
    assert "bad, math: of 2 questions 2 got no answer" in said


CALL = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def cut(content: str | None) -> dict:
    return {"choices": [{"message": {"content": content}, "finish_reason": "length"}]}


@pytest.mark.parametrize(
    ("body", "finish", "note"),
    [
        ("", "empty", "the model said nothing"),
        ({"choices": [{"message": {}}]}, "empty", "the model said nothing"),
        (cut("Well, "), "length", "cut off after 16 tokens"),
        (cut(None), "length", "cut off after 16 tokens before it said anything"),
        ({"choices": [{"message": {"content": None, "tool_calls": [CALL]}}]}, "end", ""),
        ((400, b"maximum context length is 4096"), "too_long", ".*400:.*4096.*"),
        ((422, b"bad field"), "refused", ".*422: bad field"),
    ],
)
def test_what_is_no_whole_answer_is_told_apart_and_final(body, finish, note):
    reply = reply_to(body)
    assert reply.finish == finish
    assert re.fullmatch(note, reply.note)
    # Calls that a server parsed itself count as calls.
    assert finish != "end" or json.loads(reply.text) == {"tool_calls": [CALL]}


TEXT = [{"type": "text", "text": "So: "}, {"type": "text", "text": "hi"}]
THINKING = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]


@pytest.mark.parametrize("tokens", [10**30, -1, True, "3", None])
def test_a_count_of_tokens_that_cannot_be_is_none(tokens, store):
    choice = {"message": {"content": "hi"}, "finish_reason": "stop"}
    body = {"choices": [choice], "usage": {"completion_tokens": tokens}}
    with serve(lambda _: body) as server:
        report = evaluate({"one": EndpointEngine(server.url)}, "math", limit=1, store=store)
    (answer,) = report.models["one"].answers["math"]
    assert (answer.text, answer.tokens) == ("hi", None)


CONTENTS = [
    ({"content": TEXT}, "So: hi"),
    ({"content": [*THINKING, *TEXT]}, "<think>Hm.</think>So: hi"),
    ({"content": "hi", "reasoning": "Hm."}, "<think>Hm.</think>hi"),
    ({"content": "hi", "reasoning_content": "Hm.", "reasoning": None}, "<think>Hm.</think>hi"),
    ({"content": [{"type": "image_url", "image_url": {}}]}, None),
    ({"content": None, "refusal": "I can't help."}, "I can't help."),
    ({"content": [{"type": "refusal", "refusal": "I can't."}]}, "I can't."),
]


@pytest.mark.parametrize(("message", "text"), CONTENTS, ids=range(len(CONTENTS)))
def test_content_in_parts_and_reasoning_are_read(message, text):
    reply = reply_to({"choices": [{"message": message}]})
    assert reply.text == (text or "")
    assert reply.finish == ("end" if text else "failed")


def test_half_a_character_ends_no_conversation(store):
    said = '[{"name": "list_files", "arguments": {}}] \ud800'
    body = {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}
    with serve(lambda _: body) as server:
        report = evaluate({"one": EndpointEngine(server.url)}, "tool-loop", limit=1, store=store)
    assert report.models["one"].answers["tool-loop"][0].note.endswith("after 8 turns")


def test_a_server_gets_max_completion_tokens_once_it_asks():
    def answer(body: dict):
        if "max_tokens" in body:
            return 400, b"Unsupported parameter: use 'max_completion_tokens' instead"
        return "hi" if body["max_completion_tokens"] == 16 else (400, b"max_completion_tokens?")

    with serve(answer) as server:
        engine = EndpointEngine(server.url, parallel=1)
        replies = [ask(engine, question(f"Say hi {n}."))[0] for n in range(2)]
    assert [reply.text for reply in replies] == ["hi", "hi"]
    assert ["max_tokens" in body for _, _, body in server.requests] == [True, False, False]


def test_a_compressed_reply_is_unpacked_within_its_bound():
    def packed(text: bytes) -> tuple:
        return 200, gzip.compress(text), {"Content-Encoding": "GZip"}

    small = json.dumps({"choices": [{"text": "hi", "finish_reason": "stop"}]}).encode()
    large, other = packed(b" " * 64 * 1024**2), (200, b"\x0b\x02", {"Content-Encoding": "br"})
    replies = [packed(small), other, large]
    with serve(lambda _: replies.pop(0)) as server:
        engine = EndpointEngine(server.url, "one")
        assert ask(engine, question())[0].text == "hi"
        assert "not a completion" in ask(engine, question())[0].note
        tracemalloc.start()
        (reply,) = ask(engine, question())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert {headers["Accept-Encoding"] for _, headers, _ in server.requests} == {"gzip"}
    assert "exceeded" in reply.note
    assert most < 32 * 1024**2


def test_a_long_reason_is_cut_and_says_so():
    assert reason_of(ValueError("bad  config")) == "bad config"
    assert reason_of(ValueError()) == "ValueError"
    cut = reason_of(ValueError("x" * 1000))
    assert (len(cut), cut[:9], cut[-4:]) == (300, "x" * 9, " ...")


def test_a_redirect_says_where_to_and_is_not_followed():
    place = "http://127.0.0.2:9/v1/chat/completions"
    with serve(lambda _: (307, b"", {"Location": place})) as server:
        (reply,) = ask(EndpointEngine(server.url, "one", token="t"), question())
        assert len(server.requests) == 1
    assert reply.finish == "refused"
    assert f"status 307: it redirects to {place}" in reply.note


def test_endless_replies_and_silent_servers_end_at_the_second():
    go_on = threading.Event()
    tries: dict[str, int] = {}

    def answer(body: dict) -> str:
        text = asked(body)
        tries[text] = tries.get(text, 0) + 1
        if text == "slow" and tries[text] == 2:
            return "hi"
        if text in ("silent", "slow"):
            go_on.wait(200)
        return "endless"

    with serve(answer) as server:
        engine = EndpointEngine(server.url, seconds=0.4)
        said = [question(text, id=text) for text in ("endless", "silent", "slow")]
        endless, silent, slow = ask(engine, *said)
        go_on.set()
    assert (endless.finish, silent.finish) == ("timed_out", "timed_out")
    assert endless.note == "the reply had no end after 0.4 s, asked twice"
    assert silent.note == "no answer within 0.4 s, asked twice"
    # What came at the second try is an answer like any other.
    assert (slow.finish, slow.text) == ("end", "hi")
    assert tries == {"endless": 2, "silent": 2, "slow": 2}


def test_questions_that_time_out_count_as_wrong_and_are_told(store):
    go_on = threading.Event()
    asked_first: list[str] = []

    def answer(body: dict) -> str:
        # The first question gets no answer at first; 61 is right for none or one of them.
        asked_first.append(asked(body))
        if asked(body) == asked_first[0] and not go_on.is_set():
            go_on.wait(200)
        return "Answer: 61"

    with serve(answer) as server:
        engine = EndpointEngine(server.url, seconds=0.5, parallel=1)
        report = evaluate({"one": engine}, "math", limit=4, store=store)
        result = EvalResult.of(report)
        found = as_json(result)["models"]["one"]
        # Before, it was in no score: n was 3.
        assert found["domains"]["math"]["n"] == 4
        assert {k: c for k, c in found["domains"]["math"]["outcomes"].items() if c} == {
            "questions": 4,
            "asked": 4,
            "timed_out": 1,
        }
        assert result.missing() == ["one, math: 1 of 4 questions timed out. They count as wrong."]
        assert "1 timed out" in result.lines[1]
        # History holds it, and asking again asks only that one.
        stored = stored_report(store, store.runs())
        assert stored.models["one"].domains["math"].n == 4
        go_on.set()
        before = len(asked_first)
        again = evaluate({"one": engine}, "math", limit=4, store=store)
        assert len(asked_first) == before + 1
        asked_again = EvalResult.of(again).models["one"].domains["math"]
        assert asked_again.outcomes.timed_out == 0


def test_an_unreachable_endpoint_keeps_what_is_stored(store):
    with serve(lambda _: "Answer: 1") as server:
        models = {"one": EndpointEngine(server.url, "one")}
        evaluate(models, "math", limit=3, store=store)
    with pytest.raises(ServerError, match=r"cannot be reached.*3 of 10 answers.* stored"):
        evaluate(models, "math", limit=10, store=store)
    assert evaluate(models, "math", limit=3, store=store).models["one"].domains["math"].n == 3
    with pytest.raises(ServerError, match="cannot be reached") as told:
        ask(EndpointEngine(server.url), question())
    assert told.value.exit_code == 69


def test_stop_between_answers_keeps_the_finished_ones(store):
    begun, stopped = itertools.count(), threading.Event()

    def answer(body: dict) -> str:
        if next(begun) >= 5:
            stopped.wait(60)
        return "Answer: 1"

    with serve(answer) as server:
        models = {"one": EndpointEngine(server.url, "one")}

        def should_stop() -> bool:
            if any(run.answered for run in store.runs()):
                stopped.set()
            return stopped.is_set()

        with pytest.raises(Stopped, match="are stored"):
            evaluate(models, "math", store=store, should_stop=should_stop)
        kept = store.runs()[0].answered
        assert 0 < kept < 60
        before = len(server.requests)
        evaluate(models, "math", store=store)
        # Answers under way at the stop were lost; their requests may still come in after it.
        assert len({asked(body) for _, _, body in server.requests[before:]}) == 60 - kept


def test_the_token_is_sent_and_leaves_no_trace(tmp_path, capfd, store):
    secret = "sk-very-secret-token"
    replies = iter([(401, b"no"), "Answer: 1", "Answer: 1"])
    with serve(lambda _: next(replies)) as server:
        source = EndpointEngine(server.url, "one", token=secret, parallel=1)
        with pytest.raises(EvaluationError, match="refused access with status 401") as error:
            evaluate({"one": source}, "math", limit=2, store=store)
        report = evaluate({"one": source}, "math", limit=2, store=store)
        assert server.requests[0][1]["Authorization"] == f"Bearer {secret}"
        shown = [json.dumps(as_json(EvalResult.of(report))), source, str(source), store.runs()]
    assert secret not in f"{shown}{error.value}"
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()
    out, err = capfd.readouterr()
    assert secret not in out + err


@pytest.mark.parametrize("token", ["sk-secret\n", "sk-s\xe9cret", "sk-\x01secret"])
def test_a_token_that_no_header_holds_is_refused(token):
    with pytest.raises(EvaluationError, match="token holds a line break or") as error:
        EndpointEngine("http://127.0.0.1:9/v1", "one", token=token)
    assert "sk-" not in str(error.value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_time_that_cannot_be_waited_is_refused(seconds):
    with pytest.raises(EvaluationError, match="up to 86400"):
        EndpointEngine("http://127.0.0.1:9/v1", "one", seconds=seconds)


def test_without_a_token_no_authorization_is_sent(monkeypatch, tmp_path):
    # A .netrc in the home folder must not be read for this machine.
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password netrc-secret\n")
    with serve(lambda _: "hi") as server:
        ask(EndpointEngine(server.url), question())
        assert "Authorization" not in server.requests[0][1]


BAD = "ftp://host/v1 127.0.0.1:8000 http:// http://host:99999/v1 http://host/v1?key=secret"


@pytest.mark.parametrize("url", [*BAD.split(), "http://me:secret@host/v1"])
def test_bad_urls_are_refused_without_repeating_them(url):
    message = "user name or password" if "@" in url else "http or https"
    with pytest.raises(EvaluationError, match=message) as error:
        EndpointEngine(url)
    assert "secret" not in str(error.value)


def test_the_model_is_chosen_only_when_there_is_one():
    with serve(lambda _: (404, b""), models=("a", "b")) as server:
        for model, said in ((None, "serves 2 models: a, b"), ("gone", "has no model 'gone'")):
            with pytest.raises(EvaluationError, match=said):
                ask(EndpointEngine(server.url, model), question())
