from __future__ import annotations
from typing import Any
import torch
import torch.nn.functional as F
from parl_like.algorithm import Algorithm

class Predict(Algorithm):
    def __init__(self, model, *, w_obs=1.0, w_rew=1.0, w_inv=0.0, reward_scale=1.0, weight=1.0, lr=1e-3, max_grad_norm=None):
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.w = (w_obs, w_rew, w_inv); self.rs = reward_scale; self.weight=weight
    def learn(self, batch):
        m = self.model
        z = m.trunk(batch.obs)
        loss = 0.; out = {}
        if self.w[0]:
            l = m.next_obs(z, batch.act, batch.obs_next).mean(); loss = loss + self.w[0]*l; out["obs"] = l.detach()
        if self.w[1]:
            l = (m.reward(z, batch.act) - batch.rew.float()*self.rs).square().mean(); loss = loss + self.w[1]*l; out["rew"] = l.detach()
        if self.w[2]:
            l = F.cross_entropy(m.inverse(z, m.trunk(batch.obs_next)), batch.act); loss = loss + self.w[2]*l; out["inv"] = l.detach()
        return {"loss": self.weight*loss, **out}
