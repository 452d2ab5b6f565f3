"""Ways to run a stack of blocks whose weights are not kept: each has run(x) and close()."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
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


def stack(layers: int, width: int, seed: int, device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(seed)
    with torch.device(device):
        return nn.Sequential(*[Mlp(width) for _ in range(layers)]).requires_grad_(False)


def evict(path: Path) -> None:
    """Asks the kernel to drop a file's pages, which it does for those that nobody has mapped."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


class Way:
    """Also the one that keeps everything."""

    def __init__(self, model: nn.Module, forget: list[Path] | None = None) -> None:
        self.model, self.forget = model, forget or []

    def before_pass(self) -> None:
        for path in self.forget:
            evict(path)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(x)

    def waited_s(self) -> float:
        """That computation has waited for blocks so far, as far as the way counts it."""
        return 0.0

    def close(self) -> None:
        self.model = None


class Streamed(Way):
    """overlace: blocks are brought ahead of their use."""

    def __init__(self, model: nn.Module, source: str | Path) -> None:
        super().__init__(model)
        self.stream = stream_blocks(model, "cpu", source=source)

    def waited_s(self) -> float:
        return self.stream.stats()["waited_s"]

    def close(self) -> None:
        self.stream.close()
        super().close()


class Brought(Streamed):
    """The same stream by someone who computes nothing: what bringing the blocks takes alone."""

    def __init__(self, model: nn.Module, source: str | Path) -> None:
        for block in model:
            block.forward = lambda x: x
        super().__init__(model, source)


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


class Accelerate(Way):
    """accelerate's cpu_offload or disk_offload, with its own files."""

    def __init__(self, model: nn.Module, folder: Path | None) -> None:
        accelerate = _imported("accelerate")
        if folder is None:
            accelerate.cpu_offload(model, execution_device="cpu")
        else:
            folder.mkdir(exist_ok=True)
            with contextlib.redirect_stdout(None):
                accelerate.disk_offload(model, str(folder), execution_device="cpu")
        files = sorted(folder.glob("*.dat")) if folder is not None else []
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        super().__init__(model, files)


def wants_cuda(package: str, what: str) -> Callable[[], Way]:
    def way() -> Way:
        _imported(package)
        raise Absent(f"{what} streams to CUDA devices only")

    return way


def all_ways(source: str, layers: int, width: int, seed: int, path: Path, work: Path) -> dict[str, Callable[[], Way]]:
    """By competitor, what opens it; `source` is host or disk, `path` the stack's safetensors."""

    def full() -> nn.Sequential:
        return stack(layers, width, seed)

    def fetched_from_disk(name: str) -> torch.Tensor:
        with safe_open(str(path), "pt") as file:
            return file.get_tensor(name).clone()

    def layer_by_layer() -> Way:
        if source == "disk":
            return LayerByLayer(stack(layers, width, seed, "meta"), fetched_from_disk, [path])
        rest = full().state_dict()
        return LayerByLayer(stack(layers, width, seed, "meta"), lambda name: rest[name].clone(), [])

    where = path if source == "disk" else "host"
    accelerate = "disk_offload" if source == "disk" else "cpu_offload"
    return {
        "resident": lambda: Way(full()),
        "brought": lambda: Brought(full(), where),
        "overlace": lambda: Streamed(full(), where),
        "layer_by_layer": layer_by_layer,
        f"accelerate_{accelerate}": lambda: Accelerate(full(), work / "accelerate" if source == "disk" else None),
        "diffusers_group_offloading": wants_cuda("diffusers", "apply_group_offloading(use_stream=True)"),
        "fsdp2_cpu_offload": wants_cuda("torch.distributed.fsdp", "CPUOffloadPolicy"),
    }
