"""A setting that is given and that nothing reads has no effect in this robot, which says so."""

import pickle

import pytest
from transport_fakes import ON_RAY

from parl_like import OffPolicyHelper, Robot
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab.cli import main
from parl_like.robots import thinker
from parl_like.robots.thinker.config import Config
from parl_like.run.unread import Noted, Reads, only_kept


class Part:
    """One argument that is only kept, and some that are used."""

    def __init__(self, kept=1, used=2, *, one=3, two=4):
        self.kept = kept
        self.used = max(used, 0)
        self.first, self.other = one, two
        self.twice = two


class Below(Part):
    def __init__(self, own=0, **options):
        super().__init__(**options)
        self.own = own


def test_what_a_constructor_only_keeps():
    assert only_kept(Part) == {"kept": "kept", "one": "first"}
    assert only_kept(Below) == {"own": "own", "kept": "kept", "one": "first"}
    assert only_kept(print) == {}


def test_reads_are_noted_once_and_nothing_stays():
    reads = Reads()
    reads.watch("a.kept", Below, "kept")
    reads.watch("a.used", Below, "used")
    one = Below(kept=5)
    assert reads.unread() == ["a.kept"] and isinstance(vars(Below)["kept"], Noted)
    one.kept = 6
    with reads.paused():
        assert one.kept == 6
    assert reads.unread() == ["a.kept"] and one.kept == 6 and Below(kept=7).kept == 7
    assert reads.unread() == [] and "kept" not in vars(Below)
    reads.watch("a.own", Below, "own")
    another = Reads()
    another.watch("a.own", Below, "own")
    another.forget()
    assert another.unread() == [] and isinstance(vars(Below)["own"], Noted)
    reads.watch("b.kept", Part, "kept")
    reads.forget("a.")
    assert reads.unread() == ["b.kept"] and "own" not in vars(Below)
    reads.forget()
    assert reads.unread() == [] and "kept" not in vars(Part)


class Proxy:
    """Stands for a part that is elsewhere, with its attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def test_a_worker_looks_out_for_what_was_unread_and_says_once_what_is_read_there():
    here = Reads()
    here.watch("a.kept", Below, "kept")
    here.watch("a.own", Below, "own")
    assert Below(own=3).own == 3
    packed = pickle.dumps(here)
    here.forget()  # the worker is another process
    there = pickle.loads(packed)
    assert there.unread() == ["a.kept"] and there.take() == []
    there.watch_proxy(Part, Proxy)
    assert Proxy(kept=1).kept == 1 and there.take() == ["a.kept"] and there.take() == []
    assert "kept" not in vars(Proxy) and "kept" in vars(Below)
    there.forget()

    here.watch("a.kept", Below, "kept")
    here.note(["a.kept", "a.gone"])
    assert here.unread() == [] and "kept" not in vars(Below)


class Keeps(OffPolicyHelper):
    """One argument that only agents read, and one that nothing reads."""

    def __init__(self, seen=0, unseen=0, **options):
        super().__init__(**options)
        self.seen, self.unseen = seen, unseen

    def store(self, *row):
        assert self.seen == 7
        return super().store(*row)


@pytest.mark.parametrize("driver", ["cooperative", "threads", "processes", pytest.param("ray", marks=ON_RAY)])
def test_a_setting_that_only_agents_read_has_an_effect(driver):
    with Robot.of("DQN", "CartPole-v1", helper=Keeps, n_agents=2, seen=7, unseen=7, warmup=8, batch_size=4,
                  driver=driver) as robot:
        robot.run(40)
        assert [line for line in robot.remarks() if "no effect" in line] == [
            "Keeps.unseen=7 has no effect in this robot: nothing has read it"]


def test_a_setting_without_effect_is_told_after_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["total_steps=300", "n_agents=2", "warmup=64", "batch_size=32", "eval_episodes=1", "tensorboard=false"]
    assert main(["train", "dqn-cartpole", "run_dir=run", "sample_avail=true", "tau=0.5", "checkpoint_every=150", *words]) == 0
    out = capsys.readouterr().out
    assert "warning: ReplayBuffer.sample_avail=true has no effect in this robot" in out and out.count("has no effect") == 1


@pytest.mark.parametrize("driver", ["cooperative", "processes"])
def test_settings_with_effect_are_not_told(driver):
    with Robot.of("PPO", "CartPole-v1", n_agents=2, unroll=20, lam=0.8, epochs=3, clip=0.1, lr=1e-3, driver=driver) as robot:
        assert robot.remarks() == [] or "never learned" in robot.remarks()[0]
        robot.run(80)
        robot.evaluate(1)
        assert not [line for line in robot.remarks() if "no effect" in line]


SMALL = dict(n_agents=1, env_n=2, total_steps=400, actor_unroll_len=5, actor_batch_size=4, model_warm_up_n=60, model_batch_size=8,
             model_buffer_n=400)
SINGLE = dict(dual_net=False, model_sigmoid=False, model_residual=False, model_markov=False, model_img_loss_cost=0)
CURIOUS = dict(cur_cost=0.1, cur_v_cost=1.0)


def thinker_config(name, kind=Config, **settings):
    return configs.resolve(kind, experiments.get(name).config, settings)


@pytest.mark.parametrize(("name", "settings"), [
    ("raw-sokoban-mini", {}), ("thinker-perfect-mini", {}), ("thinker-sokoban-mini", {}), ("thinker-sokoban-mini", SINGLE),
    ("thinker-sokoban-mini", CURIOUS)])
def test_settings_of_thinker_without_effect_are_those_that_nothing_reads(name, settings):
    reads = set()

    class Watched(Config, frozen=True, kw_only=True):
        def __getattribute__(self, name):
            reads.add(name)
            return super().__getattribute__(name)

        def notes(self):
            return []

    config = thinker_config(name, Watched, **SMALL, **settings)
    reads.clear()
    thinker.build(config).close()
    own = {*Config.__struct_fields__} - {*configs.ExperimentConfig.__struct_fields__}
    read_for_nothing = {"tree_rep_rnn"} if name == "raw-sokoban-mini" else set()
    assert own - reads == config.without_effect() - read_for_nothing


def test_settings_of_thinker_without_effect_are_told():
    shipped = [name for name in experiments.names() if name.startswith(("raw-", "thinker-"))]
    assert len(shipped) > 4 and [line for name in shipped for line in thinker_config(name).notes()] == []
    config = thinker_config("raw-sokoban-mini", rec_t=7, model_strides=(2, 1, 1, 1))
    assert [line.partition(" has no effect")[0] for line in config.notes()] == ["model_strides=[2, 1, 1, 1]", "rec_t=7"]
