"""A robot in one line: `Robot.of`, `run(steps)`, `act`, and what they refuse."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Agent, ComputationTask, OffPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import DQN, PPO, SARSA
from parl_like.data.transforms import ObservationNormalizer, RewardScaling
from parl_like.drivers.workers.processes import Processes
from parl_like.models import MLPQ, ConvActorCritic, ConvQ, MLPActorCritic, RecurrentActorCritic


class Pictures(gym.Env):
    """Small images; the reward is for the action that the first pixel shows."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), {}

    def obs(self):
        self.shown = int(self.np_random.integers(2))
        return np.full((8, 8, 3), 255 * self.shown, np.uint8)

    def step(self, act):
        self.t += 1
        right = act == self.shown
        return self.obs(), float(right), False, self.t == 10, {}


@pytest.mark.parametrize(("algorithm", "env", "model"), [
    ("DQN", "CartPole-v1", MLPQ), ("dqn", Pictures, ConvQ), ("PPO", "CartPole-v1", MLPActorCritic),
    (PPO, "Pendulum-v1", MLPActorCritic),
    ("PPO", Pictures, ConvActorCritic), ("A2C", "Pendulum-v1", MLPActorCritic), ("IMPALA", "CartPole-v1", MLPActorCritic),
    *(pytest.param(name, Pictures, ConvActorCritic, marks=pytest.mark.slow) for name in ("IMPALA", "TRPO")),
])
def test_one_line_makes_a_robot_that_acts_learns_and_is_evaluated(algorithm, env, model):
    sizes = {"warmup": 64} if str(algorithm).upper() == "DQN" else {"unroll": 16}
    with Robot.of(algorithm, env, seed=3, **sizes) as robot:
        assert type(robot.tasks["RL"].algorithm.model) is model
        before = robot.tasks["RL"].algorithm.model.weights_hash()
        robot.run(400)
        assert 400 <= robot.env_steps <= 400 + len(robot.agents) and robot.never_learned() == {}
        assert robot.tasks["RL"].algorithm.model.weights_hash() != before
        probe = gym.make(env) if isinstance(env, str) else env()
        obs = np.stack([probe.reset(seed=i)[0] for i in range(5)])
        acts = robot.act(obs)
        assert acts.shape == (5, *probe.action_space.shape)
        alone = robot.act(obs[2])
        assert probe.action_space.contains(alone) and np.allclose(alone, acts[2], atol=1e-5)
        assert robot.evaluate(2, n_agents=1).n_episodes == 2


def test_what_act_says_is_what_an_evaluation_does():
    seen = []

    class Watched(Agent):
        def run_one_episode(self):
            obs, _ = self.env.reset()
            over = False
            while not over:
                act = self.helpers["RL"].predict(obs)
                seen.append((obs, act))
                obs, _, terminated, truncated, _ = self.env.step(act)
                over = terminated or truncated

    env = gym.make("CartPole-v1")
    func = create_algorithm_func(MLPQ, dict(obs=env.observation_space, act=env.action_space), DQN, {})
    task = ComputationTask(func, lambda: OffPolicyHelper(transforms=[ObservationNormalizer()], warmup=32))
    with Robot("CartPole-v1", tasks={"RL": task}, n_agents=2) as robot:
        robot.run(200)  # the normaliser has statistics
        robot.pool.options = replace(robot.pool.options, agent=Watched)
        robot.evaluate(1)
        assert [robot.act(obs) for obs, _ in seen] == [act for _, act in seen] and len(seen) > 3
        assert robot.act(np.stack([obs for obs, _ in seen])).tolist() == [act for _, act in seen]


@pytest.mark.parametrize("driver", ["threads", "processes"])
def test_one_line_under_other_drivers(driver):
    with Robot.of("PPO", "CartPole-v1", driver=driver, n_agents=2, unroll=16) as robot:
        robot.run(64)
        assert robot.act(np.zeros(4, np.float32)) in (0, 1) and robot.tasks["RL"].learns >= 1


