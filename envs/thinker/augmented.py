"""AugmentedEnv: n environments seen through a planning agent's eyes, as one gymnasium vector environment (Chung et al. 2023)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parl_like.environment.state import clone_state, restore_state
from parl_like.envs.thinker.layout import Layout
from parl_like.envs.thinker.stages import Ask, NodeAnswers, PlanningStage, RealEpisodes
from parl_like.envs.thinker.tree import Plan, Tree, TreeState
from parl_like.values.spec import Array

log = logging.getLogger(__name__)


class Curiosity(NamedTuple):
    """Weights of what a real step brought and the world model had not expected. `AugmentedEnv` says how they are used."""

    reward: float = 0.0
    value: float = 0.0
    feature: float = 0.0
    done_gate: bool = False


class AugmentedEnv(VectorEnv[Any, Any, Array]):
    """The augmented MDP: K − 1 imaginary steps in a search tree, then a real one, in n environments in lock-step.

    An action is a pair (primary action, reset): the primary action is imagined or, in the last step of a stage, taken; reset 1
    goes back to the root after an imaginary step. Observation, a Dict of [n, ...]:

        tree_reps    float32 (D,)              what the tree knows of root and current node; `tree.layout` names its entries
        real_states  as the environment's      the real observation; the same during a stage
        hs, xs       float32                   hidden state and imagined observation of the current node, zeros at an imagined
                                               end, where they are wanted; with `return_double` those of the root before them,
                                               along the channels
        last_act     int64 (2,)                the last action; 0 at the beginning
        last_rew     float32 (2,)              the last real and planning reward; with `curiosity` (3,), `cur_reward` behind them
        step_status  int64                     0: the last step was real; 1: imagined; 2: the same, and the next is real; 3: both
                                               are real

    The reward is the real environment's, and 0 in imaginary steps. After an end the next episode begins in the same step
    (SAME_STEP); `final_obs` of a truncated episode is what the agent would see had it gone on: a tree with only a root, the final
    observation.

    Info, arrays [n] new in each step: `imagined`, the environment was not stepped; `im_reward`, `im_episode_return` (of the stage
    so far); `baseline`, float32, of the root that the last real step left; `max_rollout_depth`; `episode_return`, `episode_step`
    of the real episode so far (of the whole, in the step that ends it), the latter in augmented steps with the tree's layout G1,
    in real ones with G2; `real_done` (the environment's own, else the end); `truncated_done` (the environment's own, else that
    it truncates), which makes an end a truncation; `cost` (the environment's own, else False).

    With `curiosity` also `cur_reward` and `cur_episode_return`, its sum over the real episode. Of a real step that led to s',
    with d = 1 where it ended the episode, and hats what the model had imagined of it (0 where it imagined an end), it is

        w_reward · (r (1 − d) − r̂)² + w_value · (v(s') (1 − d) − v̂)² + w_feature · mean((z(s') (1 − d) − ẑ)²)

    z being the features of the network that judges; with `done_gate` 0 where the episode ended, or was to. 0 in imaginary steps.

    Args:
        envs: The real environments: Discrete actions, observations Box (C, H, W) or (N,); autoreset SAME_STEP.
        ask: The world model.
        K: Steps of a stage.
        perfect: Number of slots → snapshots of `envs` (`parl_like.envs.thinker.snapshots`): transitions are then the
            environments' own, and the model is asked for `v` and `logits` only. None: it is asked for everything.
        reward_clip: Real rewards are cut to ± this in the tree and in `last_rew`, not in what `step` returns; None: not at all.
        h_shape, x_shape: Shapes of the replies' `hs` and `x` (`ThinkerNet.hs_shape`, `x_shape`), which are then shown; None: are
            not.
        return_double, curiosity: See above. Features need replies `z` of the world model.
        nodes: First of the places that this environment uses in the world model's table, `answers.n_nodes` of them.
        tree: Options of `Tree`, but for `perfect` and `phase`.

    Attributes:
        tree: The `Tree`.
        n_actions, start: Primary actions, and the number of the environment's first.
        answers: Of the world model, see `NodeAnswers`.

    Raises:
        ValueError, TypeError: environments that do not fit; the message says which way out there is.
    """

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], ask: Ask, *, K: int = 20, perfect: Callable[[int], Any] | None = None,
        reward_clip: float | None = None, h_shape: tuple[int, ...] | None = None, x_shape: tuple[int, ...] | None = None,
        return_double: bool = False, curiosity: Curiosity | None = None, nodes: int = 0, **tree: Any,
    ) -> None:
        check_envs(envs)
        self.envs, self.reward_clip, self.return_double = envs, reward_clip, return_double
        self.curiosity = curiosity
        self.num_envs = n = int(envs.num_envs)
        act: Any = envs.single_action_space
        self.n_actions, self.start = int(act.n), int(act.start)
        # The second shows what a final observation looks like as the root of a tree; no step of it is ever taken.
        self.tree, self._sprout = (Tree(m, self.n_actions, K, perfect=perfect is not None, **tree) for m in (n, 1))
        n_nodes = n * self.tree.capacity + n  # the last n: final observations
        self.perfect = None if perfect is None else perfect(n_nodes)
        self.answers = NodeAnswers(ask, n_nodes, nodes, h_shape, x_shape)
        self._episodes, self._stage = RealEpisodes(n), PlanningStage(np.zeros(n, np.int64), curiosity is not None)
        self.single_observation_space, self.single_action_space = augmented_spaces(
            envs.single_observation_space, self.tree.layout, h_shape, x_shape, return_double, curiosity is not None)
        self.action_space = batch_space(self.single_action_space, n)
        self.observation_space = batch_space(self.single_observation_space, n)
        self.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = envs.render_mode
        box: Any = envs.single_observation_space
        # Where x is wanted, and values can leave the bounds that it is normalised by. None: there is nothing (more) to look at.
        whole = box.dtype.kind in "iu" and (np.iinfo(box.dtype).min, np.iinfo(box.dtype).max) == (box.low.min(), box.high.max())
        self._bounds = None if x_shape is None or whole else box

    @property
    def ask(self) -> Ask:
        """The world model; another one may take its place between two steps."""
        return self.answers.ask

    @ask.setter
    def ask(self, ask: Ask) -> None:
        self.answers.ask = ask

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begins episodes and trees in all environments; `seed` and `options` are for those.

        Raises:
            ValueError: options has `reset_mask`, for all are reset together.
        """
        if options and "reset_mask" in options:
            raise ValueError("AugmentedEnv: reset_mask is not supported; environments are stepped and reset together")
        obs, info = self.envs.reset(seed=seed, options=options)
        self._episodes.begin(np.asarray(obs))
        seen, more = self.plant()
        return seen, {**info, **more}

    def plant(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begins a stage with new trees where the environments are now; what `reset` returns."""
        self._warn_outside()
        n = self.num_envs
        roots, none = np.arange(n) * self.tree.capacity, np.zeros(n, bool)
        reply = self.answers.of(0, self._episodes.obs, np.zeros(n, np.int64), roots, roots)
        state = self.tree.begin(reply["v"], reply["logits"])
        if self.perfect is not None:
            self.perfect.take(roots)
        self._stage = PlanningStage(roots, self.curiosity is not None)
        return self._observation(state), self._info(state, False, {}, none, none)

    def clone_state(self) -> dict[str, Any]:
        """The real episodes. Trees are not in it: they stand on hidden states, which are large, lie where the network is, and
        were made by parameters that have learned since. After `restore_state`, `plant` begins new ones.

        Raises:
            TypeError: the real environments cannot clone their state (`parl_like.environment.state`).
            ResetNeeded: there was no reset.
        """
        if not self._episodes.begun:
            raise gym.error.ResetNeeded("AugmentedEnv: clone_state() before reset()")
        return {"envs": clone_state(self.envs), **self._episodes.state_dict()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to these episodes. Raises ValueError: they are of other environments."""
        restore_state(self.envs, state["envs"])
        self._episodes.load_state_dict(state)

    def step(self, actions: Any) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """One augmented step of all environments.

        Args:
            actions: [n, 2] integers, primary action 0 … A − 1 (whatever number the environment's actions start at) and reset 0 or
                1.

        Raises:
            ValueError: an action is out of its range, or the array has another shape; nothing has happened then.
            ResetNeeded: there was no reset.
        """
        if not self._episodes.begun:
            raise gym.error.ResetNeeded("AugmentedEnv: step() before reset()")
        actions = np.asarray(actions)
        n, episodes, stage = self.num_envs, self._episodes, self._stage
        if actions.shape != (n, 2) or actions.dtype.kind not in "iub":
            raise ValueError(f"AugmentedEnv: actions are {actions.shape} {actions.dtype}; expected ({n}, 2) integers: primary "
                             "action, reset")
        primary = actions[:, 0]
        plan = self.tree.select(primary, actions[:, 1])
        rew, terminated, truncated = np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)
        info: dict[str, Any] = {}
        real = len(plan.root_slot) > 0
        if real:
            obs, rew, terminated, truncated, info = self.envs.step(primary + self.start)
            # What the model expects, before the old root's place is another's; its state goes where none is asked for later.
            expected = {} if self.curiosity is None else self.answers.of(
                1, episodes.obs, primary, stage.roots, n * self.tree.capacity + np.arange(n))
            episodes.obs, rew, ended = np.asarray(obs), np.asarray(rew, np.float64), np.logical_or(terminated, truncated)
            cut = _own(info, "truncated_done", ended, np.zeros(n, bool)) & ended
            terminated, truncated = terminated & ~cut, truncated | cut
            self._warn_outside()
            reply = self._first_look(plan.root_slot, primary, ended, np.flatnonzero(truncated), info)
            stage.roots = plan.root_slot
            if self.curiosity is not None:
                stage.surprise = _surprise(self.curiosity, expected, reply, self._clipped(rew), ended)
            state = self.tree.update(None, (self._clipped(rew), ended, reply["v"][:n], reply["logits"][:n]))
        else:
            state = self.tree.update(self._imagine(plan) if len(plan.expand) else None)
        stage.act = actions.astype(np.int64)
        surprise = [] if self.curiosity is None else [stage.surprise * real]
        stage.rew = np.stack([self._clipped(rew), state.im_reward, *surprise], 1).astype(np.float32)
        episodes.returns += rew
        episodes.steps += real or self.tree.layout.generation == "G1"
        more = self._info(state, real, info, terminated, truncated)
        observation = self._observation(state)
        if real and ended.any():
            more |= self._final_obs(observation, reply, primary, ended, truncated, info)
        return observation, rew, np.asarray(terminated, bool), np.asarray(truncated, bool), more

    def _warn_outside(self) -> None:
        """Warns, once, of observations outside the bounds of their space."""
        obs = self._episodes.obs
        if self._bounds is not None and ((obs < self._bounds.low) | (obs > self._bounds.high)).any():
            log.warning("observations have values from %g to %g, and their space says %s; `xs` leave [0, 1] there. Declare the "
                        "bounds that hold, or clip the observations (gymnasium.wrappers.TransformObservation)",
                        obs.min(), obs.max(), self._bounds)
            self._bounds = None

    def _clipped(self, rew: Array) -> Array:
        return rew if self.reward_clip is None else rew.clip(-self.reward_clip, self.reward_clip)

    # ---- the model

    def _first_look(self, slots: Array, primary: Array, ended: Array, cut: Array, info: Mapping[str, Any]) -> Mapping[str, Array]:
        """Return what the model thinks of the new roots, and, in rows that follow, of the final observations of episodes that
        were cut; the states of these go to places that no tree uses."""
        if self.perfect is not None:
            self.perfect.take(slots)
        obs, act = self._episodes.obs, np.where(ended, 0, primary)
        if len(cut):
            obs = np.concatenate([obs, np.stack([np.asarray(info["final_obs"][i]) for i in cut.tolist()])])
            act, slots = np.append(act, primary[cut]), np.append(slots, self.num_envs * self.tree.capacity + cut)
        return self.answers.of(0, obs, act, slots, slots)

    def _imagine(self, plan: Plan) -> tuple[Array, Array, Array, Array]:
        """(r, v, done, logits) of the nodes that are expanded."""
        if self.perfect is None:
            # Only initial rows are asked with an observation; these carry some that need no copy.
            reply = self.answers.of(1, self._episodes.obs[: len(plan.expand)], plan.action, plan.parent_slot, plan.child_slot)
            return reply["r"], reply["v"], reply["done"] > 0.5, reply["logits"]
        seen, rew, over = self.perfect.step(plan.parent_slot, plan.child_slot, plan.action + self.start)
        reply = self.answers.of(0, seen, plan.action, plan.child_slot, plan.child_slot)
        return self._clipped(rew), reply["v"], over, reply["logits"]

    # ---- what is seen

    def _observation(self, state: TreeState) -> dict[str, Array]:
        out = {"tree_reps": state.features, "real_states": self._episodes.obs}
        for name, column in self.answers.kept.items():
            shown = column[state.current_slot]
            shown[state.current_done] = 0.0
            out[name] = np.concatenate([column[state.root_slot], shown], 1) if self.return_double else shown
        return {**out, "last_act": self._stage.act, "last_rew": self._stage.rew, "step_status": state.step_status}

    def _info(self, state: TreeState, real: bool, info: Mapping[str, Any], terminated: Array, truncated: Array) -> dict[str, Any]:
        n, episodes, stage = self.num_envs, self._episodes, self._stage
        ended = np.logical_or(terminated, truncated)
        whole = _own(info, "real_done", ended, ended)
        stage.im_returns += state.im_reward
        out = {
            "imagined": np.full(n, not real), "im_reward": state.im_reward, "im_episode_return": stage.im_returns.copy(),
            "baseline": state.baseline, "max_rollout_depth": state.max_rollout_depth, "step_status": state.step_status,
            "episode_return": episodes.returns.astype(np.float32), "episode_step": episodes.steps.copy(), "real_done": whole,
            "truncated_done": _own(info, "truncated_done", ended, np.asarray(truncated, bool)),
            "cost": _own(info, "cost", ended, np.zeros(n, bool)),
        }
        if "dropped" in info:
            out["dropped"] = info["dropped"]
        if self.curiosity is not None:
            out["cur_reward"] = stage.surprise * np.float32(real)
            episodes.surprises += out["cur_reward"]
            out["cur_episode_return"] = episodes.surprises.copy()
            episodes.surprises[whole] = 0.0
        if real:
            stage.im_returns[:] = 0.0
        episodes.returns[whole], episodes.steps[whole] = 0.0, 0
        return out

    def _final_obs(
        self, observation: Mapping[str, Array], reply: Mapping[str, Array], primary: Array, ended: Array, truncated: Array,
        info: Mapping[str, Any],
    ) -> dict[str, Any]:
        n, layout = self.num_envs, self.tree.layout
        out = np.full(n, None, dtype=object)
        at = n
        for i in np.flatnonzero(ended).tolist():
            row = {name: value[i].copy() for name, value in observation.items()}
            row["real_states"] = np.array(info["final_obs"][i])
            if truncated[i]:
                features = self._sprout.begin(reply["v"][at : at + 1], reply["logits"][at : at + 1]).features[0]
                for name in ("root_action", "cur_action"):
                    features[layout.slices[name]] = np.arange(self.n_actions) == primary[i]
                if layout.generation == "G2":
                    for name in ("root_r", "cur_r"):
                        features[layout.slices[name]] = layout.encoded(np.float32(self._stage.rew[i, 0]))
                row["tree_reps"] = features
                for name, column in self.answers.kept.items():
                    shown = column[n * self.tree.capacity + i]
                    row[name] = np.concatenate([shown, shown]) if self.return_double else shown.copy()
                at += 1
            out[i] = row
        return {"final_obs": out, "_final_obs": ended.copy()}

    def render(self) -> Any:
        return self.envs.render()

    def close_extras(self, **kwargs: Any) -> None:
        self.envs.close(**kwargs)
        if self.perfect is not None:
            self.perfect.close()


