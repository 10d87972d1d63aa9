"""The probe of an algorithm: it learns in tiny environments whose best actions are known, and is stopped and resumed."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from parl_like.agents.episodic import EpisodicHelper
from parl_like.agents.population import PopulationHelper
from parl_like.lab import config as configs
from parl_like.lab.probes.laws import APART, BROKEN, Broken, DoesNotApply, Finding, Findings, Law, tried
from parl_like.lab.probes.tiny import Move, Table, Tiny, same
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.algorithm import Algorithm
from parl_like.run.robot import Robot
from parl_like.values.errors import without_trace

GAMMA = 0.5
SMALL = {"OffPolicyHelper.warmup": 64, "OffPolicyHelper.random_steps": 64, "OffPolicyHelper.batch_size": 32,
         "OffPolicyHelper.learn_every": 2, "OffPolicyHelper.updates": 1, "OffPolicyHelper.size": 2_000,
         "OnPolicyHelper.unroll": 32,
         "EpisodicHelper.episodes": 16}  # returns of one short episode alone, normalised, say nothing
NETWORK = {"hidden": 32, "actor_hidden": 32, "critic_hidden": 32, "size": 32, "context": 4, "blocks": 1}
"""The largest sizes of networks that are not given. A few states need no more, and with so large an `lr` the policies of DDPG and
TD3 with 256 units a layer go to 15 before their tanh, where they stay."""
OWN: dict[str, float] = {"gamma": GAMMA, "lr": 2e-3, "target_period": 25, "epsilon": 0.5, "minibatches": 2, "n_step": 1,
                         "sequence": 2, "burn_in": 1, "delay": 2, "behavior_updates": 300,
                         "conservative": 0.1,  # 5 would leave a third of the differences between values
                         "target_return": 1.0}  # the best that an episode earns where there is no γ
ACTOR_LR = 5e-4
"""The learning rate of policies of real actions: a quarter of the critics'. With the same one a policy follows critics that know
nothing yet to an end of the Box, where its tanh has no slope by which it would come back. Then a law looks broken that is not."""
END = 1
"""In each table the state that ends with 0: its value is known to be 0, so that each law sees no other's mistake."""

REPEATS = same(0.0, END)
SEES = {0: (Move(1.0, END), Move(0.0, END)), END: REPEATS, 2: (Move(0.0, END), Move(1.0, END))}
ACTS = {0: (Move(0.0, END), Move(1.0, END)), END: REPEATS}


def waits(now: float) -> Table:
    """Return a table: in state 0 action 0 gives `now`, and action 1 leads to 1 a step later."""
    return {0: (Move(now, END), Move(0.0, 2, "")), END: REPEATS, 2: same(1.0, END)}


def after(end: str) -> Table:
    """Return a table: in state 0 action 0 gives 1, action 1 0.8 and ends so in state 2, whose own episodes give 2."""
    return {0: (Move(1.0, END), Move(0.8, 2, end)), END: REPEATS, 2: same(2.0, END)}