def test_a_vector_environment_and_an_environment_itself():
    with Robot.of("PPO", lambda: gym.make_vec("CartPole-v1", 4), n_agents=1, unroll=16) as robot:
        robot.run(128)
        assert isinstance(robot.agents[0], VectorAgent) and robot.tasks["RL"].learns == 2
    with Robot.of("A2C", gym.make("CartPole-v1")) as robot:
        robot.run(32)
        assert len(robot.agents) == 1 and robot.tasks["RL"].learns == 2


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Robot.of("POO", "CartPole-v1"), "Robot.of: .*'POO'.*did you mean 'PPO'"),
    (lambda: Robot.of("PPO", "CartPoll-v1"), "Robot.of: .*CartPoll"),
    (lambda: Robot.of("DQN", "Pendulum-v1"), "Robot.of: MLPQ: act is Box.*expected Discrete, .*use an actor-critic"),
    (lambda: Robot.of("PPO", "CartPole-v1", unrol=3), "Robot.of: .*'unrol'.*did you mean 'unroll'"),
    (lambda: Robot.of("PPO", "CartPole-v1", driver=Processes(workers=2)),
     r"driver is Processes\(workers=2.*; expected a name, whose options are `workers`: driver='processes', workers={'count': 4}"),
    (lambda: Robot.of("PPO", "CartPole-v1", run_dir="here"), "Robot.of: run_dir is no option of a robot"),
    (lambda: Robot.of("PPO", "CartPole-v1", n_agents=0), "Robot.of: .*n_agents"),
    (lambda: Robot.of("PPO", "CartPole-v1", eval_score="mean_length"), "eval_score is no option of a robot; give score="),
    (lambda: Robot.of("PPO", "CartPole-v1", score="mean"), "Robot.of: Robot: no score 'mean'; did you mean .*'mean_return'"),
    (lambda: Robot.of("PPO", "CartPole-v1", transforms=RewardScaling(0.1)),
     r"Robot.of: key 'transforms' expects list of Transform, got RewardScaling\(scale=0.1\)"),
    (lambda: Robot.of("PPO", "CartPole-v1", hidden=64), r"key 'hidden' expects a list, written \[a, b\], got 64 \(int\)"),
])
def test_mistakes_in_one_line_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_id_has_options_and_wrappers_beside_it_and_evaluations_a_score():
    options = {"env.options.is_slippery": False, "env.wrappers": ["TimeLimit"], "TimeLimit.max_episode_steps": 1}
    with Robot.of("PPO", "FrozenLake-v1", score=lambda robot, seen: -seen.mean_length, **options) as robot:
        assert robot.evaluate(2).score == -1


def test_of_two_names_for_one_setting_a_warning_says_which_counts(caplog):
    with Robot.of("SAC", "Pendulum-v1", **{"SAC.alpha": 0.1, "alpha": 0.3}) as robot:
        assert robot.parts.complete()["robot.tasks.RL.SAC.alpha"] == 0.3
    assert "SAC.alpha is 0.3, as 'alpha' says; 'SAC.alpha', which came before, does not count" in caplog.text


class DQN2(DQN):
    """One of the user's own."""


OwnDQN = type("DQN", (DQN,), {})  # a name that we have, too


@pytest.mark.parametrize("algorithm", [DQN2, OwnDQN])
def test_an_algorithm_of_the_users_own_is_itself_with_what_is_usual_for_its_kind(algorithm):
    with Robot.of(algorithm, "CartPole-v1", tau=0.25) as robot:
        assert type(robot.tasks["RL"].algorithm) is algorithm and robot.tasks["RL"].algorithm.tau == 0.25
        assert type(robot.tasks["RL"].algorithm.model) is MLPQ and len(robot.agents) == 8


def test_every_algorithm_for_one_task_is_known_in_one_line():
    with Robot.of("SARSA", "FrozenLake-v1") as robot:
        assert type(robot.tasks["RL"].algorithm) is SARSA and len(robot.agents) == 1


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Robot.of("MBPO", "Pendulum-v1"), "Robot.of: MBPO .*one task alone.*tasks={"),
    (lambda: Robot.of(Agent, "CartPole-v1"), "Robot.of: Agent is no algorithm .*tasks={"),
    (lambda: Robot.of("PPO", None), "Robot.of: env is None; expected an id, a factory or an environment"),
    (lambda: Robot.of("PPO", 3), "Robot.of: env gives 3, which has no observation_space"),
    (lambda: Robot.of("PPO", lambda: None), "Robot.of: env gives None, which has no observation_space"),
    (lambda: Robot.of("PPO", type("No", (Pictures,), {"action_space": None})), "which has no action_space.*gymnasium"),
])
def test_what_is_no_algorithm_or_no_environment_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_act_needs_no_memory_and_the_right_fields():
    env = gym.make("CartPole-v1")
    spaces = dict(obs=env.observation_space, act=env.action_space)
    recurrent = ComputationTask(create_algorithm_func(RecurrentActorCritic, dict(**spaces, size=4), PPO, {}))
    with Robot("CartPole-v1", tasks={"RL": recurrent}) as robot, pytest.raises(ValueError, match="looks back at earlier "
                                                                                                 "observations; use watch"):
        robot.act(np.zeros(4, np.float32))
    with Robot.of("PPO", "CartPole-v1", n_agents=1) as robot:
        with pytest.raises(ValueError, match=r"task 'RL', field 'obs': expected \('N', 4\) float32, got \(1, 5\) float32"):
            robot.act(np.zeros(5, np.float32))
        with pytest.raises(KeyError, match="no task 'LR'; there are 'RL'"):
            robot.act(np.zeros(4, np.float32), task="LR")
        with pytest.raises(TypeError, match="expected a number of steps or a StopCondition"):
            robot.run("long")
        with pytest.raises(ValueError, match="StopAfterSteps: n is 0"):
            robot.run(0)
    with Robot("CartPole-v1", tasks={}) as robot, pytest.raises(ValueError, match="no task that could act"):
        robot.act(np.zeros(4, np.float32))


