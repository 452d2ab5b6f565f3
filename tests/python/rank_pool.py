"""Ranks as processes that stay between tests, as to start them takes longer than most tests."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import pytest


def serve(pipe: Any, run: Callable) -> None:
    """On a rank: `run(*job)` for each job until the pool ends; what it returns or raises is the answer."""
    while (job := pipe.recv()) is not None:
        try:
            pipe.send((True, run(*job)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


class Pool:
    """`work(rank, ranks, store, pipe)` in a process each; `store` is a file for init_process_group. After a failure the
    pool has ended."""

    def __init__(self, ranks: int, work: Callable) -> None:
        context = mp.get_context("spawn")
        self.ranks, self.has_ended = ranks, False
        self.folder = tempfile.TemporaryDirectory(prefix="overlace-")
        store = os.path.join(self.folder.name, "store")
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            mine, theirs = context.Pipe()
            process = context.Process(target=work, args=(rank, ranks, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)
        _open.append(self)

    def run(self, size: int, *job: Any, wait_s: float, grace_s: float) -> list:
        """The job on the first `size` ranks; what each gave, in rank order. Fails with what any raised. Ranks answer
        within `wait_s`, and within `grace_s` of the first that failed."""
        answers: list[tuple[bool, Any]] = [(False, "did not answer")] * size
        waiting = {pipe: rank for rank, pipe in enumerate(self.pipes[:size])}
        for pipe in waiting:
            with contextlib.suppress(OSError):  # of a rank that has ended: so says what is read from it
                pipe.send(job)
        end = time.monotonic() + wait_s
        while waiting and (ready := wait(list(waiting), max(end - time.monotonic(), 0))):
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, OSError):
                    self.processes[rank].join(5)
                    answers[rank] = (False, f"ended with status {self.processes[rank].exitcode}")
                if not answers[rank][0]:
                    end = min(end, time.monotonic() + grace_s)
        failures = [f"rank {rank}: {text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failures:
            self.kill()
            pytest.fail("\n".join(failures), pytrace=False)
        return [value for _, value in answers]

    def end(self) -> list[str]:
        """Lets the ranks leave; which of them did not in two minutes, or with another status than 0."""
        for pipe in self.pipes if not self.has_ended else []:
            with contextlib.suppress(OSError):
                pipe.send(None)
        end = time.monotonic() + 120
        for process in self.processes if not self.has_ended else []:
            process.join(max(end - time.monotonic(), 0))
        codes = [] if self.has_ended else [process.exitcode for process in self.processes]
        self.kill()
        told = ("did not end" if code is None else f"ended with status {code}" for code in codes)
        return [f"rank {rank} {text}" for rank, (code, text) in enumerate(zip(codes, told, strict=True)) if code != 0]

    def kill(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        _open.remove(self)
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


_open: list[Pool] = []


def end_all() -> list[str]:
    """All pools; what their ranks did wrong then."""
    return [text for pool in [*_open] for text in pool.end()]
