"""Batches of an artefact, read ahead of who trains."""

from __future__ import annotations

import ctypes as c
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from overlace import errors
from overlace._library import names_of
from overlace.gnn import _device, _native
from overlace.gnn.artefact import Artefact, as_artefact, dataset_of
from overlace.gnn.dlpack import DlpackArray

if TYPE_CHECKING:
    import torch

FORMATS = ("numpy", "dlpack", "blocks", "pyg")
_NUMPY = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "i8": np.int8}
_TORCH = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "i8": "int8"}


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


def _differences(values: list[int]) -> list[int]:
    return [value - before for before, value in zip([0, *values[:-1]], values, strict=True)]


class PackedLoader(_native.Handle):
    """Iterates over the batches of a training epoch; each iteration is the next training epoch.

    Training epoch n has the batches of sampled epoch n mod `sampled_epochs`; of `ranks` ranks that train together, each
    takes its share, and all take as many steps: pack with `ranks` first.

    `format`: "numpy" (arrays), "dlpack" (`DlpackArray`, for libraries that take DLPack; needs NumPy only, and bf16 is
    bf16), "blocks" (tensors), "pyg" (torch_geometric.data.Data). With a CUDA `device` the GPU's cache lies in its
    memory, batches are gathered there on a stream of the loader's, and their tensors lie there: the current stream of
    the device, at each batch, waits for them and the host does not; it may be another one for the next batch. A batch
    is copied out of the loader's memory unless `copy` is False: then it is valid until the next one is taken, and on a
    device for what was queued until then on the stream that was current when it was taken. `packs`: a name in the
    manifest, None for the first of `split`. `memory`: limit of what is allocated on the host at open, all of it then.
    `pace`: bytes per second, "200MiB", of a slower disk to be played, for measurements. `gather_ctas`: blocks of a
    GPU's kernel at most where rows come over the link; more take more SMs of the training. `checksum`: "off" looks at
    indices alone. `on_corrupt`: "source" takes rows whose checksum is wrong twice from the dataset, with one warning,
    and counts them (`stats()["mended_rows"]`); "error" raises. One thread uses a loader. IoError where bytes are not
    what was packed; OutOfMemory lists what is needed; Unsupported where there is no such device, or memory cannot be
    pinned for it.
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
        gather_ctas: int = 64,
        checksum: str = "on",
        on_corrupt: str = "error",
    ) -> None:
        _native.word("format", format, FORMATS)
        _native.word("checksum", checksum, ("on", "off"))
        _native.word("on_corrupt", on_corrupt, ("error", "source"))
        if gather_ctas < 1:
            raise errors.InvalidArgument(f"gather_ctas is {gather_ctas}, wanted at least 1")
        if not 0 <= rank < ranks:
            raise errors.InvalidArgument(f"rank is {rank} of {ranks}, wanted one in [0, {ranks})")
        if format in ("numpy", "dlpack") and device != "cpu":
            raise errors.InvalidArgument(
                f"device is {device} with format {format}, wanted cpu, or format blocks or pyg"
            )
        self._format, self._copy = format, copy
        self._is_torch = format in ("blocks", "pyg")
        self._gpu: torch.device | None = None
        if self._is_torch and _torch().device(device).type != "cpu":
            self._gpu = _device.checked("device", device)
        self._stream: int | None = None  # that the library knows of
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
            on_gpu=0 if self._gpu is None else 1,
            device=0 if self._gpu is None else self._gpu.index,
            gather_ctas=gather_ctas,
            unchecked=int(checksum == "off"),
            source=dataset_of(run) if on_corrupt == "source" else None,
        )
        self._order_seed = order_seed
        self._mends = on_corrupt == "source"  # and nobody was warned yet
        handle = self._open(options)
        info = _native.LoaderInfo()
        _native.call("ovl_gnn_loader_info_of", handle, c.byref(info))
        self.num_batches: int = info.num_batches
        self.num_classes: int = info.num_classes
        self.dim: int = info.dim
        self._row_bytes: int = info.row_bytes
        self.dtype: str = info.dtype.decode()
        self.packs: str = info.packs.decode()
        self.memory_bytes: int = info.memory_bytes
        self.device_bytes: int = info.device_bytes
        self.sampled_epochs: int = info.sampled_epochs
        self.bytes_read: int = info.bytes_read  # by as many training epochs
        self.feature_bytes: int = info.feature_bytes  # of them, rows of features
        self._outputs_at: int = info.outputs
        self._outputs: Any = self._memory(info.outputs, info.outputs_bytes)
        self._x_type = getattr(_torch(), _TORCH[self.dtype]) if self._is_torch else _NUMPY[self.dtype]
        self._word = _torch().int64 if self._is_torch else np.int64
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
        if self._stream is None:
            self._use_stream()
        # The stream of the loop before comes first with what it still reads; this loop's is set behind it.
        _native.call("ovl_gnn_loader_start", self._handle, c.c_int64(epoch), c.c_int64(position))
        # NOTE: a loop that is left early goes on with the next training epoch.
        self._epoch, self._position = epoch + 1, 0
        held = False
        while True:
            if held:  # by the stream that the batch was given to
                _native.call("ovl_gnn_loader_release", self._handle)
            self._use_stream()
            batch, has_one = _native.BatchStruct(), c.c_int32()
            _native.call("ovl_gnn_loader_next", self._handle, c.byref(batch), c.byref(has_one))
            if not has_one.value:
                self._warn_of_damage()
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

    def _warn_of_damage(self) -> None:
        """Once, of rows that came from the dataset."""
        if self._mends and (rows := self.stats()["mended_rows"]) > 0:
            self._mends = False
            text = (
                f"PackedLoader: {rows} rows of packs {self.packs} are damaged and came from the dataset; see gnn.repair"
            )
            warnings.warn(text, stacklevel=3)

    def _memory(self, address: int, nbytes: int) -> Any:
        """The library's memory, not copied, as bytes of the kind that batches have."""
        if self._gpu is not None:
            return _device.bytes_at(address, nbytes, self._gpu)
        raw = np.ctypeslib.as_array((c.c_uint8 * nbytes).from_address(address))
        return _torch().from_numpy(raw) if self._is_torch else raw

    def _use_stream(self) -> None:
        if self._gpu is None:
            return
        stream = _torch().cuda.current_stream(self._gpu).cuda_stream
        if stream != self._stream:
            _native.call("ovl_gnn_loader_use_stream", self._handle, c.c_void_p(stream))
            self._stream = stream

    def _made(self, b: _native.BatchStruct) -> Any:
        first = b.rows - self._outputs_at
        x_bytes = b.num_inputs * self._row_bytes
        x = self._outputs[first : first + x_bytes]
        words = self._outputs[b.ids - self._outputs_at : first + b.bytes]
        if self._copy:  # apart, so that who keeps ids does not keep rows
            x, words = (x.clone(), words.clone()) if self._is_torch else (x.copy(), words.copy())

        def part(address: int, count: int) -> Any:
            return words[address - b.ids : address - b.ids + 8 * count].view(self._word)

        fields = {
            "x": x.view(self._x_type).reshape(b.num_inputs, self.dim),
            "y": part(b.classes, b.num_seeds),
            "n_id": part(b.ids, b.num_inputs),
            "edge_index": part(b.edges, 2 * b.num_edges).reshape(2, b.num_edges),
        }
        reached = list((c.c_uint32 * (b.hops + 1)).from_address(b.reached))
        edges = [c.c_uint32.from_address(b.indptr + 4 * row).value for row in reached[:-1]]
        places = {"sampled_epoch": b.sampled_epoch, "is_repeated": bool(b.is_repeated), "batch_size": b.num_seeds}
        places |= {"num_sampled_nodes": _differences(reached), "num_sampled_edges": _differences(edges)}
        if self._format == "dlpack":
            is_bf16 = self.dtype == "bf16"
            fields = {key: DlpackArray(value, key == "x" and is_bf16) for key, value in fields.items()}
        if self._format == "pyg":
            return _pyg().Data(**fields, **places)
        return Batch(**fields, **places, number=b.number)

    def close(self) -> None:
        """Ends what is under way and gives the memory back; more than once is fine."""
        self._outputs = None
        super().close()

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
        """Numbers of the training epoch that was begun last: bytes, requests, rows by level, seconds of each stage."""
        self._check_open()
        out = _native.StatsStruct()
        _native.call("ovl_gnn_loader_stats", self._handle, c.byref(out))
        return {name: getattr(out, name) for name in names_of(type(out))}

    def trace(self, path: str | Path) -> None:
        """Writes what each stage did when, in the training epoch that was begun last, as a timeline.

        `path` ends in .json (Chrome) or .pftrace (Perfetto). `overlace trace info` sums it up, stage by stage, and
        `overlace trace diff` compares it with that of `overlace sim graph gnn --trace`: spans have the same names. The
        lane "train" is the loop's time from one batch to the next request. On a GPU stages are shown as the host
        gives them.
        """
        self._check_open()
        _native.call("ovl_gnn_loader_trace", self._handle, str(path).encode())


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
