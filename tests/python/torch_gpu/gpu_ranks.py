"""Ranks for the tests on GPUs: processes over NCCL, one per GPU, that stay between tests; exact operands."""

import gc
import os

import pytest
from rank_pool import Pool, end_all, serve

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # of processes of all tests: no multicast
torch = pytest.importorskip("torch", reason="torch is not installed")
overlace = pytest.importorskip("overlace", reason="PYTHONPATH does not name the package that the build makes")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
if GPUS < 1:
    pytest.skip("no GPU", allow_module_level=True)
dist = torch.distributed
FEW = min(GPUS, 2)
SIZES = [n for n in (2, 4) if n <= GPUS] or [1]


def _work(rank, ranks, store, pipe):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)

    def run(body, arguments):
        torch.manual_seed(1)
        with overlace.init(timeout_s=60), torch.device("cuda"):
            body(dist.group.WORLD, *arguments)
            torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()

    serve(pipe, run)
    dist.destroy_process_group()


_pools = {}


def run_ranks(size, body, *arguments, fresh=False, wait_s=300):
    """`body(group, *arguments)` on `size` ranks in a team of its own. `fresh`: in processes of its own, too."""
    if fresh:
        assert end_all() == []
    if size not in _pools or _pools[size].has_ended:
        _pools[size] = Pool(size, _work)
    _pools[size].run(size, body, arguments, wait_s=wait_s, grace_s=5)
    if fresh:
        assert end_all() == []


def whole(rows, columns, seed, dtype):
    """Small integers: sums of up to 65536 products are exact in fp32."""
    i, j = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    return ((i * 2654435761 + j * 40503 + seed * 97787) % 1009 % 5 - 2).to(dtype)


def product(a, b):
    return (a.double() @ b.double()).float()
