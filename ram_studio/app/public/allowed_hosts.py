"""Allowed values of a request's Host and Origin.

A foreign website can reach an app through its user's browser in two ways: by cross-origin requests,
which the browser labels with Origin, or by its own domain pointed at this machine (DNS rebinding),
which the browser sends as Host. A page cannot forge either header.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import NamedTuple

from starlette.datastructures import Headers

from ram_studio.app.settings import OWN_HOSTS, Settings

_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
)
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Authority(NamedTuple):
    """A host in lower case, an address in its shortest form, and a port where one is given."""

    host: str
    port: int | None

    def is_of(self, origin: Authority) -> bool:
        """Whether it names this origin, whose port is always known."""
        return self.host == origin.host and (
            self.port == origin.port
            or (self.port is None and origin.port in _DEFAULT_PORTS.values())
        )


def parse_authority(text: str) -> Authority | None:
    """Return ``host[:port]`` in parts, None for anything else (user names, zones, junk)."""
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    host = match["name"]
    if host is None:
        try:
            host = str(ipaddress.IPv6Address(match["v6"]))
        except ValueError:
            return None
    return Authority(host, int(match["port"]) if match["port"] else None)


def _parse_origin(text: str) -> tuple[Authority | None, str]:
    """Return the authority of a URL (None unless http or https), and the rest."""
    match = _ORIGIN.fullmatch(text.lower())
    found = parse_authority(match["authority"]) if match else None
    if match is None or found is None:
        return None, ""
    port = _DEFAULT_PORTS[match["scheme"]] if found.port is None else found.port
    return Authority(found.host, port), match["rest"]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class AllowedHosts:
    """The hosts and origins of one app.

    On a private machine Host is a loopback name, or the host of ``--host`` and GRADIO_ROOT_PATH. An
    app on a network also accepts this machine's names and IP addresses, which no foreign website
    can own. A Space is only reached through the Hub's proxies: they set Host, and Origin is also
    compared with SPACE_HOST.
    """

    def __init__(self, settings: Settings) -> None:
        named = [parse_authority(name) for name in settings.allowed_hosts]
        self._named = [authority for authority in named if authority]
        self._is_any = settings.is_space
        self._takes_addresses = settings.is_public
        bound = settings.host.strip("[]").lower()
        self._hosts = {*OWN_HOSTS, bound, *(authority.host for authority in self._named)}
        if settings.is_public:
            own = socket.gethostname().lower()
            self._hosts |= {own, f"{own.split('.')[0]}.local"}

    def refusal(self, headers: Headers) -> str | None:
        """Return why a request with these headers is refused, None when it is not."""
        hosts = headers.getlist("host")
        host = parse_authority(hosts[0]) if len(hosts) == 1 else None
        if not self._is_host(host):
            return (
                f"This app does not answer to the host {', '.join(hosts)[:100]!r}. Open it at "
                "its own address, or set GRADIO_ROOT_PATH to the URL that your proxy serves."
            )
        origins = headers.getlist("origin")
        if origins:
            if len(origins) > 1 or not self.is_own(origins[0], headers, only_origin=True):
                return (
                    f"This app takes requests from its own page, not from {origins[0][:100]!r}. "
                    "Behind a proxy, set GRADIO_ROOT_PATH to the URL that it serves."
                )
        # Embedded resources (images, scripts, styles) have no Origin.
        elif headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            headers.get("sec-fetch-mode") != "navigate"
        ):
            return "Other pages can link to this app, but not embed it."
        return None

    def is_own(self, url: str, headers: Headers, *, only_origin: bool = False) -> bool:
        """Whether a URL leads to this app, by the request; only_origin: and is just its origin."""
        found, rest = _parse_origin(url)
        if found is None or (only_origin and rest):
            return False
        host = parse_authority(headers.get("host", ""))
        return any(own.is_of(found) for own in [*([host] if host else []), *self._named])

    def _is_host(self, host: Authority | None) -> bool:
        if self._is_any:
            return True
        if host is None:
            return False
        return host.host in self._hosts or (self._takes_addresses and _is_address(host.host))
