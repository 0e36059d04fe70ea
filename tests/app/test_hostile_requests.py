"""No request holds the event loop, which carries the pages of all users, or takes the memory."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from http_user import HttpUser, tell
from safetensors import safe_open
from safetensors.numpy import save_file

from ram_studio.algorithm.analysis import Analysis
from ram_studio.app.session.sets import DEFAULT_SET, load_set
from ram_studio.checkpoints.read.content_hash import hash_bytes
from ram_studio.checkpoints.record.analysis_file import save_analysis
from ram_studio.checkpoints.record.analysis_packing import pack
from ram_studio.checkpoints.record.recipe import MAX_RECIPE_BYTES

pytest.importorskip("gradio")

MAX_SECONDS = 0.1
ENDPOINTS = ("analyze", "preview", "merge", "evaluate", "compare", "sweep")
ROUTES = ("queue/join", "call/{}", "call/v2/{}", "run/{}")
AXES = ("r", "alpha", "epsilon", "scale", "density", "drop")
FILE = '{"path":"/etc/passwd","url":null,"meta":{"_type":"gradio.FileData"}}'


class Watched(NamedTuple):
    """A public app whose event loop is watched. log: what held it."""

    url: str
    log: Path

    @property
    def process(self) -> Path:
        """What the kernel tells of the app's process."""
        return Path("/proc", re.search(r"^PID (\d+)$", self.log.read_text(), re.MULTILINE)[1])

    def memory(self, field: str = "VmRSS") -> int:
        """Return the bytes that it holds; VmHWM: the most that it held."""
        status = (self.process / "status").read_text()
        return 1024 * int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1])

    def held(self, since: float) -> list[float]:
        """Return for how long the loop stood still, each time since a moment."""
        found = re.findall(r"^HELD (\S+) (\S+)$", self.log.read_text(), re.MULTILINE)
        return [float(seconds) for seconds, ended in found if float(ended) >= since]


@pytest.fixture(scope="module")
def watched(space_url: str, space_folder: Path) -> Watched:
    log = space_folder / "loop.log"
    while "\nWARM\n" not in log.read_text():
        time.sleep(0.1)
    return Watched(space_url, log)


