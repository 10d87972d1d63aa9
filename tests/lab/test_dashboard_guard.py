"""What listens on a port is read-only, local, and small: a test for each rule, which fails when the rule is broken."""

import ast
import asyncio
import json
import re
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import starlette
from dashboards import Served, make_run

from parl_like.lab import cli
from parl_like.lab.dashboard import guard, server
from parl_like.lab.dashboard import page as pages
from parl_like.lab.dashboard.board import Board
from parl_like.lab.yaml_text import UsageError

FOLDER = Path(guard.__file__).parent
METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "BREW")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    make_run(folder, "one")
    with Served(folder) as made:
        yield made


# ---- who may ask


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("known", [True, False])
def test_only_get_and_head_exist(site, method, known):
    path = "/api/runs" if method != "CONNECT" else f"localhost:{site.port}"
    assert site.ask(path, method, known=known)[0] == 405
    assert (
        site.ask(path, method, known=known, host="evil.example", Content_Length="9", body=b'{"a": 1}\n')[0] == 405
    )  # before all else


def test_head_says_what_get_would_say(site):
    status, headers, body = site.ask("/api/runs", "HEAD")
    assert (status, body) == (200, b"") and int(headers["content-length"]) > 0


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "localhost",
        "localhost:1",
        "127.0.0.1:{port}.evil",
        "0.0.0.0:{port}",
        "[::1]:{port}",
        "localhost:{port}@evil",
        "",
    ],
)
def test_another_name_of_this_machine_is_refused(site, host):
    """DNS rebinding: a name of a stranger's that points here."""
    assert site.ask("/api/runs", host=host.format(port=site.port) or " ")[0] in (400, 403)


def test_its_own_names_are_taken(site):
    for host in (f"localhost:{site.port}", f"127.0.0.1:{site.port}", f"LOCALHOST:{site.port}"):
        assert site.ask("/api/runs", host=host)[0] == 200


def test_no_host_and_two_hosts_are_refused(site):
    site.ask("/")  # there is a cookie
    for lines in (b"", f"Host: localhost:{site.port}\r\nHost: evil\r\n".encode()):
        with site.connect() as one:
            one.sendall(b"GET /api/runs HTTP/1.1\r\n" + lines + f"Cookie: {site.cookie}\r\nConnection: close\r\n\r\n".encode())
            assert one.recv(100).split()[1] in (b"400", b"403")


def test_two_hosts_are_refused_whoever_reads_the_request():
    """h11 refuses them, too."""
    sent = []

    async def send(message):
        sent.append(message)

    one = guard.Guard(None, 1, ["localhost"])
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": f"token={one.token}".encode(),
             "headers": [(b"host", b"localhost:1")] * 2}
    asyncio.run(one(scope, None, send))
    assert sent[0]["status"] == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost:{port}", "http://localhost:1", "http://localhost:{port}.evil"]
)
def test_a_foreign_origin_is_refused(site, origin):
    status, headers, _ = site.ask("/api/runs", Origin=origin.format(port=site.port))
    assert status == 403 and not [name for name in headers if name.startswith("access-control")]


def test_its_own_origin_is_taken_and_no_cors_header_is_sent(site):
    status, headers, _ = site.ask("/api/runs", Origin=f"http://localhost:{site.port}")
    assert status == 200 and not [name for name in headers if name.startswith("access-control")]


def test_other_sites_cannot_ask_even_with_a_cookie(site):
    for other in ("cross-site", "same-site", "SAME-SITE", "x", ""):  # same-site: another port of this machine has the cookie, too
        assert site.ask("/api/runs", Sec_Fetch_Site=other)[0] == 403
    assert site.ask("/api/runs", Sec_Fetch_Site="none")[0] == site.ask("/", Sec_Fetch_Site="same-site")[0] == 200
    assert site.ask("/api/runs", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/runs", "/dashboard.js", "/api/run/x", "/nowhere", "/?token=", "/?token=x", "/api/runs?token={token}"]
)
def test_nothing_is_said_without_a_token(site, path):
    token = site.token().partition("=")[2]
    status, headers, body = site.ask(path.format(token=token), known=False)
    assert status == 403 and "set-cookie" not in headers and b"parl-like dashboard" in body