@pytest.mark.parametrize(("algorithm", "there", "here"), [
    ("PPO", "learning_rate", "lr"), ("PPO", "n_steps", "unroll"), ("PPO", "clip_range", "clip"), ("PPO", "ent_coef", "entropy"),
    ("PPO", "gae_lambda", "lam"), ("PPO", "n_epochs", "epochs"), ("PPO", "net_arch", "hidden"), ("PPO", "n_envs", "n_agents"),
    ("PPO", "vf_coef", "value_weight"), ("DQN", "buffer_size", "size"), ("DQN", "learning_starts", "warmup"),
    ("DQN", "train_freq", "learn_every"), ("DQN", "gradient_steps", "updates"), ("DQN", "estimation_step", "n_step"),
    ("DQN", "target_update_interval", "target_period"), ("DQN", "exploration_final_eps", "epsilon"), ("DQN", "discount", "gamma"),
    ("DQN", "polyak", "tau"), ("DQN", "train_batch_size", "batch_size"), ("SAC", "ent_coef", "alpha"),
    ("TD3", "policy_delay", "delay"), ("DQN", "total_timesteps", "total_steps"), ("PPO", "batch_size", "minibatch_rows"),
    ("DQN", "exploration_fraction", "epsilon"), ("TD3", "action_noise", "explorer"), ("PPO", "policy_kwargs", "hidden"),
    ("DQN", "n_timesteps", "total_steps"), ("PPO", "env_kwargs", "env"), ("DQN", "env_wrapper", "env"),
    ("PPO", "grad_clip", "max_grad_norm"), ("PPO", "kl_coeff", "kl_weight"), ("PPO", "kl_target", "adaptive_kl"),
    ("PPO", "vf_loss_coeff", "value_weight"), ("PPO", "vf_share_layers", "shared"), ("PPO", "num_env_runners", "workers"),
    ("PPO", "num_envs_per_env_runner", "n_agents"), ("PPO", "train_batch_size_per_learner", "unroll"),
    ("PPO", "train_batch_size", "unroll"), ("PPO", "num_gpus_per_learner", "device"), ("PPO", "step_per_collect", "unroll"),
    ("DQN", "step_per_collect", "learn_every"), ("DQN", "update_per_step", "updates"), ("DQN", "eps_train", "epsilon"),
    ("PPO", "rew_norm", "transforms"), ("PPO", "max_epoch", "total_steps")])
def test_names_of_other_libraries_lead_to_ours(algorithm, there, here):
    env = "CartPole-v1" if algorithm in ("PPO", "DQN") else "Pendulum-v1"
    with pytest.raises(ValueError, match=rf"{there}.*; did you mean '(\w+\.)*{here}'\?"):
        Robot.of(algorithm, env, **{there: 1})


def test_an_option_that_nobody_has_is_refused_as_one():
    with pytest.raises(ValueError, match="^Robot.of: no option 'colour': .*`parl-like train EXPERIMENT --show-config` prints"):
        Robot.of("PPO", "CartPole-v1", colour="red")


def test_a_mapping_of_keys_of_info_is_given_as_it_is():
    for wanted in ({"x": 0.5}, {"x": 0.5, "place": np.zeros(2, np.float32)}):
        with Robot.of("DQN", "CartPole-v1", store_info=wanted) as robot:
            robot.run(5)
            assert robot.agents[0].helpers["RL"].store_info.keys() == wanted.keys()
