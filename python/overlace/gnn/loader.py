"""Batches of an artefact, read ahead of who trains."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overlace import errors
from overlace._library import names_of
from overlace.gnn import _device, _native
from overlace.gnn.artefact import Artefact, as_artefact
from overlace.gnn.dlpack import DlpackArray

FORMATS = ("numpy", "dlpack", "blocks", "pyg")
_NUMPY = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "i8": np.int8}


@dataclass
class Batch:
    """Rows of a batch and the edges that were sampled. Vertex i of it is `n_id[i]`; seeds come first.

    x (num_inputs, dim); y (batch_size), -1 for none; n_id (num_inputs); edge_index (2, num_edges): from, to, by hop;
    num_sampled_nodes (hops + 1): seeds, then what each hop reached first; num_sampled_edges (hops). NumPy arrays,
    `DlpackArray`s or tensors; features of bf16 are 16-bit words in NumPy. `number` counts in the sampled epoch
    `sampled_epoch`; `is_repeated`: a batch of the first ranks once more, so that all ranks do as many steps.
    """

    x: Any
    y: Any
    n_id: Any
    edge_index: Any
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]
    number: int
    batch_size: int
    sampled_epoch: int = 0
    is_repeated: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.num_sampled_edges)

    def layer(self, index: int) -> tuple[Any, int, int]:
        """Edges, sources and destinations of a layer; layer 0 takes all rows, the last one gives those of the seeds."""
        hops = self.num_layers - index
        edges = sum(self.num_sampled_edges[:hops])
        nodes = self.num_sampled_nodes
        return self.edge_index[:, :edges], sum(nodes[: hops + 1]), sum(nodes[:hops])


def _array(pointer: int | None, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """The library's memory, not copied."""
    count = int(np.prod(shape))
    if count == 0:
        return np.empty(shape, dtype)
    raw = (c.c_byte * (count * np.dtype(dtype).itemsize)).from_address(pointer)
    return np.frombuffer(raw, dtype).reshape(shape)


