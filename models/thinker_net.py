"""ThinkerNet: the world model that Thinker plans with (Chung et al. 2023, "Thinker: Learning to Plan and Act", arXiv 2307.14993).

Two networks. The state-reward net (SR) imagines: next image, reward, end of the episode. The value-policy net (VP) judges: value
and policy of what SR has imagined. With hidden states h, an observation s, and the action a that led to it:

    root          h_sr = E_sr(s, a)                                 h_vp = R_vp([0, E_vp(s, a)], a)
    imagination   h_sr' = R_sr(h_sr, a);  r, done = head(h_sr')     x = D(h_sr');  z = E_vp(x, a);  h_vp' = R_vp([h_vp, z], a)
    both          v, logits = head(h_vp)

Images are channels first and normalised to [0, 1] by the bounds of their space. 85 % of the arithmetic of an imaginary step is
decoding an image and encoding it again; `latent_planning` does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.model import Model
from parl_like.models import small_images
from parl_like.models.encodings import Squash, make_encoding
from parl_like.models.thinker_parts import Heads, ImageParts, VectorParts, half_gradient
from parl_like.values.errors import unknown
from parl_like.values.spec import Spec

State = dict[str, Tensor]
"""Hidden state of N nodes, each [N, ...] float32 by the names of `ThinkerNet.state_shapes`."""


class Unroll(NamedTuple):
    """The outputs of k imagined steps, for learning; N sequences, `value` and `reward` in the outputs of their encoding [...,
    size].

    Attributes:
        value, logits: [N, k + 1, size], [N, k + 1, A], from the first observation on.
        reward, done: [N, k, size], and logits [N, k] of the end of the episode; None where they are not predicted.
        x: [N, k, ...] imagined observations (with `decoder_depth`: features), with gradient into SR; None without SR.
        z: [N, k, ...] features that VP was given, or that a single net predicts; None for a perfect model.
    """

    value: Tensor
    logits: Tensor
    reward: Tensor | None = None
    done: Tensor | None = None
    x: Tensor | None = None
    z: Tensor | None = None


class ImaginedFrames:
    """The way from a decoded frame to an imagined observation.

    Args:
        shape: Of observations. stack: Frames in one, along its first axis.
        carried: Whether nodes carry frames on at all.
        sigmoid, residual: See `ThinkerNet`.

    Attributes:
        frame: Length of the first axis of one frame.
        kept: Length of the first axis of what a node carries on, the newest frames of its observation; 0: it carries nothing.
    """

    def __init__(self, shape: tuple[int, ...], stack: int, *, carried: bool, sigmoid: bool, residual: bool) -> None:
        self.whole, self.frame, self.sigmoid, self.residual = shape[0], shape[0] // stack, sigmoid, residual
        self.kept = 0 if not carried else self.whole - self.frame if stack > 1 else self.frame if residual else 0

    def of(self, decoded: Tensor, last: Tensor | None) -> Tensor:
        """Return what is imagined, [N, ...] normalised: the frames `last`, if only the newest of a stack is imagined, and the
        `decoded` one."""
        frame = decoded
        if self.residual:
            assert last is not None
            before = last[:, -self.frame :].detach()  # each step answers for its own change
            frame = frame + (before.logit(0.02) if self.sigmoid else before)
        if self.sigmoid:
            frame = frame.sigmoid()
        return frame if last is None or self.frame == self.whole else torch.cat([last, frame], 1)

    def settled(self, x: Tensor) -> Tensor:
        """Return an imagined observation as one to start from."""
        return (x > 0.5).float() if self.sigmoid else x.detach()

    def last(self, x: Tensor) -> Tensor | None:
        """Return what a node with this observation carries on; None: nothing."""
        return x[:, -self.kept :] if self.kept else None


class ThinkerNet(Model):
    """World model for planning over Discrete actions, see the text of this module. Actions are indices from 0, int64 [N].

    Args:
        obs: Box of images (C, H, W), or of vectors (C,), uint8 or float.
        act: Discrete, A actions.
        net: 'dual': SR and VP. 'single': one net, as MuZero's, that predicts reward and end, too, and no image (published
            dual_net=false). 'perfect': VP's encoder and heads alone, for trees whose transitions come from the environment itself
            (wrapper_type=2).
        blocks: Residual blocks per stage (model_size_nn); 2 for Atari.
        channels: Of the first stage, twice that of the others and of the hidden state; vectors: a quarter of it. 64 as published
            (128 // model_downscale_c); vp_channels: of VP, if others (model_downscale_c_vp).
        strides: 1 or 2 for each of the encoder's four stages. (2, 2, 2, 2) shrinks by 16; for boards of 7 × 7 cells take (1, 1,
            2, 1), say.
        decoder_depth: Stages of the decoder that are left out; VP's encoder is entered as many stages later
            (model_decoder_depth). 4: SR predicts VP's feature itself, and no image is ever made.
        frame_stack: Observations stacked along the first axis, newest last. Only the newest is imagined, the others are carried
            on.
        value_encoding, squash: Of value and reward, see `parl_like.models.encodings` (model_enc_type, model_enc_f_type).
        predict_done: Whether the end of an episode is predicted (model_done_loss_cost > 0).
        latent_planning: `recurrent` makes no image: a residual block, trained to imitate it, replaces encode(decode(h)).
        sigmoid: Images are decoded through a sigmoid, and their loss is the cross-entropy: for planes of 0 and 1, few of which
            are 1, it learns several times as fast as the published squared error.
        residual: The decoder says what changes: its output is added to the frame before (with `sigmoid` before the sigmoid). What
            stands still need not be learned, and one step ahead on 6 × 6 boards takes a third of the updates.
        markov: An imagined observation is all that is known of its node: the next step starts from it (with `sigmoid` from its
            nearest 0s and 1s) as from a root. Where observations say everything, a model of one step is a model of many, and
            errors do not pile up. VP has no recurrence then, h_vp = E_vp(x, a), and learns from all steps in one pass.
        recurrent_norm: Batch normalisation in the recurrent blocks, too (model_disable_bn=false); encoder and decoder always have
            it.
        zero_init: First predictions are 0 and uniform (model_zero_init).
        reward_clip, gamma: `initial` and `recurrent` keep rewards within ± reward_clip and values within ± reward_clip / (1 −
            gamma).
        half: Planning in float16 (on a CPU bfloat16), learning in bfloat16, whose range needs no scaling of the loss. Weights,
            states and outputs are float32 all the same (float16).
        bounds: (low, high) of observations, numbers or arrays, instead of those of the space.

    Raises:
        TypeError: another kind of space. ValueError: bounds that are not finite; options that do not go together.
    """

    low: Tensor
    span: Tensor

    has_modes = True
    compiled = False

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], *, net: Literal["dual", "single", "perfect"] = "dual", blocks: int = 1,
        channels: int = 64, vp_channels: int | None = None, strides: Sequence[int] = (2, 2, 2, 2), decoder_depth: int = 0,
        frame_stack: int = 1,
        value_encoding: str = "scalar", squash: Squash = "sqrt", predict_done: bool = True, latent_planning: bool = False,
        sigmoid: bool = False, residual: bool = False, markov: bool = False, recurrent_norm: bool = False, zero_init: bool = True,
        reward_clip: float | None = None, gamma: float = 0.97, half: bool = False, bounds: tuple[Any, Any] | None = None,
    ) -> None:
        super().__init__(obs, act)
        if not isinstance(act, gym.spaces.Discrete):
            raise TypeError(f"ThinkerNet: actions are {act}; expected Discrete, since a tree has a branch for each; wrap the "
                            "environment")
        if not isinstance(obs, gym.spaces.Box) or len(obs.shape) not in (1, 3):
            raise TypeError(f"ThinkerNet: observations are {obs}; expected a Box of images (C, H, W) or vectors (C,); wrap the "
                            "environment")
        if net not in ("dual", "single", "perfect"):
            raise ValueError("ThinkerNet: " + unknown("net", net, ("dual", "single", "perfect")))
        self.shape: tuple[int, ...] = obs.shape
        self.n, self.net = int(act.n), net
        image = len(obs.shape) == 3
        decodes = self.dual and decoder_depth == 0
        for broken, message in (
            (blocks < 0 or channels < 2 or channels % 2 or (vp_channels or 2) % 2,
             f"blocks {blocks}, channels {channels}, vp_channels {vp_channels}; expected blocks ≥ 0 and even channels"),
            (len(strides) != 4 or any(stride not in (1, 2) for stride in strides),
             f"strides is {tuple(strides)}; expected four numbers, each 1 or 2"),
            (not 0 <= decoder_depth <= 4 or (decoder_depth and not (image and self.dual)),
             f"decoder_depth is {decoder_depth}; expected 0 … 4, and above 0 only with net='dual' and images (C, H, W)"),
            (decoder_depth and vp_channels not in (None, channels),
             f"decoder_depth {decoder_depth} hands SR's features to VP, so vp_channels must be {channels}, got {vp_channels}"),
            (frame_stack < 1 or self.shape[0] % frame_stack,
             f"frame_stack is {frame_stack}; expected a divisor of {self.shape[0]}, the first axis of observations {self.shape}"),
            (latent_planning and (not self.dual or decoder_depth == 4),
             "latent_planning replaces decoding and encoding; expected net='dual' and decoder_depth below 4"),
            (reward_clip is not None and not (reward_clip > 0 and 0 <= gamma < 1),
             f"reward_clip is {reward_clip} with gamma {gamma}; expected a number above 0 and gamma in [0, 1), or None"),
            (sigmoid and not decodes, "sigmoid is about decoded images; it goes with net='dual' and decoder_depth=0"),
            ((residual or markov) and (latent_planning or not decodes),
             "residual and markov start from the image before; they go with net='dual', decoder_depth=0 and "
             "latent_planning=False"),
        ):
            if broken:
                raise ValueError(f"ThinkerNet: {message}")
        self._set_bounds(obs, bounds)
        self.depth, self.latent, self.low_precision = decoder_depth, latent_planning, half
        self.markov, self.predict_done = markov, predict_done and net != "perfect"
        self.reward_clip, self.value_clip = reward_clip, None if reward_clip is None else reward_clip / (1.0 - gamma)
        self.frames = ImaginedFrames(self.shape, frame_stack, carried=decodes, sigmoid=sigmoid, residual=residual)
        self.code = make_encoding(value_encoding, squash)

        def parts(channels: int) -> ImageParts | VectorParts:
            if image:
                return ImageParts(self.shape, self.n, channels, blocks, strides, recurrent_norm)
            return VectorParts(self.shape, self.n, channels, blocks)

        def heads(parts: ImageParts | VectorParts, names: Sequence[str]) -> Heads:
            sizes = {"logits": self.n, "value": self.code.size, "reward": self.code.size, "done": 1}
            zero = tuple(sizes) if zero_init else ()
            return Heads(*parts.trunk(), {name: sizes[name] for name in names}, zero, [name for name in zero if name != "done"])

        imagined = ("reward", "done") if predict_done else ("reward",)
        vp = parts(vp_channels or channels)
        self._shapes: dict[str, tuple[int, ...]] = {"vp_h": vp.shape}
        self.vp_encoder = vp.encoder()
        if net != "perfect" and not markov:
            self.vp_rnn = vp.recurrence(2 * vp.size if self.dual else vp.size)
        self.vp_heads = heads(vp, ("logits", "value", *imagined) if net == "single" else ("logits", "value"))
        if net == "single":
            self.to_hidden, self.to_feature = vp.bridge(), vp.bridge()
        if self.dual:
            sr = parts(channels)
            self._shapes = {"sr_h": sr.shape, **self._shapes}
            if self.frames.kept and not latent_planning:
                self._shapes["last_x"] = (self.frames.kept, *self.shape[1:])
            self.sr_encoder, self.sr_decoder = sr.encoder(), sr.decoder(self.frame, decoder_depth)
            self.sr_rnn, self.sr_heads = sr.recurrence(sr.size), heads(sr, imagined)
            if latent_planning:
                self.shortcut = vp.shortcut(sr.size)

    def _set_bounds(self, obs: gym.spaces.Box, bounds: tuple[Any, Any] | None) -> None:
        pair = (obs.low, obs.high) if bounds is None else bounds
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), obs.shape) for bound in pair)
        # Bounds at the end of float32's range are "none" in many environments, and would map every observation to ½.
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (np.abs([low, high]) < 1e30).all()):
            raise ValueError("ThinkerNet: observations are normalised by the bounds of their space, and some of these are "
                             "infinite; give "
                             "bounds=(low, high), numbers or arrays (values may leave them), or wrap the environment in "
                             "RescaleObservation")
        if (low > high).any():
            raise ValueError(f"ThinkerNet: bounds are {pair}; expected low ≤ high")
        span = np.where(high > low, high - low, 1.0)
        for name, value in (("low", low), ("span", span)):
            value = value.ravel()[0] if (value == value.ravel()[0]).all() else value
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)

    # ------------------------------------------------------------------------------------------------------- shapes and scales

    @property
    def dual(self) -> bool:
        """True where there is an SR beside VP."""
        return self.net == "dual"

    @property
    def frame(self) -> int:
        """Length of the first axis of one frame of an observation."""
        return self.frames.frame

    @property
    def sigmoid(self) -> bool:
        """True where images are decoded through a sigmoid."""
        return self.frames.sigmoid

    def inputs(self) -> dict[str, Spec]:
        """A planning request: the kind of call `op` (0 initial, 1 recurrent), what it reads, and the places of nodes in the table
        of states.

        `obs` is read by initial calls, `act` by both (0 after a reset), `parent` by recurrent ones; the new state is kept at
        `node`.
        """
        places = {name: Spec(name, (), np.dtype(np.int64), 0) for name in ("parent", "node")}
        op, act = (Spec(name, (), np.dtype(np.int64), 0, high) for name, high in (("op", 1), ("act", self.n - 1)))
        return {"obs": self.obs_specs["obs"], "op": op, "act": act, **places}

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one node's state, float32: `sr_h` and `vp_h`, and `last_x`: of stacked frames all but the oldest, with
        `residual` the newest."""
        return dict(self._shapes)

    @property
    def hs_shape(self) -> tuple[int, ...]:
        """Shape of one row of `hs`."""
        return (sum(self._shapes[name][0] for name in ("sr_h", "vp_h") if name in self._shapes), *self._shapes["vp_h"][1:])

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of one row of x as `recurrent` returns it; with decoder_depth 0."""
        return (self.frame, *self.shape[1:]) if self.latent else self.shape

    def hs(self, state: Mapping[str, Tensor]) -> Tensor:
        """The hidden state that an actor is shown: [N, channels, ...], SR's before VP's."""
        return torch.cat([state["sr_h"], state["vp_h"]], 1) if self.dual else state["vp_h"]

    def normalize(self, obs: Tensor) -> Tensor:
        """(obs − low) / (high − low), float32; obs [..., C, H, W] or [..., C]."""
        return (obs.float() - self.low) / self.span

    def denormalize(self, x: Tensor) -> Tensor:
        """The inverse, x held within [0, 1], rounded for spaces of integers; float32. Also for the newest of stacked frames
        alone."""
        low, span = self.low, self.span
        if x.shape[1] < self.shape[0]:  # the frames of a stack have the same bounds
            low, span = (bound[-x.shape[1] :] if bound.ndim else bound for bound in (low, span))
        obs = low + x.clamp(0.0, 1.0) * span
        return obs.round() if self.obs_specs["obs"].dtype.kind in "iu" else obs

    def _one_hot(self, act: Tensor) -> Tensor:
        return F.one_hot(act, self.n).float()

    def _precision(self, device: torch.device, learning: bool = False) -> torch.autocast:
        return torch.autocast(device.type, torch.float16 if device.type == "cuda" and not learning else torch.bfloat16,
                              self.low_precision)

    # ------------------------------------------------------------------------------------------------------------- the two nets

    def _vp(self, h: Tensor, z: Tensor | None, a: Tensor) -> Tensor:
        """VP's next hidden state, after feature z of what SR imagined. While it learns, what enters has half of its gradient."""
        x = h if z is None else torch.cat([h, z], 1)
        h = self.vp_rnn(half_gradient(x) if self.training else x, a)
        return h

    def _vp_root(self, x: Tensor, a: Tensor) -> Tensor:
        z: Tensor = self.vp_encoder(x, a)
        if self.markov or self.net == "perfect":
            return z
        return self._vp(torch.zeros_like(z), z, a) if self.dual else self.to_hidden(z)

    def _root(self, x: Tensor, a: Tensor) -> State:
        """The state of a node of which nothing but its observation is known."""
        state = {"vp_h": self._vp_root(x, a).float()}
        if self.dual:
            state = {"sr_h": self.sr_encoder(x, a).float(), **state}
        if "last_x" in self._shapes:
            state["last_x"] = x[:, -self.frames.kept :]
        return state

    def _image(self, h: Tensor, last: Tensor | None) -> Tensor:
        """Return what SR imagines, see `ImaginedFrames.of`."""
        return self.frames.of(self.sr_decoder(h).float(), last)

    def _feature(self, h: Tensor, x: Tensor | None, a: Tensor) -> Tensor:
        """z for VP, from SR's hidden state or from the image."""
        z: Tensor = self.shortcut(h, a) if self.latent else self._encode(self.vp_encoder, x, a, self.depth)
        return z

    def _encode(self, encoder: Callable[..., Tensor], x: Tensor | None, a: Tensor, start: int) -> Tensor:
        return encoder(x, a, start) if start else encoder(x, a)

    def held_feature(self, x: Tensor, act: Tensor, start: int = 0) -> Tensor:
        """g(x, act), g VP's encoder as if it were no part of the model: gradient flows to x only, and its statistics stay as they
        are.

        Args:
            x: [N, ...] normalised observations, or decoded ones with `start` = `decoder_depth`. act: [N] int64, what led to them.
        """
        held = {name: p.detach() for name, p in self.vp_encoder.named_parameters()}
        held |= {name: b.clone() for name, b in self.vp_encoder.named_buffers()}
        with self._precision(x.device, learning=True):
            z = self._encode(lambda *args: torch.func.functional_call(self.vp_encoder, held, args), x, self._one_hot(act), start)
        return z.float()

    # ---------------------------------------------------------------------------------------------------------------- planning

    def initial(self, obs: Tensor, act: Tensor | None = None) -> tuple[Tensor, Tensor, State]:
        """Judges an observation and makes it a root.

        Args:
            obs: [N, ...] as the space has them. act: [N] int64, the action that led to it; None: 0, as after a reset.

        Returns:
            v [N], logits [N, A], state: {name: [N, *state_shapes()[name]]}, all float32.
        """
        n = len(obs)
        act = torch.zeros(n, dtype=torch.int64, device=obs.device) if act is None else act
        obs, act = small_images.rows_for(self, self._shapes.values(), obs, act)
        with self._precision(obs.device):
            state = self._root(self.normalize(obs), self._one_hot(act))
            out = self.vp_heads(state["vp_h"])
        return self._value(out["value"])[:n], out["logits"][:n], {name: value[:n] for name, value in state.items()}

    def recurrent(
        self, state: Mapping[str, Tensor], act: Tensor, decode: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, State, Tensor | None]:
        """Imagines one step.

        Args:
            state: Of the nodes acted in, as `initial` and `recurrent` return it. act: [N] int64.
            decode: Whether x is wanted; with `latent_planning` it costs extra, else it is made anyway.

        Returns:
            r [N]; probability [N] that the episode ends (0 where that is not predicted); v [N]; logits [N, A]; state; x [N,
            *x_shape], the imagined observation (all frames of a stack; with `latent_planning` the newest; with `decoder_depth`
            features), or None.

        Raises:
            ValueError: net='perfect'.
        """
        if self.net == "perfect":
            raise ValueError("ThinkerNet: net='perfect' imagines nothing; step the environment from a snapshot and call "
                             "initial(obs, act)")
        x, n = None, len(act)
        act, *values = small_images.rows_for(self, self._shapes.values(), act, *state.values())
        state = dict(zip(state, values, strict=True))
        with self._precision(act.device):
            a = self._one_hot(act)
            if self.dual:
                h = self.sr_rnn(state["sr_h"], a)
                imagined = self.sr_heads(h)
                x = None if self.latent and not decode else self._image(h, state.get("last_x"))
                if self.markov:
                    assert x is not None
                    after = self._root(self.frames.settled(x), a)
                else:
                    after = {"sr_h": h.float(), "vp_h": self._vp(state["vp_h"], self._feature(h, x, a), a).float()}
                    if "last_x" in self._shapes:
                        assert x is not None
                        after["last_x"] = x[:, -self.frames.kept :]
                out = self.vp_heads(after["vp_h"])
            else:
                after = {"vp_h": self._vp(state["vp_h"], None, a).float()}
                out = imagined = self.vp_heads(after["vp_h"])
        r = self.code.decode(imagined["reward"])
        r = r if self.reward_clip is None else r.clamp(-self.reward_clip, self.reward_clip)
        done = imagined["done"].squeeze(1).sigmoid() if self.predict_done else torch.zeros_like(r)
        after = {name: value[:n] for name, value in after.items()}
        x = x[:n] if x is not None and decode else None
        return r[:n], done[:n], self._value(out["value"])[:n], out["logits"][:n], after, x

    def _value(self, out: Tensor) -> Tensor:
        v = self.code.decode(out)
        return v if self.value_clip is None else v.clamp(-self.value_clip, self.value_clip)

    def decode(self, state: Mapping[str, Tensor]) -> Tensor:
        """The newest frame [N, C / frame_stack, ...] as SR remembers it, normalised; for display.

        Raises:
            ValueError: a net without SR.
        """
        if not self.dual:
            raise ValueError(f"ThinkerNet: net={self.net!r} has no decoder; images need net='dual'")
        with self._precision(state["sr_h"].device):
            return state["last_x"][:, -self.frame :] if self.frames.residual else self._image(state["sr_h"], None)

    # ---------------------------------------------------------------------------------------------------------------- learning

    def unroll(self, obs: Tensor, acts: Tensor) -> Unroll:
        """k imagined steps with gradients: SR all of them, then VP on what SR imagined, detached.

        Args:
            obs: [N, T, ...] observations, T ≥ 1; only the first is read, but of net='perfect' all k + 1, for it imagines none.
            acts: [N, k + 1] int64: the action that led to the first observation, then those that were taken.
        """
        a = self._one_hot(acts)
        with self._precision(obs.device, learning=True):
            if self.net == "perfect":
                out = self._judged(self.vp_heads, self._each(self._vp_root, self.normalize(obs), a))
                return Unroll(out["value"], out["logits"])
            x = self.normalize(obs[:, 0])
            imagined: list[Tensor] = []
            images: list[Tensor] = []
            if self.dual:
                h, last = self.sr_encoder(x, a[:, 0]), self.frames.last(x)
                for t in range(1, a.shape[1]):
                    h = self.sr_rnn(h, a[:, t])
                    imagined.append(h)
                    images.append(self._image(h, last))
                    last = self.frames.last(images[-1])
                    if self.markov and t < a.shape[1] - 1:
                        settled = self.frames.settled(images[-1])
                        h, last = self.sr_encoder(settled, a[:, t]), self.frames.last(settled)
            if self.markov:
                hidden = self._each(self._vp_root, torch.stack([x, *(self.frames.settled(image) for image in images)], 1), a)
                z = hidden[:, 1:]
            else:
                h, steps, features = self._vp_root(x, a[:, 0]), [], []
                steps.append(h)
                for t in range(a.shape[1] - 1):
                    seen = self._feature(imagined[t].detach(), images[t].detach(), a[:, t + 1]) if self.dual else None
                    h = self._vp(h, seen, a[:, t + 1])
                    steps.append(h)
                    features.append(self.to_feature(h) if seen is None else seen)
                hidden, z = torch.stack(steps, 1), torch.stack(features, 1)
            out = self._judged(self.vp_heads, hidden)
            future = self._judged(self.sr_heads, torch.stack(imagined, 1)) if self.dual else {
                name: value[:, 1:] for name, value in out.items()}
        done = future["done"].squeeze(2) if self.predict_done else None
        return Unroll(out["value"], out["logits"], future["reward"], done, torch.stack(images, 1) if images else None, z.float())

    @staticmethod
    def _each(net: Callable[..., Tensor], *of: Tensor) -> Tensor:
        """A network on rows of all steps at once, [N, T, ...] each."""
        out = net(*(x.flatten(0, 1) for x in of))
        return out.view(*of[0].shape[:2], *out.shape[1:])

    @staticmethod
    def _judged(heads: nn.Module, hidden: Tensor) -> dict[str, Tensor]:
        """Heads of all steps in one call, for they know no statistics of a batch."""
        out = heads(hidden.flatten(0, 1))
        return {name: value.view(*hidden.shape[:2], -1) for name, value in out.items()}
