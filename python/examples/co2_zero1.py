"""ZeRO-1 inside groups, CO2 between them: two groups of two CPU ranks. Gradients are averaged in the group, each rank
keeps AdamW's moments of a part of the parameters and updates these, and the same part is what it exchanges with its
twin in the other group, as int8. A second run with a plain AdamW, whose ranks keep all moments and exchange slices in
fp32, must end close to it, and ZeRO-1 with fp32 on the wire within rounding.

usage: co2_zero1.py [--ranks 4] [--device cpu]
"""

from __future__ import annotations

import overlace
import torch
import torch.distributed as dist
from launch import launch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, STEPS, TAU = 24, 16, 60, 5
LINK = "20MB/s,50us"  # emulated


def train(groups: overlace.optim.Groups, is_sharded: bool, wire: torch.dtype) -> tuple[torch.Tensor, int, dict]:
    """Parameters at the end, numbers that this rank's optimizer remembers, statistics of the last round."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)))
    model = DistributedDataParallel(model, process_group=groups.inner)
    if is_sharded:
        inner = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=groups.inner, lr=3e-3)
    else:
        inner = torch.optim.AdamW(model.parameters(), lr=3e-3)
    co2 = overlace.optim.CO2(
        model, inner, outer_group=groups.outer, inner_group=groups.inner, tau=TAU, wire_dtype=wire, link=LINK
    )
    rank = 2 * groups.group + groups.shard
    for step in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1009 * rank + step))
        co2.zero_grad()
        (model(x) - x.roll(1, 1).sin()).square().mean().backward()
        co2.step()
    co2.flush()
    stats = co2.stats()
    co2.close()
    kept = inner.optim.state if is_sharded else inner.state
    numbers = sum(t.numel() for state in kept.values() for t in state.values() if t.dim() > 0)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), numbers, stats


def run(group: dist.ProcessGroup, device: str) -> None:
    groups = overlace.optim.make_groups(group, ranks_per_group=2)
    plain, all_numbers, _ = train(groups, is_sharded=False, wire=torch.float32)
    exact, numbers, whole = train(groups, is_sharded=True, wire=torch.float32)
    packed, _, quarter = train(groups, is_sharded=True, wire=torch.int8)

    assert torch.allclose(exact, plain, rtol=1e-5, atol=1e-6)
    assert (packed - plain).abs().max() < 0.02 * plain.abs().max()
    in_group = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(in_group, torch.tensor([float(numbers)]), group=groups.inner)
    assert sum(in_group).item() == all_numbers == 2 * plain.numel()
    everybody = [torch.empty_like(packed) for _ in range(group.size())]
    dist.all_gather(everybody, packed, group=group)
    assert all(torch.equal(packed, other) for other in everybody)
    assert 3.5 * quarter["bytes"] < whole["bytes"]
    if group.rank() == 0:
        print(f"moments of a rank: {numbers} of {all_numbers} numbers")
        print(f"bytes of a rank and round: {quarter['bytes']} as int8, {whole['bytes']} as fp32")


if __name__ == "__main__":
    launch(run, __doc__, ranks=4)
