"""Run directories to look at, and a server of the dashboard in a thread of the tests."""

import contextlib
import json
import re
import socket
import threading
import time
from pathlib import Path

from parl_like.lab.dashboard.server import server
from parl_like.lab.runs.metrics import METRICS, as_csv
from parl_like.lab.runs.rundir import RunDir

DESCRIPTION = {
    "step": 900,
    "driver": "processes",
    "mode": "sync",
    "n_agents": 4,
    "n_envs": 8,
    "agents": [{"name": f"agent {i}", "steps": 225} for i in range(4)],
    "tasks": [
        {
            "name": "RL",
            "algorithm": "DQN",
            "model": "MLPQ",
            "version": 80,
            "learns": True,
            "device": "cpu",
            "serve": "auto",
            "helper": "OffPolicyHelper",
            "predict": {"max_rows": None},
            "learn": {"max_rows": 64},
            "buffer": {"rows": 900, "capacity": 2000},
        }
    ],
    "workers": [
        {"worker": 0, "status": "running", "restarts": 2, "agents": [0, 1]},
        {"worker": 1, "status": "starting", "restarts": 0, "agents": [2, 3]},
    ],
}
COLUMNS = (
    "step",
    "elapsed_s",
    "steps_per_s",
    "return/mean",
    "RL/loss",
    "RL/predict/requests",
    "RL/predict/rows",
    "RL/predict/batches",
    "RL/predict/queue_depth",
    "RL/predict/wait_p50_s",
    "RL/learn/rows",
    "RL/learn/batches",
    "RL/learn/errors",
    "updates/RL",
    "rows/RL",
)


def row(i, seed=0):
    """A row of metrics: 100 steps and one second after the one before it."""
    return [
        100 * i,
        i,
        100,
        round(10 + i * (1 + seed / 10), 3),
        1 / (i + 1),
        100 * i,
        100 * i,
        25 * i,
        3,
        0.002,
        640 * i,
        10 * i,
        0,
        10 * i,
        640 * i,
    ]


def make_run(
    folder,
    name,
    *,
    rows=10,
    seed=0,
    config=None,
    experiment="fake",
    state="finished",
    description=DESCRIPTION,
    differs=None,
    columns=COLUMNS,
    table=None,
):
    """A run directory as a run leaves it."""
    run = RunDir.create(
        experiment,
        {"run_dir": str(Path(folder) / name), "seed": seed, "total_steps": 1000, **(config or {})},
        ["parl-like", "train", experiment],
        differs or {},
    )
    text = as_csv([columns, *([str(one) for one in row(i, seed)] for i in range(rows))]) if table is None else table
    run.outbox.replace(METRICS, text)
    if description is not None:
        run.save_description(description)
    run.event("started", pid=1)
    run.event("warning", source="tests", text="worker 0 was replaced")
    run.save_result({"evaluation": {"score": 50.0 + seed, "mean_return": 50.0 + seed}})
    if state != "running":
        run.ended(state, "")
    return run


class Served:
    """A server in a thread; use it in a `with`.

    Attributes:
        addresses: What the command would have printed.
    """

    def __init__(self, *paths, host="127.0.0.1"):
        self.addresses = []
        self.server, self.socket = server([*map(Path, paths)], host, 0, lambda address, first: self.addresses.append(address))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, name="dashboard", daemon=True)
        self.cookie = ""

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_):
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(20)
        self.socket.close()
        assert not self.thread.is_alive()

    def token(self):
        return self.addresses[-1].partition("?")[2]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def ask(self, path="/", method="GET", known=True, host=None, body=b"", **headers):
        """Status, headers (lower case) and body of an answer. `known`: with the cookie of a browser that was opened."""
        if known and not self.cookie:
            _, found, _ = self.ask(f"/?{self.token()}", known=False)
            self.cookie = found["set-cookie"].partition(";")[0]
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'localhost:{self.port}'}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += [f"Cookie: {self.cookie}"] * known
        return self.say("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def say(self, said):
        """Status, headers (lower case) and body of the answer to these bytes."""
        with self.connect() as one:
            one.sendall(said)
            text = b"".join(iter(lambda: one.recv(1 << 16), b""))
        head, _, content = text.partition(b"\r\n\r\n")
        found = {}
        for line in head.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            found[name.lower()] = value.strip()
        return int(re.search(rb" (\d+)", head)[1]), found, content

    def json(self, path):
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)


@contextlib.contextmanager
def served(*paths, **how):
    with Served(*paths, **how) as one:
        yield one
