"""The tool loop: scripted agents of three kinds on every engine, judged by the final state."""

import json
import re
from dataclasses import replace

import pytest
from chat_model import TOOL_TEMPLATE, make_chat_model
from loopback_endpoint import serve
from scripted import end_of

from ram_studio.evals.answering.conversations import Conversations
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Reply
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings
from ram_studio.evals.suites.tools.tool_loop import MOST_TURNS

SUITE = ALL_SUITES["tool-loop"]
DAY = "(Monday|Tuesday|Wednesday|Thursday|Friday)"


def made(limit: int, seed: int = 1, difficulty: int = 3):
    return SUITE.make(SuiteSettings(len, limit, seed, difficulty=difficulty))


def call(name: str, /, **arguments: object) -> str:
    return json.dumps([{"name": name, "arguments": arguments}])


def good(wish: str, results: list) -> str:
    """Return the next call for a wish, from its words and what functions returned since it."""
    n = len(results)

    def cheapest(found: list) -> str:
        return min(found, key=lambda row: row["price"])["item"]

    if m := re.search(rf"Put a meeting with (\w+) on {DAY} at (\d+)", wish):
        steps = [lambda: call("add_event", day=m[2], hour=int(m[3]), person=m[1])]
    elif m := re.search(r"Order (\d+) of the '(.+)' from", wish):
        steps = [lambda: call("order_item", item=m[2], count=int(m[1]))]
    elif m := re.search(r"Write the file (\S+) with the text '(.+)'", wish):
        steps = [lambda: call("write_file", name=m[1], text=m[2])]
    elif m := re.search(rf"(Cancel|Move) my meeting with (\w+) on {DAY}(?: to (\d+))?", wish):

        def hour() -> int:
            return next(row["hour"] for row in results[0] if row["person"] == m[2])

        steps = [
            lambda: call("list_events", day=m[3]),
            lambda: call("cancel_event", day=m[3], hour=hour()),
            lambda: call("add_event", day=m[3], hour=int(m[4]), person=m[2]),
        ][: 3 if m[1] == "Move" else 2]
    elif m := re.search(r"Order (\d+) of the cheapest (\w+)", wish):
        steps = [
            lambda: call("search_items", word=m[2]),
            lambda: call("order_item", item=cheapest(results[0]), count=int(m[1])),
        ]
    elif m := re.search(r"Copy what the file (\S+) says into the new file (\S+)\.", wish):
        steps = [
            lambda: call("read_file", name=m[1]),
            lambda: call("write_file", name=m[2], text=results[0]),
        ]
    else:
        m = re.search(r"The file (\S+) says what to order", wish)
        noted = results[0].split() if n else []
        steps = [
            lambda: call("read_file", name=m[1]),
            lambda: call("search_items", word=noted[-1]),
            lambda: call("order_item", item=cheapest(results[1]), count=int(noted[0])),
        ]
    return steps[n]() if n < len(steps) else "All is done."


def lazy(wish: str, results: list) -> str:
    """Does what takes one call; says that the rest is done."""
    first = good(wish, [])
    is_lookup = re.search("list_|search_|read_", first)
    return "All is done." if results or is_lookup else first


def broken(wish: str, results: list) -> str:
    """Calls on and on, without one argument."""
    name = json.loads(good(wish, []))[0]["name"]
    return call(name)


class Scripted:
    """An engine whose model is one of these."""

    path, software = "scripted", {"scripted": "1"}

    def __init__(self, policy) -> None:
        self.policy, self.identity = policy, {"fingerprint": policy.__name__, "chat": True}
        self.turns = 0

    def count_tokens(self, text):
        return len(text) // 4

    def context_overflow(self, questions):
        return ""

    def answer(self, questions, should_stop=None):
        self.turns += 1
        yield [(q, Reply(self.reply(q), q.prompt, "end", tokens=3, seconds=0.5)) for q in questions]

    def reply(self, question) -> str:
        wish, results = question.prompt, []
        for message in question.messages:
            if message["role"] == "user":
                wish, results = message["content"], []
            if message["role"] == "tool":
                results.append(json.loads(message["content"]))
        return self.policy(wish, results)


@pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 5])
def test_good_lazy_and_broken_agents_are_told_apart(difficulty):
    engines = {policy.__name__: Scripted(policy) for policy in (good, lazy, broken)}
    settings = {"difficulty": difficulty, "limit": 25, "seed": 7}
    result = EvalResult.of(evaluate(engines, "tool-loop", **settings))
    rows = {name: model.domains["tool-loop"] for name, model in result.models.items()}
    assert rows["good"].score == 1.0
    # One call at a time, and a last word for each wish.
    wishes = 1 if difficulty < 3 else 2
    assert rows["good"].summary["turns"] == difficulty + wishes <= MOST_TURNS
    assert rows["lazy"].score == (1.0 if difficulty == 1 else 0.0)
    assert rows["broken"].score == 0.0
    assert rows["broken"].summary == {"turns": MOST_TURNS, "calls with an error": 1.0}
    answer = result.report.models["good"].answers["tool-loop"][0]
    turns = answer.facts["turns"]
    assert (answer.tokens, answer.seconds) == (3 * turns, 0.5 * turns)
    assert result.report.models["broken"].answers["tool-loop"][0].note.endswith("after 8 turns")
    assert result.chance_levels["tool-loop"] < 0.1


def test_doing_more_than_asked_is_wrong_whatever_the_way_there():
    for question in made(20, 3, 3):
        (talk,) = Conversations(Scripted(good), SUITE.converse).answer([question])
        text = talk[0][1].text
        assert SUITE.judge(question, text, "off").is_correct
        # One more change, before the first call.
        extra = {"role": "assistant", "content": call("write_file", name="x.txt", text="x")}
        verdict = SUITE.judge(question, f"{json.dumps(extra)}\n{text}", "off")
        assert (verdict.is_correct, verdict.note) == (False, "files, x.txt: 'x' instead of None")
        # Looking up more is free; so is blank space around a text.
        more = {"role": "assistant", "content": call("list_orders")}
        assert SUITE.judge(question, f"{json.dumps(more)}\n{text}", "off").is_correct


def test_seeds_are_endless_and_smaller_limits_are_parts():
    # As many as asking until it is decided asks at most.
    many = made(1600, difficulty=2)
    assert len({q.prompt for q in many}) == 1600
    assert made(30, difficulty=2) == many[:30]
    assert len({q.prompt for q in many[:50]} & {q.prompt for q in made(50, 2, 2)}) < 3


def test_a_conversation_beyond_the_context_is_wrong():
    (question,) = made(1)
    full = Reply("", "", "too_long", "full")
    end = end_of(SUITE.converse(question), [Reply(call("list_files"), "", "end"), full])
    assert end.finish == "length"
    assert "list_files" in end.text
    # From the first request on, it was never asked.
    assert end_of(SUITE.converse(question), [full]) == full


@pytest.mark.parametrize(
    "text",
    [
        *(f"list_events(day={literal})" for literal in ("...", "b'x'", "{1, 2}", "{(1, 2): 1}")),
        *(f"list_events(day={literal})" for literal in ("{[1]: 2}", "1j", f"0x{'f' * 9000}")),
        f"add_event(day='Monday', hour=0x{'f' * 9000}, person='x')",
        f'[{{"name": "order_item", "arguments": {{"item": "tent", "count": {"9" * 4300}}}}}]',
        r'[{"name": "write_file", "arguments": {"name": "\ud800", "text": "\udfff"}}]',
        f'[{{"name": "write_file", "arguments": {{"text": {"[" * 900}{"]" * 900}}}}}]',
    ],
)
def test_arguments_that_json_cannot_say_end_no_evaluation(text):
    (question,) = made(1)
    question = replace(question, spec=dict(question.spec, state=dict(question.spec["state"])))
    question.spec["state"]["stock"] = {"tent": 5}
    said = (text, text, call("list_orders"), *["Done."] * (MOST_TURNS - 3))
    end = end_of(SUITE.converse(question), (Reply(one, "", "end") for one in said))
    assert not SUITE.judge(question, end.text, "off").is_correct


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x1c", "\r"])
def test_line_marks_in_what_a_model_says_end_no_message(mark):
    def marked(wish: str, results: list) -> str:
        return good(wish, results).replace("All is done.", f"All is{mark} done.")

    (question,) = made(1)
    (talk,) = Conversations(Scripted(marked), SUITE.converse).answer([question])
    assert SUITE.judge(question, talk[0][1].text, "off").is_correct


