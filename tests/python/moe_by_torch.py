"""Gradients of gated experts by torch and its collectives: what the library's kernels on GPUs are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from overlace.errors import Unsupported


class _Copies:
    """The choices that make copies of a token, sorted by expert, and how many rows go to and come from each rank."""

    def __init__(
        self,
        idx: torch.Tensor,
        num_experts: int,
        capacity_factor: float,
        begin: Sequence[int],
        group: dist.ProcessGroup,
    ) -> None:
        self.group, self.choices, ranks, rank = group, idx.numel(), group.size(), group.rank()
        experts = idx.flatten().long()
        experts = torch.where((experts < 0) | (experts >= num_experts), num_experts, experts)
        order = experts.argsort(stable=True)  # of one expert in the order (token, choice)
        counts = torch.bincount(experts, minlength=num_experts + 1)
        nth = torch.empty_like(experts)
        nth[order] = torch.arange(len(order), device=idx.device) - (counts.cumsum(0) - counts)[experts[order]]
        most = self.choices
        if capacity_factor > 0:
            most = math.ceil(min(capacity_factor * most / num_experts, most))
        is_kept = (experts < num_experts) & (nth < most)
        self.order = order[is_kept[order]]
        flat = counts.new_empty(ranks * num_experts)
        dist.all_gather_into_tensor(flat, counts[:num_experts].clamp(max=most), group=group)
        table = flat.view(ranks, num_experts)
        counted = table.tolist()
        self.sent = [sum(counted[rank][begin[r] : begin[r + 1]]) for r in range(ranks)]
        self.received = [sum(row[begin[rank] : begin[rank + 1]]) for row in counted]
        mine = table[:, begin[rank] : begin[rank + 1]]
        own = torch.arange(mine.shape[1], device=idx.device).repeat(ranks)
        self.by_expert = own.repeat_interleave(mine.flatten(), output_size=sum(self.received)).argsort(stable=True)
        self.rows = [sum(row[e] for row in counted) for e in range(begin[rank], begin[rank + 1])]

    def to_experts(self, t: torch.Tensor) -> torch.Tensor:
        """What this rank's copies have, in their order: of those that this rank's experts compute, expert by expert."""
        out = t.new_empty((sum(self.received), *t.shape[1:]))
        dist.all_to_all_single(out, t, self.received, self.sent, group=self.group)
        return out[self.by_expert]

    def back(self, t: torch.Tensor) -> torch.Tensor:
        """The reverse, of all choices; 0 where one makes no copy."""
        there, back = torch.empty_like(t), t.new_empty((len(self.order), *t.shape[1:]))
        there[self.by_expert] = t
        dist.all_to_all_single(back, there, self.sent, self.received, group=self.group)
        out = t.new_zeros((self.choices, *t.shape[1:]))
        out[self.order] = back
        return out


@torch.autocast("cuda", enabled=False)  # as the forward
@torch.autocast("cpu", enabled=False)
def gradients(
    dy: torch.Tensor,
    x: torch.Tensor,
    idx: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    num_experts: int,
    group: dist.ProcessGroup,
    capacity_factor: float = 0.0,
    expert_begin: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x, weights, w1 and w2 of experts gated by silu, as `overlace.ops.moe` has them; dy: (T, H).

    Each choice travels as a row of its own, and the host waits for the counts, so it cannot be captured. Sums of a
    token are made in fp32 in the order of its choices; the hidden layer is computed again. Equal inputs on as many
    ranks give equal bits as far as torch's products do.
    """
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise Unsupported("moe_grad: gradients on GPUs wait for counts on the host, wanted outside of a capture")
    begin = list(expert_begin) or [r * num_experts // group.size() for r in range(group.size() + 1)]
    copies = _Copies(idx, num_experts, capacity_factor, begin, group)
    tokens = copies.order // idx.shape[1]
    rows, upstream = copies.to_experts(x[tokens]), copies.to_experts(dy[tokens])
    factors = copies.to_experts(weights.flatten()[copies.order].float())
    dw1, dw2 = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (w1, w2))
    dx, dfactors = [rows[:0]], [factors[:0]]
    parts = (t.split(copies.rows) for t in (rows, upstream, factors[:, None]))
    for e, (row, up, factor) in enumerate(zip(*parts, strict=True)):
        before, linear = F.linear(row, w1[e]).float().chunk(2, 1)
        gate = F.silu(before)
        hidden, dhidden = gate * linear, (up @ w2[e]).float()
        dfactors.append((dhidden * hidden).sum(1))
        dhidden *= factor
        dbefore = torch.ops.aten.silu_backward(dhidden * linear, before)
        dpre = torch.cat([dbefore, dhidden * gate], 1).to(x.dtype)
        dx.append(dpre @ w1[e])
        torch.mm(dpre.t(), row, out=dw1[e])
        torch.mm(up.t(), (hidden * factor).to(x.dtype), out=dw2[e])
    dtokens = copies.back(torch.cat(dx)).view(*idx.shape, x.shape[1])
    dweights = copies.back(torch.cat(dfactors)).view(idx.shape)
    return dtokens.sum(1, dtype=torch.float32).to(x.dtype), dweights.to(weights.dtype), dw1, dw2
