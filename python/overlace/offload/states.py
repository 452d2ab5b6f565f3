"""StreamedStates: the states of an optimizer rest in host memory and pass through slots while it steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from overlace import errors
from overlace.offload import _native
from overlace.offload._ring import CudaLane, Lane

_ALIGNMENT = 256  # of tensors in slots, as allocators of CUDA align
_STEP = "step"  # a counter, which stays where it is
_MASTER = "master"  # the fp32 copy of a parameter
#: Those that treat each parameter by itself, so that they may step a part of them.
_KNOWN = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


class HostLane:
    """Copies at once, where computation reads memory of the host."""

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source)

    def copied(self) -> None: ...
    def used(self) -> None: ...
    def copy_after(self, event: object) -> None: ...
    def use_after(self, event: object) -> None: ...
    def wait(self, event: object) -> None: ...


def lanes_of(device: torch.device) -> tuple[Lane, Lane]:
    """Into slots, and out of them."""
    return (CudaLane(device), CudaLane(device)) if device.type == "cuda" else (HostLane(), HostLane())


@dataclass
class _State:
    """A state of one parameter."""

    parameter: torch.Tensor
    key: str
    rest: torch.Tensor
    at: int = 0  # in its slot


@dataclass
class _Bucket:
    """Parameters of one group that step together."""

    group: dict[str, Any]
    parameters: list[torch.Tensor]
    states: list[_State] = field(default_factory=list)
    left: object = None  # event behind the copies out of its slot

    def has_gradient(self) -> bool:
        return any(p.grad is not None for p in self.parameters)


def _streams(parameter: torch.Tensor, key: str, value: object) -> bool:
    """Counters and other numbers stay where they are."""
    is_of_it = isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.device == parameter.device
    return is_of_it and parameter.dim() > 0 and key != _STEP


class StreamedStates:
    """Takes an optimizer's states (exp_avg, exp_avg_sq, momentum_buffer, ...) to pinned host memory. step() brings them
    bucket by bucket into slots on the parameters' device, steps the bucket there, and takes them back, beside the
    bucket before and the one behind.

    optimizer: one of torch.optim that treats each parameter by itself; it keeps its parameters, groups, learning rates,
    `state_dict` and `load_state_dict`, and has the bits of one whose states stay. Its own step() must not be called.
    bucket_bytes: of parameters; a larger one is a bucket by itself. slots: buckets on the device at a time, 2 or more.
    masters: an fp32 copy of each 16-bit parameter steps in its place, with its gradient in fp32, and the parameter is
    that copy rounded. It streams with the states, which are fp32 then, and is their entry "master".
    Used by one thread. close() gives the states back to the device, and so does leaving a `with`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        bucket_bytes: int | str = "64MiB",
        slots: int = 2,
        masters: bool = False,
    ) -> None:
        if type(optimizer).__name__ not in _KNOWN or type(optimizer).__module__.split(".")[0] != "torch":
            text = f"StreamedStates: optimizer is {type(optimizer).__name__}"
            raise errors.Unsupported(f"{text}, wanted one of torch.optim: {', '.join(_KNOWN)}")
        if slots < 2:
            raise errors.InvalidArgument(f"StreamedStates: slots is {slots}, wanted 2 or more")
        size = _native.size("bucket_bytes", bucket_bytes)
        if size < 1:
            raise errors.InvalidArgument(f"StreamedStates: bucket_bytes is {bucket_bytes}, wanted 1 or more")
        self._optimizer, self._bucket_bytes, self._slots, self._masters = optimizer, size, slots, masters
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for p in parameters:
            if type(p) not in (torch.Tensor, torch.nn.Parameter) or p.layout != torch.strided:
                text = f"StreamedStates: a parameter is {type(p).__name__}, {p.layout}"
                raise errors.Unsupported(f"{text}; wanted dense tensors of no other type")
        devices = {p.device for p in parameters}
        if len(devices) != 1 or (device := next(iter(devices))).type not in ("cpu", "cuda"):
            text = f"StreamedStates: parameters lie on {', '.join(sorted(map(str, devices)))}"
            raise errors.InvalidArgument(f"{text}; wanted all on one CPU or CUDA device")
        self._device = device
        self._into, self._out = lanes_of(device)
        self._memory = torch.empty(0)
        self._counted = {"buckets": 0, "bytes": 0}
        self._make_buckets()
        self._hooks = [
            optimizer.register_state_dict_pre_hook(lambda _: self.synchronize()),
            optimizer.register_load_state_dict_pre_hook(lambda _, saved: self._begin_load(saved)),
            optimizer.register_load_state_dict_post_hook(lambda _: self._end_load()),
        ]

    def _begin_load(self, saved: dict[str, Any]) -> None:
        self.synchronize()
        self._loading = saved

    def _end_load(self) -> None:
        """The optimizer gives all states the type of their parameter."""
        saved, of = self.__dict__.pop("_loading"), self._optimizer.state
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for number, p in zip(numbers, parameters, strict=True):
            for key, value in saved["state"].get(number, {}).items() if self._masters else ():
                if isinstance(value, torch.Tensor) and value.dtype != of[p][key].dtype:
                    of[p][key] = value.to(self._device)
        self._make_buckets()

    def _make_buckets(self) -> None:
        self._buckets: list[_Bucket] = []
        for group in self._optimizer.param_groups:
            used = self._bucket_bytes
            for p in group["params"]:
                if used + p.nbytes > self._bucket_bytes or self._buckets[-1].group is not group:
                    self._buckets.append(_Bucket(group, []))
                    used = 0
                self._buckets[-1].parameters.append(p)
                used += p.nbytes
        for bucket in self._buckets:
            self._take_new(bucket)
        self._make_slots()

    def _take_new(self, bucket: _Bucket) -> bool:
        """States that the optimizer has made, or loaded, go to rest; this waits for their copies."""
        known = {(id(s.parameter), s.key) for s in bucket.states}
        made = [
            _State(p, key, value)
            for p in bucket.parameters
            for key, value in self._optimizer.state.get(p, {}).items()
            if _streams(p, key, value) and (id(p), key) not in known
        ]
        if not made:
            return False
        self._out.copy_after(self._into.used())
        for state in made:
            source = state.rest
            state.rest = torch.empty_like(source, device="cpu", pin_memory=self._device.type == "cuda")
            self._out.copy(state.rest, source)
        self._out.wait(self._out.copied())
        for state in made:
            self._optimizer.state[state.parameter][state.key] = state.rest
        bucket.states += made
        return True

    def _make_slots(self) -> None:
        """Nothing may be on its way."""
        largest = 0
        for bucket in self._buckets:
            end = 0
            for state in bucket.states:
                state.at = end
                end += -(-state.rest.nbytes // _ALIGNMENT) * _ALIGNMENT
            largest = max(largest, end)
        if self._memory.dim() != 2 or self._memory.shape[1] < largest:
            self._memory = torch.empty(0)  # the old one goes first
            self._memory = torch.empty(self._slots, largest, dtype=torch.uint8, device=self._device)
            self._emptied: list[object] = [None] * self._slots  # event behind the last copies out of each slot

    def _view(self, state: _State, slot: int) -> torch.Tensor:
        flat = self._memory[slot].narrow(0, state.at, state.rest.nbytes).view(state.rest.dtype)
        return flat.as_strided(state.rest.shape, state.rest.stride())

    def _bring(self, bucket: _Bucket, slot: int) -> object:
        """What the slot had has left it, and so have the states of the last step."""
        for event in (self._emptied[slot], bucket.left):
            if event is not None:
                self._into.copy_after(event)
        for state in bucket.states:
            self._into.copy(self._view(state, slot), state.rest)
        return self._into.copied()

    def _step_in(self, bucket: _Bucket, slot: int, ready: object) -> bool:
        """Whether the optimizer has made states that it had not before."""
        self._into.use_after(ready)
        of = self._optimizer.state
        for state in bucket.states:
            of[state.parameter][state.key] = self._view(state, slot)
        groups = self._optimizer.param_groups
        stepping = [self._stepping(p) for p in bucket.parameters]
        self._optimizer.param_groups = [{**bucket.group, "params": stepping}]
        try:
            type(self._optimizer).step(self._optimizer)
        finally:
            self._optimizer.param_groups = groups
            for p, copy in zip(bucket.parameters, stepping, strict=True):
                if copy is not p:
                    of[p] = {**of.pop(copy), _MASTER: copy.detach()}
                    p.copy_(copy)
            self._out.copy_after(self._into.used())
            for state in bucket.states:
                self._out.copy(state.rest, of[state.parameter][state.key])
                of[state.parameter][state.key] = state.rest
            bucket.left = self._emptied[slot] = self._out.copied()
        self._counted["buckets"] += 1
        self._counted["bytes"] += sum(state.rest.nbytes for state in bucket.states)
        return self._take_new(bucket)

    def _stepping(self, parameter: torch.Tensor) -> torch.Tensor:
        """The parameter, or its copy with its gradient and its states."""
        if not self._masters or parameter.grad is None or parameter.dtype not in (torch.bfloat16, torch.float16):
            return parameter
        states = dict(self._optimizer.state.get(parameter, {}))
        master = states.pop(_MASTER, None)
        copy = parameter.detach().float() if master is None else master.detach()
        copy.grad = parameter.grad.float()
        self._optimizer.state[copy] = states
        return copy

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """As the optimizer's. Hooks of its steps run once for each bucket."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check()
        self._into.copy_after(self._into.used())  # what was queued before may use the memory of the slots
        buckets = [bucket for bucket in self._buckets if bucket.has_gradient()]
        ready = [self._bring(bucket, slot) for slot, bucket in enumerate(buckets[: self._slots])]
        is_new = False
        for i, bucket in enumerate(buckets):
            slot = i % self._slots
            is_new = self._step_in(bucket, slot, ready[slot]) or is_new
            if i + self._slots < len(buckets):
                ready[slot] = self._bring(buckets[i + self._slots], slot)
        if is_new:
            self.synchronize()
            self._make_slots()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers of learning rates ask for it
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)

    def _check(self) -> None:
        if not self._hooks:
            raise errors.InvalidArgument("StreamedStates: step() was called behind close(), wanted it before")
        wanted = [id(p) for bucket in self._buckets for p in bucket.parameters]
        if [id(p) for group in self._optimizer.param_groups for p in group["params"]] != wanted:
            text = "StreamedStates: parameters of the optimizer were added or replaced"
            raise errors.InvalidArgument(f"{text}; wanted close(), the change, then StreamedStates again")
        for bucket in self._buckets:
            for state in bucket.states:
                if self._optimizer.state.get(state.parameter, {}).get(state.key) is not state.rest:
                    text = f"StreamedStates: {state.key} of a parameter was replaced between two steps"
                    raise errors.InvalidArgument(
                        f"{text}; wanted load_state_dict(), or no step() of the optimizer's own"
                    )

    def synchronize(self) -> None:
        """States in host memory are those of the last step, for who reads them."""
        for bucket in self._buckets:
            if bucket.left is not None:
                self._out.wait(bucket.left)

    def stats(self) -> dict[str, int]:
        """buckets, bytes: that were brought, and as many taken away; memory_bytes: of the slots; resting_bytes."""
        resting = sum(state.rest.nbytes for bucket in self._buckets for state in bucket.states)
        return {**self._counted, "memory_bytes": self._memory.numel(), "resting_bytes": resting}

    def close(self) -> None:
        self.synchronize()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for bucket in self._buckets:
            for state in bucket.states:
                self._optimizer.state[state.parameter][state.key] = state.rest.to(self._device)
        self._buckets = []
        self._memory = torch.empty(0)

    def __enter__(self) -> StreamedStates:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
