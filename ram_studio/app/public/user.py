"""The sender of a request: the address for limits, and the rights at the Hub."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from typing import Any

from ram_studio.checkpoints.hub import rights

_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]*)\](?::\d+)?|(?P<v4>[\d.]+):\d+")


def address_of(request: Any, *, is_space: bool) -> str:
    """Return the address of a request's sender, "" when unknown.

    request: Gradio's or Starlette's. A Space is behind the Hub's proxies: the user is the last
    public address of x-forwarded-for (users can forge earlier ones, also on separate lines).
    Elsewhere users control that header, so it is ignored. An IPv6 address counts by its /64, the
    network of one user.
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
    """Return an address, with or without a port; an IPv4 address in IPv6 form as IPv4."""
    text = text.strip()
    if match := _WITH_PORT.fullmatch(text):
        text = match["v6"] or match["v4"]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


# A path with at least one folder; not after a word, another slash or a URL's colon.
_FOLDERS = re.compile(r"(?<![\w.:/~])/(?:[^/\s'\"`,;:()]+/)+")


def hide_paths(text: str) -> str:
    """Return a message with paths of this machine shortened to their last name."""
    return _FOLDERS.sub("", text)


def offers_sign_in() -> bool:
    """Whether users can sign in with their Hugging Face account: on a Space with `hf_oauth`."""
    needed = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
    # Outside a Space Gradio would mock a user with the owner's name.
    is_space = os.environ.get("SYSTEM") == "spaces" and bool(os.environ.get("SPACE_ID"))
    return is_space and all(os.environ.get(name) for name in needed)


def may_push() -> bool:
    """Whether the Space's scopes let this app create repositories of signed-in users."""
    rights_to_write = {"contribute-repos", "write-repos", "manage-repos"}
    return offers_sign_in() and not rights_to_write.isdisjoint(os.environ["OAUTH_SCOPES"].split())


def token_of(request: Any) -> str | None:
    """Return the Hub token of a signed-in user, None for others.

    Gradio stores it only in a signed cookie of the user's browser, not on the server; it is read
    from the request. request: Gradio's.
    """
    scope = getattr(getattr(request, "request", None), "scope", None) or {}
    info = scope.get("session", {}).get("oauth_info") or {}
    return info.get("access_token") if info.get("expires_at", 0) > time.time() else None


def forget_owner_token() -> None:
    """Stop huggingface_hub from sending the owner's token by default.

    Where other users choose what is fetched, the owner's token (HF_TOKEN, `hf auth login`) must not
    open the owner's private and gated models to them.
    """
    rights.share(
        "sign in with Hugging Face (button at the top of the page)"
        if offers_sign_in()
        else "log in and run RAM Studio on your own machine; this app opens public models only"
    )
    # For child processes, and if huggingface_hub is not imported yet.
    os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True


def duplicate_link() -> str:
    """Return the URL where users can duplicate this Space, "" outside a Space."""
    space = os.environ.get("SPACE_ID", "")
    return f"https://huggingface.co/spaces/{space}?duplicate=true" if space else ""


def own_copy_hint() -> str:
    """Return a sentence on what users can do about a limit."""
    if duplicate_link():
        return (
            "For more, duplicate this Space (link at the top of the page) "
            "or run RAM Studio on your own machine."
        )
    return "For more, run RAM Studio on your own machine."