@pytest.mark.parametrize(
    "cookie", ["parl_like_{port}=", "parl_like_{port}=x", "parl_like_1={secret}", "x={secret}", "parl_like_{port}=\xff"]
)
def test_a_wrong_cookie_is_none(site, cookie):
    site.ask("/")
    secret = site.cookie.partition("=")[2]
    assert site.ask("/api/runs", known=False, Cookie=cookie.format(port=site.port, secret=secret))[0] == 403


def test_the_address_of_the_command_opens_one_browser(tmp_path):
    make_run(tmp_path, "one")
    with Served(tmp_path) as site:
        first = site.token()
        status, headers, _ = site.ask(f"/?{first}", known=False)
        assert status == 200
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {*re.split(r";\s*", headers["set-cookie"])}
        assert site.ask(f"/?{first}", known=False)[0] == 403
        assert len(site.addresses) == 2 and site.token() != first  # and the next one is told
        assert site.ask(f"/?{site.token()}", known=False)[0] == 200


def test_a_head_does_not_use_the_token_up(site):
    assert site.ask(f"/?{site.token()}", "HEAD", known=False)[0] == 403
    assert site.ask(f"/?{site.token()}", known=False)[0] == 200


def test_there_is_no_web_socket(site):
    assert (
        site.ask(
            "/api/runs",
            Connection="Upgrade",
            Upgrade="websocket",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key="eA==",
            Origin="http://evil.example",
        )[0]
        == 403
    )
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    asyncio.run(guard.Guard(None, 1, ["localhost"])({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


# ---- what may be asked


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/%252e%252e/etc/passwd",
        "/dashboard.js/",
        "/index.html",
        "//dashboard.js",
        "/static/dashboard.js",
        "/uplot.LICENSE.txt",
        "/page.py",
        "/api/run/..%2f..%2fetc",
        "/picture/../x",
        "/picture/%2fetc%2fpasswd/x",
        "/api/run/%00",
        "/docs",
        "/openapi.json",
        "/api/differences/../runs",
        "/.",
        "/api/runs/",
        "/API/RUNS",
        "/api/run/" + "a" * 150,
    ],
)
def test_a_path_is_a_word_of_a_list(site, path):
    status, headers, body = site.ask(path)
    assert status == 404 and b"root:" not in body and "location" not in headers


def test_an_absolute_address_does_not_choose_another_path(site):
    """Decisions are made on the path as it came, and nobody looks at a rebuilt address."""
    for host in (f"localhost:{site.port}", "evil.example"):
        assert site.ask(f"http://{host}/api/runs")[0] == 404
    names = {node.attr for path in FOLDER.glob("*.py") for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Attribute)}
    assert not names & {"url", "base_url", "url_for"}


def test_starlette_is_new_enough():
    assert tuple(map(int, starlette.__version__.split(".")[:2])) >= (1, 10)
    text = (FOLDER.parents[2] / "pyproject.toml").read_text() if (FOLDER.parents[2] / "pyproject.toml").exists() else ""
    assert not text or '"starlette>=1.10"' in text


def test_ranges_are_refused(site):
    assert site.ask("/dashboard.js", Range="bytes=0-1,1-2,2-3")[0] == 416


def test_a_question_has_no_body(site):
    assert site.ask("/api/runs", Content_Length="3", body=b"abc")[0] == 400
    assert site.ask("/api/runs", Transfer_Encoding="chunked", body=b"3\r\nabc\r\n0\r\n\r\n")[0] == 400


def test_an_address_has_a_length(site):
    assert site.ask("/" + "a" * 300)[0] == 414
    assert site.ask("/api/runs?since=" + "1" * 17_000)[0] == 414
    assert site.ask("/api/runs?since=" + "1" * 70_000)[0] in (400, 414, 431)


@pytest.mark.parametrize("query", ["since=-1", "since=x", "since=%FF", "since=" + "9" * 400, "since=1&since=2", "since=%D9%A1"])
def test_odd_questions_are_answered_as_plain_ones(site, query):
    assert site.ask(f"/api/runs?{query}")[0] == 200
    assert site.ask(f"/api/curves?metric=%00&metric=..&runs=,,x,%2e%2e&{query}")[0] == 200
    assert site.ask(f"/api/differences?runs=..%2f..,,&{query}")[0] in (200, 404)


# ---- what is answered


