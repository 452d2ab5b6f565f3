"""A model that torch's own styles split, compiled: one line puts overlace's operators in place of its collectives.
Losses are compared with those of the same model in eager mode; every collective must have been rewritten.

usage: compile_pass.py [--ranks 2] [--device cpu|cuda]
"""

from __future__ import annotations

import copy

import overlace
import torch
import torch.distributed as dist
from launch import launch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

WIDTH, HIDDEN, SEQUENCE, BATCH, STEPS = 32, 48, 8, 2, 2


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def train(model: nn.Module, inputs: list[torch.Tensor], group: dist.ProcessGroup) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses = []
    for x in inputs:  # this rank's part of the sequence
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    total = torch.stack(losses)
    dist.all_reduce(total, group=group)
    return total / group.size()


def run(group: dist.ProcessGroup, device: str) -> None:
    mesh = DeviceMesh.from_group(group, device)
    torch.manual_seed(0)
    column, row = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
    plan = {"norm": SequenceParallel(), "gate": column, "up": column, "down": row}
    model = parallelize_module(Mlp().to(device), mesh, plan)
    eager = copy.deepcopy(model)
    torch.manual_seed(1 + group.rank())
    inputs = [torch.randn(BATCH, SEQUENCE, WIDTH, device=device) for _ in range(STEPS)]
    wanted = train(eager, inputs, group)

    # "always": the planner would leave products as small as these. On GPUs leave `backend` out, so that it is Inductor.
    with overlace.init(mesh), overlace.compile.enable(mesh, when="always"):
        losses = train(torch.compile(model, backend=overlace.compile.aot_eager), inputs, group)
        report = overlace.compile.report()

    if group.rank() == 0:
        print(report)
        print("losses", *(f"{loss:.6f}" for loss in losses.tolist()))
    torch.testing.assert_close(losses, wanted, rtol=2e-5, atol=0)
    left = [candidate for candidate in report.candidates if not candidate.became]
    assert report.candidates and not left, left


if __name__ == "__main__":
    launch(run, __doc__)
