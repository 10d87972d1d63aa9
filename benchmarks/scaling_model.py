"""The model behind `parl-like bench scale`: what a period of on-policy training costs, part by part, and least squares for its
constants.

A period is `unroll` steps of every agent and the update from these rows. In sync mode agents act, then the learner learns: the
parts add up. In async mode the two go on side by side, and the slower one sets the pace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parl_like.drivers.workers.worker_agents import HALVES_S

ROW_BYTES = 32
"""Bytes of a stored row beside its observation: action, reward, flags, log-probability."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A way to train: who acts, how much is learned, on which machines.

    Attributes:
        workers: Processes with agents; 0: the agents are in the learner's process.
        agents: In all of them together. unroll: Steps of each agent per period.
        env_s: Seconds of one environment step.
        epochs, minibatches: Of an update: passes over its rows, and optimiser steps per pass.
        obs_bytes: Of one observation. weight_bytes: Of the network.
        serve: Who predicts for workers: 'replica' themselves, 'central' the learner's process.
        mode: 'sync' or 'async'.
        cores: Of all machines together, which more workers share; None: enough for every process.
        machines: That the workers are spread over evenly; the learner is on one of them.
        latency_s: Seconds of one message's way between machines. bytes_per_s: What the learner's machine can send or receive.
        learners: Processes that share the updates; after each optimiser step they exchange gradients.
    """

    workers: int
    agents: int
    unroll: int = 16
    env_s: float = 0.0
    epochs: int = 4
    minibatches: int = 4
    obs_bytes: int = 16
    weight_bytes: int = 0
    serve: Literal["replica", "central"] = "replica"
    mode: Literal["sync", "async"] = "sync"
    cores: int | None = None
    machines: int = 1
    latency_s: float = 0.0
    bytes_per_s: float = 1.25e9
    learners: int = 1

    @property
    def rows(self) -> int:
        """Return the rows of a period."""
        return self.agents * self.unroll


@dataclass(frozen=True, kw_only=True)
class CoreCosts:
    """Seconds that the framework itself takes, whatever the network.

    Attributes:
        loop: A step of all agents of a process, once. step: One agent's step beside environment and prediction. step_byte: Per
            byte of its observation.
        turn: A worker's request for predictions, and the reply. asked_row: Per row of it.
        unroll_row: A row on its way to the update. sent_byte: Per byte of an observation that goes to the learner's process.
        given: New parameters, and the replies to updates, for one worker. weight_byte: A byte of parameters, copied once.
        round: What a period takes once.
    """

    loop: float = 0.0
    step: float = 0.0
    step_byte: float = 0.0
    turn: float = 0.0
    asked_row: float = 0.0
    unroll_row: float = 0.0
    sent_byte: float = 0.0
    given: float = 0.0
    weight_byte: float = 0.0
    round: float = 0.0


@dataclass(frozen=True, kw_only=True)
class NetworkCosts:
    """Seconds that a network takes on one device.

    Attributes:
        predict: A batch of predictions. predict_row: Per row of it.
        update: An optimiser step. update_row: Per row of its minibatch.
        learn: An update, once. learn_row: Per row of it, once: advantages, the way to the device.
    """

    predict: float = 0.0
    predict_row: float = 0.0
    update: float = 0.0
    update_row: float = 0.0
    learn: float = 0.0
    learn_row: float = 0.0


NOTHING = NetworkCosts()


@dataclass(frozen=True)
class Period:
    """The seconds of a period, and of its parts.

    Attributes:
        seconds: From its begin to the next one's.
        rows: Environment steps in it.
        parts: Name → seconds of the way on which the period waits: all of them in sync mode, those of the slower side in async
            mode, or all cores' work where there are too few.
    """

    seconds: float
    rows: int
    parts: Mapping[str, float]

    @property
    def steps_per_s(self) -> float:
        """Return environment steps per second."""
        return self.rows / self.seconds

    @property
    def bottleneck(self) -> str:
        """Return the name of the largest part."""
        return max(self.parts, key=lambda name: self.parts[name])


def period(work: Work, core: CoreCosts, acts: NetworkCosts, learns: NetworkCosts) -> Period:
    """Return what one period of training takes.

    With W workers, A agents, n = A / W, T steps, E epochs, M minibatches, B bytes of an observation, w bytes of parameters:

        environments   T · n · e
        agents         T · (loop + n · (step + B · step_byte))
        predictions    replica  T · (predict + n · predict_row)           in each worker
                       central  T · (predict + A · predict_row)           of the learner's device
        messages       central  T · (W · turn + A · (asked_row + B · sent_byte))
        rows           round + A · T · unroll_row, and with workers  A · T · B · sent_byte
        update         learn + A · T · learn_row / G + E · (M · update + A · T · update_row / G), by G learners
        parameters     W · given, and with replicas  2 · w · weight_byte
        network        2 · latency a period, with central serving a step more each;
                       what goes to and from other machines / bytes_per_s; 2 · (latency + 2 · w / bytes_per_s) per optimiser step
                       of several learners

    In sync mode these add up; what W workers do takes W / cores times as long where that is more than 1. In async mode
    environments, agents and the predictions of replicas are the worker's side, the rest the learner's. Agents that are served
    centrally ask in two halves by turns, in twice as many messages, where all of them act for `HALVES_S` or longer; else they
    wait for messages and predictions, too. The slower side counts, or all work together divided by the cores.

    Args:
        work: The way to train.
        core: Of the framework. acts: Of the network where agents are served. learns: Of the network where it learns.

    Raises:
        ValueError: there are fewer agents than workers.
    """
    w, a, t = work.workers, work.agents, work.unroll
    if a < max(w, 1):
        raise ValueError(f"period: {a} agents for {w} workers; expected at least one each")
    n = a / w if w else a
    central = bool(w) and work.serve == "central"
    obs, away = work.obs_bytes, (work.machines - 1) / work.machines
    parts = {
        "environments": t * n * work.env_s,
        "agents": t * (core.loop + n * (core.step + obs * core.step_byte)),
        "predictions": t * (acts.predict + (a if central else n) * acts.predict_row),
        "messages": t * (w * core.turn + a * (core.asked_row + obs * core.sent_byte)) if central else 0.0,
        "rows": core.round + a * t * (core.unroll_row + (obs * core.sent_byte if w else 0.0)),
        "update": learns.learn + a * t * learns.learn_row / work.learners
        + work.epochs * (work.minibatches * learns.update + a * t * learns.update_row / work.learners),
        "parameters": w * core.given + (0.0 if central or not w else 2 * work.weight_bytes * core.weight_byte),
        "network": 0.0,
    }
    if work.machines > 1:
        sent = a * t * (obs + ROW_BYTES) + (a * t * (obs + ROW_BYTES) if central else w * work.weight_bytes)
        parts["network"] += 2 * work.latency_s * (1 + t * central) + away * sent / work.bytes_per_s
    if work.learners > 1:
        parts["network"] += 2 * work.epochs * work.minibatches * (work.latency_s + 2 * work.weight_bytes / work.bytes_per_s)
    acting = ("environments", "agents", *(() if central else ("predictions",)))
    if work.mode == "sync":
        share = max(w / work.cores, 1.0) if work.cores is not None else 1.0
        parts |= {name: share * parts[name] for name in acting}
        return Period(sum(parts.values()), a * t, parts)
    learner = [name for name in parts if name not in acting]
    waits: tuple[str, ...] = acting
    if central and sum(parts[name] for name in acting) >= t * HALVES_S:
        parts["messages"] += t * w * core.turn
    elif central:
        waits = (*acting, "predictions", "messages")
    sides = [{name: parts[name] for name in waits}, {name: parts[name] for name in learner}]
    if work.cores is not None:
        everywhere = {name: seconds * (max(w, 1) if name in acting else 1) / work.cores for name, seconds in parts.items()}
        sides.append(everywhere)
    slowest = max(sides, key=lambda side: sum(side.values()))
    return Period(sum(slowest.values()), a * t, slowest)


def least_squares(matrix: NDArray[np.float64], seconds: NDArray[np.float64], names: Sequence[str],
                  scale: NDArray[np.float64] | None = None) -> dict[str, float]:
    """Return the constants x ≥ 0 for which matrix · x is nearest to the seconds: the sum of ((matrix · x − seconds) / scale)² is
    least.

    A constant that would be negative is 0, and the others are fitted again without it, until none is.

    Args:
        matrix: [measurements, constants]. seconds: [measurements]. names: Of the constants.
        scale: [measurements], above 0; None: the seconds, so that errors are relative.

    Raises:
        ValueError: the measurements cannot tell the constants apart.
    """
    scale = seconds if scale is None else scale
    scaled, target = matrix / scale[:, None], seconds / scale
    norms = np.linalg.norm(scaled, axis=0)
    if np.any(norms == 0) or np.linalg.matrix_rank(scaled / norms, tol=1e-6) < len(names):
        raise ValueError(f"least_squares: {len(seconds)} measurements do not tell {', '.join(names)} apart; add some that differ "
                         "in what these are multiplied by")
    left, found = list(range(len(names))), np.zeros(len(names))
    while left:
        x = np.linalg.lstsq(scaled[:, left] / norms[left], target, rcond=None)[0]
        if (x >= 0).all():
            found[left] = x / norms[left]
            break
        left.pop(int(np.argmin(x)))
    return {name: float(value) for name, value in zip(names, found, strict=True)}


def fit_core(seen: Sequence[tuple[Work, NetworkCosts, float]], known: CoreCosts, names: Sequence[str]) -> CoreCosts:
    """Return `known` with the constants `names` fitted to measured periods.

    Args:
        seen: Ways to train in sync mode, the network of each, and the seconds of a period.
        known: The other constants.
        names: Of those that are fitted; what `known` has of them does not count.

    Raises:
        ValueError: as `least_squares`; or the mode of one is 'async', whose period is no sum.
    """
    if any(work.mode != "sync" for work, _, _ in seen):
        raise ValueError("fit_core: a period of mode 'async' is no sum of its parts; give measurements of mode 'sync'")
    base = replace(known, **dict.fromkeys(names, 0.0))
    rest = np.array([seconds - period(work, base, net, net).seconds for work, net, seconds in seen])
    matrix = np.array([[period(work, CoreCosts(**{name: 1.0}), NOTHING, NOTHING).seconds - period(
        work, CoreCosts(), NOTHING, NOTHING).seconds for name in names] for work, _, _ in seen])
    # What is left over may be little of a long period: errors are relative to the whole.
    return replace(base, **least_squares(matrix, rest, names, np.array([seconds for _, _, seconds in seen])))


def fit_network(predicted: Sequence[tuple[int, float]], learned: Sequence[tuple[int, int, int, float]]) -> NetworkCosts:
    """Return the constants of a network on a device.

    Args:
        predicted: (rows, seconds) of batches. learned: (rows, epochs, minibatches, seconds) of updates.

    Raises:
        ValueError: as `least_squares`.
    """
    acting = least_squares(np.array([[1.0, n] for n, _ in predicted]), np.array([s for _, s in predicted]),
                           ["predict", "predict_row"])
    learning = least_squares(np.array([[e * m, e * n, 1.0, n] for n, e, m, _ in learned]), np.array([s for *_, s in learned]),
                             ["update", "update_row", "learn", "learn_row"])
    return NetworkCosts(**acting, **learning)


def as_dict(costs: CoreCosts | NetworkCosts) -> dict[str, float]:
    """Return the constants by name."""
    return {field.name: getattr(costs, field.name) for field in fields(costs)}
