"""A PyG training loop whose features lie on a disk, by one changed line: the loader. The graph is PyG's KarateClub.

Data of PyG become a dataset, its batches are sampled before training, and their rows packed in the order of use. The
loop's body and the model are those of any loop over `NeighborLoader`; here it runs over the packs and over a loader
that gathers the same batches from memory, with equal losses.

usage: gnn_pyg.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from overlace import gnn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GraphSAGE


def train(loader: Iterable[Data], data: Data, epochs: int) -> tuple[list[float], float]:
    """The loss of each batch, and the accuracy on all vertices afterwards."""
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 16, num_layers=2, out_channels=int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = functional.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    model.eval()
    right = model(data.x, data.edge_index).argmax(1) == data.y
    return losses, right.float().mean().item()


class FromMemory:
    """The batches of the packs, with rows from the tensor that PyG has."""

    def __init__(self, run: gnn.Artefact, data: Data) -> None:
        self._run, self._data = run, data

    def __iter__(self) -> Iterator[Data]:
        with gnn.PackedLoader(self._run, format="pyg") as batches:
            for batch in batches:
                batch.x = self._data.x[batch.n_id]
                yield batch


def main() -> None:
    data = KarateClub()[0]
    folder = tempfile.TemporaryDirectory()
    dataset = gnn.import_dataset(data, Path(folder.name) / "karate")
    run = gnn.OfflineSampler(dataset, fanouts=[10, 5], batch_size=2).run(Path(folder.name) / "karate.ovg")
    gnn.pack(run, cpu_cache="1KiB")
    # loader = NeighborLoader(data, num_neighbors=[10, 5], batch_size=2, input_nodes=data.train_mask)
    loader = gnn.PackedLoader(run, format="pyg")
    losses, accuracy = train(loader, data, epochs=30)
    wanted, _ = train(FromMemory(run, data), data, epochs=30)
    assert loader.stats()["ring_rows"] > 0  # rows came from the disk
    assert max(abs(a - b) for a, b in zip(losses, wanted, strict=True)) < 1e-6
    assert losses[-1] < 0.2 * losses[0]
    print(
        f"{len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}, {100 * accuracy:.0f} % of all vertices right"
    )
    loader.close()
    folder.cleanup()
    print("all was equal")


if __name__ == "__main__":
    main()
