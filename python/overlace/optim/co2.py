"""CO2: groups train on their own while the exchange of the round before goes on (docs/design/co2.md)."""

from __future__ import annotations

import contextlib
import ctypes as c
import socket
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from overlace._library import Options, _Sized, call, handle
from overlace.context import given_of, process_group
from overlace.errors import Error, InvalidArgument, Unsupported
from overlace.optim._collective import GroupCollective

_RULES = {"local_sgd": 0, "slow_mo": 1, "diloco": 2, "co2": 3}
_GAPS = {None: 0, "constant": 1, "adaptive": 2}
_CLIPS = {None: 0, "absolute": 1, "relative": 2}
_KAPPAS = {"delta": 0.0, "anchor": 1.0}
_DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}  # enum ovl_dtype
_OF_RULE = -1.0
_AVERAGE_INNER = c.CFUNCTYPE(c.c_int, c.c_void_p)


class _Co2Options(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("rule", c.c_int32),
        ("gap", c.c_int32),
        ("clip", c.c_int32),
        ("wire_dtype", c.c_int32),
        ("tau", c.c_int64),
        ("warmup_sync_steps", c.c_int64),
        ("cooldown_sync_steps", c.c_int64),
        ("total_steps", c.c_int64),
        ("check_every", c.c_int64),
        ("outer_lr", c.c_double),
        ("outer_momentum", c.c_double),
        ("kappa", c.c_double),
        ("gap_value", c.c_double),
        ("phi", c.c_double),
        ("bucket_bytes", c.c_int64),
        ("timeout_ms", c.c_int64),
        ("threads", c.c_int32),
        ("average_inner", _AVERAGE_INNER),
        ("user", c.c_void_p),
    )


class _Parameter(c.Structure):
    _fields_ = (("name", c.c_char_p), ("data", c.c_void_p), ("count", c.c_int64), ("dtype", c.c_int32))


class _Stats(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        *((name, c.c_int64) for name in ("rounds", "round", "steps", "bytes")),
        *((name, c.c_double) for name in ("round_ms", "comm_ms", "exposed_ms", "pass_ms", "lambda", "clipped")),
        *((name, c.c_double) for name in ("increment_norm", "mean_norm", "momentum_norm")),
        *((name, c.c_int32) for name in ("last_rank", "is_dropped")),
    )


def _choice(name: str, value: object, table: dict) -> Any:
    if value not in table:
        raise InvalidArgument(f"CO2: {name} is {value!r}, wanted one of {', '.join(map(repr, table))}")
    return table[value]


