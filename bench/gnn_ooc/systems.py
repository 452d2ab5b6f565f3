"""Ways to get the rows of the same sampled batches: each gives (batch, rows) in the order of the trace."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from overlace import gnn

PAGE = 4096
READERS = 16


def absent() -> dict[str, str]:
    """Competitors that are not run here, each with the reason."""

    def is_there(*names: str) -> bool:
        return any(importlib.util.find_spec(name) for name in names)

    neighbor = "PyG's NeighborLoader wants pyg-lib or torch-sparse, and neither is installed"
    dgl = "DGL is not installed; 2.1.0, the newest on PyPI, wants torch 2.2 or older and has no features on a disk"
    return {
        "pyg_neighbor": "this bench does not run it" if is_there("pyg_lib", "torch_sparse") else neighbor,
        "dgl": "this bench does not run it" if is_there("dgl") else dgl,
    }


def evict(path: Path) -> None:
    """Asks the kernel to drop a file's pages, which it does for those that nobody has mapped."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def kernel_bytes() -> int:
    """That this process has had fetched from a disk, by the kernel's count."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


@dataclass
class Trace:
    """The batches of an artefact without their rows, in memory, by number."""

    batches: list[gnn.Batch]

    @classmethod
    def of(cls, run: gnn.Artefact, packs: str) -> Trace:
        batches = []
        with gnn.PackedLoader(run, packs=packs, format="numpy") as loader:
            for batch in loader:
                batch.x = None
                batches.append(batch)
        return cls(sorted(batches, key=lambda batch: batch.number))

    @property
    def rows(self) -> int:
        return sum(len(batch.n_id) for batch in self.batches)


def with_rows(batch: gnn.Batch, x: Any) -> gnn.Batch:
    """The batch as tensors."""
    tensors = {key: torch.from_numpy(getattr(batch, key)) for key in ("y", "n_id", "edge_index")}
    return gnn.Batch(**{**vars(batch), **tensors, "x": x})


def packed(
    run: gnn.Artefact, packs: str, cache: dict[str, gnn.PackedLoader], pace: str | None = None
) -> Iterator[gnn.Batch]:
    """From packs; the loader stays open from one training epoch to the next."""
    if packs not in cache:
        cache[packs] = gnn.PackedLoader(run, packs=packs, format="blocks", copy=False, pace=pace)
    yield from cache[packs]


def in_memory(trace: Trace, features: torch.Tensor) -> Iterator[gnn.Batch]:
    """The same trace, all features in memory."""
    for batch in trace.batches:
        yield with_rows(batch, features.index_select(0, torch.from_numpy(batch.n_id)))


def pyg_mmap(trace: Trace, dataset: gnn.Dataset) -> Iterator[gnn.Batch]:
    """PyG's NodeLoader on a memory map of the features, with the batches of the trace as its sampler."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NodeLoader
    from torch_geometric.sampler import BaseSampler, SamplerOutput

    class TraceSampler(BaseSampler):
        def sample_from_nodes(self, index: Any, **_: Any) -> SamplerOutput:
            batch = trace.batches[int(index.input_id[0]) // size]
            row, col = torch.from_numpy(batch.edge_index)
            return SamplerOutput(
                node=torch.from_numpy(batch.n_id),
                row=row,
                col=col,
                edge=None,
                num_sampled_nodes=batch.num_sampled_nodes,
                num_sampled_edges=batch.num_sampled_edges,
                metadata=(index.input_id, None),
            )

        def sample_from_edges(self, index: Any, **_: Any) -> SamplerOutput:
            raise NotImplementedError(f"batches of edges: {index}")

        @property
        def edge_permutation(self) -> None:
            return None

    evict(dataset.path / "features.npy")
    size = trace.batches[0].batch_size
    seeds = np.concatenate([batch.n_id[: batch.batch_size] for batch in trace.batches])
    # NOTE: a private mapping, which torch takes as memory that may be written.
    mapped = np.load(dataset.path / "features.npy", mmap_mode="c")
    data = Data(x=torch.from_numpy(mapped), y=torch.from_numpy(np.array(dataset.labels)))
    data.edge_index = torch.empty((2, 0), dtype=torch.int64)
    loader = NodeLoader(data, TraceSampler(), input_nodes=torch.from_numpy(seeds), batch_size=size, shuffle=False)
    for known, got in zip(trace.batches, loader, strict=True):
        tensors = {"x": got.x, "y": got.y[: known.batch_size], "n_id": got.n_id, "edge_index": got.edge_index}
        yield gnn.Batch(**{**vars(known), **tensors})