class AlgorithmProbe:
    """The laws of one algorithm class, with the options that it is built with."""

    def __init__(self, algorithm: type[Algorithm], steps: int, options: Mapping[str, Any]) -> None:
        self.algorithm, self.steps, self.options = algorithm, steps, dict(options)
        takes = algorithm.takes
        self.act = "Box" if takes is not None and "Discrete" not in takes.actions else "Discrete"
        self.obs = "Discrete" if takes is not None and "Box" not in takes.observations else "Box"

    def robot(self, table: Table, starts: tuple[int, ...], random: bool = False, **env: Any) -> tuple[Robot, list[Tiny]]:
        """Return a robot that learns in a tiny environment, and its environments as they are made. `random`: one that learns
        from random rows gets those of a random policy, so that all actions are in them, whatever it thinks of these."""
        single = import_module("parl_like.robots.single")
        settings = import_module("parl_like.robots.settings")
        made: list[Tiny] = []

        def make() -> Tiny:
            made.append(Tiny(table, starts, self.act, self.obs, **env))
            return made[-1]

        nearest = single.nearest_to(self.algorithm) or "PPO"
        defaults = single.defaults_of(self.algorithm)
        helper = self.options.get("helper") or defaults["helper"]
        helper_name = helper if isinstance(helper, str) else helper.__name__
        name, known = self.algorithm.__name__, settings.arguments(self.algorithm)
        given: dict[str, Any] = {key: value for key, value in SMALL.items() if key.partition(".")[0] == helper_name}
        if random and helper_name == "OffPolicyHelper":
            given["OffPolicyHelper.random_steps"] = self.steps
        tabular = "Table" in defaults["models"][0]
        own: dict[str, float] = {**OWN, "lr": 1e-2} if helper_name == "EpisodicHelper" else OWN
        if self.act == "Box":  # a slow target would show it no future
            own = {**own, "tau": 0.05, "actor_lr": ACTOR_LR}
        given |= {f"{name}.{key}": value for key, value in own.items() if key in known and key not in self.options
                  and not (tabular and key == "lr")}
        if "model" not in self.options:
            given |= self.narrow(defaults)
        classes = {key: value for key, value in self.options.items() if key in ("helper", "model") and isinstance(value, type)}
        rest = {key: value for key, value in self.options.items() if key not in classes}
        agents = 1 if self.algorithm.window.one_lane or tabular else 2
        config = configs.resolve(single.Config, {"algorithm": nearest}, {"n_agents": agents, "seed": 1, "trace": True,
                                                                        "total_steps": self.steps, **given, **rest})
        return cast(Robot, single.build(config, env=make, algorithm=self.algorithm, **classes)), made

    def narrow(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the network that fits, so that it is no larger than NETWORK."""
        settings = import_module("parl_like.robots.settings")
        name, found = defaults["models"][0], {}
        for key, (_, default) in settings.arguments(settings.named("Model", name)).items():
            if (most := NETWORK.get(key)) is not None and key not in self.options:
                value = defaults.get(f"{name}.{key}", default)
                found[f"{name}.{key}"] = min(value, most) if isinstance(value, int) else [min(one, most) for one in value]
        return found

    def runs(self) -> Finding | None:
        """Build the robot and run some steps. Returns the one finding there is where an error ends that; None: it runs.

        Raises:
            ConfigError: an option is none of the robot's.
        """
        try:
            robot, _ = self.robot(ACTS, (0, END))
            with robot:
                robot.run(100)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  whatever is probed is another's code
            single = import_module("parl_like.robots.single")
            defaults = single.defaults_of(self.algorithm)
            parts = (self.options.get("model") or defaults["models"][0], self.options.get("helper") or defaults["helper"])
            named = " and ".join(part if isinstance(part, str) else part.__name__ for part in parts)
            look = f"what it is built with: it got {named}; others are given as model=MyNet helper=MyHelper"
            return Finding("runs", APART if self.ships() else BROKEN, f"{type(error).__name__}: {without_trace(error)}", look)
        return None

    def ships(self) -> bool:
        """Return whether it is one of ours: where these do not run alone, they are made for several tasks, or players."""
        return self.algorithm.__module__.startswith("parl_like.")

    def chooses(self, state: int, robot: Robot, table: Table) -> int:
        """Return the greedy action in a state that an episode begins in."""
        env = Tiny(table, (state,), self.act, self.obs)
        robot.evaluate(1, env=env)
        return env.chosen[state]

    def learns(self, table: Table, starts: tuple[int, ...], best: Mapping[int, int], why: str) -> None:
        """Learn, and raise `Broken` where the greedy action of a state is not the best one; `DoesNotApply` where it
        does not come to earn more by learning."""
        if not self.algorithm.improves:
            raise DoesNotApply("it learns what a given policy is worth, or clones actions: its agents do not come to earn more")
        robot, _ = self.robot(table, starts, random=True)
        with robot:
            robot.run(self.steps)
            if not robot.tasks["RL"].algorithm.updates:
                raise Broken(f"it made no update in {self.steps} steps")
            for state, act in best.items():
                if (chosen := self.chooses(state, robot, table)) != act:
                    raise Broken(f"in state {state} the best action is {act}, for {why}; after {self.steps:,} steps it takes "
                                 f"{chosen}")

    def discounted(self) -> float:
        """Return γ: the one that it is built with, or keeps. Raises `DoesNotApply` where it has none."""
        robot, _ = self.robot(ACTS, (0, END))
        with robot:
            built_with = GAMMA if "gamma" in inspect.signature(self.algorithm).parameters else None
            gamma = getattr(robot.tasks["RL"].algorithm, "gamma", self.options.get("gamma", built_with))
            if gamma is None or not 0.2 <= gamma <= 0.95:
                raise DoesNotApply(f"it has no discount `gamma` between 0.2 and 0.95 (here {gamma})")
            return float(gamma)

    def bootstraps(self) -> None:
        """Raise `DoesNotApply` where returns of whole episodes are all that is learned from."""
        robot, _ = self.robot(ACTS, (0, END))
        with robot:
            helper = robot.agents[0].helpers["RL"]
            if isinstance(helper, (EpisodicHelper, PopulationHelper)) or robot.tasks["RL"].algorithm.window.whole:
                raise DoesNotApply("it learns from whole episodes, and bootstraps nowhere")
        self.discounted()

    def action(self) -> None:
        """Learn which action pays."""
        self.learns(ACTS, (0, END), {0: 1}, "it gives 1, the other one 0")

    def observation(self) -> None:
        """Learn which action pays in which state."""
        self.learns(SEES, (0, END, 2), {0: 0, 2: 1}, "it gives 1, the other one 0")

    def discount(self) -> None:
        """Learn whether to wait, on both sides of γ."""
        gamma = self.discounted()
        for now, best in ((gamma - 0.15, 1), (gamma + 0.25, 0)):
            self.learns(waits(now), (0, END, 2), {0: best}, f"1 after a step is worth γ = {gamma:.3g}, and {now:.3g} now")

    def termination(self) -> None:
        """Learn that nothing comes after a terminated step."""
        self.bootstraps()
        self.learns(after("terminated"), (0, END, 2), {0: 0}, "it gives 1; the other one 0.8, and then nothing")

    def truncation(self) -> None:
        """Learn that the state of a truncated step has its value."""
        self.bootstraps()
        gamma = self.discounted()
        self.learns(after("truncated"), (0, END, 2), {0: 1}, f"it has a future: 0.8 + γ·2 = {0.8 + 2 * gamma:.3g} > 1")

    def masks(self) -> None:
        """Act by masks. Raises Broken where the law is broken, DoesNotApply where it is not about this."""
        if self.algorithm.takes is not None and (not self.algorithm.takes.masks or self.act == "Box"):
            raise DoesNotApply("it says that it takes no masks (`takes`)")
        try:
            robot, made = self.robot({0: same(1.0, 0, ""), END: same(0.0, 0, "")}, (0,), masked=True)
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}; an observation with a mask is a Dict. A class that takes none says "
                         "so: takes = Takes(masks=False), of parl_like.learning.action_spaces") from error
        with robot:
            robot.run(200)
            if n := sum(env.illegal for env in made):
                raise Broken(f"{n} illegal actions in 200 steps")

    def repeats(self) -> None:
        """Do the same twice. Raises Broken where the law is broken."""
        if self.traced() != self.traced():
            raise Broken("two runs with the same seed are different")

    def arrays(self) -> None:
        """Do the same where an environment changes its array in place. Raises Broken where the law is broken."""
        if self.traced() != self.traced(in_place=True):
            raise Broken("where the environment writes each observation into the same array, the run is another one: an array of "
                         "the environment is kept, and read when it has changed")

    def traced(self, **env: Any) -> str | None:
        """Return the digest of a run."""
        robot, _ = self.robot(SEES, (0, END, 2), **env)
        with robot:
            robot.run(self.run_past_an_update(robot))
            return robot.trace_hash()

    def run_past_an_update(self, robot: Robot) -> int:
        """Run until there was an update, in rounds of 200 steps. Return how many steps that took: in as many more there is
        another one."""
        steps = 0
        while not steps or steps < self.steps and not robot.tasks["RL"].algorithm.updates:
            robot.run(200)
            steps += 200
        return steps

    def resume(self) -> None:
        """Go on from a saved state as if nothing had happened. Raises Broken where the law is broken."""
        whole, _ = self.robot(SEES, (0, END, 2))
        part, _ = self.robot(SEES, (0, END, 2))
        with whole, part:
            steps = self.run_past_an_update(whole)
            with tempfile.TemporaryDirectory() as folder:
                whole.save(f"{folder}/state")
                part.load(f"{folder}/state")
            for robot in (whole, part):
                robot.run(steps)
            if whole.trace_hash() != part.trace_hash():
                parts = (robot.tasks["RL"].algorithm.model.weights_hash() for robot in (whole, part))
                differs = "its parameters" if len(set(parts)) == 2 else "what it did"
                raise Broken(f"{steps} steps after a state was saved and loaded, {differs} are not those of a run that went on")


def probe_algorithm(algorithm: type[Algorithm], *, steps: int = 2_000, laws: tuple[str, ...] = (), **options: Any) -> Findings:
    """Try whether an algorithm keeps the laws that any should keep, in tiny environments with known answers.

    Args:
        algorithm: Its class.
        steps: Environment steps of each law. laws: Names of those to try; empty: all.
        options: What it is built with, as for `Robot.of`: model=MyNet, helper=MyHelper, lr=1e-3.

    Raises:
        TypeError: it is no class of an algorithm. ValueError: there is no law of that name. ConfigError: no part has such an
            option.
    """
    if not isinstance(algorithm, type) or not issubclass(algorithm, Algorithm):
        raise TypeError(f"probe_algorithm: {algorithm!r:.60}; expected a class made from parl_like.Algorithm")
    probe = AlgorithmProbe(algorithm, steps, options)
    every = [
        Law("learns which action pays", "learn(): the sign and the gradient of the loss", probe.action),
        Law("learns by the observation", "predict() and learn(): both must read batch.obs", probe.observation),
        Law("discounts", "the power of gamma in process() or learn()", probe.discount),
        Law("stops at termination", "the factor (1 − terminated) of the value after a step", probe.termination),
        Law("bootstraps through truncation", "whether `truncated` or `last` stands where `terminated` should", probe.truncation),
        Law("respects masks", "predict(): its output must bring inputs.obs['mask'], or logits of legal choices", probe.masks),
        Law("repeats with the same seed", "random numbers that are not of self.rng and self.torch_rng", probe.repeats),
        Law("keeps no array of the environment", "arrays kept without a copy", probe.arrays),
        Law("resumes exactly", "`transient`, and attributes without state_dict and load_state_dict", probe.resume),
    ]
    if unknown := set(laws) - {law.name for law in every}:
        raise ValueError(f"probe_algorithm: no law {', '.join(sorted(unknown))}; there are "
                         f"{', '.join(law.name for law in every)}")
    if (finding := probe.runs()) is not None:
        return Findings(algorithm.__name__, (finding,))
    return tried(algorithm.__name__, [law for law in every if not laws or law.name in laws])
