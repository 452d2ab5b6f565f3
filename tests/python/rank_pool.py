"""Ranks as processes that stay between tests, as to start them takes longer than most tests."""

from __future__ import annotations

import atexit
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
    """`work(rank, ranks, store, pipe)` in a process each; `store` is a file for init_process_group. Ranks answer within
    `wait_s`, and within `grace_s` of the first that failed. After a failure the pool has ended."""

    def __init__(self, ranks: int, work: Callable, wait_s: float, grace_s: float) -> None:
        context = mp.get_context("spawn")
        self.ranks, self.wait_s, self.grace_s, self.has_ended = ranks, wait_s, grace_s, False
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
        atexit.register(self.end)

    def run(self, size: int, *job: Any) -> list:
        """The job on the first `size` ranks; what each gave, in rank order. Fails with what any raised."""
        for pipe in self.pipes[:size]:
            pipe.send(job)
        waiting = {pipe: rank for rank, pipe in enumerate(self.pipes[:size])}
        answers: list[tuple[bool, Any]] = [(False, "did not answer")] * size
        end = time.monotonic() + self.wait_s
        while waiting and (ready := wait(list(waiting), max(end - time.monotonic(), 0))):
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    answers[rank] = (False, "ended")
                if not answers[rank][0]:
                    end = min(end, time.monotonic() + self.grace_s)
        failures = [f"rank {rank}: {text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failures:
            self.end(kindly=False)
            pytest.fail("\n".join(failures), pytrace=False)
        return [value for _, value in answers]

    def end(self, kindly: bool = True) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        atexit.unregister(self.end)
        for pipe in self.pipes if kindly else []:
            pipe.send(None)
        for process in self.processes:
            process.join(30 if kindly else 0)
            if process.is_alive():
                process.kill()
                process.join()
        self.folder.cleanup()
