"""Ways to run a stack of blocks whose weights are not kept: each has run(x) and close(). They compute where x lies."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from overlace.offload import stream_blocks
from safetensors import safe_open
from torch import nn


class Absent(Exception):
    """Why a competitor does not take part."""


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


@dataclasses.dataclass(frozen=True)
class Model:
    """A stack of `layers` blocks, computed on `device`."""

    layers: int
    width: int
    seed: int
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def stack(self, where: str = "cpu") -> nn.Sequential:
        """With its weights there; drawn by the device that computes, so equal for all ways."""
        torch.manual_seed(self.seed)
        with torch.device(where if where == "meta" else self.device):
            made = nn.Sequential(*[Mlp(self.width) for _ in range(self.layers)])
        return made.requires_grad_(False).to(device=where, dtype=self.dtype)


def evict(path: Path) -> None:
    """Asks the kernel to drop a file's pages, which it does for those that nobody has mapped."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


class Way:
    """Also the one that keeps everything."""

    without_gradients: Callable = torch.inference_mode

    def __init__(self, model: nn.Module, forget: list[Path] | None = None) -> None:
        self.model, self.forget = model, forget or []

    def before_pass(self) -> None:
        for path in self.forget:
            evict(path)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        with self.without_gradients():
            y = self.model(x)
        if y.is_cuda:
            torch.cuda.synchronize()
        return y

    def waited_s(self) -> float:
        """That computation has waited for blocks so far, as far as the way counts it."""
        return 0.0

    def close(self) -> None:
        self.model = None


class Streamed(Way):
    """overlace: blocks are brought ahead of their use."""

    def __init__(self, model: nn.Module, source: str | Path, device: str) -> None:
        super().__init__(model)
        self.stream = stream_blocks(model, device, source=source)

    def waited_s(self) -> float:
        return self.stream.stats().get("waited_s", 0.0)  # a device's ring does not count it

    def close(self) -> None:
        self.stream.close()
        super().close()


class Brought(Streamed):
    """The same stream by someone who computes nothing: what bringing the blocks takes alone."""

    def __init__(self, model: nn.Module, source: str | Path, device: str) -> None:
        for block in model:
            block.forward = lambda x: x
        super().__init__(model, source, device)


class LayerByLayer(Way):
    """What is easily written: a block's weights are fetched when it is called, and given back behind it."""

    def __init__(self, model: nn.Module, fetch: Callable[[str], torch.Tensor], forget: list[Path]) -> None:
        super().__init__(model, forget)
        for i, block in enumerate(model):
            block.register_forward_pre_hook(self._before(f"{i}.", fetch))
            block.register_forward_hook(self._after)

    @staticmethod
    def _before(prefix: str, fetch: Callable[[str], torch.Tensor]) -> Callable:
        def fill(block: nn.Module, _args: tuple) -> None:
            for name, parameter in list(block.named_parameters()):
                owner, _, attribute = name.rpartition(".")
                values = nn.Parameter(fetch(prefix + name), requires_grad=parameter.requires_grad)
                setattr(block.get_submodule(owner), attribute, values)

        return fill

    @staticmethod
    def _after(block: nn.Module, _args: tuple, _output: torch.Tensor) -> None:
        for name, parameter in list(block.named_parameters()):
            owner, _, attribute = name.rpartition(".")
            setattr(block.get_submodule(owner), attribute, nn.Parameter(parameter.to("meta"), requires_grad=False))


def _imported(package: str) -> object:
    try:
        return importlib.import_module(package)
    except ImportError as why:
        raise Absent(f"{package} cannot be imported: {why}") from None


def _synced(folder: Path | None, pattern: str) -> list[Path]:
    """A competitor's own files; their bytes are on the disk when this returns."""
    files = sorted(folder.glob(pattern)) if folder is not None else []
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return files