@pytest.mark.parametrize("is_native", [True, False])
def test_an_endpoint_gets_calls_and_results_by_the_protocol(is_native, store):
    bodies = []

    def answer(body):
        if "tools" in body and not is_native:
            return 400, b"tools are not supported"
        bodies.append(body)
        wish, results = "", []
        for message in body["messages"]:
            if is_native and message["role"] == "tool":
                results.append(json.loads(message["content"]))
            elif message["role"] == "user" and message["content"].startswith("The functions ret"):
                results += map(json.loads, message["content"].splitlines()[1:])
            elif message["role"] == "user":
                wish, results = message["content"], []
        said = good(wish, results)
        if not is_native or not said.startswith("["):
            return said
        (one,) = json.loads(said)
        function = {"name": one["name"], "arguments": json.dumps(one["arguments"])}
        calls = [{"id": "theirs", "type": "function", "function": function}]
        return {"choices": [{"message": {"content": None, "tool_calls": calls}}]}

    with serve(answer) as server:
        engine = EndpointEngine(server.url, "m", parallel=2)
        settings = {"difficulty": 5, "limit": 4, "store": store}
        report = evaluate({"m": engine}, "tool-loop", **settings)
        assert report.models["m"].domains["tool-loop"].score == 1.0
        before = len(bodies)
        evaluate({"m": engine}, "tool-loop", **settings)
        assert len(bodies) == before == 4 * 7
    last = max(bodies, key=lambda body: len(body["messages"]))["messages"]
    if is_native:
        made_ids = [c["id"] for m in last for c in m.get("tool_calls", ())]
        assert made_ids == [m["tool_call_id"] for m in last if m["role"] == "tool"]
        assert len(set(made_ids)) == 5
        assert all(not m["content"] for m in last if "tool_calls" in m)
    roles = {m["role"] for m in last}
    assert roles == ({"user", "assistant", "tool"} if is_native else {"user", "assistant"})


NO_RESULTS = TOOL_TEMPLATE.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}",
)


@pytest.mark.parametrize(
    ("template", "marks"),
    [(TOOL_TEMPLATE, "<|tool|> 7"), (NO_RESULTS, "<|user|> The functions returned"), (None, "7")],
    ids=["knows results", "refuses results", "no template"],
)
def test_a_local_model_sees_what_was_said_and_returned(tmp_path, template, marks):
    engine = LocalEngine(
        make_chat_model(tmp_path / "m", template=template, context=6000), device="cpu"
    )
    (question,) = made(1)
    plain = engine.prompt_of(question)
    since = (
        {"role": "assistant", "content": "CALL", "calls": [{"name": "a", "arguments": {}}]},
        {"role": "tool", "name": "a", "content": "7"},
    )
    later = replace(question, messages=since)
    assert later.digest != question.digest
    prompt = engine.prompt_of(later)
    assert "CALL" in prompt
    assert "CALL" not in plain
    assert marks in prompt
    assert prompt.index("CALL") < prompt.rindex("7")
    # The shipped model acts as badly as it must, but the loop comes to its end.
    short = replace(question, max_new_tokens=4)
    (row,) = [r for b in Conversations(engine, SUITE.converse).answer([short]) for r in b]
    assert row[0] == short
    assert not SUITE.judge(question, row[1].text, "off").is_correct
