"""Numbers that make an environment too large for any machine: refused at once, before memory is taken."""

import inspect
import tracemalloc
from functools import partial

import gymnasium as gym
import pytest

from parl_like.envs import textbook
from parl_like.envs.atari import Atari
from parl_like.envs.bit_flip import BitFlip
from parl_like.envs.deep_sea import DeepSea
from parl_like.envs.recall import Recall
from parl_like.envs.sokoban import SokobanEnv
from parl_like.envs.tabular import RandomWalk
from parl_like.envs.thinker.tree import Tree
from parl_like.envs.wrappers import ActionRepeat, Discretize, NoisyObservation
from parl_like.values.limits import MOST_BYTES, check_array

HUGE = 10**9


class Screen:
    """An emulator of nothing."""

    actions = ("NOOP", "FIRE")
    shape = (8, 8)


def doorkey(**options):
    pytest.importorskip("minigrid")
    from parl_like.envs.doorkey import DoorKey

    return DoorKey(**options)


def numbers_of(kind):
    return [name for name, one in inspect.signature(kind).parameters.items() if "int" in str(one.annotation)]


MAKERS = {DeepSea: DeepSea, Recall: Recall, BitFlip: BitFlip, RandomWalk: RandomWalk, SokobanEnv: SokobanEnv,
          Atari: partial(Atari, Screen()), Tree: partial(Tree, **{"n": 1, "n_actions": 4, "K": 20}),
          Discretize: partial(Discretize, gym.make("Pendulum-v1")), ActionRepeat: partial(ActionRepeat, gym.make("Pendulum-v1")),
          NoisyObservation: partial(NoisyObservation, gym.make("Pendulum-v1")),
          **{kind: kind for kind in (textbook.NChain, textbook.RiverSwim, textbook.Testbed)}}


def peak_of(make):
    """Return what was refused, in words, and the most bytes that there were meanwhile."""
    tracemalloc.start()
    try:
        make()
    except (ValueError, FileNotFoundError) as error:  # of Sokoban there are levels of some sizes
        return str(error), tracemalloc.get_traced_memory()[1]
    else:
        return "", tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [20_000, HUGE])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in MAKERS for name in numbers_of(kind)],
                         ids=lambda one: getattr(one, "__name__", one))
def test_no_number_takes_much_memory(kind, name, value):
    _, peak = peak_of(lambda: MAKERS[kind](**{name: value}))
    assert peak < 4 * MOST_BYTES, f"{kind.__name__}({name}={value}) takes {peak / 2**20:.0f} MiB"


@pytest.mark.parametrize(("make", "said"), [
    (lambda: DeepSea(20_000), "DeepSea: size is 20000; that makes arrays (20000, 20000) of 2.98 GiB each"),
    (lambda: Recall(cues=HUGE), "Recall: cues is 1000000000; that makes arrays (1000000001,) of 3.725 GiB each"),
    (lambda: BitFlip(HUGE), "BitFlip: n is 1000000000; that makes arrays"),
    (lambda: RandomWalk(HUGE), "RandomWalk: n is 1000000000; that makes arrays"),
    (lambda: Atari(Screen(), stack=100_000), "Atari: stack is 100000, size 96; that makes arrays (100000, 3, 96, 96)"),
    (lambda: Atari(Screen(), size=100_000), "Atari: stack is 4, size 100000; that makes arrays"),
    (lambda: doorkey(size=HUGE), "DoorKey: size is 1000000000; that makes arrays"),
    (lambda: Discretize(gym.make("Pendulum-v1"), HUGE, joint=False), "Discretize: bins is 1000000000; that makes arrays"),
    (lambda: NoisyObservation(gym.make("Pendulum-v1"), 100_000, mixed=True), "NoisyObservation: n is 100000; that makes arrays"),
    (lambda: Tree(1, 4, HUGE), "Tree: n is 1, K 1000000000, test_K None, max_depth 5, n_actions 4; that makes arrays"),
], ids=lambda one: one.split(":")[0] if isinstance(one, str) else "")
def test_the_refusal_says_which_number_and_what_it_makes(make, said):
    text, peak = peak_of(make)
    assert text.startswith(said) and "expected at most 64 MiB; lower " in text
    assert peak < 16 << 20


def test_what_fits_is_let_through():
    check_array("one", MOST_BYTES // 4)
    with pytest.raises(ValueError, match=r"two; that makes arrays \(16777217,\) of 64 MiB each; expected at most 64 MiB; lower"):
        check_array("two", MOST_BYTES // 4 + 1)
    assert DeepSea(100).reset()[0].shape == (10_000,)
