"""BCQ, batch-constrained Q-learning: values of actions that the data's policy might take, discrete (Fujimoto et al. 2019b) and
continuous (Fujimoto et al. 2019a), and PLAS (Zhou, Bajracharya and Held 2020), a policy over the codes of such actions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from parl_like.algorithms.actor_q import actor_and_critics, critic_terms
from parl_like.algorithms.ddpg import TD3
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import rewards_and_discount, row_mean
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Schedule
from parl_like.learning.array_prediction import gives
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_methods, check_shape
from parl_like.values.batch import Batch

ILLEGAL = -1e9


class DiscreteBCQ(DQN):
    """DQN whose a*, in targets and in acting, is the best of the actions with G(a|s) / max G(·|s) ≥ threshold,

    loss = huber(y − Q(s, a)) − mean log G(a|s) + penalty · mean g(a|s)²,

    where G is the softmax of the logits g, and learns what the rows did. With `threshold` 0 all actions count, and Q learns as in
    DQN. Weights count for both parts, priorities are those of DQN.

    Differences:
        - The target is copied every 500 updates, as in `DQN`; the authors' code copies it every 8,000 on Atari, and else moves it
          by 0.005.
        - Gradients are cut to a norm of 10; the authors' code cuts nothing.

    Args:
        model: Offers `q(obs) -> [N, A]`, and `imitation_logits(obs) -> [N, A]`.
        threshold: In [0, 1]; 0.3 as published. penalty: Of large logits; 0.01 as published.
        The others: As for `DQN`.
    """

    calls = {**DQN.calls, "imitation_logits": "imitation_logits(obs) -> [N, A], of the data's policy,"}
    fitting_models = "MLPImitationQ"
    takes = Takes(("Discrete",), images=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, threshold: float = 0.3, penalty: float = 0.01, gamma: float = 0.99,
        n_step: int = 1, target_period: int = 500, tau: float | None = None, double: bool = True, epsilon: float | Schedule = 0.1,
        lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double, epsilon=epsilon,
                         lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        self.threshold, self.penalty = threshold, penalty

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        check_shape(self, "imitation_logits", answer(self, "imitation_logits", inputs.obs), (2, int(self.model.act_space.n)))

    def constrained(self, q: Tensor, obs: Any) -> Tensor:
        """The values [N, A], −1e9 for actions that the data's policy would hardly take."""
        logits = self.model.imitation_logits(obs)
        likely = (logits - logits.amax(1, keepdim=True)).exp() >= self.threshold
        return q.masked_fill(~likely, ILLEGAL) if self.threshold else q

    def acts_by(self, inputs: Batch) -> dict[str, Any]:
        return {"q": self.constrained(self.model.q(inputs.obs), inputs.obs)}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = self.begin(batch)
        q_next = self.target.q(batch.obs_next)
        batch.target = rew + discount * q_next.gather(1, self.best(batch.obs_next).unsqueeze(1)).squeeze(1)
        return batch

    def best(self, obs: Any) -> Tensor:
        return self.constrained((self.model if self.double else self.target).q(obs), obs).argmax(1)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, logits = super().learn(batch), self.model.imitation_logits(batch.obs)
        log_p = logits.log_softmax(1).gather(1, batch.act.unsqueeze(1)).squeeze(1)
        legal = logits > ILLEGAL / 2
        size = (logits.square() * legal).sum(1) / legal.sum(1)
        cloning = row_mean(self.penalty * size - log_p, batch)
        return {**out, "loss": out["loss"] + cloning, "log_prob": log_p.detach().mean()}


