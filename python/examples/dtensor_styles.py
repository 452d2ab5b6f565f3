"""A model that torch's own styles split, in eager mode: another import, and its layers run on overlace's operators.
Losses and gradients are compared with those of torch's styles.

usage: dtensor_styles.py [--ranks 2] [--device cpu|cuda]
"""

from __future__ import annotations

from types import ModuleType

import overlace
import overlace.parallel  # instead of torch.distributed.tensor.parallel
import torch
import torch.distributed as dist
import torch.distributed.tensor.parallel
from launch import launch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

WIDTH, HIDDEN, SEQUENCE, BATCH = 32, 64, 8, 2


def step(styles: ModuleType, mesh: DeviceMesh, x: torch.Tensor) -> list[torch.Tensor]:
    """This rank's part of the output, and the gradients of its parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)).to(x.device)
    column = styles.ColwiseParallel(input_layouts=Shard(1))
    row = styles.RowwiseParallel(output_layouts=Shard(1))
    model = torch.distributed.tensor.parallel.parallelize_module(model, mesh, {"0": column, "2": row})
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad.full_tensor() for p in model.parameters())]


def run(group: dist.ProcessGroup, device: str) -> None:
    mesh = DeviceMesh.from_group(group, device)
    torch.manual_seed(1 + group.rank())
    x = torch.randn(BATCH, SEQUENCE, WIDTH, device=device)
    wanted = step(torch.distributed.tensor.parallel, mesh, x)
    with overlace.init(mesh) as context:
        got = step(overlace.parallel, mesh, x)
        assert context.stats().calls == 3  # two forward, one backward: x needs no gradient
    for mine, want in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    launch(run, __doc__)