def has_the_headers(headers):
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy
    assert {f"{what} 'none'" for what in ("frame-ancestors", "base-uri", "form-action", "object-src")} <= {*policy.split("; ")}
    assert "script-src" not in policy  # scripts are what default-src says: files of ours
    assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-store" and "server" not in headers


@pytest.mark.parametrize(
    ("path", "known"), [("/", True), ("/api/runs", True), ("/nowhere", True), ("/dashboard.css", True), ("/", False)]
)
def test_every_answer_has_the_headers(site, path, known):
    has_the_headers(site.ask(path, known=known)[1])


@pytest.mark.parametrize("said", ["nonsense\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost\r\n\r\n",
                                  "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/7\r\n\r\n",
                                  "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", f"GET /{'x' * 40_000}"])
def test_so_has_the_answer_to_what_is_no_request(site, said):
    status, headers, _ = site.say(said.encode())
    assert status == 400
    has_the_headers(headers)


def test_so_has_the_answer_to_what_breaks(tmp_path, monkeypatch):
    make_run(tmp_path, "one")
    with Served(tmp_path) as site:
        monkeypatch.setattr(Board, "runs", lambda *_: 1 / 0)
        status, headers, body = site.ask("/api/runs")
        assert status == 500 and b"Traceback" not in body and b"division" not in body
        has_the_headers(headers)


def test_the_page_has_no_inline_script_or_style():
    text = (FOLDER / "static" / "index.html").read_text()
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", text)


OURS = [name for name in pages.NAMES if name != "uplot.js"]


