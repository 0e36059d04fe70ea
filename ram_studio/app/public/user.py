"""Who sent a request: the address that limits count, and the rights used at the Hub."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from typing import Any

from ram_studio.checkpoints.hub import rights

_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]*)\](?::\d+)?|(?P<v4>[\d.]+):\d+")


def address_of(request: Any, *, is_space: bool) -> str:
    """Return the address that a request came from, "" when it is unknown.

    request: Gradio's or Starlette's. A Space stands behind the Hub's proxies: the user is the
    last public address of x-forwarded-for (what comes before it is what the user claims, on
    lines of its own too). Elsewhere that header is nobody's but the user's and is ignored. An
    IPv6 address counts by its /64, which is what one user has.
    """
    client = getattr(request, "client", None)
    host = str(getattr(client, "host", "") or "")
    found = _parse_address(host)
    if is_space:
        claimed = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        known = (_parse_address(text) for text in reversed(claimed))
        found = next((address for address in known if address and address.is_global), found)
    if found is None:
        return host
    if found.version == 6:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address that may stand with a port; an IPv4 one that is written as IPv6 as such."""
    text = text.strip()
    if match := _WITH_PORT.fullmatch(text):
        text = match["v6"] or match["v4"]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


# A path with at least one folder; not what follows a word, another slash or a URL's colon.
_FOLDERS = re.compile(r"(?<![\w.:/~])/(?:[^/\s'\"`,;:()]+/)+")


def hide_paths(text: str) -> str:
    """Return a message in which paths of this machine are cut down to their last name."""
    return _FOLDERS.sub("", text)


def offers_sign_in() -> bool:
    """Whether users can sign in with their Hugging Face account: on a Space with `hf_oauth`."""
    needed = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
    # Off a Space Gradio would mock a user who has the owner's name.
    is_space = os.environ.get("SYSTEM") == "spaces" and bool(os.environ.get("SPACE_ID"))
    return is_space and all(os.environ.get(name) for name in needed)


def may_push() -> bool:
    """Whether those who sign in let this app make repositories of theirs, by the Space's scopes."""
    rights_to_write = {"contribute-repos", "write-repos", "manage-repos"}
    return offers_sign_in() and not rights_to_write.isdisjoint(os.environ["OAUTH_SCOPES"].split())


def token_of(request: Any) -> str | None:
    """Return the Hub token of a user who signed in, None for anybody else.

    Gradio keeps it in a signed cookie of the user's browser, and nowhere on the server; it is
    read from the request that asks. request: Gradio's.
    """
    scope = getattr(getattr(request, "request", None), "scope", None) or {}
    info = scope.get("session", {}).get("oauth_info") or {}
    return info.get("access_token") if info.get("expires_at", 0) > time.time() else None


def forget_owner_token() -> None:
    """Have huggingface_hub send no token of its own accord from now on.

    Where other users name what is fetched, the token of whoever runs the app (HF_TOKEN, `hf auth
    login`) must not open the owner's private and gated models to them.
    """
    rights.share(
        "sign in with Hugging Face (button at the top of the page)"
        if offers_sign_in()
        else "log in and run RAM Studio on your own machine; this app opens public models only"
    )
    # For child processes, and for a huggingface_hub that is not imported yet.
    os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True


def duplicate_link() -> str:
    """Return where a user of this Space can make one of their own, "" away from a Space."""
    space = os.environ.get("SPACE_ID", "")
    return f"https://huggingface.co/spaces/{space}?duplicate=true" if space else ""


def own_copy_hint() -> str:
    """Return what a user can do where a limit is met, a sentence."""
    if duplicate_link():
        return (
            "For more, duplicate this Space (link at the top of the page) "
            "or run RAM Studio on your own machine."
        )
    return "For more, run RAM Studio on your own machine."
