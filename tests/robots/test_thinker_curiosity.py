"""A planner that is also rewarded for what its world model had not expected."""

import numpy as np
import pytest

from parl_like.learning.algorithm import value_of
from parl_like.robots.thinker import Config, build

TINY = dict(
    env_options=dict(size=5, n_boxes=1, obs="planes", max_steps=12), env_n=4, rec_t=3, max_depth=2, actor_unroll_len=12,
    model_downscale_c=32, model_strides=(1, 1, 1, 1), widths=(4, 4, 4), total_steps=400, model_batch_size=4, model_unroll_len=2,
    model_return_n=2, model_buffer_n=400, model_warm_up_n=24, max_replay_ratio=1.0,
)  # fmt: skip


def config(**options):
    return Config(**TINY, cur_cost=0.5, cur_reward_cost=1.0, cur_enc_cost=0.25, **options)


def test_curiosity_is_learned_from():
    with build(config()) as robot:
        agent, events = robot.agents[0], []
        remember = agent.remember

        def spy(obs, act, rew, terminated, truncated, info):
            events.append((agent.env.obs_next["last_rew"].copy(), info["cur_reward"].copy(), info["imagined"].copy()))
            remember(obs, act, rew, terminated, truncated, info)

        agent.remember = spy
        for _ in robot.iterate(60):
            pass
        for last_rew, surprise, imagined in events:
            np.testing.assert_array_equal(last_rew[:, 2], surprise)
            assert not surprise[imagined].any()
        assert max(surprise.max() for _, surprise, _ in events) > 0
        plan = robot.tasks["plan"].algorithm
        assert plan.updates and plan.model.baseline.weight[2].abs().sum() > 0  # it was 0
        assert robot.evaluate(2).n_episodes == 2


@pytest.mark.parametrize(("anneal", "last"), [(True, 0.0), (False, 0.5)])
def test_its_weight_falls_to_0_by_the_end_of_the_run_or_stays(anneal, last):
    made = config(cur_cost_anneal=anneal)
    with build(made) as robot:
        cost = robot.tasks["plan"].algorithm.streams[2].cost
        assert [value_of(cost, at) for at in (0, made.updates()[1])] == [0.5, last]


@pytest.mark.parametrize(("options", "words"), [
    (dict(planning="perfect"), "cur_cost is about what a learned model did not expect"),
    (dict(dual_net=False), "cur_enc_cost is about features of what is imagined; it needs dual_net=true"),
])
def test_curiosity_that_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        config(**options)
    with pytest.raises(ValueError, match="cur_cost is the weight of a reward that is 0"):
        Config(**TINY, cur_cost=0.5)
