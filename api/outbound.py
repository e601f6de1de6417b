"""Requests that the API sends to addresses that users gave: never into its own network, unless that is allowed.

A name is resolved, every address that it has is checked, and the connection goes to a checked address, not to the name
again: a name that changes meanwhile gains nothing. Redirects are not followed and no proxy is asked.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_TIMEOUT_S: Final = 10.0
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class AddressRefused(Exception):
    """The address is not one to send to. The message says why."""


def check_url(url: str, allowed: Sequence[Network]) -> None:
    """Raises AddressRefused unless it is a plain http(s) URL of a host whose addresses may all be sent to now."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise AddressRefused("it is not a URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise AddressRefused("it is not an http:// or https:// URL")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise AddressRefused("it holds credentials or a fragment; leave them out")
    if not url.isascii() or any(c.isspace() or not c.isprintable() for c in url):
        raise AddressRefused("it has characters that a URL cannot have")
    resolve(host, port or (443 if parts.scheme == "https" else 80), allowed)


def resolve(host: str, port: int, allowed: Sequence[Network]) -> list[str]:
    """The host's addresses. Raises AddressRefused when it has none, or one that may not be sent to."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise AddressRefused(f"the host {host!r} has no address: {error}") from None
    for text in sorted(found):
        address = ipaddress.ip_address(text.partition("%")[0])
        if not (_is_public(address) or any(address in network for network in allowed)):
            raise AddressRefused(
                f"{host!r} is {address}, which is not a public address. PILOT_WEBHOOK_ALLOW can name networks of yours"
            )
    return sorted(found)


def post(url: str, body: bytes, headers: dict[str, str], allowed: Sequence[Network]) -> int:
    """The status of the answer. Raises AddressRefused, and OSError when there is none in ten seconds or so."""
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), _TIMEOUT_S)
    backend = _Checked(allowed)
    try:
        with (
            httpcore.ConnectionPool(ssl_context=ssl.create_default_context(), network_backend=backend) as pool,
            pool.stream(
                "POST", url, headers=list(headers.items()), content=body, extensions={"timeout": timeout}
            ) as response,
        ):
            return response.status  # the answer's body is nobody's business
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        raise OSError(" ".join(str(error).split()) or type(error).__name__) from None


class _Checked(httpcore.NetworkBackend):
    """Connects to checked addresses only; TLS still proves the name."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = resolve(host, port, self._allowed)
        for address in addresses[:-1]:
            try:
                return self._plain.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._plain.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None and not _is_public(inner):
            return False
        if address.ipv4_mapped is not None:
            return True
    return address.is_global and not address.is_multicast
