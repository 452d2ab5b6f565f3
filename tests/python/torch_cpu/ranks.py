"""Ranks for the tests: processes over gloo that stay between tests, with overlace teams of 1, 2 and 3 of them."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rank_pool import Pool, serve

torch = pytest.importorskip("torch", reason="torch is not installed")
overlace = pytest.importorskip("overlace", reason="PYTHONPATH does not name the package that the build makes")
if overlace._WHY_NO_TORCH:
    pytest.skip(overlace._WHY_NO_TORCH, allow_module_level=True)

SIZES = (1, 2, 3)
RANKS = 4  # run_ranks of all: without a team
WAIT_S = 240  # the compiler of torch.compile takes long on a loaded machine
TIMEOUT_S = 20
spare: Any = None  # on ranks 0 and 1: a group of both without a team


def _work(rank: int, ranks: int, store: str, pipe: Any) -> None:
    global spare
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    groups = {size: dist.new_group(list(range(size))) for size in SIZES} | {RANKS: dist.group.WORLD}
    spare = dist.new_group([0, 1])
    for size in SIZES:
        if rank < size:
            overlace.init(groups[size], timeout_s=TIMEOUT_S)
    serve(pipe, lambda size, body, arguments: body(groups[size], *arguments))
    for size in SIZES:
        if rank < size:
            overlace.context_of(groups[size]).close()
    gc.collect()  # models that hold a group: as the last one such a model may wait for ever
    dist.destroy_process_group()


_pool: Pool | None = None


def run_ranks(size: int, body: Callable, *arguments: Any, fresh: bool = False) -> list:
    """`body(group, *arguments)` on `size` ranks; what each gave, in rank order. Fails with what any raised. `fresh`: in
    processes of its own, which see the environment as it is."""
    global _pool
    pool = Pool(RANKS, _work) if fresh or _pool is None or _pool.has_ended else _pool
    if not fresh:
        _pool = pool
    out = pool.run(size, size, body, arguments, wait_s=WAIT_S, grace_s=2 * TIMEOUT_S)
    assert not fresh or pool.end() == []
    return out


def said_by_programs(script: str, size: int, *words: str) -> Iterator[Any]:
    """What `size` processes that run `script` in the environment of torchrun say: JSON, in their last lines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *words],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        for process in processes:
            out, err = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0, err
            yield json.loads(out.splitlines()[-1])
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def whole(rows: int, columns: int, seed: int, dtype: Any = None) -> Any:
    """Small integers that differ by index and seed: sums are exact in any order and dtype."""
    i = torch.arange(rows, dtype=torch.int64)[:, None]
    j = torch.arange(columns, dtype=torch.int64)[None, :]
    hashed = (i * 2654435761 + j * 40503 + seed * 97787 + (i * j) % 31) % 1009
    return (hashed % 5 - 2).to(dtype or torch.float64)


def assert_same(got: Any, want: Any) -> None:
    assert got.shape == want.shape, f"{tuple(got.shape)} is not {tuple(want.shape)}"
    assert got.dtype == want.dtype, f"{got.dtype} is not {want.dtype}"
    bad = (got != want).nonzero()
    assert len(bad) == 0, f"{len(bad)} of {want.numel()} elements differ, first at {bad[0].tolist()}"
