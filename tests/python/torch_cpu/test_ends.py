"""Waits that end before their deadline: by Ctrl-C, by another signal, by sys.exit of a peer, by calls that differ."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from ranks import overlace  # noqa: F401  (skips where the package cannot be imported)

BODY = """
import signal, sys, time
import torch, torch.distributed as dist, overlace
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
overlace.init(timeout_s=120)
x, w = torch.ones(4, 6), torch.ones(6, 5)
for _ in range(3):
    overlace.ops.ag_gemm(x, w, group=dist.group.WORLD)
def stop(*_):
    raise SystemExit("told to stop")
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
print("ready", flush=True)
"""
CALL = "overlace.ops.ag_gemm(x, w, group=dist.group.WORLD)\n"
# The call, and the time on the clock of the machine at which its wait has ended, however it did.
TIMED = f"try:\n    {CALL}finally:\n    print(time.monotonic(), flush=True)\n"
SOON_S = 1  # what the waits are held to; it was the deadline, 120 s


def start(tmp_path, endings):
    """Two processes that have made three calls, and then run these lines."""
    return [
        subprocess.Popen(
            [sys.executable, "-c", BODY + ending, str(rank), str(tmp_path / "store")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, ending in enumerate(endings)
    ]


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "told to stop")])
def test_a_signal_ends_a_wait_and_the_others_are_told(tmp_path, number, wanted):
    processes = start(tmp_path, [TIMED, "time.sleep(8)\n" + CALL])
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
        time.sleep(2)  # rank 0 waits
        begin = time.monotonic()
        processes[0].send_signal(number)
        out, text = processes[0].communicate(timeout=60)
        assert float(out) - begin < SOON_S
        assert processes[0].returncode != 0
        assert wanted in text
        theirs = processes[1].communicate(timeout=60)[1]
        assert "aborted by rank 0: rank 0 was interrupted while it waited for rank 1" in theirs
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_rank_that_exits_is_named_to_who_waits_for_it(tmp_path):
    processes = start(tmp_path, [TIMED, "time.sleep(2)\nprint(time.monotonic(), flush=True)\nsys.exit(0)\n"])
    try:
        out, text = processes[0].communicate(timeout=100)
        begin = processes[1].communicate(timeout=100)[0]
        assert float(out.splitlines()[1]) - float(begin.splitlines()[1]) < SOON_S
        assert "PeerLost: lost rank 1: it has called close(); rank 0 waited for rank 1" in text
        assert processes[1].wait(timeout=60) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_handler_that_raises_nothing_ends_no_wait(tmp_path):
    quiet = "signal.signal(signal.SIGUSR1, lambda *_: print('seen', flush=True))\nprint('set', flush=True)\n"
    processes = start(tmp_path, [quiet + CALL + "print('done')\n", "time.sleep(2)\n" + CALL])
    try:
        for line in ("ready\n", "set\n"):
            assert processes[0].stdout.readline() == line
        time.sleep(0.5)
        processes[0].send_signal(signal.SIGUSR1)
        assert processes[0].stdout.readline() == "seen\n"  # while it waits
        out, err = processes[0].communicate(timeout=60)
        assert out == "done\n", err
        assert processes[1].wait(timeout=60) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_calls_that_differ_after_warm_calls_name_both(tmp_path, is_known):
    """4 rows on one rank and 5 on the other, which both know or which are new there."""
    five = "x = torch.ones(5, 6)\n"
    both = five + f"{CALL}x = torch.ones(4, 6)\n" if is_known else ""
    arrive = "dist.barrier()\nprint(time.monotonic(), flush=True)\n"
    processes = start(tmp_path, [both + arrive + TIMED, both + five + arrive + TIMED])
    try:
        for process in processes:
            out, text = process.communicate(timeout=100)
            begin, end = map(float, out.splitlines()[1:])
            assert end - begin < SOON_S
            for rank, rows in ((0, 8), (1, 10)):
                assert re.search(rf"rank {rank} (makes|has|has begun) ag_gemm M {rows} K 6 ", text), text
    finally:
        for process in processes:
            process.kill()
            process.communicate()
