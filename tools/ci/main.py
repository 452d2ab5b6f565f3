"""Continuous integration without a GPU: `.ci/run [list | quick | thorough | weekly | JOB...]`; prints what failed."""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_status
import jobs
from results import FAILED, Case, Results
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
    """Of all processes that ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: list[str]) -> int:
    if arguments == ["list"]:
        print("\n".join(f"{name:<12} {' '.join((job.__doc__ or '').split())}" for name, job in jobs.JOBS.items()))
        return 0
    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)
    results = Results()
    for name in chosen(arguments):
        start, used = time.monotonic(), processor_seconds()
        print(f"== {name}", flush=True)
        try:
            for case in jobs.JOBS[name]():
                results.add(name, case)
                if case.outcome == FAILED:
                    print(f"FAILED {name}: {case.name}\n{case.detail}", flush=True)
        except Exception:  # a broken job is a failure of that job; the others still run
            results.add(name, Case("job", FAILED, traceback.format_exc()))
            traceback.print_exc()
        results.seconds.append((name, time.monotonic() - start, processor_seconds() - used))
        print(f"== {name}: {results.counts(name)} in {results.seconds[-1][1]:.1f} s", flush=True)
        for folder in make_room():
            print(f"   little disk space: removed {folder}, which no other job needs", flush=True)
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
