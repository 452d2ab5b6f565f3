"""Batches of packs on CUDA devices: those of the CPU, whoever computes meanwhile and however long batches are kept.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_packed_loader.py`.
"""

import os
import shutil
import subprocess

import numpy as np
import pytest
from gpu_ranks import GPUS, torch

gnn = pytest.importorskip("overlace.gnn")
KEYS = ("x", "y", "n_id", "edge_index")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return gnn.generate(tmp_path_factory.mktemp("gnn") / "data", num_vertices=2**12, dim=25, seed=3)


@pytest.fixture(scope="module")
def run(dataset):
    made = gnn.OfflineSampler(dataset, [5, 3], batch_size=32, seed=7).run(f"{dataset.path}.ovg")
    return gnn.pack(made, cpu_cache="16KiB", order="fixed")


def check(run, device, **options):
    with gnn.PackedLoader(run, **options) as loader:
        known = [batch for _ in range(2) for batch in loader]
    with gnn.PackedLoader(run, device=device, **options) as loader:
        kept, sums = [], []
        for _ in range(2):
            for batch in loader:
                torch.cuda._sleep(200_000)  # the copy of a later batch passes the computation on this one
                sums.append(batch.x.float().sum())
                kept.append(batch)
    assert len(kept) == len(known)
    for got, want, total in zip(kept, known, sums, strict=True):
        for key in KEYS:
            mine, theirs = getattr(got, key), getattr(want, key)
            assert mine.device == torch.device("cuda", torch.device(device).index or 0)
            assert mine.dtype == theirs.dtype and torch.equal(mine.cpu(), theirs), (got.number, key)
        assert torch.equal(total, got.x.float().sum())
        assert got.num_sampled_nodes == want.num_sampled_nodes and got.number == want.number


@pytest.mark.parametrize("copy", [True, False])
def test_batches_are_those_of_the_cpu(run, copy):
    with gnn.PackedLoader(run) as loader:
        known = list(loader)
    with gnn.PackedLoader(run, device="cuda", copy=copy) as loader:
        for want, got in zip(known, loader, strict=True):
            for key in KEYS:
                assert getattr(got, key).is_cuda and torch.equal(getattr(got, key).cpu(), getattr(want, key))
    check(run, "cuda")


@pytest.mark.skipif(GPUS < 2, reason="wants two GPUs")
def test_another_device_than_the_current_one(run):
    check(run, "cuda:1")


def test_batches_of_another_stream(run):
    with torch.cuda.stream(torch.cuda.Stream()):
        check(run, "cuda")
        torch.cuda.current_stream().synchronize()


def test_rows_of_bf16(dataset):
    program = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if program is None:
        pytest.skip("the command line is not there")
    path = dataset.path.parent / "bf16"
    path.mkdir()
    for name in ("indptr", "indices", "labels", "train"):
        shutil.copy(dataset.path / f"{name}.npy", path)
    np.save(path / "features.npy", (np.array(dataset.features).view(np.uint32) >> 16).astype(np.uint16))
    subprocess.run([program, "gnn", "import", str(path), "--in-place", "--bf16", "--quiet"], check=True, timeout=60)
    made = gnn.OfflineSampler(gnn.Dataset(path), [4, 3], batch_size=32, seed=7).run(f"{path}.ovg")
    check(gnn.pack(made, cpu_cache="4KiB", order="fixed"), "cuda")


def test_a_model_is_trained(run):
    from overlace.gnn.nn import Model

    torch.manual_seed(1)
    with gnn.PackedLoader(run, device="cuda") as loader:
        model = Model("sage", loader.dim, 16, loader.num_classes, layers=2).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(4):
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
    seen = torch.stack(losses).cpu()
    assert seen.isfinite().all() and seen[-len(seen) // 4 :].mean() < 0.9 * seen[: len(seen) // 4].mean()
