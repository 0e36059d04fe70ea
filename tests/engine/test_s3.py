"""Sources and outputs on a real S3 server, and a web server (`make test-storage` installs it)."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from engine_zoo import Zoo, contents, contents_at, make_zoo, model_options

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read import remote
from ram_studio.checkpoints.read.url_folder import UrlFolder
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.engine.analyze import analyze
from ram_studio.engine.merge import merge
from ram_studio.engine.parts.finishing import finish
from ram_studio.engine.parts.planning import make_plan, open_plan
from ram_studio.engine.parts.steps import merge_part
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.verify import verify
from ram_studio.errors import CheckpointError, OutputError, SourceChangedError

moto_server = pytest.importorskip("moto.server", reason="make test-storage installs it")
pytest.importorskip("s3fs", reason="make test-storage installs it")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CPU: dict[str, Any] = {"device": "cpu", "threads": 1}
SHARD = 300
SECRET = "a-secret-that-nobody-may-read"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    """A zoo in a folder and at s3://models, on a server of its own; s3://merges is empty."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patched.setenv(name, value)
        folder = tmp_path_factory.mktemp("zoo")
        made = make_zoo(folder / "zoo", 2, shards=3, seed=8)
        s3 = fsspec.filesystem("s3")
        s3.mkdir("models")
        s3.mkdir("merges")
        s3.put(str(made.folder) + "/", "models/zoo/", recursive=True)
        yield made
        fsspec.asyn.sync(s3.loop, s3.s3.close)
        type(s3).clear_instance_cache()
    server.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def recipe(zoo: Zoo) -> Recipe:
    agents = {name: f"s3://models/zoo/{name}" for name in zoo.agents}
    return make_recipe({"base": "s3://models/zoo/base", "agents": agents})


def test_from_s3_to_s3_as_from_folder_to_folder(zoo, recipe, tmp_path):
    merge(zoo.recipe(), tmp_path / "here", max_shard_bytes=SHARD, **CPU)
    merge(recipe, tmp_path / "there", max_shard_bytes=SHARD, **CPU)
    merge(recipe, "s3://merges/one", max_shard_bytes=SHARD, **CPU)
    plan = make_plan(recipe, 3, max_shard_bytes=SHARD)
    analysis = analyze(recipe.base, recipe.agents, **CPU)
    for part in (3, 1, 2):
        merge_part(plan, part, "s3://merges/parts", analysis=analysis, **CPU)
        with pytest.raises(CheckpointError, match="not finished"):
            open_checkpoint("s3://merges/parts", name="base")
    finish(plan, "s3://merges/parts", **CPU)
    there = contents(tmp_path / "there")
    assert contents_at("s3://merges/one") == contents_at("s3://merges/parts") == there
    names_sources = {"README.md", "ram_studio.json"}
    here = contents(tmp_path / "here")
    assert all(there[name] == data for name, data in here.items() if name not in names_sources)
    records = [json.loads(files["ram_studio.json"])["base"] for files in (here, there)]
    assert records[0]["files"] == records[1]["files"]
    assert verify("s3://merges/one", with_sources=True, full=True).source_files == 7
    assert not any(SECRET.encode() in data for data in there.values())


KILLED = """
import os, signal, sys
from ram_studio.checkpoints.read import remote
from ram_studio.checkpoints.read.url_folder import UrlFolder
from ram_studio.cli.main import main
upload, calls = UrlFolder.upload, []
def fatal(self, *given):
    upload(self, *given)
    calls.append(given)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
UrlFolder.upload = fatal
main()
"""


