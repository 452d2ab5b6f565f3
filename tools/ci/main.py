"""Continuous integration without a GPU: `.ci/run [list | quick | thorough | weekly | JOB...]`; prints what failed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_status
import jobs
import runner
from results import FAILED, SKIPPED, Case, Ran, Results
from runner import OUT, ROOT, make_room


def chosen(arguments: list[str]) -> list[str]:
    names = list(jobs.JOBS)
    daily = [n for n in names if n not in jobs.WEEKLY_ONLY]
    if not arguments:
        return daily
    if arguments in (["quick"], ["thorough"]):
        return [n for n in daily if (n in jobs.QUICK) == (arguments == ["quick"])]
    if arguments == ["weekly"]:
        return names
    unknown = [a for a in arguments if a not in names]
    if unknown:
        sys.exit(f"unknown job {', '.join(unknown)}; there are: {', '.join(names)}, quick, thorough, weekly")
    return arguments


def processor_seconds() -> float:
    """Processor time of all processes that ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_job(name: str) -> Ran:
    start, used = time.monotonic(), processor_seconds()
    print(f"== {name}", flush=True)
    if runner.is_over():
        return Ran(name, [Case("job", SKIPPED, runner.OVER)])
    cases = []
    try:
        for case in jobs.JOBS[name]():
            cases.append(case)
            if case.outcome == FAILED:
                print(f"FAILED {name}: {case.name}\n{case.detail}", flush=True)
    except Exception:  # a broken job is a failure of that job; the others still run
        cases.append(Case("job", FAILED, traceback.format_exc()))
        traceback.print_exc()
    ran = Ran(name, cases, time.monotonic() - start, processor_seconds() - used)
    print(f"== {name}: {ran.counts()} in {ran.clock_s:.1f} s", flush=True)
    return ran


def run_lane(lane: jobs.Lane) -> Iterator[Ran]:
    for name in lane.names:
        yield run_job(name)
        for folder in make_room() if lane.may_make_room else []:
            print(f"   little disk space: removed {folder}, which no other job needs", flush=True)


def tell(lane: jobs.Lane, results: Connection, parents: Connection) -> None:
    """In a process of its own, so that the processor time of its jobs is theirs. Ends with the job that runs when the
    parent does: nobody reads its results then."""
    parents.close()
    if lane.is_patient:
        runner.be_patient()
    for ran in run_lane(lane):
        results.send(ran)


def told(results: Connection, lane: jobs.Lane, into: list[Ran]) -> None:
    """What a lane tells, as it tells it: its process would wait where a pipe is full."""
    with contextlib.suppress(EOFError):
        while len(into) < len(lane.names):
            into.append(results.recv())


def run_beside(lanes: list[jobs.Lane]) -> Iterator[Ran]:
    """The first lane here, the others each in a process."""
    fork, others = multiprocessing.get_context("fork"), []
    for lane in lanes[1:]:
        mine, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=tell, args=(lane, theirs, mine))
        process.start()
        theirs.close()
        others.append((lane, process, mine))
    listeners = []
    for lane, process, mine in others:
        ran: list[Ran] = []
        listener = threading.Thread(target=told, args=(mine, lane, ran))
        listener.start()
        listeners.append((lane, process, listener, ran))
    yield from run_lane(lanes[0])
    for lane, process, listener, ran in listeners:
        listener.join()
        process.join()
        yield from ran
        left = lane.names[len(ran) :]
        yield from (Ran(n, [Case("job", FAILED, f"its process ended: {process.exitcode}")], 0, 0) for n in left)


def main(arguments: list[str]) -> int:
    if arguments == ["list"]:
        print("\n".join(f"{name:<12} {' '.join((job.__doc__ or '').split())}" for name, job in jobs.JOBS.items()))
        return 0
    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)
    names, start = chosen(arguments), time.monotonic()
    ran = [done for lanes in jobs.lanes(names, runner.has_room_for_all()) for done in run_beside(lanes)]
    results = Results(sorted(ran, key=lambda done: names.index(done.job)), time.monotonic() - start)
    text, last_line = results.report()
    print(text, f"On GPUs: {gpu_status.sentence(ROOT)}\n", sep="\n", flush=True)
    summary = os.environ.get("OVERLACE_CI_SUMMARY")
    if summary:
        Path(summary).write_text(last_line + "\n")
    else:
        print(last_line, flush=True)
    return 0 if results.ok() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
