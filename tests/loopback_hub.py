"""A Hub on 127.0.0.1: the few endpoints huggingface_hub uses, with faults on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey


@dataclass
class Repository:
    """One model: its files at each commit, and what its branches stand for.

    readers: tokens with which a gated model's files can be read.
    """

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    is_gated: bool = False
    is_private: bool = False
    readers: frozenset[str] = frozenset()

    def commit(self, files: dict[str, bytes], branch: str) -> str:
        """Make files the newest commit of a branch; returns the commit."""
        digest = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[digest] = files
        self.branches[branch] = digest
        return digest


@dataclass
class LoopbackHub:
    """The server's state. Faults are consumed as they happen.

    Attributes:
        repositories: by `owner/name`, or `datasets/owner/name`.
        requests: (method, path, Range header) in the order received.
        tokens: Authorization headers received. asked: (repository, header or None) in order.
        drops: per file name, after how many bytes each coming GET breaks off.
        status: answer everything with this status.
        busy: answer every range request with this status the first time.
        owner: who the tokens are of. large: files uploaded by content hash.
        ignores_ranges: answer range requests with the whole file.
        user: the token of whoever signs in.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    drops: dict[str, list[int]] = field(default_factory=dict)
    status: int | None = None
    busy: int | None = None
    ignores_ranges: bool = False
    address: str = ""
    owner: str = "me"
    large: dict[str, bytes] = field(default_factory=dict)
    user: str = ""
    _key: OctKey = field(default_factory=lambda: OctKey.generate_key(256, {"kid": "key"}))

    def add(
        self, name: str, folder: Path, branch: str = "main", below: str = "", **options: Any
    ) -> str:
        """Publish a folder's files as the newest commit of a branch; returns the commit.

        below: the folder in the repository that they go to, as "runs/1/".
        """
        files = {below + p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}
        repository = self.repositories.setdefault(name, Repository({}, {}, **options))
        return repository.commit(files, branch)

    def provider(self) -> dict[str, Any]:
        """Return what an app that signs users in asks first: where, and by which key."""
        return {
            "issuer": self.address,
            "authorization_endpoint": f"{self.address}/oauth/authorize",
            "token_endpoint": f"{self.address}/oauth/token",
            "id_token_signing_alg_values_supported": ["HS256"],
            "jwks": {"keys": [self._key.as_dict(private=True)]},
        }

    def sign_in(self, code: str) -> dict[str, Any]:
        """Return a user's token; code: what the user's browser brought back, the nonce."""
        now = int(time.time())
        claims = {"iss": self.address, "sub": "1", "aud": "client", "iat": now, "exp": now + 600}
        name = {"name": "A Friend", "preferred_username": "friend", "profile": "", "picture": ""}
        token = jwt.encode(
            {"alg": "HS256", "kid": "key"}, {**claims, **name, "nonce": code}, self._key
        )
        lasts = {"token_type": "bearer", "expires_in": 600}
        return {"access_token": self.user, "id_token": token, **lasts}

    def downloads(self, suffix: str = "") -> list[tuple[str, str | None]]:
        """Return (file, Range) of every GET of a file's content so far."""
        return [
            (path.rsplit("/", 1)[1], wanted)
            for method, path, wanted in self.requests
            if method == "GET" and "/resolve/" in path and path.endswith(suffix)
        ]


class _Refusal(Exception):
    def __init__(self, status: int, code: str | None = None) -> None:
        super().__init__(code)
        self.status, self.code = status, code


