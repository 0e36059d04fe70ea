"""Whose rights are used at the Hub: a user's own once signed in, never the owner's."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from conftest import OAUTH, OWNER, SPACE_HOST
from http_user import HttpUser, RefusedError, element_ids, tell
from itsdangerous import TimestampSigner
from loopback_hub import LoopbackHub

from ram_studio.app.public.user import may_push, offers_sign_in
from ram_studio.resources import asset_path

FRIEND = "hf_of_a_friend"
# What Gradio signs its cookie with.
_KEY = hashlib.sha256(f"{OAUTH['OAUTH_CLIENT_SECRET']}-v4".encode()).hexdigest()


class Place:
    """A Space with sign-in whose owner is logged in, and a Hub that notes who asks for what."""

    def __init__(self, url: str, hub: LoopbackHub, folder: Path) -> None:
        self.url, self.hub, self.folder = url, hub, folder

    def visit(
        self, story: Callable[[HttpUser], Coroutine[Any, Any, Any]], cookie: str | None
    ) -> Any:
        """Tell the story of a user who opened the page; ``hub.asked`` holds what it led to."""
        self.hub.asked.clear()

        async def told() -> Any:
            async with HttpUser(self.url) as user:
                if cookie is not None:
                    user.http.headers["cookie"] = f"session={cookie}"
                await user.open()
                return await story(user)

        return tell(told())

    def analyze(self, cookie: str | None = None, **models: Any) -> Any:
        """Have a user of its own analyze models and merge them."""

        async def story(user: HttpUser) -> Any:
            found = await user.call("analyze", **models)
            await user.call("merge", analysis=found["analysis"], method="ram")
            return found

        return self.visit(story, cookie)

    @property
    def tokens(self) -> set[str | None]:
        """With which the Hub was asked."""
        return {token for _, token in self.hub.asked}


def cookie_of(token: str, *, lasts: float = 600) -> str:
    """Return the cookie that Gradio gives a user whom the Hub signed in."""
    name = {"name": "A Friend", "preferred_username": "friend", "profile": "", "picture": ""}
    info = {"access_token": token, "scope": "openid profile gated-repos", "userinfo": name}
    info["expires_at"] = int(time.time() + lasts)
    text = base64.b64encode(json.dumps({"oauth_info": info}).encode())
    return TimestampSigner(_KEY).sign(text).decode()


@pytest.fixture(scope="module")
def place(space_url: str, space_hub: LoopbackHub, space_folder: Path) -> Place:
    for name in ("base", "coding"):
        space_hub.add(f"owner/{name}", asset_path("independent", name))
    space_hub.add("owner/secret", asset_path("independent", "tool"), is_private=True)
    gated = {"is_gated": True, "readers": frozenset({OWNER, FRIEND})}
    space_hub.add("owner/gated", asset_path("independent", "tool"), **gated)
    return Place(space_url, space_hub, space_folder)


def test_the_owners_token_opens_nothing_for_users(place: Place) -> None:
    public = {"base": "owner/base", "agents": {"a": "owner/coding"}}
    assert place.analyze(**public)["agents"] == ["a"]
    assert place.tokens == {None}
    with pytest.raises(RefusedError, match="is private"):
        place.analyze(base="owner/base", agents={"a": "owner/secret"})
    assert place.tokens == {None}


def test_a_users_token_opens_their_models_and_goes_nowhere_else(place: Place) -> None:
    models = {"base": "owner/base", "agents": {"a": "owner/coding", "b": "owner/gated"}}
    with pytest.raises(RefusedError, match=r"is gated: accept .* sign in with Hugging Face"):
        place.analyze(**models)
    assert place.tokens == {None}

    friend = cookie_of(FRIEND)
    assert place.analyze(friend, **models)["agents"] == ["a", "b"]
    assert place.tokens == {f"Bearer {FRIEND}"}

    # Now the files lie in the cache, where they are nobody else's.
    for cookie in (None, cookie_of(FRIEND, lasts=-1), "forged", friend[:-4] + "AAAA"):
        with pytest.raises(RefusedError, match="is gated"):
            place.analyze(cookie, **models)
        assert place.tokens == {None}
    with pytest.raises(RefusedError, match=r"is gated: accept .* use an account that may"):
        place.analyze(cookie_of("hf_of_another_user"), **models)
    for file in place.folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert OWNER.encode() not in content, file
            assert FRIEND.encode() not in content, file


def test_a_user_signs_in_at_the_hub_and_out_again(place: Place) -> None:
    def cookies(answer: httpx.Response) -> dict[str, str]:
        return {"cookie": answer.headers["set-cookie"].split(";")[0]}

    place.hub.user = FRIEND
    with httpx.Client(base_url=place.url) as browser:
        sent = browser.get("/login/huggingface")
        asked = parse_qs(urlsplit(sent.headers["location"]).query)
        assert sent.headers["location"].startswith(f"{place.hub.address}/oauth/authorize?")
        assert asked["scope"] == [OAUTH["OAUTH_SCOPES"]]
        assert asked["redirect_uri"][0].startswith(f"https://{SPACE_HOST}/login/callback")
        # The Hub asks the user, and sends the browser back with a code.
        back = {"code": asked["nonce"][0], "state": asked["state"][0]}
        signed = browser.get("/login/callback", params=back, headers=cookies(sent))
        assert signed.headers["location"].startswith("/")
        held = TimestampSigner(_KEY).unsign(cookies(signed)["cookie"].removeprefix("session="))
        assert json.loads(base64.b64decode(held))["oauth_info"]["access_token"] == FRIEND
        # A code that somebody else's browser was given opens nothing.
        assert "oauth" not in browser.get("/login/callback", params=back).headers["location"]
        out = browser.get("/logout", headers=cookies(signed))
        assert "expires=Thu, 01 Jan 1970" in out.headers["set-cookie"]


def test_a_merge_goes_to_the_signed_in_account_alone(place: Place) -> None:
    async def push(user: HttpUser) -> str:
        await user.press("use-shared-style")
        await user.press("merge")
        user.fill("push-name", "friend/merged")
        await user.press("push")
        return str(user.shows("pushed"))

    place.hub.owner = "friend"
    said = place.visit(push, None)
    assert "You are not logged in" in said
    assert "sign in with Hugging Face" in said
    assert "friend/merged" not in place.hub.repositories
    assert f"{place.hub.address}/friend/merged (private)" in place.visit(push, cookie_of(FRIEND))
    repository = place.hub.repositories["friend/merged"]
    assert repository.is_private
    assert "ram_studio.json" in repository.commits[repository.branches["main"]]
    assert place.tokens == {f"Bearer {FRIEND}"}


def test_the_button_is_there_where_one_can_sign_in(place: Place) -> None:
    assert {"sign-in", "push"} <= element_ids(place.url)


@pytest.mark.parametrize("missing", [None, *OAUTH])
def test_signing_in_needs_a_space_with_all_that_belongs_to_it(missing, monkeypatch) -> None:
    for name, value in OAUTH.items():
        monkeypatch.setenv(name, value)
    if missing is not None:
        monkeypatch.delenv(missing)
    assert offers_sign_in() == may_push() == (missing is None)
    monkeypatch.setenv("OAUTH_SCOPES", "openid profile gated-repos")
    assert not may_push()
