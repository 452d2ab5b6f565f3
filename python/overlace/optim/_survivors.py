"""Which groups are left when one is lost, and from where they go on."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from overlace.context import process_group
from overlace.errors import Error, InvalidArgument, PeerLost, Timeout, Unsupported

if TYPE_CHECKING:
    from overlace.optim.co2 import CO2

_LOOK_S = 0.02


def _start_of(pid: int) -> tuple[str, str]:
    """State of a process and when it began, which tells it from a later one of that number."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def _where() -> list[str]:
    """Processes with these alike see each other's numbers."""
    return [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]


def own_process() -> list[str]:
    return [*_where(), str(os.getpid()), _start_of(os.getpid())[1]]


def is_gone(process: list[str]) -> bool:
    """It has ended or was stopped. False where that cannot be seen from here."""
    *where, pid, start = process
    if where != _where():
        return False
    try:
        state, begun = _start_of(int(pid))
    except (OSError, IndexError):
        return True
    return begun != start or state in "ZXT"


class Survivors:
    """Membership of the groups, each of one rank. `ranks`: of the program, of those that are in. `lost`: of those that
    are not any more. Collective."""

    def __init__(self, group: dist.ProcessGroup, deadline: datetime.timedelta, min_groups: int) -> None:
        everybody: list = [None] * group.size()
        dist.all_gather_object(everybody, (secrets.token_hex(8), own_process()), group=group)
        self.ranks: list[int] = dist.get_process_group_ranks(group)
        self.lost: list[int] = []
        self._token = everybody[0][0]
        self._processes = {rank: process for rank, (_, process) in zip(self.ranks, everybody, strict=True)}
        self._deadline = deadline
        self._min_groups = min_groups
        self._me = dist.get_rank()
        self._generation = 0
        self._rounds = 0  # taken in before the handle of now was opened
        self._resume_at = 0
        self._anchor: torch.Tensor | None = None  # of a rank that is behind

    # ---- who is left ----

    def _agree(self, step: int, error: Error) -> int:
        """What the first to see who is left writes into the store holds for all. Returns the step of the latest."""
        self._generation += 1
        try:
            decided = self._decide(step)
        except RuntimeError as failure:  # torch's, of its store
            raise PeerLost(
                f"{error}; the store of torch.distributed, by which groups agree who is left, is lost too: {failure}"
            ) from error
        left, lost = decided["ranks"], [rank for rank in self.ranks if rank not in decided["ranks"]]
        if self._me not in left:
            raise PeerLost(
                f"CO2: ranks {_words(left)} went on at step {decided['step']} without rank {self._me}, which came "
                f"later than outer_timeout_s of {self._deadline.total_seconds():g} s; {error}"
            )
        if not lost:
            raise error
        self.ranks = left
        self.lost += lost
        if len(left) < self._min_groups:
            raise PeerLost(
                f"CO2: ranks {_words(self.lost)} are lost and {len(left)} groups are left, wanted: at least "
                f"min_groups, {self._min_groups}; {error}"
            ) from error
        warnings.warn(
            f"CO2: rank {_words(lost)} is lost; {len(left)} groups go on at step {decided['step']}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return int(decided["step"])

    def _decide(self, step: int) -> dict:
        store = dist.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]  # torch documents it here
            f"overlace/{self._token}/{self._generation}", dist.distributed_c10d._get_default_store()
        )
        store.set(f"step/{self._me}", str(step))
        end = time.monotonic() + self._deadline.total_seconds()

        def has_come(rank: int) -> bool:
            return store.check([f"step/{rank}"])

        # Others may be within inner steps, and see what has happened at their next boundary.
        while time.monotonic() < end and not store.check(["left"]):
            if all(has_come(rank) or is_gone(self._processes[rank]) for rank in self.ranks):
                break
            time.sleep(_LOOK_S)
        left = [rank for rank in self.ranks if has_come(rank)]
        own = {"ranks": left, "step": max(int(store.get(f"step/{rank}")) for rank in left)}
        return json.loads(store.compare_set("left", "", json.dumps(own)))

    # ---- from where they go on ----

    def go_on(self, co2: CO2, error: Error) -> None:
        """After a failed call of the library: all that are left have the anchor of one of those that took in most
        rounds, and begin a round at the step of the latest. Raises `error` if nobody is lost."""
        rounds, anchor = self._rounds + int(co2.stats()["rounds"]), co2._anchor()
        while True:
            step = self._agree(co2._steps, error)
            try:
                with contextlib.suppress(Error):  # why it failed is known
                    co2.close()
                rounds = self._spread(co2, rounds, anchor)
                co2._restart(step)
            except (Timeout, PeerLost) as later:  # one more is lost meanwhile
                error = later
                continue
            self._rounds, self._resume_at = rounds, step
            self._anchor = anchor if co2._steps < step else None
            return

    def _spread(self, co2: CO2, rounds: int, anchor: torch.Tensor) -> int:
        """`anchor` becomes that of the first rank that took in most rounds. Returns their number."""
        everybody: list = [None] * len(self.ranks)
        try:
            co2.group = process_group(
                dist.new_group(self.ranks, timeout=self._deadline, backend="gloo", use_local_synchronization=True)
            )
            dist.all_gather_object(everybody, rounds, group=co2.group)
            most = max(everybody)
            dist.broadcast(anchor, self.ranks[everybody.index(most)], group=co2.group)
        except RuntimeError as failure:  # torch's
            raise PeerLost(f"CO2: a group of ranks {_words(self.ranks)}, which are left: {failure}") from failure
        co2._put(anchor)
        return most

    def is_behind(self, co2: CO2) -> bool:
        """After a step: it is one that others had done when they learned of the loss. What such steps made is left out,
        as theirs was."""
        if co2._steps > self._resume_at or self._anchor is None:
            return False
        if co2._steps == self._resume_at:
            co2._put(self._anchor)
            self._anchor = None
        return True

    def waits(self) -> bool:
        """The next step is one of those."""
        return self._anchor is not None


def _words(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def survivors_of(co2: CO2, on_failure: object, min_groups: object, transport: str, samples: object) -> Survivors | None:
    """None where a lost group ends the run. Collective."""
    if on_failure not in ("abort", "drop_group"):
        raise InvalidArgument(f"CO2: on_failure is {on_failure!r}, wanted one of 'abort', 'drop_group'")
    if isinstance(min_groups, bool) or not isinstance(min_groups, int) or min_groups < 1:
        raise InvalidArgument(f"CO2: min_groups is {min_groups!r}, wanted: an integer of at least 1")
    if on_failure == "abort":
        return None
    if transport == "process_group":
        raise Unsupported("CO2: on_failure is 'drop_group' with transport 'process_group'; supported: 'host'")
    for name, value in (("inner_group", co2.inner_group), ("samples", samples)):
        if value is not None:
            raise Unsupported(f"CO2: on_failure is 'drop_group' with {name} {value!r}; supported: None")
    if co2._is_auto:
        raise Unsupported("CO2: on_failure is 'drop_group' with tau 'auto'; supported: a number")
    return Survivors(co2.group, co2._deadline, min_groups)


def exchange(co2: CO2, survivors: Survivors | None, name: str, *arguments: object) -> bool:
    """A call of the library that waits for other groups, or in its place a new beginning without those that are lost.
    Returns whether it was the latter."""
    try:
        co2._call(name, *arguments)
    except (Timeout, PeerLost) as error:
        if survivors is None:
            raise
        survivors.go_on(co2, error)
        return True
    return False