@pytest.mark.parametrize("name", OURS)
def test_texts_of_runs_are_never_html(name):
    text = (FOLDER / "static" / name).read_text()
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setTimeout\(\s*[\"'`]|srcdoc|DOMParser",
        text,
    )


@pytest.mark.parametrize("name", pages.NAMES)
def test_nothing_comes_from_outside(name):
    text = (FOLDER / "static" / name).read_text()
    found = {one for one in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*", text)} - {"http://www.w3.org/2000/svg"}
    assert found <= {"https://github.com/leeoniya/uPlot"}  # uPlot's name, in a comment
    assert not re.findall(r"@import|url\(|WebSocket|EventSource|sendBeacon|XMLHttpRequest|importScripts", text)


def test_no_code_of_the_dashboard_asks_or_runs_anything():
    """No request goes out, nothing is uploaded, no template or text is evaluated, no class for static files is used."""
    banned = {
        "urllib.request",
        "http.client",
        "requests",
        "httpx",
        "jinja2",
        "starlette.staticfiles",
        "starlette.templating",
        "pickle",
        "subprocess",
        "starlette.formparsers",
        "starlette.middleware.cors",
        "torch",
        "importlib",
    }
    for path in FOLDER.glob("*.py"):
        names = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
        }
        assert names & banned <= {"importlib"}, path
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
        assert not calls & {"eval", "exec", "compile", "__import__", "FileResponse", "StaticFiles"}, path


# ---- how much


def test_requests_in_flight_are_counted(tmp_path, monkeypatch):
    make_run(tmp_path, "one")
    with Served(tmp_path) as site:
        site.ask("/")
        monkeypatch.setattr(guard, "IN_FLIGHT", 0)
        assert site.ask("/api/runs")[0] == 503
        monkeypatch.setattr(guard, "IN_FLIGHT", 1)
        assert site.ask("/api/runs")[0] == 200


def test_more_connections_than_there_may_be_get_an_answer(tmp_path, monkeypatch):
    make_run(tmp_path, "one")
    monkeypatch.setattr(server, "CONNECTIONS", 4)
    with Served(tmp_path) as site:
        site.ask("/")
        held = [site.connect() for _ in range(5)]
        try:
            until = time.monotonic() + 10
            while site.ask("/api/runs")[0] != 503 and time.monotonic() < until:
                pass
            status, headers, _ = site.ask("/api/runs")
            assert status == 503
            has_the_headers(headers)
        finally:
            for one in held:
                one.close()


def test_an_answer_has_a_size(tmp_path, monkeypatch):
    make_run(tmp_path, "one")
    with Served(tmp_path) as site:
        monkeypatch.setattr(server, "MAX_ANSWER", 100)
        assert site.ask("/api/runs")[0] == 413


def test_a_question_is_about_so_many_metrics_and_runs(tmp_path, monkeypatch):
    for i in range(3):
        make_run(tmp_path, f"run{i}")
    with Served(tmp_path) as site:
        ids = ",".join(site.json("/api/runs")["ids"])

        def told():
            curves = site.json(f"/api/curves?metric=RL/loss&metric=return/mean&runs={ids}")["curves"]
            return len({one["metric"] for one in curves}), len({one["run"] for one in curves})

        assert told() == (2, 3)
        monkeypatch.setattr(server, "MAX_METRICS", 1)
        monkeypatch.setattr(server, "MAX_IDS", 2)
        assert told() == (1, 2)


def closed(one):
    """Whether the other end closes the connection, in time."""
    one.settimeout(20)
    try:
        while one.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: localh"])
def test_a_connection_that_asks_nothing_is_dropped(tmp_path, monkeypatch, said):
    monkeypatch.setattr(guard, "SLOW_S", 0.1)
    with Served(tmp_path) as site, site.connect() as one:
        one.sendall(said)
        assert closed(one)


@pytest.mark.parametrize("questions", [1, 2])  # the answer to a second one waits until the first was taken
def test_a_slow_reader_is_dropped(tmp_path, monkeypatch, questions):
    run = make_run(tmp_path, "one")
    run.videos.mkdir()
    (run.videos / "episode_1.gif").write_bytes(b"GIF89a" + bytes(20_000_000))
    with Served(tmp_path) as site:
        name = site.json("/api/runs")["ids"][0]
        file = site.json(f"/api/run/{name}")["files"][0]["id"]
        monkeypatch.setattr(guard, "SLOW_S", 0.2)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", site.port))
            known = f"Host: localhost:{site.port}\r\nCookie: {site.cookie}"
            one.sendall(f"GET /picture/{name}/{file} HTTP/1.1\r\n{known}\r\n\r\n".encode() * questions)
            assert one.recv(1) and site.server.server_state.connections
            until = time.monotonic() + 15
            while site.server.server_state.connections and time.monotonic() < until:  # nothing is read here
                time.sleep(0.01)
            assert not site.server.server_state.connections
        assert site.ask("/api/runs")[0] == 200


# ---- the command


def test_a_port_in_use_is_told_with_the_way_out(site, tmp_path, capsys):
    assert cli.main(["dashboard", str(tmp_path), "--port", str(site.port)]) == 2
    assert "Address already in use; give another --port, or --port 0" in capsys.readouterr().err
    with pytest.raises(UsageError, match="port 70000"):
        server.listening("127.0.0.1", 70_000)
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1.* or another --host"):
        server.listening("192.0.2.1", 0)
    for every in ("", "0.0.0.0"):
        with pytest.raises(UsageError, match="is every address of this machine, and the page has one name"):
            server.listening(every, 0)


def test_without_a_port_the_next_free_one_is_taken(site, monkeypatch):
    monkeypatch.setattr(server, "PORT", site.port)
    with server.listening("127.0.0.1", None) as made:
        assert site.port < made.getsockname()[1] < site.port + server.TRIED


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert cli.main(["dashboard", str(tmp_path / "none")]) == 2
    assert "there is no such directory; give run directories" in capsys.readouterr().err


def test_without_the_extra_the_way_to_it_is_said(tmp_path, monkeypatch, capsys):
    from parl_like.lab.dashboard import command

    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["dashboard", str(tmp_path)]) == 2
    assert "pip install 'parl_like[dashboard]'" in capsys.readouterr().err


def test_the_named_address_is_the_only_name(tmp_path):
    with Served(tmp_path, host="127.0.0.2") as site:
        assert site.addresses[0].startswith(f"http://127.0.0.2:{site.port}/?token=")
        with socket.create_connection(("127.0.0.2", site.port), timeout=20) as one:
            one.sendall(f"GET /?{site.token()} HTTP/1.1\r\nHost: localhost:{site.port}\r\nConnection: close\r\n\r\n".encode())
            assert one.recv(20).split()[1] == b"403"


def test_nothing_is_listened_to_beyond_this_machine_by_default(site):
    (verb,) = [verb for verb in cli.VERBS if verb.name == "dashboard"]
    assert dict(verb.options)["--host"]["default"] == site.socket.getsockname()[0] == "127.0.0.1"
    assert json.loads(site.ask("/api/runs")[2])["ids"]
