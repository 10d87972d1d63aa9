"""Guard: what stands between a port and the pages. It looks at the request as it came, before anything is parsed: only a browser
that the user has opened by the command's own address gets an answer."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

IN_FLIGHT = 16  # requests that are answered at a time
MAX_PATH, MAX_QUERY = 200, 16_000  # bytes of an address
SLOW_S = 20.0  # a browser that takes nothing, or asks nothing, for so long is dropped

POLICY = ("default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
          "frame-ancestors 'none'")
HEADERS = [
    (b"content-security-policy", POLICY.encode()), (b"x-frame-options", b"DENY"), (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"), (b"cache-control", b"no-store"),
]
"""Headers of every answer, also of those that the server itself gives: to what is no request, and to one too many."""


class Guard:
    """An ASGI application in front of another.

    Args:
        app: Gets what is let through.
        port: The one that is listened to.
        names: Names and addresses by which the user may call this machine.
        opened: Called when the address of the command was used, with the next one's token.

    Attributes:
        token: Opens the page once, as `/?token=…`; its cookie does so afterwards.
    """

    def __init__(self, app: App, port: int, names: Iterable[str], opened: Callable[[str], None] = lambda token: None) -> None:
        self.app, self.opened = app, opened
        self.hosts = {f"{name}{end}".encode() for name in names for end in [f":{port}", *[""] * (port == 80)]}
        self.cookie = f"parl_like_{port}"  # cookies know no ports, so each server has one of its own
        self.token, self._secret = secrets.token_urlsafe(24), secrets.token_urlsafe(32)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there is none
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        cookies: list[bytes] = []

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *((b"set-cookie", cookie) for cookie in cookies)]
            await send(message)

        refused = self._refused(scope, cookies)
        if refused is None and self._in_flight >= IN_FLIGHT:
            refused = 503, "too many requests at a time; try again"
        if refused is not None:
            await _say(guarded, *refused)
            return
        self._in_flight += 1
        try:
            await self.app(scope, receive, guarded)
        finally:
            self._in_flight -= 1

    def _refused(self, scope: Scope, cookies: list[bytes]) -> tuple[int, str] | None:
        """Status and reason; None: the request may pass, and `cookies` are set by its answer."""
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this page is read-only"
        headers: list[tuple[bytes, bytes]] = scope["headers"]

        def values(name: bytes) -> list[bytes]:
            return [value for key, value in headers if key.lower() == name]

        hosts = values(b"host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return 403, "the page is at the address that the command has printed, and at no other name"
        if any(origin.lower() not in {b"http://" + host for host in self.hosts} for origin in values(b"origin")):
            return 403, "requests of other pages are refused"
        if any(site.lower() not in (b"same-origin", b"none") for site in values(b"sec-fetch-site")) and scope["path"] != "/":
            return 403, "requests of other pages are refused"
        if values(b"range"):
            return 416, "parts of files are not served"
        if values(b"transfer-encoding") or any(size != b"0" for size in values(b"content-length")):
            return 400, "a question has no body"
        if len(scope["path"]) > MAX_PATH or len(scope["query_string"]) > MAX_QUERY:
            return 414, "the address is too long"
        return None if self._is_known(values(b"cookie")) or self._opens(scope, cookies) else (
            403, "open the page with the address that `parl-like dashboard` has printed; each opens one browser")

    def _is_known(self, headers: list[bytes]) -> bool:
        for one in b"; ".join(headers).split(b";"):
            name, _, value = one.strip().partition(b"=")
            if name == self.cookie.encode() and hmac.compare_digest(value, self._secret.encode()):
                return True
        return False

    def _opens(self, scope: Scope, cookies: list[bytes]) -> bool:
        """Tell whether the address is the one that the command has printed; then it is used up, and there is another one."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1] if scope["path"] == "/" else ""
        if scope["method"] != "GET" or not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return False
        cookies.append(f"{self.cookie}={self._secret}; Path=/; HttpOnly; SameSite=Strict".encode())
        self.token = secrets.token_urlsafe(24)
        self.opened(self.token)
        return True


async def _say(send: Send, status: int, text: str) -> None:
    body = f"{status}: {text}\n".encode()
    allow = [(b"allow", b"GET, HEAD")] if status == 405 else []
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *allow]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _WithHeaders(h11.Connection):
    """The written form of a connection: each answer has `HEADERS`, whoever gives it."""

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        if isinstance(event, h11.Response):
            ours = {name for name, _ in HEADERS}
            kept = [one for one in event.headers if one[0] not in ours]
            event = h11.Response(status_code=event.status_code, headers=[*kept, *HEADERS], reason=event.reason)
        return super().send_with_data_passthrough(event)


class Connection(H11Protocol):
    """A connection whose answers have `HEADERS`. It is ended when its other end takes what it was sent too slowly, or sends no
    whole request in time."""

    _slow: asyncio.TimerHandle | None = None
    _silent: asyncio.TimerHandle | None = None

    def __init__(self, config: Config, *rest: Any, **more: Any) -> None:
        super().__init__(config, *rest, **more)
        assert config.h11_max_incomplete_event_size is not None
        self.conn = _WithHeaders(h11.SERVER, config.h11_max_incomplete_event_size)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._listen()

    def _listen(self) -> None:
        self._silent = self.loop.call_later(SLOW_S, self._look)

    def _look(self) -> None:
        """A request that is being answered has its time; else there is none, or half of one."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._listen()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        asked = self.cycle
        super().data_received(data)
        if self.cycle is not asked and self._silent is not None:  # a whole request has come
            self._silent.cancel()
            self._listen()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._slow = self.loop.call_later(SLOW_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget(self._slow)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget(self._slow, self._silent)

    @staticmethod
    def _forget(*timers: asyncio.TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()