def hostile(size: int, values: int) -> dict[str, str]:
    """Return JSON of about so many bytes, or of so many values."""

    def filled(piece: str, between: str = ",", around: str = "[]") -> str:
        count = min(size // (len(piece) + len(between)), values)
        return around[0] + between.join([piece] * count) + around[1]

    def many(start: str, end: str, around: str = "{}") -> str:
        count = min(size // (len(start) + len(end) + 7), values // (1 + end.count(",")))
        return around[0] + ",".join(f"{start}{n}{end}" for n in range(count)) + around[1]

    def text(letter: str) -> str:
        return '"' + letter * (size // len(letter.encode())) + '"'

    wide = dict.fromkeys(AXES, "0:1:1000")
    listed = list(range(min(size // 40, values // len(AXES), 1_000)))
    return {
        "deep": "[" * (size // 2) + "]" * (size // 2),
        "deep enough to parse": "[" * 900 + "]" * 900,
        "numbers": filled("0"),
        "floats": filled("1e-308"),
        "names": filled('"x"'),
        "long names": filled(json.dumps("x" * 900)),
        "lists": filled("[]"),
        "objects": filled("{}"),
        "files": filled(FILE),
        "keys": many('"k', '":0'),
        "agents": many('"a', '":"owner/name"'),
        "pairs": many("[", ",0]", "[]"),
        "text": text("x"),
        "slashes": text("/"),
        "blanks": text(" "),
        "quotes": text('\\"'),
        "escapes": text("\\u0000"),
        "other letters": text("ÿ"),
        "digits": text("9"),
        "commas": text(","),
        "colons": text(":"),
        "a number": "9" * 4_000,
        "a long number": "9" * size,
        "a long fraction": "0." + "1" * size,
        "ranges": json.dumps(wide),
        "methods": json.dumps({**wide, "rule": ["ram", "ram+", "ram+s", "ties", "dare-ta"]}),
        "values": json.dumps(dict.fromkeys(AXES, listed)),
        "words": json.dumps(dict.fromkeys(AXES, ",".join(map(str, range(size // 42))))),
        "unfinished": filled("0")[:-1],
        "nothing": " " * size,
    }


class Endpoint(NamedTuple):
    """What the page says of a named endpoint: its number, and arguments as they are usually."""

    number: int
    usual: dict[str, Any]


async def endpoints_of(user: HttpUser) -> dict[str, Endpoint]:
    await user.open()
    info = (await user.http.get("gradio_api/info")).json()["named_endpoints"]
    numbers = {e["api_name"]: e["id"] for e in user.config["dependencies"]}
    return {
        name: Endpoint(
            numbers[name],
            {
                p["parameter_name"]: p.get("parameter_default")
                for p in info[f"/{name}"]["parameters"]
            },
        )
        for name in ENDPOINTS
    }


def body_of(route: str, endpoint: Endpoint, value: str, place: int) -> str:
    """Return a body in which one argument is a value: what is swept or set, or that of a place."""
    names = list(endpoint.usual)
    named = [n for n in ("over", "settings", "agents") if n in names] if value[0] == "{" else []
    wanted = (named or names)[place % len(named or names)]
    data = {name: json.dumps(usual) for name, usual in endpoint.usual.items()} | {wanted: value}
    if route == "call/v2/{}":
        return f"{{{','.join(f'{json.dumps(name)}:{own}' for name, own in data.items())}}}"
    more = f',"fn_index":{endpoint.number},"session_hash":"hostile"' if "queue" in route else ""
    return f'{{"data":[{",".join(data.values())}]{more}}}'


def uploads(size: int) -> dict[str, str]:
    """Return forms of about so many bytes, with the boundary b."""
    head = 'Content-Disposition: form-data; name="files"; filename="{}"\r\n'
    return {
        "a name": f"--b\r\n{head.format('x' * size + '.yaml')}\r\nx\r\n--b--\r\n",
        "a header": f"--b\r\n{head.format('x.yaml')}x: {'y' * size}\r\n\r\nx\r\n--b--\r\n",
        "headers": f"--b\r\n{head.format('x.yaml')}" + "x: y\r\n" * (size // 6) + "\r\nx\r\n--b--",
        "parts": f"--b\r\n{head.format('x.yaml')}\r\nx\r\n" * (size // 90) + "--b--\r\n",
        "empty parts": "--b\r\n\r\n" * (size // 7) + "--b--\r\n",
        "boundaries": f"--b\r\n{head.format('x.safetensors')}\r\n" + "\r\n--" * (size // 4),
        "dashes": "-" * size,
        "a file": f"--b\r\n{head.format('x.safetensors')}\r\n{'x' * size}\r\n--b--\r\n",
    }


async def post(user: HttpUser, route: str, body: str, kind: str = "application/json") -> None:
    """Send a body and listen to what comes of it, for a moment: it may begin a job."""
    headers = {"content-type": kind}
    answer = await user.http.post(f"gradio_api/{route}", content=body.encode(), headers=headers)
    if answer.status_code != 200 or "event_id" not in answer.text:
        return
    listening = f"{route}/{answer.json()['event_id']}".replace("call/v2", "call")
    if route == "queue/join":
        listening = "queue/data?session_hash=hostile"
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(user.http.get(f"gradio_api/{listening}"), 1.0)


Bodies = AsyncIterator[tuple[str, Any]]


def check(watched: Watched, bodies: Callable[[HttpUser], Bodies]) -> None:
    """Send bodies while another user polls a light page; fail where one held the loop each time.

    bodies: of a user; what each is, and its sending.
    """
    held: dict[str, float] = {}

    async def story(user: HttpUser, other: HttpUser) -> None:
        async def poll() -> None:
            while True:
                (await other.http.get("ram/page.js")).raise_for_status()
                await asyncio.sleep(0.02)

        polling = asyncio.create_task(poll())
        async for what, sending in bodies(user):
            # What a body does it does again; a collection of garbage, or a neighbor, does not.
            for _ in range(8):
                since = time.time()
                await sending()
                took = max(watched.held(since), default=0.0)
                held[what] = min(took, held.get(what, took))
                if held[what] <= MAX_SECONDS:
                    break
                # Other tests slow this one's computing down while they last.
                await asyncio.sleep(2)
        assert not polling.done()
        polling.cancel()

    async def visited() -> None:
        async with HttpUser(watched.url, "127.0.0.2") as one, HttpUser(watched.url) as other:
            await story(one, other)

    tell(visited())
    print(sorted(held.items(), key=lambda item: -item[1])[:25])
    assert {what: seconds for what, seconds in held.items() if seconds > MAX_SECONDS} == {}


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.parametrize("clients", [120, pytest.param(500, marks=pytest.mark.slow)])
def test_invented_clients_take_a_bounded_memory(watched: Watched, clients: int) -> None:
    async def story() -> int:
        async with HttpUser(watched.url, "127.0.0.2") as user:
            await user.open()
            (event,) = (e for e in user.config["dependencies"] if e["api_name"] == "preview")
            body = {"data": [DEFAULT_SET, 1e-5, "ram+", 0.1, 2.0, None, "model"]}
            for number in range(clients):
                if number == 20:
                    before = watched.memory()
                own = {**body, "fn_index": event["id"], "session_hash": f"invented{number}"}
                # With and without a place in the queue, to whose answer nobody listens.
                route = ("run/predict", "queue/join")[number % 2]
                answer = await user.http.post(f"gradio_api/{route}", json=own)
                assert answer.status_code == 200
            return watched.memory() - before

    grown = tell(story())
    print(grown / 1e6)
    assert grown < 50_000_000


async def open_analysis_file(user: HttpUser, file: Path) -> str:
    """Upload an analysis as the page does; return what the page says then."""
    form = {"files": (file.name, file.read_bytes())}
    answer = (await user.http.post("gradio_api/upload", files=form)).raise_for_status()
    told = {"path": answer.json()[0], "orig_name": file.name, "meta": {"_type": "gradio.FileData"}}
    user.fill("upload-analysis", told)
    await user.press("upload-analysis")
    return str(user.shows("analysis-status"))


def test_a_compact_analysis_of_the_example_opens(watched: Watched, tmp_path: Path) -> None:
    file = save_analysis(load_set("independent").analysis.compact(), tmp_path / "mine.safetensors")
    assert file.stat().st_size > MAX_RECIPE_BYTES

    async def story() -> str:
        async with HttpUser(watched.url, "127.0.0.2") as user:
            await user.open()
            return await open_analysis_file(user, file)

    assert "mine.safetensors is open in Tune" in tell(story())


@needs_proc
def test_twelve_bombs_at_once_take_a_bounded_memory(watched: Watched, tmp_path: Path) -> None:
    analysis = load_set("independent").analysis
    names = [f"w{number}" for number in range(4_000)]
    bomb = write_bomb(tmp_path / "bomb.safetensors", analysis, names)
    assert bomb.stat().st_size < 400_000

    async def story() -> list[str]:
        async with contextlib.AsyncExitStack() as stack:
            users = [HttpUser(watched.url, f"127.0.0.{n}") for n in range(2, 14)]
            for user in users:
                await stack.enter_async_context(user)
                await user.open()
            (watched.process / "clear_refs").write_text("5")  # the most from now on
            before.append(watched.memory("VmHWM"))
            return await asyncio.gather(*(open_analysis_file(user, bomb) for user in users))

    before: list[int] = []
    said = tell(story())
    grown = watched.memory("VmHWM") - before[0]
    print(grown / 1e6)
    assert all("is damaged" in text for text in said)
    assert grown < 100_000_000


def write_bomb(file: Path, analysis: Analysis, names: list[str]) -> Path:
    """Write a compact analysis of six agents and these tensors, all of it zeros."""
    arrays = {"counts.patterns": np.zeros((len(names), 58, 64), np.int64)}
    arrays |= {"numel": np.zeros(len(names), np.int64), "magnitudes": np.zeros((6, 4096), np.int64)}
    packed = pack(arrays, exact=False)
    with safe_open(save_analysis(analysis.compact(), file), framework="np") as saved:
        ((key, text),) = saved.metadata().items()
    header = json.loads(text) | {"tensors": names, "agents": [f"a{n}" for n in range(6)]}
    told = {key: json.dumps(header | {"blake3": hash_bytes(packed)})}
    save_file({"packed": np.frombuffer(packed, np.uint8)}, file, told)
    return file


FORM = "multipart/form-data; boundary=b"


def send_everywhere(user: HttpUser, kinds: dict[str, str], *, turns: int) -> Bodies:
    """Return the sending of every kind of body to that many endpoints of the six, in turns."""

    async def bodies() -> AsyncIterator[tuple[str, Any]]:
        for shift, (name, endpoint) in enumerate((await endpoints_of(user)).items()):
            for number, (kind, value) in enumerate(kinds.items()):
                if (number + shift) % len(ENDPOINTS) < turns:
                    # Through every door, at every argument.
                    route = ROUTES[(number + shift) % len(ROUTES)]
                    body = body_of(route, endpoint, value, number)
                    sending = functools.partial(post, user, route.format(name), body)
                    yield f"{name}, {kind}, {route}", sending

    return bodies()


def test_a_hostile_body_does_not_hold_the_loop(watched: Watched) -> None:
    kinds = hostile(95_000, 4_500)
    check(watched, lambda user: send_everywhere(user, kinds, turns=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "values"),
    [(1_000_000, 10**9), (95_000, 10**9), (95_000, 4_500)],
    ids=["refused unread", "refused", "within the limits"],
)
def test_no_body_at_any_endpoint_holds_the_loop(watched: Watched, size: int, values: int) -> None:
    kinds = hostile(size, values)
    assert len(kinds) == 30
    check(watched, lambda user: send_everywhere(user, kinds, turns=len(ENDPOINTS)))


def test_hostile_uploads_do_not_hold_the_loop(watched: Watched) -> None:
    async def bodies(user: HttpUser) -> AsyncIterator[tuple[str, Any]]:
        for size in (1_000_000, 50_000):
            for kind, form in uploads(size).items():
                sending = functools.partial(post, user, "upload", form, FORM)
                yield f"{kind} of {size}", sending

    check(watched, bodies)