class Accelerate(Way):
    """accelerate's cpu_offload or disk_offload, with its own files."""

    def __init__(self, model: nn.Module, folder: Path | None, device: str) -> None:
        accelerate = _imported("accelerate")
        if folder is None:
            accelerate.cpu_offload(model, execution_device=device)
        else:
            folder.mkdir(exist_ok=True)
            with contextlib.redirect_stdout(None):
                accelerate.disk_offload(model, str(folder), execution_device=device)
        super().__init__(model, _synced(folder, "*.dat"))


class Fsdp(Way):
    """FSDP2 with CPUOffloadPolicy on one rank: shards are whole blocks in pinned memory, gathered one block ahead."""

    without_gradients = torch.no_grad  # its hooks change tensors, which inference_mode forbids

    def __init__(self, model: nn.Module, device: str) -> None:
        if device == "cpu":
            raise Absent("CPUOffloadPolicy streams to CUDA devices only")
        fsdp = _imported("torch.distributed.fsdp")
        dist.init_process_group("cuda:nccl,cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
        for block in [*model, model]:
            fsdp.fully_shard(block, offload_policy=fsdp.CPUOffloadPolicy())
        super().__init__(model)

    def close(self) -> None:
        super().close()
        dist.destroy_process_group()


class Whole(nn.Module):
    """Blocks and what models have beside them. Blocks come ahead only where there is such a thing: who brings the
    first block, and finds out the order, is the hook of what is no block."""

    def __init__(self, blocks: nn.Sequential) -> None:
        super().__init__()
        self.blocks, self.behind = blocks, nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.behind(self.blocks(x))


class Diffusers(Way):
    """diffusers' group offloading as its documentation has it fastest: each block a group, in pinned memory, brought
    on a stream while the one before computes (use_stream), without a wait behind each block (record_stream)."""

    without_gradients = torch.no_grad  # as for FSDP2

    def __init__(self, model: nn.Sequential, folder: Path | None, device: str) -> None:
        if device == "cpu":
            raise Absent("apply_group_offloading(use_stream=True) streams to CUDA devices only")
        _imported("accelerate")  # its hooks call it
        hooks = _imported("diffusers.hooks")
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # files that are there are taken for this model's
        whole = Whole(model)
        hooks.apply_group_offloading(
            whole,
            onload_device=torch.device(device),
            offload_device=torch.device("cpu"),
            offload_type="block_level",
            num_blocks_per_group=1,
            non_blocking=True,
            use_stream=True,
            record_stream=True,
            low_cpu_mem_usage=False,
            offload_to_disk_path=None if folder is None else str(folder),
        )
        super().__init__(whole, _synced(folder, "*.safetensors"))


def all_ways(source: str, model: Model, path: Path, work: Path) -> dict[str, Callable[[], Way]]:
    """By competitor, what opens it; `source` is host or disk, `path` the stack's safetensors."""

    def fetched_from_disk(name: str) -> torch.Tensor:
        with safe_open(str(path), "pt") as file:
            return file.get_tensor(name).clone()

    def layer_by_layer() -> Way:
        if source == "disk":
            return LayerByLayer(model.stack("meta"), lambda name: fetched_from_disk(name).to(model.device), [path])
        rest = model.stack().state_dict()
        if model.device == "cpu":
            return LayerByLayer(model.stack("meta"), lambda name: rest[name].clone(), [])
        rest = {name: weight.pin_memory() for name, weight in rest.items()}
        return LayerByLayer(model.stack("meta"), lambda name: rest[name].to(model.device, non_blocking=True), [])

    where = path if source == "disk" else "host"
    accelerate = "disk_offload" if source == "disk" else "cpu_offload"
    accelerates, diffusers = (work / name if source == "disk" else None for name in ("accelerate", "diffusers"))
    return {
        "resident": lambda: Way(model.stack(model.device)),
        "brought": lambda: Brought(model.stack(), where, model.device),
        "overlace": lambda: Streamed(model.stack(), where, model.device),
        "layer_by_layer": layer_by_layer,
        f"accelerate_{accelerate}": lambda: Accelerate(model.stack(), accelerates, model.device),
        "diffusers_group_offloading": lambda: Diffusers(model.stack(), diffusers, model.device),
        "fsdp2_cpu_offload": lambda: Fsdp(model.stack(), model.device),
    }
