"""Data-parallel training of a graph network from one artefact: each rank reads its share of the batches from the disk.

A graph is generated, its batches are sampled once, and their rows packed for all ranks in the order of use. Each rank
opens its packs and trains by DistributedDataParallel; all take as many steps. In the end the losses must be those of
one process that takes the batches of all ranks, with rows from memory, and they must have fallen.

usage: gnn_ranks.py [--ranks 2] [--device cpu|cuda]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from launch import launch
from overlace import gnn
from overlace.gnn.nn import Model
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 3


def prepare(folder: Path, ranks: int) -> gnn.Artefact:
    """What `overlace gnn generate`, `sample` and `pack --ranks` do."""
    dataset = gnn.generate(folder / "g", num_vertices=4096, dim=32, seed=1)
    run = gnn.OfflineSampler(dataset, fanouts=[5, 5], batch_size=64, seed=2).run(folder / "g.ovg")
    gnn.pack(run, gpu_cache="8KiB", cpu_cache="32KiB", ranks=ranks)
    return run


def model_for(loader: gnn.PackedLoader, device: str) -> Model:
    torch.manual_seed(0)
    return Model("sage", loader.dim, 32, loader.num_classes, layers=2).to(device)


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(run: gnn.Artefact, group: dist.ProcessGroup, device: str) -> list[float]:
    """The mean loss of all ranks at each step."""
    losses = []
    with gnn.PackedLoader(run, device=device, rank=group.rank(), ranks=group.size()) as loader:
        model = DistributedDataParallel(model_for(loader, device), process_group=group)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(EPOCHS):
            for batch in loader:
                loss = functional.cross_entropy(model(batch), batch.y)
                step(optimizer, loss)
                mean = loss.detach() / group.size()
                dist.all_reduce(mean, group=group)
                losses.append(mean.item())
        assert loader.stats()["ring_rows"] > 0  # rows came from the disk
    return losses


def train_alone(run: gnn.Artefact, features: torch.Tensor, ranks: int) -> list[float]:
    """The same steps by one process, with rows from memory."""
    losses = []
    loaders = [gnn.PackedLoader(run, rank=rank, ranks=ranks) for rank in range(ranks)]
    model = model_for(loaders[0], "cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        for batches in zip(*loaders, strict=True):
            for batch in batches:
                batch.x = features[batch.n_id]
            of_each = [functional.cross_entropy(model(batch), batch.y) for batch in batches]
            loss = torch.stack(of_each).mean()
            step(optimizer, loss)
            losses.append(loss.item())
    for loader in loaders:
        loader.close()
    return losses


def run(group: dist.ProcessGroup, device: str) -> None:
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder, src=0, group=group)  # that of rank 0, which all ranks read
        artefact = Path(folder[0]) / "g.ovg"
        if group.rank() == 0:
            prepare(Path(own), group.size())
        dist.barrier(group=group)
        losses = train(gnn.Artefact(artefact), group, device)
        if group.rank() == 0:
            features = torch.from_numpy(np.array(gnn.Dataset(Path(own) / "g").features))
            wanted = train_alone(gnn.Artefact(artefact), features, group.size())
            error = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
            assert error < (1e-4 if device == "cpu" else 1e-2), error
            assert sum(losses[-5:]) < 0.8 * sum(losses[:5]), losses
            print(f"{group.size()} ranks, {len(losses)} steps of each, loss {losses[0]:.3f} to {losses[-1]:.3f}")
        dist.barrier(group=group)  # nobody reads the files any more


if __name__ == "__main__":
    launch(run, __doc__)