class PackedLoader(_native.Handle):
    """Iterates over the batches of a training epoch; each iteration is the next training epoch.

    Training epoch n has the batches of sampled epoch n mod `sampled_epochs`; of `ranks` ranks that train together, each
    takes its share, and all take as many steps: pack with `ranks` first.

    `format`: "numpy" (arrays), "dlpack" (`DlpackArray`, for libraries that take DLPack; needs NumPy only, and bf16 is
    bf16), "blocks" (tensors), "pyg" (torch_geometric.data.Data). Tensors may be on a `device`: a CUDA device gets each
    batch through pinned memory by one copy on a stream of its own, for which its current stream waits and the host does
    not. Rows are copied out of the loader's memory unless `copy` is False: then a batch on the CPU is valid until the
    next one is taken. `packs`: a name in the manifest, None for the first of `split`. `memory`: limit of what is
    allocated at open, all of it then. `pace`: bytes per second, "200MiB", of a slower disk to be played, for
    measurements. One thread uses a loader. IoError where bytes are not what was packed; OutOfMemory lists what is
    needed.
    """

    _kind = "loader"

    def __init__(
        self,
        run: Artefact | str | Path,
        split: str = "train",
        packs: str | None = None,
        format: str = "blocks",
        device: str = "cpu",
        order_seed: int = 0,
        memory: int | str | None = None,
        engine: str | None = None,
        copy: bool = True,
        rank: int = 0,
        ranks: int = 1,
        pace: int | str | None = None,
    ) -> None:
        _native.word("format", format, FORMATS)
        if not 0 <= rank < ranks:
            raise errors.InvalidArgument(f"rank is {rank} of {ranks}, wanted one in [0, {ranks})")
        if format in ("numpy", "dlpack") and device != "cpu":
            raise errors.InvalidArgument(
                f"device is {device} with format {format}, wanted cpu, or format blocks or pyg"
            )
        self._format, self._device, self._copy = format, device, copy
        self._staging: _device.Staging | None = None
        if format in ("blocks", "pyg") and _torch().device(device).type == "cuda":
            self._staging = _device.Staging(_device.checked("device", device))
        if format == "pyg":
            _pyg()
        run = as_artefact(run)
        options = _native.LoaderOptions(
            artefact=str(run.path).encode(),
            packs=None if packs is None else packs.encode(),
            split=_native.word("split", split, _native.SPLITS),
            engine=None if engine is None else engine.encode(),
            order_seed=order_seed,
            memory_bytes=_native.size("memory", memory),
            pace_bytes_per_s=_native.size("pace", pace),
            rank=rank,
            ranks=ranks,
        )
        self._order_seed = order_seed
        handle = self._open(options)
        info = _native.LoaderInfo()
        _native.call("ovl_gnn_loader_info_of", handle, c.byref(info))
        self.num_batches: int = info.num_batches
        self.num_classes: int = info.num_classes
        self.dim: int = info.dim
        self.dtype: str = info.dtype.decode()
        self.packs: str = info.packs.decode()
        self.memory_bytes: int = info.memory_bytes
        self.sampled_epochs: int = info.sampled_epochs
        self.bytes_read: int = info.bytes_read  # by as many training epochs
        self.feature_bytes: int = info.feature_bytes  # of them, rows of features
        self._epoch = 0
        self._position = 0
        self._at = (0, 0)  # behind the batch that was given last
        self._loops = 0

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        """From where `load_state_dict` has put it, else from the beginning of the next training epoch."""
        self._check_open()
        self._loops += 1
        epoch, position, loop = self._epoch, self._position, self._loops
        _native.call("ovl_gnn_loader_start", self._handle, c.c_int64(epoch), c.c_int64(position))
        # NOTE: a loop that is left early goes on with the next training epoch.
        self._epoch, self._position = epoch + 1, 0
        held = False
        while True:
            if held:
                _native.call("ovl_gnn_loader_release", self._handle)
            batch, has_one = _native.BatchStruct(), c.c_int32()
            _native.call("ovl_gnn_loader_next", self._handle, c.byref(batch), c.byref(has_one))
            if not has_one.value:
                return
            held = not self._copy
            self._at = (epoch, batch.position + 1)
            made = self._made(batch)
            if self._copy:
                _native.call("ovl_gnn_loader_release", self._handle)
            yield made
            self._check_open()
            if loop != self._loops:
                raise errors.InvalidArgument("PackedLoader: another loop over it has begun, wanted one at a time")

    def _made(self, b: _native.BatchStruct) -> Any:
        reached = _array(b.reached, (b.hops + 1,), np.uint32).astype(np.int64)
        indptr = _array(b.indptr, (int(reached[-2]) + 1 if b.hops > 0 else 0,), np.uint32).astype(np.int64)
        bounds = indptr[np.concatenate(([0], reached[:-1]))] if b.hops > 0 else np.zeros(1, np.int64)
        edge_index = np.empty((2, b.num_edges), np.int64)
        edge_index[0] = _array(b.indices, (b.num_edges,), np.uint32)
        edge_index[1] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)) if b.hops > 0 else 0
        x = _array(b.rows, (b.num_inputs, self.dim), _NUMPY[self.dtype])
        y = _array(b.labels, (b.num_seeds,), np.int32).astype(np.int64)
        n_id = _array(b.inputs, (b.num_inputs,), np.uint32).astype(np.int64)
        nodes = [int(n) for n in np.diff(reached, prepend=0)]
        edges = [int(n) for n in np.diff(bounds)]
        fields: dict[str, np.ndarray] = {
            "x": x.copy() if self._copy and self._staging is None else x,
            "y": y,
            "n_id": n_id,
            "edge_index": edge_index,
        }
        given: Mapping[str, Any] = fields
        if self._format == "dlpack":
            is_bf16 = self.dtype == "bf16"
            given = {key: DlpackArray(value, key == "x" and is_bf16) for key, value in fields.items()}
        elif self._format != "numpy":
            given = self._tensors(fields)
        if self._format == "pyg":
            places = {"sampled_epoch": int(b.sampled_epoch), "is_repeated": bool(b.is_repeated)}
            return _pyg().Data(
                **given, **places, batch_size=int(b.num_seeds), num_sampled_nodes=nodes, num_sampled_edges=edges
            )
        return Batch(
            **given,
            num_sampled_nodes=nodes,
            num_sampled_edges=edges,
            number=b.number,
            batch_size=b.num_seeds,
            sampled_epoch=b.sampled_epoch,
            is_repeated=bool(b.is_repeated),
        )

    def _tensors(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        torch = _torch()
        if self._staging is not None:
            tensors = self._staging.send(arrays)
        else:
            tensors = {key: torch.from_numpy(array).to(self._device) for key, array in arrays.items()}
        if self.dtype == "bf16":
            tensors["x"] = tensors["x"].view(torch.bfloat16)
        return tensors

    def state_dict(self) -> dict[str, int]:
        """Where the loop is: behind the last batch that it was given."""
        epoch, position = self._at
        if position == self.num_batches:
            epoch, position = epoch + 1, 0
        return {"epoch": epoch, "position": position, "order_seed": self._order_seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next loop goes on there, with the same batches. InvalidArgument for another order_seed."""
        if state["order_seed"] != self._order_seed:
            raise errors.InvalidArgument(f"order_seed is {self._order_seed}, wanted {state['order_seed']}, as saved")
        self._epoch, self._position = state["epoch"], state["position"]
        self._at = (self._epoch, self._position)

    def stats(self) -> dict[str, int | float]:
        """Of the training epoch that was begun last: bytes, requests, rows by level, seconds of each stage."""
        self._check_open()
        out = _native.StatsStruct()
        _native.call("ovl_gnn_loader_stats", self._handle, c.byref(out))
        return {name: getattr(out, name) for name in names_of(type(out))}


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise errors.Unsupported("format: torch is not installed; wanted it, or format numpy or dlpack") from None
    return torch


def _pyg() -> Any:
    try:
        import torch_geometric.data as data
    except ImportError:
        raise errors.Unsupported("format pyg: torch_geometric is not installed; wanted it, or format blocks") from None
    return data
