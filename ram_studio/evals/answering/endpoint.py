"""Any OpenAI-compatible server (vLLM, SGLang, llama.cpp, a hosted service) over HTTP.

Chat questions go to `/chat/completions`, plain ones to `/completions`, several at a time. Functions
are sent as `tools`, which the server formats as the model was trained to read them; a server that
refuses them gets them in the prompt. Replies are not trusted: their size and time are bounded, and
one that is not an answer gets a `finish` of its own. The token goes into one header of these
requests and nowhere else: not into errors, identities, logs or the store; redirects are not
followed with it.
"""

import functools
import ipaddress
import json
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import urlsplit

from ram_studio.errors import EvaluationError, ServerError, Stopped
from ram_studio.evals.answering.engine import (
    ChatMode,
    Decoding,
    ShouldStop,
    finish_reason,
    in_words,
    plain_text,
    request_text,
    versions,
)
from ram_studio.evals.question import Question, Reply

DEFAULT_SECONDS = 300.0
DEFAULT_PARALLEL = 8
_LONGEST_SECONDS = 86400
MAX_REPLY_BYTES = 4 * 1024**2
# A token is about four characters of English in the usual vocabularies.
CHARACTERS_PER_TOKEN = 4
# A request is retried when the server is busy (429), fails (5xx) or breaks the connection: after
# one pause, two, four and eight, or after the server's Retry-After.
RETRIES = 4
PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
_STOP_POLL_SECONDS = 0.1
# Prefix in a reply's text of calls that the server has parsed.
_CALLS = '{"tool_calls": '
_REFUSED_TOOLS = (400, 404, 422, 501)
# Hosted thinking models accept only the second name, and their error names it.
_LIMITS = ("max_tokens", "max_completion_tokens")
_TOO_LONG = ("context length", "context_length", "max_model_len", "maximum context", "too long")


