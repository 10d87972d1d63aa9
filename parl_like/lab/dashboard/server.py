"""The server of the dashboard: a few addresses that only answer questions, behind `Guard`."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from parl_like.lab.dashboard.board import Board, NotThere
from parl_like.lab.dashboard.guard import SLOW_S, Connection, Guard
from parl_like.lab.dashboard.page import read_files
from parl_like.lab.yaml_text import Tree, UsageError

PORT = 8765  # where it listens if nobody says; the next free one of TRIED
TRIED = 20
MAX_ANSWER = 8 << 20  # bytes of JSON
MAX_METRICS, MAX_IDS = 12, 500  # of one question
CONNECTIONS = 64
LOCAL = "127.0.0.1"


def application(board: Board) -> Starlette:
    """The addresses. What they name is looked up on the board's list; the page's own files are a list, too."""
    files = read_files()

    def json(value: Tree) -> Response:
        body = msgspec.json.encode(value)
        if len(body) > MAX_ANSWER:
            return Response(f"413: the answer has over {MAX_ANSWER} bytes\n", 413, media_type="text/plain")
        return Response(body, media_type="application/json")

    def own(request: Request) -> Response:
        kind, body = files[request.scope["path"]]
        return Response(body, media_type=kind)

    def runs(request: Request) -> Response:
        return json(board.runs(_whole(request, "since")))

    def curves(request: Request) -> Response:
        asked = request.query_params.getlist("metric")[:MAX_METRICS]
        ids = request.query_params.get("runs", "").split(",")[:MAX_IDS]
        return json(board.curves(asked, ids, _whole(request, "since")))

    def run(request: Request) -> Response:
        return json(board.run(request.path_params["run"]))

    def differences(request: Request) -> Response:
        return json(board.differences(request.query_params.get("runs", "").split(",")))

    def picture(request: Request) -> Response:
        body, kind = board.picture(request.path_params["run"], request.path_params["file"])
        return Response(body, media_type=kind)

    def not_there(request: Request, error: Exception) -> Response:
        return Response("404: it is not on the list\n", 404, media_type="text/plain")

    answers: list[tuple[str, Callable[[Request], Response]]] = [
        ("/api/runs", runs), ("/api/curves", curves), ("/api/run/{run}", run), ("/api/differences", differences),
        ("/picture/{run}/{file}", picture), *((path, own) for path in files)]
    app = Starlette(exception_handlers={NotThere: not_there})
    app.router = Router([Route(path, answer, methods=["GET"]) for path, answer in answers], redirect_slashes=False)
    return app


def _whole(request: Request, name: str) -> int:
    given = request.query_params.get(name, "0")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 16 else 0


def listening(host: str, port: int | None) -> socket.socket:
    """A socket that listens. Raises UsageError: the port is in use, or not for us; the address is none of this machine, or all of
    them."""
    if host in ("", "0.0.0.0"):
        raise UsageError(f"--host {host or repr(host)} is every address of this machine, and the page has one name; give one of "
                         "them, or leave it out")
    ports = range(PORT, PORT + TRIED) if port is None else (port,)
    for one in ports:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, one))
            made.listen(CONNECTIONS)
            return made
        except (OSError, OverflowError) as error:
            made.close()
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    where = f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]}"
    raise UsageError(f"cannot listen on {host}, {where}: {why}; give another --port, or --port 0 for any that is free"
                     f"{'' if host == LOCAL else ', or another --host'}")


def server(paths: Sequence[Path], host: str, port: int | None,
           opened: Callable[[str, bool], None]) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server that is ready, and its socket. See `serve`."""
    made = listening(host, port)
    at = made.getsockname()[1]
    name = "localhost" if host == LOCAL else host

    def address(token: str, first: bool = False) -> None:
        opened(f"http://{name}:{at}/?token={token}", first)

    guard = Guard(application(Board(paths)), at, {LOCAL, "localhost", host} if host == LOCAL else {host}, address)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # of what a stranger sends nothing is printed
    config = uvicorn.Config(guard, http=Connection, ws="none", lifespan="off", loop="asyncio", access_log=False, log_config=None,
                            limit_concurrency=CONNECTIONS, timeout_keep_alive=int(SLOW_S), server_header=False,
                            proxy_headers=False, h11_max_incomplete_event_size=32 << 10, timeout_graceful_shutdown=1)
    address(guard.token, True)
    return uvicorn.Server(config), made


def serve(paths: Sequence[Path], host: str, port: int | None, opened: Callable[[str, bool], None]) -> None:
    """Serves until Ctrl-C.

    Args:
        paths: Run directories, or folders with such.
        host, port: Where to listen; no port: at the first free one from PORT on.
        opened: Called with the address that opens a browser, at first (True), and whenever one was used.

    Raises:
        UsageError: it cannot listen there.
    """
    ours, made = server(paths, host, port, opened)
    with made, contextlib.suppress(KeyboardInterrupt):
        ours.run(sockets=[made])