class PLAS(TD3):
    """TD3 whose policy names a code z, which the decoder of a variational autoencoder of the rows' actions turns into an action,

    a = D(s, bound · tanh(π(s))),   behavior loss = mean [Σ (D(s, z) − a)² + ½ · mean KL(E(s, a) ‖ N(0, 1))],   z ~ E(s, a),

    and whose targets are y = … min_i Q⁻_i · least + max_i Q⁻_i · (1 − least). For the first `behavior_updates` updates the
    autoencoder learns alone, and afterwards no more, as published. Everything else is as in `TD3`, which it is where decoding
    changes nothing, and `least` is 1.

    Differences:
        - Target actions get noise, and the actor learns in every second update, as in `TD3`; the authors' code has neither
          (`smoothing=0`, `delay=1`).
        - No layer changes an action that was decoded; the paper has one as an option.
        - The autoencoder has 5,000 updates by default, and its errors are summed over an action's numbers; the authors' code has
          500,000, and the mean.
        - All learn by 10⁻³, and `least` is 1; in the authors' code autoencoder and actor learn by 10⁻⁴, and it is 0.75.

    Args:
        model: As for `TD3`, and it offers `encode(obs, act) -> (mean, log_std)`, `decode(obs, code) -> act`, and `behavior`, the
            module of their layers.
        behavior_updates: How many.
        least: Weight of the least of the critics' values against the largest; 1 as published for PLAS, 0.75 for BCQ.
        The others: As for `TD3`.
    """

    calls = {**TD3.calls, "encode": "encode(obs, act) -> (mean, log_std), [N, latent] each,",
             "decode": "decode(obs, code) -> [N, *shape],", "behavior": "behavior, the module of the autoencoder's layers,"}
    fitting_models = "MLPLatentActorQ"

    def __init__(
        self, model: Model | Callable[[], Model], *, behavior_updates: int = 5_000, least: float = 1.0, gamma: float = 0.99,
        n_step: int = 1, tau: float = 0.005, noise: float | Schedule = 0.1, delay: int = 2, smoothing: float = 0.2,
        smoothing_clip: float = 0.5, lr: float | Schedule = 1e-3, actor_lr: float | Schedule | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, noise=noise, delay=delay, smoothing=smoothing,
                         smoothing_clip=smoothing_clip, lr=lr, actor_lr=actor_lr, max_grad_norm=max_grad_norm)
        self.behavior_updates, self.least = behavior_updates, least
        check_methods(self)
        self.losses = actor_and_critics(self, "delay", behavior=self.model.behavior)

    def pool(self, q: Tensor) -> Tensor:
        """Reduce the values [critics, N] of the target copies to what they are worth together, [N]."""
        return q.amin(0) if self.least == 1.0 else self.least * q.amin(0) + (1.0 - self.least) * q.amax(0)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = rewards_and_discount(batch, self.discounts)
        batch.target = rew + discount * self.value_next(batch.obs_next)
        return batch

    def value_next(self, obs: Any) -> Tensor:
        """The value [N] of the states that follow, by the target copies."""
        act = self.target.act(obs)
        if self.smoothing:
            noise = torch.randn(act.shape, generator=self.torch_rng, device=act.device) * self.smoothing
            act = (act + noise.clamp(-self.smoothing_clip, self.smoothing_clip)).clamp(-1.0, 1.0)
        return self.pool(self.target.q(obs, act))

    def behavior_loss(self, batch: Batch) -> Tensor:
        """The autoencoder's, a number."""
        mean, log_std = self.model.encode(batch.obs, batch.act)
        code = mean + log_std.exp() * torch.randn(mean.shape, generator=self.torch_rng, device=mean.device)
        error = (self.model.decode(batch.obs, code) - batch.act).square().unsqueeze(1).flatten(1).sum(1)
        divergence = 0.5 * (mean.square() + (2.0 * log_std).exp() - 1.0 - 2.0 * log_std).mean(1)
        return row_mean(error + 0.5 * divergence, batch)

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        if self.updates < self.behavior_updates:
            error = self.model.q(batch.obs, batch.act).detach() - batch.target
            yield {"behavior": self.behavior_loss(batch), "priority": critic_terms(error, batch)["priority"]}
        else:
            yield from super().learn(batch)

    def post_process(self, batch: Batch) -> None:
        if self.updates <= self.behavior_updates:
            self.target.behavior.load_state_dict(self.model.behavior.state_dict())
        super().post_process(batch)