def _handler(hub: LoopbackHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionResetError):  # whoever asked has gone
                super().handle()

        def do_GET(self) -> None:
            path = self._path()
            hub.requests.append((self.command, path, self.headers.get("Range")))
            if token := self.headers.get("Authorization"):
                hub.tokens.add(token)
            try:
                if hub.status is not None:
                    raise _Refusal(hub.status)
                parts = path.strip("/").split("/")
                if self.command in ("POST", "PUT"):
                    self._take(parts)
                    return
                if parts[0] == ".well-known":
                    self._send(200, json.dumps(hub.provider()).encode(), {})
                elif parts[0] == "api" and parts[1] in ("models", "datasets"):
                    is_dataset = parts[1] == "datasets"
                    self._describe(parts[2:], "datasets/" if is_dataset else "")
                else:
                    self._file(parts)
            except _Refusal as refusal:
                said = {"X-Error-Code": refusal.code or "", "Retry-After": "0"}
                self._send(refusal.status, b"{}", said)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_POST = do_PUT = do_HEAD = do_GET

        def _take(self, parts: list[str]) -> None:
            """Answer what pushes ask: names, upload modes, large files, and the commit."""
            body = self._body()
            answer: object = {}
            if parts == ["oauth", "token"]:
                answer = hub.sign_in(parse_qs(body.decode())["code"][0])
            elif parts[:3] == ["api", "repos", "create"]:
                asked = json.loads(body)
                name = f"{asked.get('organization') or hub.owner}/{asked['name']}"
                hub.asked.append((name, self.headers.get("Authorization")))
                if asked.get("organization") == "others":
                    raise _Refusal(403)
                made = Repository({"0" * 40: {}}, {"main": "0" * 40})
                made.is_private = asked.get("visibility") == "private"
                hub.repositories[name] = made
                answer = {"url": f"{hub.address}/{name}"}
            elif parts[-1] == "batch":
                answer = self._batch(json.loads(body))
            elif parts[0] == "lfs":
                if hub.drops.get("lfs"):
                    hub.drops["lfs"].pop()
                    raise _Refusal(400)
                hub.large[parts[1]] = body
            elif "preupload" in parts:
                files = json.loads(body)["files"]
                for file in files:
                    is_large = file["path"].endswith(".safetensors")
                    file |= {"uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}
                answer = {"files": files}
            elif "commit" in parts:
                answer = self._commit_files(parts, body)
            self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _batch(self, asked: dict[str, Any]) -> dict[str, Any]:
            objects = []
            for entry in asked["objects"]:
                if entry["oid"] not in hub.large:
                    href = f"{hub.address}/lfs/{entry['oid']}"
                    entry = {**entry, "actions": {"upload": {"href": href}}}
                objects.append(entry)
            return {"transfer": "basic", "objects": objects}

        def _commit_files(self, parts: list[str], body: bytes) -> dict[str, str]:
            repository = self._repository(parts[2:4])
            files = dict(repository.commits[repository.branches["main"]])
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                elif entry["key"] == "lfsFile":
                    files[entry["value"]["path"]] = hub.large[entry["value"]["oid"]]
            digest = repository.commit(files, "main")
            name = "/".join(parts[2:4])
            return {"commitUrl": f"{hub.address}/{name}/commit/{digest}", "commitOid": digest}

        def _repository(self, parts: list[str], kind: str = "") -> Repository:
            name = kind + "/".join(parts[:2])
            hub.asked.append((name, self.headers.get("Authorization")))
            repository = hub.repositories.get(name)
            if repository is None or (repository.is_private and not hub.tokens):
                raise _Refusal(404 if hub.tokens else 401, "RepoNotFound")
            return repository

        def _commit(self, repository: Repository, revision: str) -> str:
            commit = repository.branches.get(revision, revision)
            if commit not in repository.commits:
                raise _Refusal(404, "RevisionNotFound")
            return commit

        def _describe(self, parts: list[str], kind_of: str = "") -> None:
            repository = self._repository(parts, kind_of)
            kind = parts[2] if len(parts) > 2 else "revision"
            commit = self._commit(repository, "/".join(parts[3:]) or "main")
            entries = []
            for name, content in repository.commits[commit].items():
                oid = hashlib.sha1(content).hexdigest()
                entry = {"size": len(content)}
                if name.endswith(".safetensors"):
                    sha = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"sha256": sha, "oid": sha, "pointerSize": 130, **entry}
                said = {"rfilename": name, "blobId": oid}
                if kind == "tree":
                    said = {"type": "file", "path": name, "oid": oid}
                entries.append({**said, **entry})
            answer: Any = entries
            if kind == "revision":
                answer = {"id": "/".join(parts[:2]), "sha": commit, "siblings": entries}
                answer["private"] = repository.is_private
            self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

        def _path(self) -> str:
            return unquote(urlsplit(self.path).path)

        def _file(self, parts: list[str]) -> None:
            is_dataset = parts[0] == "datasets"
            parts = parts[1:] if is_dataset else parts
            repository = self._repository(parts, "datasets/" if is_dataset else "")
            commit = self._commit(repository, parts[3])
            token = str(self.headers.get("Authorization")).removeprefix("Bearer ")
            if repository.is_gated and token not in repository.readers:
                raise _Refusal(403, "GatedRepo")
            wanted = self.headers.get("Range")
            if hub.busy and wanted and hub.requests.count(("GET", self._path(), wanted)) == 1:
                raise _Refusal(hub.busy)
            content = repository.commits[commit].get("/".join(parts[4:]))
            if content is None:
                raise _Refusal(404, "EntryNotFound")
            headers = {
                "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
                "X-Repo-Commit": commit,
                "Accept-Ranges": "bytes",
            }
            if wanted is None or hub.ignores_ranges:
                self._send(200, content, headers, parts[4])
                return
            first, last = wanted.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last or len(content)) + 1, len(content))
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            self._send(206, content[begin:end], headers, parts[4])

        def _send(
            self, status: int, body: bytes, headers: dict[str, str], file: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            drops = hub.drops.get(file or "")
            if drops:
                self.wfile.write(body[: drops.pop(0)])
                self.wfile.flush()
                self.close_connection = True
            else:
                self.wfile.write(body)

    return Handler


@contextmanager
def serving() -> Iterator[LoopbackHub]:
    """Run a Hub for the length of the block; its address is in `address`."""
    hub = LoopbackHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
