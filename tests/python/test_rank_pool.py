"""Ranks that stay between tests (rank_pool.py)."""

import functools
import os
import signal
import time

import pytest
from rank_pool import Pool, serve


def work(rank, ranks, store, pipe):
    serve(pipe, lambda body, *arguments: body(rank, ranks, *arguments))


def leaves_at_once(rank, ranks, store, pipe):
    if rank == 1:
        os._exit(7)
    work(rank, ranks, store, pipe)


def ends_badly(rank, ranks, store, pipe):
    work(rank, ranks, store, pipe)
    os._exit(4 * rank)


@pytest.fixture
def pool_of():
    pools = []

    def make(function):
        pools.append(Pool(2, function))
        return pools[-1], functools.partial(pools[-1].run, 2, wait_s=30, grace_s=0.5)

    yield make
    for pool in pools:
        pool.kill()


def told(rank, ranks, text):
    return f"{text} {rank} of {ranks}", os.getpid()


def test_ranks_answer_in_their_order_and_stay(pool_of):
    pool, run = pool_of(work)
    first, again = run(told, "rank"), run(told, "rank")
    assert [text for text, _ in first] == ["rank 0 of 2", "rank 1 of 2"]
    assert first == again and not pool.has_ended
    assert pool.run(1, told, "rank", wait_s=30, grace_s=1) == first[:1]
    assert pool.end() == [] and pool.has_ended and pool.end() == []


def raises(rank, ranks):
    if rank == 1:
        raise ValueError("wrong on one")
    time.sleep(20)


def leaves(rank, ranks):
    if rank == 0:
        os._exit(3)


@pytest.mark.parametrize(
    ("function", "body", "texts"),
    [
        (work, raises, ["rank 0: did not answer", "ValueError: wrong on one"]),
        (work, leaves, ["rank 0: ended with status 3"]),
        (leaves_at_once, leaves, ["rank 0: ended with status 3", "rank 1: ended with status 7"]),
    ],
)
def test_what_fails_is_named_and_nobody_waits_for_the_others(pool_of, function, body, texts):
    pool, run = pool_of(function)
    pool.processes[1].join(5 if function is leaves_at_once else 0)
    begin = time.monotonic()
    with pytest.raises(pytest.fail.Exception) as failed:
        run(body)
    assert all(text in str(failed.value) for text in texts), str(failed.value)
    assert time.monotonic() - begin < 15
    assert pool.has_ended and not any(process.is_alive() for process in pool.processes)


def test_one_that_is_killed_between_jobs_is_named(pool_of):
    pool, run = pool_of(work)
    run(told, "rank")
    os.kill(pool.processes[0].pid, signal.SIGKILL)
    pool.processes[0].join()
    with pytest.raises(pytest.fail.Exception, match="rank 0: ended with status -9"):
        run(told, "rank")
    assert pool.has_ended


def test_an_end_with_another_status_is_told(pool_of):
    pool, run = pool_of(ends_badly)
    run(told, "rank")
    assert pool.end() == ["rank 1 ended with status 4"]
