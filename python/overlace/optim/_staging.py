"""Parameters of GPUs for the library, which works on host memory (docs/design/co2.md)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from overlace.optim._layout import Part


def _is_staged(values: torch.Tensor) -> bool:
    return values.device.type != "cpu"


class Staging:
    """Host memory that stands for parts: pinned where these are on a GPU, and the parts themselves where they are on
    the host already. Copies are queued on the current stream of the parts' device, behind whatever wrote them."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.hosts = [self._host(part.values) for part in parts]
        pairs = zip(parts, self.hosts, strict=True)
        self._pairs = [(part.values, host) for part, host in pairs if host is not part.values]

    @staticmethod
    def _host(values: torch.Tensor) -> torch.Tensor:
        if not _is_staged(values):
            return values
        return torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=values.is_cuda)

    def devices(self) -> Iterator[torch.device]:
        """The GPUs that have parts."""
        yield from {values.device: None for values, _ in self._pairs if values.is_cuda}

    @torch.no_grad()
    def fetch(self) -> None:
        """The host has what the parts have. Waits for the device."""
        for values, host in self._pairs:
            host.copy_(values, non_blocking=True)
        for device in self.devices():
            torch.cuda.current_stream(device).synchronize()

    @torch.no_grad()
    def store(self) -> None:
        """The parts have what the host has; the host's memory is read until the next fetch() has returned."""
        for values, host in self._pairs:
            values.copy_(host, non_blocking=True)
