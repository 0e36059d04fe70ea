"""Who asks: the address that counts for fairness, and whose rights are used at the Hub."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from typing import Any

from ram_studio.checkpoints.hub import rights


def address_of(request: Any, *, is_space: bool) -> str:
    """Return the address that a request came from, "" when it is unknown.

    request: Gradio's or Starlette's. A Space stands behind the Hub's proxies: the visitor is the
    last public address of x-forwarded-for (what comes before it is what the visitor claims).
    Elsewhere that header is nobody's but the visitor's and is ignored. An IPv6 address counts by
    its /64, which is what one visitor has.
    """
    client = getattr(request, "client", None)
    found = str(getattr(client, "host", "") or "")
    if is_space:
        headers = getattr(request, "headers", None) or {}
        claimed = str(headers.get("x-forwarded-for") or "").split(",")
        found = next(
            (text for text in map(str.strip, reversed(claimed)) if _is_public(text)), found
        )
    try:
        known = ipaddress.ip_address(found)
    except ValueError:
        return found
    if known.version == 6:
        return str(ipaddress.ip_network((known, 64), strict=False))
    return found


def _is_public(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


# A path with at least one folder; not what follows a word, another slash or a URL's colon.
_PLACE = re.compile(r"(?<![\w.:/~])/(?:[^/\s'\"`,;:()]+/)+")


def without_places(text: str) -> str:
    """Return a message in which paths of this machine are cut down to their last name."""
    return _PLACE.sub("", text)


def offers_sign_in() -> bool:
    """Whether visitors can sign in with their Hugging Face account: on a Space with `hf_oauth`."""
    needed = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
    # Off a Space Gradio would mock a visitor who has the owner's name.
    is_space = os.environ.get("SYSTEM") == "spaces" and bool(os.environ.get("SPACE_ID"))
    return is_space and all(os.environ.get(name) for name in needed)


def may_push() -> bool:
    """Whether those who sign in let this app make repositories of theirs, by the Space's scopes."""
    rights_to_write = {"contribute-repos", "write-repos", "manage-repos"}
    return offers_sign_in() and not rights_to_write.isdisjoint(os.environ["OAUTH_SCOPES"].split())


def token_of(request: Any) -> str | None:
    """Return the Hub token of a visitor who signed in, None for anybody else.

    Gradio keeps it in a signed cookie of the visitor's browser, and nowhere on the server; it is
    read from the request that asks. request: Gradio's.
    """
    scope = getattr(getattr(request, "request", None), "scope", None) or {}
    info = scope.get("session", {}).get("oauth_info") or {}
    return info.get("access_token") if info.get("expires_at", 0) > time.time() else None


def forget_owner_token() -> None:
    """Have huggingface_hub send no token of its own accord from now on.

    Where strangers name what is fetched, the token of whoever runs the app (HF_TOKEN, `hf auth
    login`) must not open the owner's private and gated models to them.
    """
    rights.share(
        "sign in with Hugging Face (the button in the head of the page)"
        if offers_sign_in()
        else "run RAM Studio on a machine of your own, logged in; this app opens public models only"
    )
    # For child processes, and for a huggingface_hub that is not imported yet.
    os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True


def duplicate_link() -> str:
    """Return where a visitor of this Space can make one of their own, "" away from a Space."""
    space = os.environ.get("SPACE_ID", "")
    return f"https://huggingface.co/spaces/{space}?duplicate=true" if space else ""


def way_out() -> str:
    """Return what a visitor can do where a limit is met, a sentence."""
    if duplicate_link():
        return (
            "For more, duplicate this Space (the link in the head of the page), or run RAM Studio "
            "on a machine of your own."
        )
    return "For more, run RAM Studio on a machine of your own."
