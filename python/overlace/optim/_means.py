"""Means of tensors over the groups, where not every group need have them all."""

from __future__ import annotations

import contextlib
import datetime
import math
import pickle
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from overlace import errors
from overlace.errors import InvalidArgument
from overlace.optim._structs import DTYPES
from overlace.optim.groups import begun

_LONGEST_S = 300


def deadline_of(seconds: object) -> datetime.timedelta:
    """`outer_timeout_s` as given, the longest of "auto"; InvalidArgument where it is none."""
    if seconds == "auto":
        return datetime.timedelta(seconds=_LONGEST_S)
    if not isinstance(seconds, int | float) or not math.isfinite(seconds) or not 1e-3 <= seconds <= 1e9:
        raise InvalidArgument(f"CO2: outer_timeout_s is {seconds!r}, wanted: 0.001 to 1e9 seconds, or 'auto'")
    return datetime.timedelta(seconds=float(seconds))


_COUNTS = (
    *("tau", "warmup_sync_steps", "cooldown_sync_steps", "total_steps", "fragments", "delay"),
    *("bucket_bytes", "check_every"),
)


def check_count(name: str, value: object) -> None:
    """An integer that C takes; its range is for the library."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise InvalidArgument(f"CO2: {name} is {value!r}, wanted: an integer")


def check_counts(*counts: object) -> None:
    for name, value in zip(_COUNTS, counts, strict=True):
        check_count(name, value)


def samples_of(samples: object) -> float:
    if samples is None:
        return 0.0
    if isinstance(samples, bool) or not isinstance(samples, int | float) or not 0 < samples <= 1e15:
        raise InvalidArgument(f"CO2: samples is {samples!r}, wanted: None where groups are equal, else up to 1e15")
    return float(samples)


def wire_of(dtype: object) -> int:
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.bfloat16, torch.int8):
        raise InvalidArgument(f"CO2: wire_dtype is {dtype}, wanted torch.float32, torch.bfloat16 or torch.int8")
    return DTYPES[dtype]


def takes(group: dist.ProcessGroup, device: str) -> bool:
    """The group has a backend for tensors of this type of device: nccl alone has none for "cpu"."""
    return any(known.type == device for known in group._device_types)


@contextlib.contextmanager
def _told(what: str, group: dist.ProcessGroup) -> Iterator[None]:
    """What torch raises where ranks of the group do not come, as Timeout or PeerLost; torch does not say which."""
    try:
        yield
    except RuntimeError as failure:
        code = "timeout" if "timed out" in str(failure).lower() else "peer_lost"
        ranks = ", ".join(map(str, dist.get_process_group_ranks(group)))
        raise errors.make(code, f"CO2: {what} over ranks {ranks}: {failure}") from failure


def sum_over(tensor: torch.Tensor, group: dist.ProcessGroup, deadline: datetime.timedelta, what: str) -> None:
    """In place."""
    sent = tensor if takes(group, tensor.device.type) else tensor.to(group._device_types[0].type)
    with _told(what, group):
        begun(dist.all_reduce(sent, group=group, async_op=True)).wait(deadline)
    if sent is not tensor:
        tensor.copy_(sent)


def gather_over(value: Any, group: dist.ProcessGroup, deadline: datetime.timedelta, what: str) -> list:
    """What each rank gives, in rank order: torch's all_gather_object, which knows no deadline but the group's own."""
    kind = "cpu" if takes(group, "cpu") else group._device_types[0].type

    def gathered(mine: torch.Tensor) -> list[torch.Tensor]:
        everybody = [torch.empty_like(mine) for _ in range(group.size())]
        begun(dist.all_gather(everybody, mine, group=group, async_op=True)).wait(deadline)
        return everybody

    data = pickle.dumps(value)
    with _told(what, group):
        sizes = [int(size) for size in gathered(torch.tensor([len(data)], device=kind))]
        mine = torch.zeros(max(sizes), dtype=torch.uint8, device=kind)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = gathered(mine)
    return [pickle.loads(part[:size].cpu().numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)]


def mean_over(tensors: list[torch.Tensor], group: dist.ProcessGroup, deadline: datetime.timedelta, what: str) -> None:
    """In place, tensor by tensor; the same list in all groups."""
    for tensor in tensors:
        sum_over(tensor, group, deadline, what)
        tensor /= group.size()


def missing_in_some(present: list[bool], group: dist.ProcessGroup, deadline: datetime.timedelta) -> list[bool]:
    """Which of them another group has and this one has not."""
    counts = torch.tensor(present, dtype=torch.int32)
    sum_over(counts, group, deadline, "which gradients there are")
    return [bool(count) and not own for count, own in zip(counts.tolist(), present, strict=True)]


def complete_states(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.nn.Parameter],
    group: dist.ProcessGroup,
    deadline: datetime.timedelta,
) -> None:
    """What the optimizer of another group keeps of a parameter and this one's does not, since no gradient came here
    yet: zeros in its place. Numbers of steps become the largest of all groups, so that a mean is of the same tensors
    everywhere and what follows of it is the same."""

    def about(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return None if value.dim() > 0 else value.detach().cpu()  # others may not see this GPU

    mine = [{key: about(value) for key, value in optimizer.state.get(p, {}).items()} for p in parameters]
    everybody = gather_over(mine, group, deadline, "what inner optimizers keep")
    for i, p in enumerate(parameters):
        states = [states[i] for states in everybody]
        for key, value in max(states, key=len).items():
            if key not in optimizer.state.get(p, {}):
                optimizer.state[p][key] = torch.zeros_like(p) if value is None else value
            if isinstance(value, torch.Tensor):
                most = max((state[key] for state in states if key in state), key=float)
                optimizer.state[p][key].copy_(most)


def average_states(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.nn.Parameter],
    group: dist.ProcessGroup,
    deadline: datetime.timedelta,
) -> None:
    """What the optimizer keeps of these parameters becomes the mean of what all groups keep."""
    complete_states(optimizer, parameters, group, deadline)
    for p in parameters:
        state = optimizer.state.get(p, {})
        floating = [t for t in state.values() if isinstance(t, torch.Tensor) and t.is_floating_point()]
        local = [getattr(t, "_local_tensor", t) for t in floating if t.dim() > 0]
        mean_over(local, group, deadline, "the mean of the inner optimizer's state")