class CO2:
    """Around an inner optimizer of a model whose replicas are the ranks of `outer_group`, on CPU tensors.

    Either `with co2:` counts the steps of the inner optimizer, or `co2.step()` replaces them; both on all ranks alike.
    `rule`: "co2", or "local_sgd", "slow_mo", "diloco". `transport`: "host" (a worker thread of overlace; one host;
    `link` emulates a slow one, such as "20MB/s,50us"), "process_group" (the group's own all_reduce), "auto".
    Collective."""

    def __init__(
        self,
        model: torch.nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        *,
        tau: int,
        outer_group: object = None,
        inner_group: object = None,
        rule: str = "co2",
        outer_lr: float | None = None,
        outer_momentum: float | None = None,
        pseudo_gradient: str = "anchor",
        gap: str | None = None,
        gap_value: float = 1.0,
        clip: str | None = "relative",
        phi: float | None = None,
        wire_dtype: torch.dtype = torch.float32,
        transport: str = "auto",
        link: str | None = None,
        warmup_sync_steps: int = 0,
        cooldown_sync_steps: int = 0,
        total_steps: int | None = None,
        outer_timeout_s: float = 300,
        bucket_bytes: int = 32 << 20,
        check_every: int = 0,
        on_failure: str = "abort",
    ) -> None:
        self.group = process_group(outer_group)
        self.inner_optimizer = inner_optimizer
        self._hooks: list = []
        self._handle: c.c_void_p | None = None
        self._failures: list[BaseException] = []
        if inner_group is not None:
            raise Unsupported("CO2: inner_group is given; supported so far: groups of one rank")
        _choice("on_failure", on_failure, {"abort": 0})
        self._parameters = self._checked(model, wire_dtype)
        options = _Co2Options(
            rule=_choice("rule", rule, _RULES),
            gap=_choice("gap", gap, _GAPS),
            clip=_choice("clip", clip, _CLIPS),
            wire_dtype=_DTYPES[wire_dtype],
            tau=tau,
            warmup_sync_steps=warmup_sync_steps,
            cooldown_sync_steps=cooldown_sync_steps,
            total_steps=total_steps or 0,
            check_every=check_every,
            outer_lr=_OF_RULE if outer_lr is None else outer_lr,
            outer_momentum=_OF_RULE if outer_momentum is None else outer_momentum,
            kappa=_choice("pseudo_gradient", pseudo_gradient, _KAPPAS),
            gap_value=gap_value,
            phi=_OF_RULE if phi is None else phi,
            bucket_bytes=bucket_bytes,
            timeout_ms=round(outer_timeout_s * 1000),
            average_inner=_AVERAGE_INNER(self._average_inner),
        )
        self._open(options, transport, link, outer_timeout_s)

    # ---- what it stands on ----

    def _checked(self, model: torch.nn.Module, wire_dtype: torch.dtype) -> dict[str, torch.nn.Parameter]:
        if wire_dtype not in (torch.float32, torch.bfloat16):
            raise InvalidArgument(f"CO2: wire_dtype is {wire_dtype}, wanted torch.float32 or torch.bfloat16")
        if isinstance(model, torch.nn.parallel.DistributedDataParallel) and model.process_group.size() > 1:
            raise InvalidArgument(
                f"CO2: the model is a DistributedDataParallel over {model.process_group.size()} ranks, whose gradients "
                "would be averaged at each step; wanted: the plain module, model.module"
            )
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not parameters:
            raise InvalidArgument("CO2: the model has no parameter that requires a gradient, wanted at least one")
        for name, p in parameters.items():
            if p.device.type != "cpu":
                raise Unsupported(f"CO2: parameter {name} is on {p.device}; supported so far: CPU tensors")
            if p.dtype not in _DTYPES:
                raise InvalidArgument(f"CO2: parameter {name} is {p.dtype}, wanted float32, bfloat16 or float16")
            if not p.is_contiguous():
                raise InvalidArgument(f"CO2: parameter {name} has strides {p.stride()}, wanted a contiguous one")
        # The library writes there: storage that a model gives up is kept.
        self._storages = [p.data for p in parameters.values()]
        return parameters

    def _open(self, options: _Co2Options, transport: str, link: str | None, timeout_s: float) -> None:
        self._options = options  # holds the callback
        table = (_Parameter * len(self._parameters))(
            *(_Parameter(n.encode(), p.data_ptr(), p.numel(), _DTYPES[p.dtype]) for n, p in self._parameters.items())
        )
        _choice("transport", transport, {"auto": 0, "host": 1, "process_group": 2})
        if transport == "auto":
            hosts: list = [None] * self.group.size()
            dist.all_gather_object(hosts, socket.gethostname(), group=self.group)
            transport = "host" if len(set(hosts)) == 1 else "process_group"
        if link is not None and transport != "host":
            raise InvalidArgument(f"CO2: link is {link!r} with transport {transport!r}, wanted transport 'host'")
        self.transport = transport
        arguments = [c.byref(options), table, c.c_uint64(len(table))]
        if transport == "host":
            given, self._failures = given_of(self.group)
            runtime = Options(timeout_ms=round(timeout_s * 1000), link=None if link is None else link.encode())
            self._given = given
            self._handle = self._guarded(handle, "ovl_co2_open_host", *arguments, c.byref(given), c.byref(runtime))
        else:
            self._collective = GroupCollective(self.group)
            self._failures = self._collective.failures
            self._handle = self._guarded(
                handle, "ovl_co2_open_collective", *arguments, c.byref(self._collective.struct)
            )

    def _guarded(self, function: Any, *arguments: object) -> Any:
        """An error of the library with what the callbacks raised behind it as its cause."""
        try:
            return function(*arguments)
        except Error as error:
            cause = self._failures[0] if self._failures else None
            self._failures.clear()
            raise error from cause

    def _call(self, name: str, *arguments: object) -> None:
        if self._handle is None:
            raise InvalidArgument("CO2: it was closed before this call")
        self._guarded(call, name, self._handle, *arguments)

    # ---- steps ----

    @property
    def wants_gradient_mean(self) -> bool:
        """The next inner step is one of warm-up or cool-down: gradients are averaged over the groups before it."""
        wants = c.c_int32()
        self._call("ovl_co2_wants_gradient_mean", c.byref(wants))
        return bool(wants.value)

    def _mean(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor, group=self.group)
            tensor /= self.group.size()

    def _average_inner(self, _user: int) -> int:
        try:
            for p in self._parameters.values():
                state = self.inner_optimizer.state.get(p, {})
                floating = [t for t in state.values() if isinstance(t, torch.Tensor) and t.is_floating_point()]
                self._mean([t for t in floating if t.dim() > 0])
        except BaseException as failure:  # nothing may leave through C
            self._failures.append(failure)
            return 1
        return 0

    def _before(self, *_: object) -> None:
        if self.wants_gradient_mean:
            self._mean([p.grad for p in self._parameters.values() if p.grad is not None])

    def _after(self, *_: object) -> None:
        for (name, p), kept in zip(self._parameters.items(), self._storages, strict=True):
            if p.data_ptr() != kept.data_ptr():
                raise InvalidArgument(
                    f"CO2: parameter {name} has other memory than when CO2 was made; make CO2 after whatever moves it"
                )
        with torch.no_grad():
            self._call("ovl_co2_on_inner_step", c.c_double(float(self.inner_optimizer.param_groups[0]["lr"])))

    def step(self, closure: Any = None) -> Any:
        """The inner optimizer's step, and the boundary of a round where one is due."""
        if self._hooks:
            return self.inner_optimizer.step(closure)
        self._before()
        loss = self.inner_optimizer.step(closure)
        self._after()
        return loss

    def skipped_step(self) -> None:
        """In place of a step that was attempted and left out (by a GradScaler): rounds count attempts."""
        self._after()

    def flush(self) -> None:
        """Whatever is on its way goes in; parameters are equal on all groups afterwards."""
        self._call("ovl_co2_flush")

    def __enter__(self) -> CO2:
        self._hooks = [
            self.inner_optimizer.register_step_pre_hook(self._before),
            self.inner_optimizer.register_step_post_hook(self._after),
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if error is None:
            self.flush()
            self.close()
            return
        with contextlib.suppress(Exception):  # the first error counts
            self.close()

    def close(self) -> None:
        """Collective over transport `host` unless something failed. What is on its way is lost without flush()."""
        taken, self._handle = self._handle, None
        if taken is not None:
            self._guarded(call, "ovl_co2_close", taken)

    # ---- what is seen of it ----

    def stats(self) -> dict[str, float]:
        """Of the last round whose increment came in; `rounds` of them so far. Over process_group comm_ms ends when
        somebody asked."""
        stats = _Stats()
        self._call("ovl_co2_stats_last", c.byref(stats))
        return {name: getattr(stats, name) for name, _ in _Stats._fields_[1:]}

    @contextlib.contextmanager
    def anchor_parameters(self) -> Iterator[None]:
        """The model has the values that all groups share, for evaluation and export; afterwards its own again."""
        if self.wants_gradient_mean:  # groups are equal anyway
            yield
            return
        count = sum(p.numel() for p in self._parameters.values())
        anchor = torch.empty(count, dtype=torch.float32)
        self._call("ovl_co2_anchor", c.c_void_p(anchor.data_ptr()), c.c_uint64(count))
        own = [p.detach().clone() for p in self._parameters.values()]
        with torch.no_grad():
            parts = anchor.split([p.numel() for p in self._parameters.values()])
            for p, part in zip(self._parameters.values(), parts, strict=True):
                p.copy_(part.view_as(p))
        try:
            yield
        finally:
            with torch.no_grad():
                for p, mine in zip(self._parameters.values(), own, strict=True):
                    p.copy_(mine)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run goes on from with the same bits: parameters, anchor, what is on its way, the inner
        optimizer, the random numbers of the CPU. Waits for what is on its way; nothing else changes."""
        data, count = c.c_void_p(), c.c_uint64()
        self._call("ovl_co2_save", c.byref(data), c.byref(count))
        blob = torch.frombuffer(bytearray(c.string_at(data, count.value)), dtype=torch.uint8)
        return {"co2": blob, "inner": self.inner_optimizer.state_dict(), "rng": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What state_dict() gave on this rank, of a run with the same options, model and number of groups."""
        missing = [key for key in ("co2", "inner", "rng") if key not in state]
        if missing:
            raise InvalidArgument(f"CO2: the state has no {missing[0]!r}, wanted what state_dict() gave")
        blob = state["co2"].contiguous()
        with torch.no_grad():
            self._call("ovl_co2_load", c.c_void_p(blob.data_ptr()), c.c_uint64(blob.numel()))
        self.inner_optimizer.load_state_dict(state["inner"])
        torch.set_rng_state(state["rng"])