class EndpointEngine:
    """Answers with one model behind an OpenAI-compatible URL; connects at the first question.

    Args:
        url: the API's root, usually ending in /v1, without user name or password.
        model: name of the model on the server; None takes the only one it lists.
        token: sent as a bearer token; None for none.
        chat: "none" uses plain completions, anything else the server's chat template.
        seconds: limit for one answer, from request to last byte; a late one is requested once more.
        parallel: requests under way at a time.

    Raises: EvaluationError: a bad URL, token or time; at the first question, an unreachable server,
        or one with no or several models.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        token: str | None = None,
        chat: ChatMode = "auto",
        seconds: float = DEFAULT_SECONDS,
        parallel: int = DEFAULT_PARALLEL,
    ) -> None:
        self.url = _checked_url(url)
        if token and not (token.isascii() and token.isprintable()):
            raise EvaluationError(
                "The endpoint's token holds a line break or another character that headers cannot "
                "have. Give the token alone."
            )
        if not 0 < seconds <= _LONGEST_SECONDS:
            raise EvaluationError(
                f"The time for an answer is {seconds:g} seconds. Choose more than 0, up to "
                f"{_LONGEST_SECONDS}."
            )
        self.path = f"{url}#{model}" if model else url
        self.is_chat = chat != "none"
        self.decoding = Decoding()
        self._takes_tools, self._limit_name = True, _LIMITS[0]
        self.seconds, self.parallel, self._model, self._token = seconds, parallel, model, token
        self._given_up = threading.Event()

    def _client(self) -> Any:
        import httpx

        # Settings of the environment could send a request to this machine through a proxy.
        trust_env = not _is_this_machine(self.url)
        return httpx.Client(
            # Other compressions could not be unpacked within bounds.
            headers={
                "Accept-Encoding": "gzip",
                **({"Authorization": f"Bearer {self._token}"} if self._token else {}),
            },
            timeout=httpx.Timeout(self.seconds, connect=min(10.0, self.seconds)),
            trust_env=trust_env,
            verify=_authorities(trust_env),
            follow_redirects=False,
        )

    @property
    def model(self) -> str:
        """The model's name on the server, requested once when none was given."""
        if self._model is None:
            with self._client() as client:
                self._model = self._only_model(client)
        return self._model

    @property
    def identity(self) -> Mapping[str, Any]:
        """URL and model name. Only the server knows which weights it serves."""
        return {
            "fingerprint": f"{self.url}#{self.model}",
            "engine": "endpoint",
            "chat": self.is_chat,
            **({"tools": "native"} if self.is_chat else {}),
            **self.decoding.key,
        }

    @property
    def software(self) -> Mapping[str, str]:
        """The version of this program; only the server knows its own software."""
        return versions()

    def count_tokens(self, text: str) -> int:
        """Return an estimate, four characters a token: the server's tokenizer is not available."""
        return -(-len(text) // CHARACTERS_PER_TOKEN)

    def context_overflow(self, questions: Sequence[Question]) -> str:
        """Return "": only the server knows its context length."""
        return ""

    def _only_model(self, client: Any) -> str:
        try:
            status, body = self._request(client, "GET", "/models", None)
        except (_Busy, _TimedOut) as late:
            raise ServerError(f"{self.url}/models: {late}. Try again later.") from None
        try:
            names = [str(row["id"]) for row in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EvaluationError(
                f"{self.url}/models answered with status {status} and no list of models. Check "
                "that the URL is the API's root (it usually ends in /v1), or name the model."
            ) from None
        if len(names) != 1:
            raise EvaluationError(
                f"{self.url} serves {len(names)} models: {', '.join(names[:8]) or 'none'}. "
                "Name one of them."
            )
        return names[0]

    def answer(
        self, questions: Sequence[Question], should_stop: ShouldStop | None = None
    ) -> Iterator[list[tuple[Question, Reply]]]:
        """Yield answers as they arrive; see `Engine.answer`."""
        self._given_up.clear()
        waiting = list(questions)[::-1]
        running: dict[Future[Reply], Question] = {}
        pool = ThreadPoolExecutor(max_workers=self.parallel)
        try:
            # Requests under way end with their connections.
            with self._client() as client:
                while waiting or running:
                    if should_stop and should_stop():
                        raise Stopped("The evaluation was stopped; finished answers were stored.")
                    while waiting and len(running) < self.parallel:
                        question = waiting.pop()
                        running[pool.submit(self._ask_question, client, question)] = question
                    done, _ = wait(running, _STOP_POLL_SECONDS, FIRST_COMPLETED)
                    # Answers first, so that a failure of another request does not lose them.
                    good = [future for future in done if future.exception() is None]
                    if good:
                        yield [(running.pop(future), future.result()) for future in good]
                    for future in done:
                        if error := future.exception():
                            raise error
        finally:
            self._given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask_question(self, client: Any, question: Question) -> Reply:
        is_chat = self.is_chat and not question.is_raw
        path = "/chat/completions" if is_chat else "/completions"
        start = time.perf_counter()
        while True:
            is_native = is_chat and bool(question.tools) and self._takes_tools
            limit_name = self._limit_name
            body, prompt = self._body(question, is_chat, is_native, limit_name)
            try:
                status, text = self._in_time(client, path, body)
            except _TimedOut as late:
                note = f"{late}, asked twice"
                return Reply("", prompt, "timed_out", note, seconds=time.perf_counter() - start)
            # A refused option is remembered, so that the next question is not refused first.
            if is_native and status in _REFUSED_TOOLS and "tool" in text.lower():
                self._takes_tools = False
            elif status == 400 and limit_name == _LIMITS[0] and _LIMITS[1] in text:
                self._limit_name = _LIMITS[1]
            else:
                break
        if status == 404:
            raise EvaluationError(
                f"{self.url}{path} does not exist (status 404), or has no model {self.model!r}. "
                "Check the URL, the model's name and whether the server offers chat."
            )
        seconds = time.perf_counter() - start
        if status is None:
            return Reply("", prompt, "failed", text, seconds=seconds)
        return _read_reply(status, text, prompt, body[limit_name], seconds)

    def _body(
        self, question: Question, is_chat: bool, is_native: bool, limit_name: str
    ) -> tuple[dict[str, Any], str]:
        """Return a request, and the part of it that the model sees."""
        how = self.decoding
        body: dict[str, Any] = {
            "model": self.model,
            # A server has one limit for thinking and answer.
            limit_name: question.max_new_tokens + how.think_tokens,
            "temperature": how.temperature,
        }
        if how.temperature:
            body |= {"top_p": how.top_p, "seed": how.seed_of(question)}
        if not is_chat:
            body["prompt"] = plain_text(question)
            return body, body["prompt"]
        request_words = question.prompt if is_native else request_text(question)
        since = _with_calls(question.messages) if is_native else in_words(question.messages)
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": request_words}, *since]}
        if is_native:
            chat["tools"] = [dict(tool) for tool in question.tools]
        shown = chat if is_native else chat["messages"]
        return body | chat, json.dumps(shown, ensure_ascii=False)

    def _in_time(self, client: Any, path: str, body: Mapping[str, Any]) -> tuple[int | None, str]:
        """As `_request_with_retries`; a late answer is requested once more."""
        try:
            return self._request_with_retries(client, path, body)
        except _TimedOut:
            if self._given_up.is_set():
                raise
            return self._request_with_retries(client, path, body)

    def _request_with_retries(
        self, client: Any, path: str, body: Mapping[str, Any]
    ) -> tuple[int | None, str]:
        """Return `_request`'s outcome, of the last try where the server was busy or failed."""
        pause = PAUSE_SECONDS
        for tried in range(1, RETRIES + 2):
            try:
                return self._request(client, "POST", path, body)
            except _Busy as busy:
                reason = f"{busy} ({tried} tries)"
                longest = min(max(busy.after, pause), LONGEST_PAUSE_SECONDS)
                if tried > RETRIES or self._given_up.wait(longest):
                    break
                pause *= 2
        return None, reason

    def _request(
        self, client: Any, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int | None, str]:
        """Return (status, body), or (None, reason) for a reply that is too large.

        Raises:
            ServerError: the server cannot be reached. EvaluationError: it refuses the token.
            _Busy: a retry may help. _TimedOut: there was no complete reply in time.
        """
        import httpx

        deadline = time.monotonic() + self.seconds
        content, too_large = bytearray(), f"the reply exceeded {MAX_REPLY_BYTES} bytes"
        try:
            with client.stream(method, self.url + path, json=body) as response:
                for block in response.iter_raw():
                    content += block
                    if len(content) > MAX_REPLY_BYTES:
                        return None, too_large
                    if time.monotonic() > deadline:
                        raise _TimedOut(f"the reply had no end after {self.seconds:g} s")
                status, headers = response.status_code, response.headers
            if headers.get("Content-Encoding", "").lower() == "gzip":
                unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)
                content = bytearray(unpacking.decompress(content, MAX_REPLY_BYTES + 1))
                if len(content) > MAX_REPLY_BYTES:
                    return None, too_large
        except httpx.ReadTimeout:
            raise _TimedOut(f"no answer within {self.seconds:g} s") from None
        except (httpx.RemoteProtocolError, httpx.ReadError, zlib.error) as error:
            raise _Busy(f"the connection broke: {error or type(error).__name__}") from None
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            raise ServerError(
                f"{self.url} cannot be reached: {error or type(error).__name__}. Check that the "
                "server is running and the URL right; finished answers are stored."
            ) from None
        if status in (401, 403):
            raise EvaluationError(
                f"{self.url} refused access with status {status}. Give its access token."
            )
        text = content.decode("utf-8", "replace")
        if status == 429 or status >= 500:
            after = _seconds_of(headers.get("Retry-After"))
            raise _Busy(f"the server answered with status {status}: {_short(text)}", after)
        if 300 <= status < 400:
            place = headers.get("Location", "nowhere")
            text = f"it redirects to {place}. Give the API's root at that address"
        return status, text

    def close(self) -> None:
        """Do nothing: connections are closed with the questions they were made for."""


class _TimedOut(Exception):
    """No complete reply came within the time for one answer."""


class _Busy(Exception):
    """A reply after which the request may be retried; after: seconds to wait, by the server."""

    def __init__(self, text: str, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


def _seconds_of(text: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 for none, or for a date."""
    return float(text) if text is not None and text.isascii() and text.isdecimal() else 0.0


def _read_reply(status: int, text: str, prompt: str, limit: int, seconds: float) -> Reply:
    if status >= 300:
        is_length = any(word in text.lower() for word in _TOO_LONG)
        note = f"the server refused it with status {status}: {_short(text)}"
        return Reply("", prompt, "too_long" if is_length else "refused", note, seconds=seconds)
    try:
        data = json.loads(text)
        choice = data["choices"][0]
        message = choice.get("message", choice)
        content = message.get("content", message.get("text")) or message.get("refusal") or ""
        answer, thought = _parts(content)
        calls = message.get("tool_calls")
        thought = message.get("reasoning_content") or message.get("reasoning") or thought
        reason = choice.get("finish_reason")
        usage = data.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        note = f"the server's reply is not a completion: {_short(text)}"
        return Reply("", prompt, "failed", note, seconds=seconds)
    if isinstance(thought, str) and thought.strip() and "</think>" not in answer:
        # Thinking is put back where the model itself writes it.
        answer = f"<think>{thought}</think>{answer}" if answer or calls else f"<think>{thought}"
    if calls:
        # A server that parses calls returns them beside the text.
        answer = f"{answer}\n{_CALLS}{json.dumps(calls)}}}".strip()
    # JSON can hold half a surrogate pair, which no later request could encode.
    answer = answer.encode("utf-8", "replace").decode()
    finish, note = finish_reason(answer, reason != "length", limit)
    # No reply within bounds has more.
    is_count = type(tokens) is int and 0 <= tokens <= MAX_REPLY_BYTES
    return Reply(answer, prompt, finish, note, tokens if is_count else None, seconds)


def _parts(content: Any) -> tuple[str, str]:
    """Return (text, thinking) of a message's content: a text, or a list of typed parts.

    Raises: TypeError, KeyError for any other content.
    """
    if isinstance(content, str):
        return content, ""
    texts: dict[bool, str] = {False: "", True: ""}
    for part in content:
        kind = part["type"]
        held = part[kind if kind in ("thinking", "reasoning", "refusal") else "text"]
        texts[kind in ("thinking", "reasoning")] += _parts(held)[0]
    return texts[False], texts[True]


def _with_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in the protocol's form: calls and their results have ids."""
    found: list[dict[str, Any]] = []
    made = answered = 0
    for message in messages:
        own: dict[str, Any] = {k: message[k] for k in ("role", "content")}
        if calls := message.get("calls"):
            own["content"] = own["content"].partition(_CALLS)[0].strip()
            functions = [
                {"name": call["name"], "arguments": json.dumps(call["arguments"])} for call in calls
            ]
            own["tool_calls"] = [
                {"id": f"call{made + n:05d}", "type": "function", "function": function}
                for n, function in enumerate(functions)
            ]
            made += len(calls)
        elif message["role"] == "tool":
            own["tool_call_id"] = f"call{answered:05d}"
            answered += 1
        found.append(own)
    return found


def _short(text: str) -> str:
    shown = " ".join("".join(c if c.isprintable() else " " for c in text[:400]).split())
    return shown[:160] or "nothing"


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise EvaluationError(
            "The endpoint is not a plain http or https URL. Give the API's root, for example "
            "http://127.0.0.1:8000/v1."
        )
    if parts.username is not None or parts.password is not None:
        raise EvaluationError(
            f"The URL of the endpoint {host} holds a user name or password, which would be stored "
            "with the answers. Give the token separately."
        )
    return url.rstrip("/")


@functools.cache
def _authorities(trust_env: bool) -> Any:
    """Return the clients' TLS context: its certificate file is read once, not for each client."""
    import httpx

    return httpx.create_ssl_context(trust_env=trust_env)


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
