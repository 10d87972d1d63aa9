"""The errors that cross between agents, tasks and the robot."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import getattr_static
from typing import Any, NoReturn

_cause_of: Any = BaseException.__dict__["__cause__"]  # the interpreter's own


class Told(RuntimeError):
    """An error whose message tells its cause. The cause may be hidden: then it is `__cause__` as before, and the interpreter does
    not print it at the end of a script."""

    _hidden: BaseException | None = None

    @property
    def __cause__(self) -> BaseException | None:
        return self._hidden or _cause_of.__get__(self)

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        self._hidden = None
        _cause_of.__set__(self, cause)

    def hide_cause(self) -> None:
        cause = self.__cause__
        self.__cause__ = None
        self._hidden, self.__suppress_context__ = cause, True

    @property
    def shows_cause(self) -> bool:
        return _cause_of.__get__(self) is not None


class TaskFailed(Told):
    """A task raised while it served a batch. Carries the original exception as `__cause__` and its traceback in the text."""


class AgentFailed(Told):
    """An agent's own code, or its environment, raised. Carries the original exception as `__cause__`."""


class NotEnoughRows(RuntimeError):
    """Learning was asked for before the buffer holds enough rows."""


class WrongCaller(RuntimeError):
    """A helper was asked from inside of a task, or from a thread that is not its agent's."""


class Diverged(FloatingPointError):
    """A loss or gradient is no finite number; the optimiser step was not taken."""


class Dropped(RuntimeError):
    """A full training queue gave this request up for a newer one (`BatchRule.when_full='drop_oldest'`)."""


class Stopped(Exception):
    """The robot stopped before this request was served."""


class Interrupted(BaseException):
    """Ends an agent's `run_one_episode` from the outside: the run stops, or the episode restarts at a checkpoint.

    Not an `Exception`, so that an agent's own `except Exception` does not swallow it.
    """


TEXT_LIMIT = 20_000
"""Characters of an error's text that go to another process."""


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """A long text without its middle."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} … ({len(text) - 2 * half:,} characters left out) … {text[-half:]}"


def without_trace(error: BaseException) -> str:
    """Return what an error says, without the traceback that it brings along from a task or another process."""
    return str(error).partition("\nTraceback (most recent call last):\n")[0]


ELSEWHERE = {
    "adaptive_kl": "kl_target", "alpha": "ent_coef", "batch_size": "train_batch_size", "clip": "clip_param clip_range eps_clip",
    "delay": "policy_delay", "device": "num_gpus num_gpus_per_learner", "entropy": "ent_coef entropy_coeff",
    "env": "env_kwargs env_wrapper", "epochs": "n_epochs num_epochs repeat_per_collect",
    "epsilon": "eps_train exploration_final_eps exploration_fraction exploration_initial_eps", "explorer": "action_noise",
    "episodes": "n_eval_episodes num_episodes", "gamma": "discount discount_factor",
    "hidden": "fcnet_hiddens hidden_sizes net_arch policy_kwargs", "hooks": "callback callbacks", "kl_weight": "kl_coeff",
    "lam": "gae_lambda lambda_", "lr": "learning_rate lr_schedule", "max_grad_norm": "grad_clip",
    "minibatch_rows": "batch_size minibatch_size", "n_agents": "n_envs num_envs num_envs_per_env_runner",
    "n_step": "estimation_step", "shared": "vf_share_layers", "size": "buffer_size total_size",
    "target_period": "target_update_freq target_update_interval",
    "stop": "max_steps num_steps stop_fn timesteps total_timesteps", "tau": "polyak",
    "total_steps": "max_epoch max_epochs n_timesteps timesteps total_timesteps",
    "transforms": "return_scaling rew_norm reward_normalization",
    "unroll": "n_steps rollout_fragment_length step_per_collect train_batch_size train_batch_size_per_learner",
    "updates": "gradient_steps update_per_step", "value_weight": "vf_coef vf_loss_coeff", "warmup": "learning_starts",
    "workers": "num_env_runners num_workers", "learn_every": "step_per_collect train_freq",
    "n_lanes": "buffer_num", "lanes": "buffer_ids", "n": "batch_size sample_size", "best": "save_best_fn",
    "evaluate_episodes": "episode_per_test", "n_epochs": "max_epoch max_epochs", "steps_per_epoch": "step_per_epoch",
}
"""Names of options → what they are called in Stable-Baselines3 and its Zoo, Tianshou and RLlib."""

_BODY = "write it into the body of `for epoch, stats, info in robot.epochs(…)`, or into a hook"
OTHERWISE = {
    "render": "`robot.play(path)` films an episode, and `robot.watch(hook)` shows one to a hook",
    "reset_buffer": "`robot.buffers[name].reset()` forgets the rows of a task",
    "reset_env": "`n_episode=` begins with a reset", "reset_stat": "what is returned is of this call alone",
    "save_checkpoint_fn": "`robot.save(path)`, or `robot.request_save(path)` in a hook", "test_fn": _BODY, "train_fn": _BODY,
}
"""Options of Tianshou's collectors and trainers that no option of ours is → what is done in their place."""

GYMNASIUM = "gymnasium's step returns (obs, reward, terminated, truncated, info) and its reset (obs, info)"
"""The values that a caller unpacks, for messages."""

CALLS_ELSEWHERE = {
    "act": "predict choose_action compute_action compute_single_action get_action select_action", "evaluate": "test",
    "load": "load_checkpoint restore load_hdf5", "run": "learn train fit", "save": "save_checkpoint save_to_path save_hdf5",
    "sample_indices": "sample_index", "capacity": "maxsize", "n_lanes": "buffer_num",
}
"""Names of methods and attributes of robots and buffers → what they are called there, and in PARL."""


def our_name(name: object, known: Iterable[str]) -> str:
    """Return what an option of another library is called here; empty: it is none, or nothing here has it."""
    return next((one for one, theirs in ELSEWHERE.items() if name in theirs.split() and one in known), "")


def nearest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The name that was probably meant; empty where none is near."""
    names = sorted(known)
    same = [one for one in names if one.lower() == str(name).lower()]
    return [*filter(None, [our_name(name, names)]), *same, *get_close_matches(str(name), names, 1, cutoff), ""][0]


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near, begun = nearest(name, names), [one for one in names if name and one.lower().startswith(str(name).lower())]
    meant = [near] if near else begun if len(begun) < 10 else []
    hint = f"did you mean {' or '.join(map(repr, meant))}?" if meant else "there is none" if not names else (
        "there are " + ", ".join(map(repr, names)))
    return f"no {kind} {name!r}; {hint}"


def absent(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have, with the one that was probably meant."""
    kind = owner if isinstance(owner, type) else type(owner)
    known = [one for one in (*dir(kind), *getattr(owner, "__dict__", ()))
             if not one.startswith("_") and not isinstance(getattr_static(kind, one, None), CalledElsewhere)]
    theirs = next((one for one, names in CALLS_ELSEWHERE.items() if name in names.split() and one in known), "")
    near = theirs or ("" if name.startswith("_") else nearest(name, known))
    hint = f"; what others call {name} is {theirs} here" if theirs else f"; did you mean {near!r}?" if near else ""
    return AttributeError(f"{kind.__name__} has no {name!r}{hint}")


class CalledElsewhere:
    """An attribute that other libraries have, and ours have by another name, which the AttributeError says: for classes of which
    a `__getattr__` would slow every attribute down."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, kind: type) -> NoReturn:
        raise absent(kind if owner is None else owner, self.name)
