"""FSDP2 inside groups, CO2 between them: two groups of two CPU ranks. fully_shard takes the mesh of the group, so that
gradients never leave it; each rank then exchanges its shards with those of the other group, and half of the bytes cross
the link per rank. Once parameters are given up behind forward (ZeRO-3), once they stay until backward (ZeRO-2), which
must end alike. After seven steps a folder is saved; a second run, as after a kill, goes on from there and must end with
the same bits.

usage: co2_fsdp.py [--ranks 4] [--device cpu]
"""

from __future__ import annotations

import shutil
import tempfile

import overlace
import torch
import torch.distributed as dist
from launch import launch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

WIDTH, BATCH, STEPS, SAVED_AFTER, TAU = 24, 16, 14, 7, 3


class Trainer:
    def __init__(self, groups: overlace.optim.Groups, reshards: bool) -> None:
        torch.manual_seed(0)
        self.rank = 2 * groups.group + groups.shard
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)))
        mesh = DeviceMesh.from_group(groups.inner, "cpu")
        for block in self.model:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshards)
        fully_shard(self.model, mesh=mesh, reshard_after_forward=reshards)
        inner = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.co2 = overlace.optim.CO2(
            self.model, inner, outer_group=groups.outer, inner_group=groups.inner, tau=TAU, link="20MB/s,50us"
        )

    def go_on(self, first: int, last: int) -> float:
        loss = torch.zeros(())
        for step in range(first, last):
            x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1009 * self.rank + step))
            loss = (self.model(x) - x.roll(1, 1).sin()).square().mean()
            self.co2.zero_grad()
            loss.backward()
            self.co2.step()
        return loss.item()

    def end(self) -> torch.Tensor:
        self.co2.flush()
        self.co2.close()
        return torch.cat([p.full_tensor().detach().flatten() for p in self.model.parameters()])


def train(groups: overlace.optim.Groups, folder: str, reshards: bool) -> tuple[torch.Tensor, float, dict]:
    """Parameters at the end, the last loss, statistics of the last round."""
    trainer = Trainer(groups, reshards)
    trainer.go_on(0, SAVED_AFTER)
    trainer.co2.save(folder)
    loss = trainer.go_on(SAVED_AFTER, STEPS)
    stats = trainer.co2.stats()
    wanted = trainer.end()

    later = Trainer(groups, reshards)
    later.co2.load(folder)
    later.go_on(SAVED_AFTER, STEPS)
    assert torch.equal(later.end(), wanted)
    return wanted, loss, stats


def run(group: dist.ProcessGroup, device: str) -> None:
    groups = overlace.optim.make_groups(group, ranks_per_group=2)
    folder = [tempfile.mkdtemp(prefix="co2-")]
    dist.broadcast_object_list(folder, group=group, group_src=0)
    ends = []
    for name, reshards in (("ZeRO-3", True), ("ZeRO-2", False)):
        end, loss, stats = train(groups, folder[0], reshards)
        everybody = [torch.empty_like(end) for _ in range(group.size())]
        dist.all_gather(everybody, end, group=group)
        assert all(torch.equal(end, other) for other in everybody)
        assert stats["bytes"] == 4 * end.numel() // 2
        ends.append(end)
        if group.rank() == 0:
            shutil.rmtree(folder[0])
            print(f"{name}: loss {loss:.4f}, {stats['bytes']:.0f} bytes a rank and round of {4 * end.numel()}")
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    launch(run, __doc__, ranks=4)