def _surprise(
    weights: Curiosity, expected: Mapping[str, Array], seen: Mapping[str, Array], rew: Array, ended: Array,
) -> Array:
    """[n] float32; see `AugmentedEnv`."""
    n, over = len(ended), expected["done"] > 0.5
    out = np.zeros(n, np.float32)
    for weight, name, there in ((weights.reward, "r", rew), (weights.value, "v", None), (weights.feature, "z", None)):
        if weight:
            real = (seen[name][:n] if there is None else there).reshape(n, -1) * ~ended[:, None]
            out += weight * np.square(real - expected[name].reshape(n, -1) * ~over[:, None]).mean(1)
    if weights.done_gate:
        out[ended | over] = 0.0
    return out


def augmented_spaces(
    obs: gym.Space[Any], layout: Layout, h_shape: tuple[int, ...] | None, x_shape: tuple[int, ...] | None, return_double: bool,
    curious: bool = False,
) -> tuple[gym.spaces.Dict, gym.spaces.MultiDiscrete]:
    """Observation and action space of one augmented environment, for whoever builds a network before there is one."""
    act = gym.spaces.MultiDiscrete([layout.n_actions, 2])
    spaces: dict[str, gym.Space[Any]] = {
        "tree_reps": gym.spaces.Box(-np.inf, np.inf, (layout.size,), np.float32), "real_states": obs, "last_act": act,
        "last_rew": gym.spaces.Box(-np.inf, np.inf, (2 + curious,), np.float32), "step_status": gym.spaces.Discrete(4),
    }
    for name, shape in (("hs", h_shape), ("xs", x_shape)):
        if shape is not None:
            spaces[name] = gym.spaces.Box(-np.inf, np.inf, ((1 + return_double) * shape[0], *shape[1:]), np.float32)
    return gym.spaces.Dict(spaces), act


