"""Ranks that stay between tests (rank_pool.py)."""

import os
import time

import pytest
from rank_pool import Pool, serve


def work(rank, ranks, store, pipe):
    serve(pipe, lambda body, *arguments: body(rank, ranks, *arguments))


@pytest.fixture
def pool():
    pool = Pool(2, work, wait_s=30, grace_s=0.5)
    yield pool
    pool.end()


def told(rank, ranks, text):
    return f"{text} {rank} of {ranks}", os.getpid()


def test_ranks_answer_in_their_order_and_stay(pool):
    first, again = pool.run(2, told, "rank"), pool.run(2, told, "rank")
    assert [text for text, _ in first] == ["rank 0 of 2", "rank 1 of 2"]
    assert first == again and not pool.has_ended
    assert pool.run(1, told, "rank") == first[:1]


def raises(rank, ranks):
    if rank == 1:
        raise ValueError("wrong on one")
    time.sleep(20)


def leaves(rank, ranks):
    if rank == 0:
        os._exit(3)


@pytest.mark.parametrize(
    ("body", "texts"),
    [(raises, ["rank 0: did not answer", "ValueError: wrong on one"]), (leaves, ["rank 0: ended"])],
)
def test_what_fails_is_named_and_nobody_waits_for_the_others(pool, body, texts):
    begin = time.monotonic()
    with pytest.raises(pytest.fail.Exception) as failed:
        pool.run(2, body)
    assert all(text in str(failed.value) for text in texts), str(failed.value)
    assert time.monotonic() - begin < 15
    assert pool.has_ended and not any(process.is_alive() for process in pool.processes)