class BCQ(PLAS):
    """Values and acting by the best of several actions that the autoencoder of `PLAS` gives out, each changed a little,

    a_k = clip(b_k + reach · tanh(ξ(s, b_k)), −1, 1),   b_k = D(s, z_k),   z_k ~ N(0, 1) within ½,   k = 1 … samples,

    y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · max_k [least · min_i Q⁻_i(s', a_k) + (1 − least) · max_i Q⁻_i(s', a_k)],
    actor loss = −mean Q_1(s, a_1).

    Acting takes the a_k with the largest Q_1, of codes that are the same in all states (`model.tries`).

    Differences:
        - The autoencoder learns before all else, and then stays as it is; the paper's learns in every update.
        - Its errors are summed over the numbers of an action; the authors' code takes their mean.
        - Acting decodes 10 codes, always the same ones; the authors' code draws 100 new ones each time.

    Args:
        model: As for `PLAS`, and it offers `perturbed(obs, act, reach) -> act`, and the codes `tries`.
        reach: How far actions may be changed; 0.05 as published. samples: In targets; 10 as published.
        The others: As for `PLAS`.
    """

    calls = {**PLAS.calls, "perturbed": "perturbed(obs, act, reach) -> [N, *shape], a changed action,"}
    fitting_models = "MLPLatentActorQ with perturbs=True"

    def __init__(
        self, model: Model | Callable[[], Model], *, reach: float = 0.05, samples: int = 10, behavior_updates: int = 5_000,
        least: float = 0.75, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005, noise: float | Schedule = 0.1,
        lr: float | Schedule = 1e-3, actor_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, behavior_updates=behavior_updates, least=least, gamma=gamma, n_step=n_step, tau=tau, noise=noise,
                         delay=1, smoothing=0.0, lr=lr, actor_lr=actor_lr, max_grad_norm=max_grad_norm)
        self.reach, self.samples = reach, samples

    def check_model(self, inputs: Batch) -> None:
        act = torch.zeros(2, *self.model.act_space.shape)
        check_shape(self, "perturbed", answer(self, "perturbed", inputs.obs, act, self.reach), tuple(act.shape))
        check_shape(self, "q", q := answer(self, "q", inputs.obs, act), (len(q), 2))

    def candidate(self, network: Any, obs: Any, n: int) -> Tensor:
        """A changed action [N, …] of a code that is drawn for each of n rows."""
        return network.perturbed(obs, self.decoded(network, obs, n), self.reach)  # type: ignore[no-any-return]

    def decoded(self, network: Any, obs: Any, n: int) -> Tensor:
        """An action [N, …] of a code that is drawn for each of n rows, unchanged."""
        code = torch.randn((n, network.latent), generator=self.torch_rng, device=network.tries.device).clamp(-0.5, 0.5)
        return network.decode(obs, code)  # type: ignore[no-any-return]

    @gives("act")
    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        model, obs = self.model, inputs.obs
        n = obs.shape[0]
        acts = [model.perturbed(obs, model.decode(obs, code.expand(n, -1)), self.reach) for code in model.tries]
        best = torch.stack([model.q(obs, act)[0] for act in acts]).argmax(0)
        return {"mean": torch.stack(acts)[best, torch.arange(n, device=best.device)]}

    def value_next(self, obs: Any) -> Tensor:
        n = len(obs)
        return torch.stack([self.pool(self.target.q(obs, self.candidate(self.target, obs, n)))
                            for _ in range(self.samples)]).amax(0)

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        if self.updates < self.behavior_updates:
            yield from super().learn(batch)
            return
        yield critic_terms(self.model.q(batch.obs, batch.act) - batch.target, batch)
        with torch.no_grad():
            decoded = self.decoded(self.model, batch.obs, len(batch))
        q = self.model.q(batch.obs, self.model.perturbed(batch.obs, decoded, self.reach))[0].mean()
        yield {"actor": -q, "q": q.detach()}