def check_envs(envs: Any) -> None:
    """Check that a planning agent can be put on top of these environments.

    Raises:
        TypeError, ValueError: not; the message names what was expected and the way out.
    """
    if not isinstance(envs, VectorEnv):
        raise TypeError(f"AugmentedEnv: {envs!r} is no vector environment; put environments together with "
                        "parl_like.envs.vector.make_vector_env")
    mode = AutoresetMode(getattr(envs.unwrapped, "autoreset_mode", envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)))
    if mode is not AutoresetMode.SAME_STEP:
        raise ValueError(f"AugmentedEnv: the environments reset by {mode}; expected SAME_STEP: a stage has no step to spare for "
                         "a reset. Make them with autoreset='SameStep'")
    act, obs = envs.single_action_space, envs.single_observation_space
    if not isinstance(act, gym.spaces.Discrete):
        raise TypeError(f"AugmentedEnv: the action space is {act}; expected Discrete. parl_like.envs.wrappers.Discretize makes a "
                        "Box discrete")
    if not isinstance(obs, gym.spaces.Box) or len(obs.shape) not in (1, 3):
        raise TypeError(f"AugmentedEnv: the observation space is {obs}; expected Box (C, H, W), channels first, or Box (N,). "
                        "Wrap the environment (gymnasium.wrappers.TransformObservation, FlattenObservation)")
    *sides, last = obs.shape
    if sides and 7 <= min(sides) > last and (last <= 4 or sides[0] == sides[1]):
        raise ValueError(f"AugmentedEnv: observations {obs.shape} are images with their channels last; expected (C, H, W), "
                         f"{(last, *sides)}. Wrap the environment (gymnasium.wrappers.TransformObservation)")


def _own(info: Mapping[str, Any], name: str, ended: Array, default: Array) -> Array:
    """Return a flag of each environment's info; of those that ended, of the step that ended them. `default` where the
    environment says nothing."""
    out = default.copy()
    for source, mask in ((info, ~ended), (info.get("final_info", {}), ended)):
        if isinstance(source, Mapping) and name in source:
            said = mask & np.asarray(source.get(f"_{name}", np.ones(len(out), bool)), bool)
            out[said] = np.asarray(source[name])[said].astype(bool)
    return out
