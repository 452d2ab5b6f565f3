"""A rank of the competitors through PyTorch: its device, clocks, data and place in the team."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import time
from collections.abc import Callable
from datetime import timedelta

import programs
import protocol
import torch
import torch.distributed as dist
from torch_entrants import Missing


class Nvml:
    """Clocks and power of one GPU, by the driver's own library; None where it cannot be read."""

    def __init__(self, bus_id: str) -> None:
        self.handle = ctypes.c_void_p()
        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
            find = self.library.nvmlDeviceGetHandleByPciBusId_v2
            good = self.library.nvmlInit_v2() == 0 and find(bus_id.encode(), ctypes.byref(self.handle)) == 0
        except (OSError, AttributeError):
            good = False
        if not good:
            self.library = None

    def sample(self) -> dict | None:
        if self.library is None:
            return None
        clock, memory, power, celsius = (ctypes.c_uint() for _ in range(4))
        reasons = ctypes.c_ulonglong()
        codes = (
            self.library.nvmlDeviceGetClockInfo(self.handle, 1, ctypes.byref(clock)),
            self.library.nvmlDeviceGetClockInfo(self.handle, 2, ctypes.byref(memory)),
            self.library.nvmlDeviceGetPowerUsage(self.handle, ctypes.byref(power)),
            self.library.nvmlDeviceGetTemperature(self.handle, 0, ctypes.byref(celsius)),
            self.library.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle, ctypes.byref(reasons)),
        )
        if any(codes):
            return None
        return {
            "sm_mhz": float(clock.value),
            "memory_mhz": float(memory.value),
            "watts": power.value / 1000,
            "celsius": float(celsius.value),
            "throttle": reasons.value,
        }


def clocks_of(samples: list[dict | None]) -> dict:
    known = [s for s in samples if s]
    if not known:
        return {}
    out: dict = {"throttle": 0}
    for sample in known:
        out["throttle"] |= sample["throttle"]
    for name in ("sm_mhz", "memory_mhz", "watts", "celsius"):
        values = [s[name] for s in known]
        out[name] = {"median": protocol.median(values), "min": min(values), "max": max(values)}
    return out


class Rank:
    """This process among its team: device, clocks, and the worst of all ranks."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        self.on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= self.size
        self.device = torch.device("cuda", local) if self.on_gpus else torch.device("cpu")
        backend = "nccl" if self.on_gpus else "gloo"
        if self.on_gpus:
            torch.cuda.set_device(self.device)
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            torch.set_num_threads(1)
        device_id = self.device if self.on_gpus else None
        dist.init_process_group(backend, timeout=timedelta(seconds=120), device_id=device_id)
        self.group = dist.group.WORLD.group_name
        self.nvml = Nvml(self.bus_id()) if self.on_gpus else None

    def bus_id(self) -> str:
        p = torch.cuda.get_device_properties(self.device)
        return f"{p.pci_domain_id:08x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"

    def synchronize(self) -> None:
        if self.on_gpus:
            torch.cuda.synchronize()

    def worst(self, *mine: float) -> list[float]:
        values = torch.tensor(mine, dtype=torch.float64, device=self.device)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return values.tolist()

    def gather(self, mine: object) -> list:
        all_of_them: list = [None] * self.size
        dist.all_gather_object(all_of_them, mine)
        return all_of_them

    def machine(self) -> dict:
        cpu = programs.cpu_name()
        facts = {"cpu": cpu, "kernel": f"Linux {platform.release()}", "torch": torch.__version__}
        if not self.on_gpus:
            cores = len(os.sched_getaffinity(0))
            return {"name": f"{cpu}, {cores} cores", "cores": cores, **facts}
        p = torch.cuda.get_device_properties(self.device)
        gpus = f"{self.size} x {p.name}"
        driver = (programs.nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader") or ["unknown"])[0]
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        return {
            "name": gpus,
            "gpus": gpus,
            "driver": driver,
            "cuda": torch.version.cuda,
            "nccl": nccl,
            "l2_bytes": p.L2_cache_size,
            **facts,
        }


class Clock:
    """Time between two points of the device's stream, or of the calling thread."""

    def __init__(self, rank: Rank) -> None:
        self.on_gpus = rank.on_gpus
        if self.on_gpus:
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.times = [0.0, 0.0]

    def mark(self, which: int) -> None:
        if self.on_gpus:
            self.events[which].record()
        else:
            self.times[which] = time.perf_counter()

    def elapsed_us(self) -> float:
        if not self.on_gpus:
            return (self.times[1] - self.times[0]) * 1e6
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e3


class Bursts:
    """Timed bursts of calls on all ranks at once; the twin of bench/common/protocol.cc."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.clock = rank, Clock(rank)

    def burst(self, call: Callable[[int], object], calls: int) -> tuple[float, float]:
        """Microseconds of the slowest rank: device time of a call and host time of a call, after a lead-in of a fifth.
        `call` gets the number of the call."""
        self.rank.synchronize()
        dist.barrier()
        self.rank.synchronize()
        lead = max(1, calls // 5)
        for i in range(lead):
            call(i)
        self.clock.mark(0)
        start = time.perf_counter()
        for i in range(lead, lead + calls):
            call(i)
        host = (time.perf_counter() - start) * 1e6 / calls
        self.clock.mark(1)
        us, host_us = self.rank.worst(self.clock.elapsed_us() / calls, host)
        return us, host_us


def captured(rank: Rank, sets: int, call: Callable[[int], torch.Tensor]) -> Callable[[int], torch.Tensor]:
    """The call as a graph for each of its operand sets."""
    if not rank.on_gpus:
        raise Missing("CPU ranks have no CUDA graphs")
    call(0)  # first calls are not captured
    rank.synchronize()
    graphs, outs = [torch.cuda.CUDAGraph() for _ in range(sets)], []
    for i, graph in enumerate(graphs):
        with torch.cuda.graph(graph):
            outs.append(call(i))

    # What a call has made for itself, such as choices of another type, is read by replays and lives as long as `call`.
    def replay(i: int, _reads: Callable[[int], torch.Tensor] = call) -> torch.Tensor:
        graphs[i].replay()
        return outs[i]

    return replay


def mix(x: torch.Tensor) -> torch.Tensor:
    """protocol.mix of int64 tensors, whose products wrap."""

    def shifted(v: torch.Tensor, by: int) -> torch.Tensor:
        return (v >> by) & ((1 << (64 - by)) - 1)

    x = (x ^ shifted(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ shifted(x, 31)


def signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


def normal(seed: int, stream: int, rows: torch.Tensor, cols: int, scale: float) -> torch.Tensor:
    """Rows of a matrix in fp64: protocol.normal of each element."""
    key = signed(protocol.mix((seed * protocol.GOLDEN + stream) & protocol.MASK))
    at = rows[:, None] * signed(protocol.GOLDEN) + torch.arange(cols, device=rows.device)[None, :]
    h = mix(mix(at) ^ key)
    u = (((h >> 40) & 0xFFFFFF).double() + 0.5) * 2.0**-24
    v = ((h & 0xFFFFFFFF) >> 8).double() * 2.0**-24
    return torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * math.pi * v) * scale
