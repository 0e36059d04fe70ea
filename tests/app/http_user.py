"""An HTTP user of the app without a browser: speaks Gradio's protocol as its page does.

Each user comes from an address of its own (127.0.0.2, 127.0.0.3, ...), holds the heartbeat
stream that a page holds, and listens to the results of what it asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx

API = "gradio_api"
Told = TypeVar("Told")
_CONFIG = "window.gradio_config = "


def tell(story: Coroutine[Any, Any, Told]) -> Told:
    """Run a story of users to its end and return what it returns."""
    # In a thread of its own: this one's loop is the browser's, once a test has opened one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, story).result()


def element_ids(url: str) -> set[str]:
    """Return the names that elements of an app's page have."""
    config = httpx.get(f"{url}config", timeout=60).raise_for_status().json()
    return {component["props"].get("elem_id") for component in config["components"]}


class RefusedError(Exception):
    """The app answered a request with an error."""


class HttpUser:
    """One open page. Use as ``async with``; leaving it closes the tab."""

    def __init__(self, url: str, address: str | None = None) -> None:
        transport = httpx.AsyncHTTPTransport(local_address=address, retries=1)
        self.http = httpx.AsyncClient(base_url=url, transport=transport, timeout=600)
        self.hash = "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=11))
        self.key = secrets.token_hex(16)
        self.config: dict[str, Any] = {}
        self._query = ""
        self._values: dict[int, Any] = {}
        self._info: dict[str, Any] = {}
        self._heartbeat: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HttpUser:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the tab."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heartbeat
        await self.http.aclose()

    async def open(self, query: str = "") -> None:
        """Load the page and what it asks for first; query: of its address."""
        self._query = query
        page = (await self.http.get(query)).raise_for_status().text
        start = page.index(_CONFIG) + len(_CONFIG)
        self.config, _ = json.JSONDecoder().raw_decode(page, start)
        self._values = {c["id"]: c["props"].get("value") for c in self.config["components"]}
        self._heartbeat = asyncio.create_task(self._beat())
        for event in self.config["dependencies"]:
            if event["backend_fn"] and any(name == "load" for _, name in event["targets"]):
                for component in event["inputs"][:1]:
                    self._values[component] = self.key
                await self._run(event)

    async def _beat(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            async with self.http.stream(
                "GET", f"{API}/heartbeat/{self.hash}", timeout=None
            ) as beat:
                async for _ in beat.aiter_raw():
                    pass

    def handlers(self, element: str) -> list[dict[str, Any]]:
        """Return the events of an element that call the server."""
        own = self._id(element)
        return [
            event
            for event in self.config["dependencies"]
            if event["backend_fn"] and any(target == own for target, _ in event["targets"])
        ]

    def fill(self, element: str, value: Any) -> None:
        """Write into a field; it goes along with the next event that takes it."""
        self._values[self._id(element)] = value

    def shows(self, element: str) -> Any:
        """Return what an element holds."""
        return self._values[self._id(element)]

    def _id(self, element: str) -> int:
        for component in self.config["components"]:
            if component["props"].get("elem_id") == element:
                return int(component["id"])
        raise RefusedError(f"The page has no element {element}.")

    async def press(self, element: str) -> None:
        """Press a button; returns when all that it does at the server is done."""
        for event in self.handlers(element):
            await self._run(event)

    async def call(self, endpoint: str, **named: Any) -> Any:
        """Call a named endpoint, through the queue as a page does, and return its JSON."""
        (event,) = (e for e in self.config["dependencies"] if e["api_name"] == endpoint)
        if not self._info:
            self._info = (await self.http.get(f"{API}/info")).raise_for_status().json()
        info = self._info["named_endpoints"][f"/{endpoint}"]["parameters"]
        data = [named.get(p["parameter_name"], p.get("parameter_default")) for p in info]
        return (await self._run(event, data))[0]

    async def _run(self, event: dict[str, Any], data: list[Any] | None = None) -> list[Any]:
        inputs = [self._values.get(component) for component in event["inputs"]]
        body = {
            "data": inputs if data is None else data,
            "fn_index": event["id"],
            "session_hash": self.hash,
            "event_data": None,
            "trigger_id": event["targets"][0][0] if event["targets"] else None,
        }
        if event["queue"] is False:
            answer = await self.http.post(f"{API}/run/predict{self._query}", json=body)
            output = answer.json() if answer.content else {}
            if answer.status_code != 200:
                raise RefusedError(f"{answer.status_code}: {str(output)[:300]}")
        else:
            output = await self.listen(await self.join(body))
        return self._take(event, output)

    async def join(self, body: dict[str, Any]) -> str:
        """Put a request in Gradio's queue; return its id."""
        answer = await self.http.post(f"{API}/queue/join", json=body)
        if answer.status_code != 200:
            raise RefusedError(f"{answer.status_code}: {answer.text[:300]}")
        return str(answer.json()["event_id"])

    async def listen(self, event_id: str) -> dict[str, Any]:
        """Return what a queued request ends with."""
        stream = self.http.stream("GET", f"{API}/queue/data?session_hash={self.hash}", timeout=600)
        async with stream as lines:
            async for line in lines.aiter_lines():
                message = json.loads(line[5:]) if line.startswith("data:") else {}
                if message.get("event_id") != event_id:
                    continue
                if message["msg"] == "process_completed":
                    if not message["success"]:
                        raise RefusedError(str(message["output"].get("error"))[:300])
                    return dict(message["output"])
        raise RefusedError("The stream ended before the result.")

    def _take(self, event: dict[str, Any], output: dict[str, Any]) -> list[Any]:
        data = list(output.get("data") or [])
        for component, value in zip(event["outputs"], data, strict=False):
            if isinstance(value, dict) and value.get("__type__") == "update":
                if "value" in value:
                    self._values[component] = value["value"]
            else:
                self._values[component] = value
        return data
