"""Ranks for the tests on GPUs: processes over NCCL, one per GPU, each with a team of overlace; exact operands."""

import os
import tempfile

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
overlace = pytest.importorskip("overlace", reason="PYTHONPATH does not name the package that the build makes")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
if GPUS < 1:
    pytest.skip("no GPU", allow_module_level=True)
dist = torch.distributed
FEW = min(GPUS, 2)
SIZES = [n for n in (2, 4) if n <= GPUS] or [1]


def work(rank, size, store, body, arguments):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=size)
    with overlace.init(timeout_s=60), torch.device("cuda"):
        body(dist.group.WORLD, *arguments)
        torch.cuda.synchronize()
    dist.destroy_process_group()


def run_ranks(size, body, *arguments):
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (size, os.path.join(folder, "store"), body, arguments), size)


def whole(rows, columns, seed, dtype):
    """Small integers: sums of up to 65536 products are exact in fp32."""
    i, j = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    return ((i * 2654435761 + j * 40503 + seed * 97787) % 1009 % 5 - 2).to(dtype)


def product(a, b):
    return (a.double() @ b.double()).float()
