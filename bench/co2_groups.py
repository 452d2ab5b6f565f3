"""Many small training runs in one process: seeds side by side, the groups of each, and what happens at boundaries.

A parameter of all runs is one tensor of shape (seeds, groups, ...), so that a step of all of them is a few large
operations. The outer rules are those of overlace.optim.CO2, written as its design page has them
(docs/design/co2.md); a test compares both.
"""

from __future__ import annotations

import math

import torch

Options = dict[str, object]  # keywords of overlace.optim.CO2
KEEP, CLIP = 0.8, {"relative": True, None: False}


class Outer:
    """The outer rule of all seeds over parameters `x` of shape (seeds, groups, ...), which it writes at boundaries."""

    def __init__(self, x: list[torch.Tensor], options: Options) -> None:
        self.x, self.rule = x, options.get("rule", "co2")
        is_co2 = self.rule == "co2"
        self.kappa = float(options.get("pseudo_gradient", "delta") == "anchor") if is_co2 else 0.0
        self.keep = options.get("keep", KEEP if self.kappa == 0 else 0.0) if is_co2 else 0.0
        of_rule = {"local_sgd": 0.0, "slow_mo": 0.2, "co2": 0.8 if self.kappa else 0.0}[self.rule]
        self.beta = options.get("outer_momentum", of_rule)
        self.phi = options.get("phi", 1.0 if self.kappa == 0 and self.keep == 0 else 3.0)
        self.has_clip = is_co2 and CLIP[options.get("clip", "relative")]
        self.has_gap = options.get("gap") == "adaptive"
        self.begin()

    def begin(self) -> None:
        """From parameters that all groups have alike."""
        self.anchor = [x[:, 0].clone() for x in self.x]
        self.momentum = [torch.zeros_like(a) for a in self.anchor]
        self.kept = [torch.zeros_like(x) for x in self.x]
        self.incoming: list | None = None  # the mean of the round before
        seeds = len(self.x[0])
        self.rms = [torch.zeros(seeds, dtype=torch.float64) for _ in self.x]
        self.last = [torch.zeros(seeds, dtype=torch.float64) for _ in self.x]  # rms of what came in last
        self.farthest = torch.zeros(seeds, dtype=torch.float64)
        self.alpha_moved, self.boundaries, self.rate = 0.0, 0, 0.0

    def boundary(self, mean_rate: float) -> None:
        """After the last step of a round, whose steps had this learning rate in the mean."""
        ratio = mean_rate / self.rate if self.rate > 0 else 1.0
        self.rate = mean_rate
        own = [a.unsqueeze(1) - k - x for a, k, x in zip(self.anchor, self.kept, self.x, strict=True)]
        mean = [u.mean(1) for u in own]
        if self.rule == "co2":
            taken, self.incoming = self.incoming, mean
        else:
            taken, own = mean, [torch.zeros_like(u) for u in own]
        self._move(taken, [self.keep * u for u in own], ratio, is_flush=False)

    def flush(self) -> None:
        if self.incoming is not None:
            self._move(self.incoming, [torch.zeros_like(x) for x in self.x], 1.0, is_flush=True)
            self.incoming = None

    def _move(self, taken: list | None, kept: list, ratio: float, *, is_flush: bool) -> None:
        inverse, bounds = self._gap(ratio, is_flush), self._bounds(is_flush)
        self.kept = kept
        for i, a in enumerate(self.anchor):
            if taken is not None:
                d = taken[i] - self.kappa * self.alpha_moved * self.momentum[i]
                m = (0.0 if is_flush else self.beta) * self.momentum[i] + d * shaped(inverse, d)
                bound = shaped(bounds[i], m)
                self.momentum[i] = torch.minimum(torch.maximum(m, -bound), bound)
                a -= self.momentum[i]
                self.last[i] = taken[i].double().flatten(1).square().mean(1).sqrt()
            self.x[i].copy_(a.unsqueeze(1) - kept[i])
        self.alpha_moved = 0.0 if taken is None else 1.0
        self.boundaries += 1

    def _gap(self, ratio: float, is_flush: bool) -> torch.Tensor:
        """1 / Lambda of each seed."""
        norms = [m.double().flatten(1).square().sum(1) for m in self.momentum]
        moved = self.alpha_moved * torch.stack(norms).sum(0).sqrt()
        kept = 0.99 * ratio * self.farthest
        self.farthest = moved if ratio > 2 else torch.maximum(kept, moved)
        if not self.has_gap or is_flush or self.boundaries < 2:
            return torch.ones_like(moved)
        return 1 / (1 + torch.where(self.farthest > 0, moved / self.farthest, torch.zeros_like(moved)))

    def _bounds(self, is_flush: bool) -> list[torch.Tensor]:
        """What an element of the momentum may be, by tensor and seed."""
        bounds = []
        for i, last in enumerate(self.last):
            mixed = torch.where(self.rms[i] == 0, last, 0.9 * self.rms[i] + 0.1 * last)
            self.rms[i] = torch.where(last > 0, mixed, self.rms[i])
            acts = self.has_clip and not is_flush
            free = torch.full_like(last, math.inf)
            bounds.append(torch.where(self.rms[i] > 0, self.phi * self.rms[i], free) if acts else free)
        return bounds


def shaped(by_seed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return by_seed.to(like.dtype).view(-1, *([1] * (like.dim() - 1)))


def mean_over_groups(values: list[torch.Tensor]) -> None:
    for value in values:
        value.copy_(value.mean(1, keepdim=True).expand_as(value))


def train(
    x: list[torch.Tensor],
    loss_of: object,
    optimizer: torch.optim.Optimizer,
    options: Options | None,
    *,
    steps: int,
    tau: int,
    warm_up: int,
    cool_down: int,
    decay: int,
) -> None:
    """`loss_of(step)`: the sum over all runs of the mean loss of a batch. None for options: gradients are averaged at
    every step, as in the first `warm_up` and the last `cool_down`. The rate falls to 0 over the last `decay` steps."""
    (settings,) = optimizer.param_groups
    first, outer, in_round, rates = float(settings["lr"]), None, 0, 0.0
    for step in range(steps):
        is_together = options is None or step < warm_up or step >= steps - cool_down
        if not is_together and outer is None:
            with torch.no_grad():
                outer = Outer(x, options)
        if step == steps - cool_down and outer is not None:
            with torch.no_grad():
                if in_round > 0:
                    outer.boundary(rates / in_round)
                outer.flush()
                state = [t for p in x for t in optimizer.state[p].values() if isinstance(t, torch.Tensor) and t.dim()]
                mean_over_groups(state)
        settings["lr"] = first * min(1.0, (steps - step) / max(1, decay))
        optimizer.zero_grad()
        loss_of(step).backward()
        with torch.no_grad():
            if is_together:
                mean_over_groups([p.grad for p in x])
            optimizer.step()
            if is_together:
                continue
            in_round, rates = in_round + 1, rates + settings["lr"]
            if in_round == tau:
                outer.boundary(rates / in_round)
                in_round, rates = 0, 0.0
    if cool_down == 0 and outer is not None:
        with torch.no_grad():
            if in_round > 0:
                outer.boundary(rates / in_round)
            outer.flush()
