"""Training on graphs whose features do not fit in memory: sampled first, packed in the order of use, read ahead.

    ds = overlace.gnn.generate("g/", like="papers", num_vertices=2**20)
    run = overlace.gnn.OfflineSampler(ds, fanouts=[10, 5, 5], batch_size=1024).run("g.ovg")
    overlace.gnn.pack(run, gpu_cache="1GiB", cpu_cache="4GiB")
    for batch in overlace.gnn.PackedLoader(run, format="blocks"):
        ...

Data, sampling, packing and NumPy batches want NumPy only; tensors and `overlace.gnn.nn` want torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from overlace import _library, errors
from overlace.gnn.artefact import Artefact, OfflineSampler, pack, repair, verify
from overlace.gnn.dataset import Dataset, generate, import_dataset
from overlace.gnn.dlpack import DlpackArray
from overlace.gnn.loader import Batch, PackedLoader
from overlace.gnn.parts import GraphPart, partition
from overlace.gnn.table import PinnedTable, gather_rows

if TYPE_CHECKING:  # __getattr__ imports them
    from overlace.gnn import nn
    from overlace.gnn.halo import HaloStats, SparseHalo
    from overlace.gnn.stores import CscGraphStore, DiskFeatureStore, PinnedFeatureStore

__all__ = [
    "Artefact",
    "Batch",
    "CscGraphStore",
    "Dataset",
    "DiskFeatureStore",
    "DlpackArray",
    "GraphPart",
    "HaloStats",
    "OfflineSampler",
    "PackedLoader",
    "PinnedFeatureStore",
    "PinnedTable",
    "SparseHalo",
    "gather_rows",
    "generate",
    "import_dataset",
    "nn",
    "pack",
    "partition",
    "repair",
    "verify",
]


def __getattr__(name: str) -> object:
    # These import torch or PyG, which the rest works without.
    if name == "nn":
        return importlib.import_module("overlace.gnn.nn")
    if name in ("HaloStats", "SparseHalo"):
        if why := _library.why_no_torch():
            raise errors.Unsupported(f"overlace.gnn.{name}: {why}; wanted the operators")
        return getattr(importlib.import_module("overlace.gnn.halo"), name)
    if name in ("CscGraphStore", "DiskFeatureStore", "PinnedFeatureStore"):
        return getattr(importlib.import_module("overlace.gnn.stores"), name)
    raise AttributeError(f"module 'overlace.gnn' has no attribute '{name}'")