def test_a_killed_merge_goes_on(zoo, recipe, tmp_path, monkeypatch):
    command = ["merge", *model_options(recipe), "--out", "s3://merges/killed"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *command, "--max-shard-size", str(SHARD)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    names = contents_at("s3://merges/killed")
    assert sum(name.endswith(".safetensors") for name in names) == 3
    assert sum(name.endswith(".receipt") for name in names) == 2
    sent = []
    upload = UrlFolder.upload
    monkeypatch.setattr(
        UrlFolder, "upload", lambda self, *x: (sent.append(x[1]), upload(self, *x))[1]
    )
    merge(recipe, "s3://merges/killed", max_shard_bytes=SHARD, **CPU)
    assert len(sent) == 4
    merge(recipe, tmp_path / "one", max_shard_bytes=SHARD, **CPU)
    assert contents_at("s3://merges/killed") == contents(tmp_path / "one")


def test_a_large_shard_goes_up_in_several_pieces(zoo, tmp_path):
    made = make_zoo(tmp_path / "large", 1, shapes={"model.w": (4200, 4200)}, copied=False)
    merge(made.recipe(), "s3://merges/large", hash_sources=False, **CPU)
    tag = fsspec.filesystem("s3").info("merges/large/model.safetensors")["ETag"]
    assert tag.strip('"').endswith("-3")  # of so many pieces
    assert verify("s3://merges/large").shards == 1


def test_what_s3_refuses_is_told(zoo, monkeypatch):
    with pytest.raises(OutputError, match=r"s3://no-such-bucket/x.*(bucket|Bucket)"):
        merge(zoo.recipe(), "s3://no-such-bucket/x", **CPU)
    with pytest.raises(CheckpointError, match=r'^Agent "tool": s3://models/nothing: '):
        open_checkpoint("s3://models/nothing", name="tool")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(OutputError, match=r"NoCredentials.*your credentials"):
        merge(zoo.recipe(), "s3://merges/other", **CPU)
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture
def web(zoo: Zoo) -> Iterator[tuple[str, list[Any]]]:
    """The zoo's folder on a plain web server, and what it was asked.

    It answers every request with 429 or 503 the first time.
    """
    asked: list[Any] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def send_head(self) -> Any:
            request = (self.command, self.path, self.headers["Range"], self.headers["If-Match"])
            asked.append(request)
            if asked.count(request) == 1:
                return self._answer(503 if len(asked) % 2 else 429, b"", {"Retry-After": "0"})
            path = Path(self.translate_path(self.path))
            if path.is_dir():
                return super().send_head()
            data = path.read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()}"'
            if request[3] not in (None, tag):
                return self._answer(412, b"", {})
            if request[2] is None:
                return self._answer(200, data, {"ETag": tag})
            first, last = map(int, request[2].removeprefix("bytes=").split("-"))
            return self._answer(206, data[first : last + 1], {"ETag": tag})

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> Any:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            return io.BytesIO(body)

    made = partial(Handler, directory=str(zoo.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def other_end(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def change_while_read(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    read_into, done = remote.ReadAhead.read_into, []

    def changed(self: Any, *where: Any) -> None:
        if not done:
            change()
            done.append(True)
        read_into(self, *where)

    monkeypatch.setattr(remote.ReadAhead, "read_into", changed)


def test_a_busy_web_server_is_asked_again_for_the_same_file(web, zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PAUSES", (0.0,) * remote.TRIES)
    url, asked = web
    sources = {"base": f"{url}/base", "agents": {n: f"{url}/{n}" for n in zoo.agents}}
    recipe = make_recipe(sources | {"method": "task-arithmetic"})
    merge(recipe, tmp_path / "web", **CPU)
    merge(zoo.recipe(method="task-arithmetic"), tmp_path / "here", **CPU)
    here, there = contents(tmp_path / "here"), contents(tmp_path / "web")
    assert all(there[n] == data for n, data in here.items() if n.endswith(".safetensors"))
    ranges = [(path, tag) for _, path, wanted, tag in asked if wanted]
    assert ranges
    assert all(tag for _, tag in ranges)
    file = zoo.folder / "agent1" / "model.safetensors"
    before = file.read_bytes()
    change_while_read(monkeypatch, lambda: file.write_bytes(other_end(before)))
    with pytest.raises(SourceChangedError, match=r'"agent1": http://.*/agent1/model.* overwritten'):
        merge(recipe, tmp_path / "changed", **CPU)
    file.write_bytes(before)


def test_an_object_overwritten_while_it_is_read_is_found(recipe, tmp_path, monkeypatch):
    s3, path = fsspec.filesystem("s3"), "models/zoo/agent1/model.safetensors"
    before = s3.cat_file(path)
    change_while_read(monkeypatch, lambda: s3.pipe_file(path, other_end(before)))
    one_pass = recipe.model_copy(update={"method": "task-arithmetic", "settings": {}})
    with pytest.raises(SourceChangedError, match=r'"agent1": s3://.*/agent1/model.* overwritten'):
        merge(one_pass, tmp_path / "out", **CPU)
    s3.pipe_file(path, before)


def test_parts_at_s3_take_headers_from_the_plan(recipe, monkeypatch):
    plan = make_plan(recipe, 2, max_shard_bytes=SHARD)
    monkeypatch.setattr(UrlFolder, "header", lambda *_: pytest.fail("read again"))
    monkeypatch.setattr(UrlFolder, "fetch_spans", lambda *_: pytest.fail("read again"))
    assert open_plan(plan, RunOptions.of(**CPU)).job.names == tuple(recipe.agents)
