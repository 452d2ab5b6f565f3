"""Parameters of GPUs for the library: in their own memory, or through host memory (docs/design/co2.md)."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator

import torch

from overlace.optim._layout import Part
from overlace.optim._structs import DTYPES, Parameter


def _is_staged(values: torch.Tensor) -> bool:
    return values.device.type != "cpu"


def device_of(parts: list[Part]) -> torch.device | None:
    """The one GPU that has all parts; None where there is none."""
    devices = {part.values.device for part in parts}
    return next(iter(devices)) if len(devices) == 1 and all(device.type == "cuda" for device in devices) else None


class Staging:
    """Memory that the library takes for that of parts: `in_place`, or where they are on the host, their own; else
    pinned memory of the host. Copies are queued on the current stream of the parts' device, behind whatever wrote
    them."""

    def __init__(self, parts: list[Part], *, in_place: bool = False) -> None:
        self.parts = parts
        self.hosts = [part.values if in_place else self._host(part.values) for part in parts]
        pairs = zip(parts, self.hosts, strict=True)
        self._pairs = [(part.values, host) for part, host in pairs if host is not part.values]

    @staticmethod
    def _host(values: torch.Tensor) -> torch.Tensor:
        if not _is_staged(values):
            return values
        return torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=values.is_cuda)

    def table(self) -> tuple[c.Array, c.c_uint64]:
        """The parts as the C API takes them, and their number."""
        rows = [
            Parameter(part.name.encode(), host.data_ptr(), host.numel(), DTYPES[host.dtype], part.group_count)
            for part, host in zip(self.parts, self.hosts, strict=True)
        ]
        return (Parameter * len(rows))(*rows), c.c_uint64(len(rows))

    def devices(self) -> Iterator[torch.device]:
        """The GPUs that have parts."""
        yield from {part.values.device: None for part in self.parts if part.values.is_cuda}

    @torch.no_grad()
    def fetch(self) -> None:
        """The host has what the parts have. Waits for the device."""
        for values, host in self._pairs:
            host.copy_(values, non_blocking=True)
        for device in self.devices() if self._pairs else ():
            torch.cuda.current_stream(device).synchronize()

    @torch.no_grad()
    def store(self) -> None:
        """The parts have what the host has; the host's memory is read until the next fetch() has returned."""
        for values, host in self._pairs:
            values.copy_(host, non_blocking=True)
