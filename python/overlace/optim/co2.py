"""CO2: groups train on their own while the exchange of the round before goes on (docs/design/co2.md)."""

from __future__ import annotations

import contextlib
import ctypes as c
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from overlace._library import call, handle, names_of
from overlace.context import process_group
from overlace.errors import Error, InvalidArgument
from overlace.optim import _checkpoint
from overlace.optim._collective import opening_of, transport_of, with_ranks
from overlace.optim._layout import buffers_of, layout_of, statistics_of, told
from overlace.optim._means import (
    average_states,
    check_counts,
    deadline_of,
    gather_over,
    mean_over,
    missing_in_some,
    samples_of,
    sum_over,
    wire_of,
)
from overlace.optim._schedule import schedule_of
from overlace.optim._staging import Staging, device_of
from overlace.optim._structs import (
    AVERAGE_INNER,
    OF_RULE,
    REDUCE_IN_GROUP,
    Co2Options,
    Stats,
    choice,
    words_of,
)
from overlace.optim._survivors import exchange, survivors_of
from overlace.optim.groups import check_grid
from overlace.optim.tau import FIRST_TAU, MEASURED_ROUNDS, chosen_tau, first_tau


class CO2:
    """Around an inner optimizer of a model whose replicas are in different groups of ranks. Parameters are CPU or CUDA
    tensors; what belongs to the groups (anchor, increments) lies where they do, over "process_group" and with
    `state="host"` on the host.

    `outer_group`: a rank of each group, the same place in all of them (default: all ranks); `inner_group`: the ranks of
    this one's group, None where that is this rank alone. make_groups() makes both. Inside a group: a
    DistributedDataParallel over it, or over all ranks with co2_hook; ZeroRedundancyOptimizer; fully_shard; layers that
    are split over it.
    Either `with co2:` counts the steps of the inner optimizer, or `co2.step()` replaces them; both on all ranks alike.
    `tau`: steps of a round, or a function of the round (0, 1, ...); "auto" (rules "co2" and "eager"): 4 until three
    rounds were measured, then as many as hide the exchange with a tenth to spare, which flushes once. `outer_lr`,
    `outer_momentum`: numbers, or functions of the round and of how many rounds `total_steps` are. Functions are called
    at the start, for all rounds; later ones are as the last. `momentum_over_lr` ("slow_mo"): the momentum is of
    increments over the inner learning rate, as in its paper.
    `rule`: "co2", "eager", "streaming", or "local_sgd", "slow_mo", "diloco", which wait. "streaming" sends one of
    `fragments` parts of the parameters at a time, each once in `tau` steps, and takes it in `delay` steps later,
    leaving a share `mix` of the parameters as they are then; its stats are of an exchange. `keep`: the share of its own
    increment that a group keeps until the mean is there (default: 0.8, "eager" 1 / groups). `samples`: that this group
    sees in a step, where groups are unequal: `tau` may differ between them then, and means are weighted by what each
    has seen; flush, save and load come in the same round of all. `transport`: "host" (a
    worker thread of overlace; one host; `link` emulates a slow one, such as "20MB/s,50us"), "nccl" (GPUs of one host,
    one a rank), "process_group" (the group's own all_reduce), "auto". `wire_dtype`: float32, or bfloat16, or int8
    with a scale for 256 elements (over "host" alone), where what rounding leaves out is sent with the next round.
    `outer_timeout_s`: how long a wait for other groups may take, over "nccl" from when a round was sent, so that an
    evaluation of one group alone counts; "auto": by what the last 16 rounds were waited for, at least 10 s.
    `on_failure`: "abort", or "drop_group" (groups of one rank, over "host"): where a group is lost and at least
    `min_groups` are left, these go on without it from the last anchor, and `lost_ranks` names it. Collective."""

    _handle: c.c_void_p | None = None
    _is_anchored = False
    _writes = _steps = _begun = 0

    def __init__(
        self,
        model: torch.nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        *,
        tau: int | str | Callable[[int], int],
        outer_group: object = None,
        inner_group: object = None,
        rule: str = "co2",
        samples: float | None = None,
        outer_lr: float | Callable[[int, int], float] | None = None,
        outer_momentum: float | Callable[[int, int], float] | None = None,
        momentum_over_lr: bool = False,
        pseudo_gradient: str = "delta",
        keep: float | None = None,
        fragments: int | None = None,
        delay: int = 1,
        mix: float = 0.5,
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
        outer_timeout_s: float | str = 300,
        bucket_bytes: int = 32 << 20,
        check_every: int = 0,
        on_failure: str = "abort",
        min_groups: int = 1,
        buffers: str = "average",
        state: str = "device",
    ) -> None:
        self.group = process_group(outer_group)
        self.inner_optimizer = inner_optimizer
        self._hooks: list = []
        self._deadline = deadline_of(outer_timeout_s)
        counts = (warmup_sync_steps, cooldown_sync_steps, total_steps or 0, fragments or 0, delay, bucket_bytes)
        self._schedule = schedule_of(tau, outer_lr, outer_momentum, counts[:3], samples)
        tau, outer_lr, outer_momentum = self._schedule.rest
        steps, self._is_auto = first_tau(tau, rule, samples)
        self._measured: list | None = [] if self._is_auto else None  # rounds so far, until tau is known
        check_counts(steps, *counts, check_every)
        self.inner_group = None if inner_group is None else process_group(inner_group)
        self._survivors = survivors_of(self, on_failure, min_groups, transport, samples)
        check_grid(self.inner_group, self.group)
        self._layout = told(layout_of(model, self.inner_group, inner_optimizer), self.group)
        self._model = model
        self._statistics = statistics_of(model) if choice("buffers", buffers, {"average": 1, "keep": 0}) else []
        options = Co2Options(
            **words_of(rule, gap, clip, pseudo_gradient, momentum_over_lr),
            wire_dtype=wire_of(wire_dtype),
            tau=steps,
            warmup_sync_steps=warmup_sync_steps,
            cooldown_sync_steps=cooldown_sync_steps,
            total_steps=total_steps or 0,
            check_every=check_every,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            keep=OF_RULE if keep is None else keep,
            samples=samples_of(samples),
            fragments=fragments or 0,
            delay=delay,
            mix=mix,
            gap_value=gap_value,
            phi=OF_RULE if phi is None else phi,
            bucket_bytes=bucket_bytes,
            timeout_ms=round(self._deadline.total_seconds() * 1000),
            auto_timeout=outer_timeout_s == "auto",
            average_inner=AVERAGE_INNER(self._average_inner),
            shard_degree=self._layout.shards,
            reduce_in_group=REDUCE_IN_GROUP(self._reduce_in_group),
            whole_boundaries=self._survivors is not None,
        )
        self._schedule.put(options, 0)
        self._given_steps = warmup_sync_steps, total_steps or 0
        self._open(options, transport, link, self._deadline.total_seconds(), state)

    # ---- what it stands on ----

    def _open(self, options: Co2Options, transport: str, link: str | None, timeout_s: float, state: str) -> None:
        self._options = options  # holds the callbacks
        self._way = transport, link, timeout_s, state
        parts = list(self._layout.parts())
        self._device = device_of(parts)
        where = self.group, link, options, self._device, self._layout
        transport, is_direct = transport_of(transport, *where, is_auto=self._is_auto, state=state)
        if not hasattr(self, "_staging"):  # once: what is pinned stays
            self._staging = Staging(parts, in_place=is_direct)
        self._is_direct = is_direct
        if is_direct and self._device is not None:
            options.on_device, options.device = 1, self._device.index
            options.stream = torch.cuda.current_stream(self._device).cuda_stream
        self._staging.fetch()
        self.transport = transport
        name, self._ways, self._failures = opening_of(transport, self.group, link, timeout_s)
        self._handle = self._guarded(handle, name, c.byref(options), *self._staging.table(), *self._ways)

    def _bring(self) -> None:
        """Before a call that reads or writes parameters: the library has them, and the stream that they are used on."""
        self._staging.fetch()
        if self._is_direct and self._handle is not None:
            stream = torch.cuda.current_stream(self._device).cuda_stream
            self._call("ovl_co2_use_stream", c.c_void_p(stream))

    def _guarded(self, function: Any, *arguments: object) -> Any:
        """An error of the library with what the callbacks raised behind it as its cause."""
        try:
            return function(*arguments)
        except Error as error:
            cause = self._failures[0] if self._failures else None
            self._failures.clear()
            raise with_ranks(error, self.group) from cause

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

    def _mean(self, tensors: list[torch.Tensor], what: str) -> None:
        mean_over(tensors, self.group, self._deadline, what)

    def _reduce_in_group(self, _user: int, values: c._Pointer[c.c_double], count: int) -> int:
        try:
            memory = (c.c_double * count).from_address(c.addressof(values.contents))
            assert self.inner_group is not None  # the library sums where the group has shards
            sum_over(torch.frombuffer(memory, dtype=torch.float64), self.inner_group, self._deadline, "sums of a group")
        except BaseException as failure:  # nothing may leave through C
            self._failures.append(failure)
            return 1
        return 0

    def _stepped(self) -> torch.optim.Optimizer:
        """The optimizer that keeps state: inside a ZeroRedundancyOptimizer it is another one."""
        inside = getattr(self.inner_optimizer, "optim", None)
        return inside if isinstance(inside, torch.optim.Optimizer) else self.inner_optimizer

    def _average_inner(self, _user: int) -> int:
        try:
            parameters = list(self._layout.parameters.values())
            average_states(self._stepped(), parameters, self.group, self._deadline)
        except BaseException as failure:  # nothing may leave through C
            self._failures.append(failure)
            return 1
        return 0

    def _before(self, *_: object) -> None:
        is_behind = self._survivors is not None and self._survivors.waits()
        if self.wants_gradient_mean and not is_behind:
            parameters = list(self._layout.parameters.values())
            lacking = missing_in_some([p.grad is not None for p in parameters], self.group, self._deadline)
            for p, is_lacking in zip(parameters, lacking, strict=True):
                if is_lacking:  # another group used it in this step
                    p.grad = torch.zeros_like(p)
            gradients = [self._layout.gradient(p) for p in parameters]
            self._mean([g for g in gradients if g is not None], "the mean of gradients")

    def _after(self, *_: object) -> None:
        if self._handle is not None:
            self._check_own("a step")
            if (self._steps + 1) % self._options.tau == 0:  # as often as a round, which takes a while
                self._layout.check_same()
        needs = c.c_int32()
        self._call("ovl_co2_needs_parameters", c.byref(needs))
        if needs.value:
            self._layout.check_memory()
        self._steps += 1
        if self._survivors is not None and self._survivors.is_behind(self):
            return
        lr = c.c_double(float(self.inner_optimizer.param_groups[0]["lr"]))
        if needs.value:
            self._bring()
        with torch.no_grad():
            exchange(self, self._survivors, "ovl_co2_on_inner_step", lr)
        if needs.value:
            self._spread()
        if self._measured is not None:
            self._measure(self._measured)

    @property
    def tau(self) -> int:
        """Steps of the present round; with "auto" those that it begins with, until three rounds were measured."""
        scheduled, place = self._options.num_scheduled, c.c_int64()
        if scheduled > 0:
            self._call("ovl_co2_round", c.byref(place))
        return self._options.schedule[place.value].tau if place.value < scheduled else self._options.tau

    def _measure(self, measured: list) -> None:
        """After a step. All ranks see the same number of rounds, and choose the same tau from what all measured."""
        stats = self.stats()
        if stats["rounds"] > len(measured):
            computed = stats["round_ms"] - stats["exposed_ms"] - stats["pass_ms"]
            measured.append((stats["comm_ms"], computed / stats["steps"]))
        if len(measured) == MEASURED_ROUNDS:
            tau, self._measured = chosen_tau(self._everybody(measured)), None
            if tau != self._options.tau:
                self._options.tau = tau
                self._begin_anew(self._steps, {})

    def _check(self, what: str) -> None:
        self._check_own(what)
        self._layout.check_memory()

    def _check_own(self, what: str) -> None:
        if self._is_anchored:
            raise InvalidArgument(
                f"CO2: {what} inside `with anchor_parameters()`, where the model does not have its own values; wanted: "
                "outside"
            )

    def _spread(self) -> None:
        """Where the library wrote parameters since the last time, the rest of the group sees them."""
        writes = c.c_int64()
        self._call("ovl_co2_writes", c.byref(writes))
        if writes.value != self._writes:
            self._writes = writes.value
            self._staging.store()
            self._layout.spread()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The inner optimizer's zero_grad(), for loops whose optimizer this one takes the place of."""
        self.inner_optimizer.zero_grad(set_to_none=set_to_none)

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
        """Whatever is on its way goes in; parameters are equal on all groups afterwards, and BatchNorm's statistics are
        averaged over the groups unless `buffers` is "keep"."""
        if self._handle is not None:
            self._check("flush")
            self._layout.check_same()
        self._bring()
        exchange(self, self._survivors, "ovl_co2_flush")
        self._spread()
        with torch.no_grad():
            self._mean(self._statistics, "the mean of BatchNorm's statistics")

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
            if not isinstance(error, Error):  # of the library: the others know
                self._call("ovl_co2_abort", f"{type(error).__name__}: {error}".encode())
        with contextlib.suppress(Exception):
            self.close()

    def close(self) -> None:
        """Collective over transport `host` unless something failed. What is on its way is lost without flush()."""
        taken, self._handle = self._handle, None
        if taken is not None:
            self._guarded(call, "ovl_co2_close", taken)

    # ---- what is seen of it ----

    def stats(self) -> dict[str, float]:
        """The last round whose increment came in; `rounds` of them so far. Over process_group comm_ms ends when
        somebody asked."""
        stats = Stats()
        self._call("ovl_co2_stats_last", c.byref(stats))
        return {name: getattr(stats, name) for name in names_of(Stats)}

    def trace(self, path: str | Path) -> None:
        """The rounds so far of all ranks as a timeline, .json or .pftrace, which the first rank writes; for a viewer,
        and for `overlace trace diff` beside `overlace sim graph co2 --trace`. What a flush does is not in it, but for
        the exchange that it waits for. Collective."""
        text = c.c_char_p()
        group, shard = self._place
        number = group * self._layout.shards + shard
        self._call("ovl_co2_trace", c.c_int32(number), c.byref(text))
        texts = self._everybody(text.value)

        def write() -> None:
            if number == 0:
                array = (c.c_char_p * len(texts))(*texts)
                call("ovl_co2_trace_write", array, c.c_uint64(len(texts)), str(path).encode())

        _checkpoint.agreed(self._everybody, f"trace to {path}", write)

    @property
    def lost_ranks(self) -> list[int]:
        """Ranks of the groups that were dropped, in the order of their loss."""
        return [] if self._survivors is None else list(self._survivors.lost)

    def _anchor(self) -> torch.Tensor:
        anchor = torch.empty(
            sum(part.values.numel() for part in self._staging.parts), dtype=torch.float32, device="cpu"
        )
        self._call("ovl_co2_anchor", c.c_void_p(anchor.data_ptr()), c.c_uint64(anchor.numel()))
        return anchor

    def _put(self, values: torch.Tensor) -> None:
        """Into the parameters, as _anchor() gives them."""
        with torch.no_grad():
            pieces = values.split([part.values.numel() for part in self._staging.parts])
            for part, piece in zip(self._staging.parts, pieces, strict=True):
                part.values.copy_(piece)
        self._layout.spread()

    @contextlib.contextmanager
    def anchor_parameters(self) -> Iterator[None]:
        """The model has the values that all groups share, for evaluation and export; afterwards its own again."""
        if self.wants_gradient_mean or self._is_anchored:  # groups are equal anyway; inside another one
            yield
            return
        self._layout.settle()
        own = {name: values.detach().clone() for name, values in self._layout.kept.items()}
        self._put(self._anchor())
        self._is_anchored = True
        try:
            yield
        finally:
            self._is_anchored = False
            self._layout.settle()
            with torch.no_grad():
                for name, values in self._layout.kept.items():
                    values.copy_(own[name])

    # ---- checkpoints ----

    def _everybody(self, value: Any) -> list:
        """What each rank of all groups gives, group by group. Collective."""

        def gather(group: dist.ProcessGroup, own: Any) -> list:
            return gather_over(own, group, self._deadline, "what all ranks say")

        row = [value] if self.inner_group is None else gather(self.inner_group, value)
        return [one for group in gather(self.group, row) for one in group]

    @property
    def _place(self) -> tuple[int, int]:
        return self.group.rank(), 0 if self.inner_group is None else self.inner_group.rank()

    def _about(self, consolidated: bool = False) -> dict[str, Any]:
        given = self._options, self._schedule, *self._given_steps
        options = _checkpoint.options_about(*given, is_auto=self._is_auto)

        def rows(named: Mapping[str, torch.Tensor]) -> list[list[str]]:
            return [[name, str(t.dtype), "x".join(map(str, t.shape))] for name, t in named.items()]

        return {
            "format": _checkpoint.FORMAT,
            "consolidated": consolidated,
            "groups": self.group.size(),
            "shards": self._layout.shards,
            "layout": type(self._layout).__name__,
            "options": options,
            "steps": self._steps,
            "begun": self._begun,
            "measured_tau": self._options.tau if self._is_auto and self._measured is None else None,
            "parameters": rows(self._layout.parameters),
            "buffers": rows(buffers_of(self._model)),
        }

    def _key(self, consolidated: bool) -> str:
        group, shard = self._place
        return f"shard_{shard}" if consolidated else f"group_{group}_shard_{shard}"

    def state_dict(self, *, consolidate: bool = False) -> dict[str, Any]:
        """Everything that a run goes on from with the same bits: parameters, buffers (of this group's own BatchNorm),
        anchor, what is on its way, the inner optimizer, the random numbers of the CPU and of the GPUs with parameters.
        Waits for what is on its way; nothing else changes. For torch.save of each rank, and for
        torch.distributed.checkpoint. Collective.

        `consolidate`: flush() comes first, which averages these statistics, the inner optimizer's state is averaged,
        and what comes out fits any number of groups, but for the outer momentum."""
        if self._is_anchored:
            self._check("state_dict, save or load")
        inner = self._stepped()
        if consolidate:
            about = json.dumps(self._about(True))
            self.flush()
            if self._average_inner(0) != 0:
                raise self._failures.pop()
            kept = {name: values.clone() for name, values in self._layout.kept.items()}
            data: Any = {"parameters": kept, "inner": _checkpoint.local_state(inner), "buffers": self._buffers()}
            return {"about": about, self._key(True): _checkpoint.pack(data)}
        blob, count = c.c_void_p(), c.c_uint64()
        self._bring()
        save = "ovl_co2_save", c.byref(blob), c.byref(count)
        if exchange(self, self._survivors, *save):
            self._call(*save)
        about = json.dumps(self._about())
        data = {
            "co2": torch.frombuffer(bytearray(c.string_at(blob, count.value)), dtype=torch.uint8),
            "inner": _checkpoint.local_state(inner),
            "rng": torch.get_rng_state(),
            "cuda_rng": [torch.cuda.get_rng_state(device) for device in self._staging.devices()],
            "buffers": self._buffers(),
        }
        return {"about": about, self._key(False): _checkpoint.pack(data)}

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.detach().clone() for name, buffer in buffers_of(self._model).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What state_dict() gave on this rank, of a run with the same options, model and number of groups, or what a
        consolidated one gave. Collective."""
        about, data = _checkpoint.agreed(self._everybody, "state of CO2", lambda: self._read(state))
        self._take(about, data)

    def _read(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        where = "state of CO2"
        if "about" not in state:
            _checkpoint.own_bytes(state, "about")
        about = _checkpoint.about_of(state["about"], where)
        _checkpoint.check_about(about, self._about(), where)
        key = self._key(bool(about["consolidated"]))
        return about, _checkpoint.unpack(_checkpoint.own_bytes(state, key), f"{where}, {key}")

    def _take(self, about: dict[str, Any], data: dict[str, Any]) -> None:
        if self._is_anchored:
            self._check("state_dict, save or load")
        before = self._options.tau
        if self._is_auto:
            self._options.tau = about.get("measured_tau") or FIRST_TAU
            self._measured = [] if about.get("measured_tau") is None else None
        if about["consolidated"]:
            self._begin_anew(int(about["steps"]), data["parameters"])
        else:
            if self._begun != int(about["begun"]) or self._options.tau != before or self._measured is not None:
                self._begin_anew(int(about["begun"]), {})
            blob = data["co2"].contiguous()
            self._layout.settle()
            self._bring()  # what store() has queued reads the memory that is written now
            with torch.no_grad():
                self._call("ovl_co2_load", c.c_void_p(blob.data_ptr()), c.c_uint64(blob.numel()))
            self._spread()
            torch.set_rng_state(data["rng"])
            # A run on the CPU has none for GPUs, and the other way round.
            for device, numbers in zip(self._staging.devices(), data.get("cuda_rng", ()), strict=False):
                torch.cuda.set_rng_state(numbers, device)
        with torch.no_grad():
            for name, buffer in buffers_of(self._model).items():
                buffer.copy_(data["buffers"][name])
        self._steps = int(about["steps"])
        _checkpoint.load_inner(self.inner_optimizer, self._stepped(), data["inner"])

    def _begin_anew(self, steps: int, parameters: dict[str, torch.Tensor]) -> None:
        """Round 0 again, with what is left of warm-up and of all steps after `steps` of them; collective."""
        self.flush()
        self.close()
        with torch.no_grad():
            for name, values in parameters.items():
                self._layout.kept[name].copy_(values)
        self._restart(steps)

    def _restart(self, steps: int) -> None:
        """Opens the library's part anew, from the parameters as they are; the one before was closed."""
        warmup, total = self._given_steps
        self._options.warmup_sync_steps = max(0, warmup - steps)
        least = self._options.warmup_sync_steps + self._options.cooldown_sync_steps
        self._options.total_steps = max(least, total - steps) if total > 0 else 0
        self._schedule.put(self._options, max(0, steps - warmup))
        self._writes, self._begun = 0, steps
        self._open(self._options, *self._way)

    def save(self, folder: str | Path, *, consolidate: bool = False) -> None:
        """state_dict() of all ranks in `folder`, which all of them see. A rank that is killed meanwhile leaves what was
        saved there before. Collective; an error of one rank is raised on all."""
        state = self.state_dict(consolidate=consolidate)
        key = self._key(consolidate)
        group, _ = self._place
        name = None if consolidate and group != 0 else f"{key}.pt"
        is_first = self._place == (0, 0)
        _checkpoint.write_folder(Path(folder), state["about"], name, state[key], self._everybody, is_first=is_first)

    def load(self, folder: str | Path) -> None:
        """What save() wrote. Nothing changes where a rank refuses it. Collective."""

        def read() -> tuple[dict[str, Any], dict[str, Any]]:
            about, current = _checkpoint.read_current(Path(folder))
            _checkpoint.check_about(about, self._about(), str(current))
            path = current / f"{self._key(bool(about['consolidated']))}.pt"
            return about, _checkpoint.unpack(_checkpoint.read_own(path), str(path))

        self._take(*_checkpoint.agreed(self._everybody, f"load from {folder}", read))
