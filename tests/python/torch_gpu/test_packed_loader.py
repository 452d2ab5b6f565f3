"""Batches of packs on CUDA devices: those of the CPU, whoever computes meanwhile and however long batches are kept.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_packed_loader.py`.
"""

import os
import shutil
import subprocess

import numpy as np
import overlace
import pytest
from gpu_ranks import FEW, GPUS, dist, run_ranks, torch

gnn = pytest.importorskip("overlace.gnn")
KEYS = ("x", "y", "n_id", "edge_index")
NARROW, WIDE = 25, 160  # rows that CPUs stage; rows that the GPU reads from the CPU's cache
PACKS = {  # by policy
    "static": {"order": "shuffle"},
    "belady": {"order": "segments", "segment": 9},
    "lru": {"order": "fixed"},
    "none": {"order": "shuffle"},
}


@pytest.fixture(scope="module", params=[NARROW, WIDE], ids=["narrow", "wide"])
def dataset(request, tmp_path_factory):
    return gnn.generate(tmp_path_factory.mktemp("gnn") / "data", num_vertices=2**12, dim=request.param, seed=3)


@pytest.fixture(scope="module")
def run(dataset):
    made = gnn.OfflineSampler(dataset, [5, 3], batch_size=32, seed=7).run(f"{dataset.path}.ovg")
    return gnn.pack(made, gpu_cache="16KiB", cpu_cache="64KiB", order="fixed")


def fresh(dataset, name):
    """Samples of their own, to be packed otherwise."""
    return gnn.OfflineSampler(dataset, [5, 3], batch_size=16, seed=7, epochs=2).run(f"{dataset.path}-{name}.ovg")


def same(got, want):
    for key in KEYS:
        mine, theirs = getattr(got, key), getattr(want, key)
        assert mine.is_cuda and mine.dtype == theirs.dtype, (got.number, key)
        assert torch.equal(mine.cpu(), theirs), (got.number, key)
    assert got.num_sampled_nodes == want.num_sampled_nodes and got.number == want.number
    assert got.num_sampled_edges == want.num_sampled_edges


def check(run, device, **options):
    with gnn.PackedLoader(run, **options) as loader:
        known = [batch for _ in range(2) for batch in loader]
    with gnn.PackedLoader(run, device=device, **options) as loader:
        assert loader.device_bytes > 0
        kept, sums = [], []
        for _ in range(2):
            for batch in loader:
                torch.cuda._sleep(200_000)  # what comes for later batches passes the computation on this one
                sums.append(batch.x.float().sum())
                kept.append(batch)
    assert len(kept) == len(known)
    for got, want, total in zip(kept, known, sums, strict=True):
        same(got, want)
        assert got.x.device == torch.device("cuda", torch.device(device).index or 0)
        assert torch.equal(total, got.x.float().sum())


@pytest.mark.parametrize("copy", [True, False])
def test_batches_are_those_of_the_cpu(run, copy):
    with gnn.PackedLoader(run) as loader:
        known = list(loader)
    with gnn.PackedLoader(run, device="cuda", copy=copy) as loader:
        for want, got in zip(known, loader, strict=True):
            same(got, want)
    check(run, "cuda")


@pytest.mark.parametrize("policy", PACKS)
def test_every_policy_and_order(dataset, policy):
    caches = {} if policy == "none" else {"gpu_cache": "12KiB", "cpu_cache": "48KiB"}
    made = gnn.pack(fresh(dataset, policy), policy=policy, depth=2, **caches, **PACKS[policy])
    check(made, "cuda", order_seed=5)
    with gnn.PackedLoader(made, device="cuda") as loader:
        list(loader)
        stats = loader.stats()
        assert (stats["gpu_rows"] > 0) == (stats["cpu_rows"] > 0) == (policy != "none") and stats["ring_rows"] > 0
        assert (stats["admitted"] > 0) == (policy in ("belady", "lru"))


@pytest.mark.parametrize("gpu_cache, cpu_cache", [("64KiB", None), (None, "64KiB"), ("64MiB", None), (None, "64MiB")])
def test_levels_that_are_empty_or_have_all_rows(dataset, gpu_cache, cpu_cache):
    made = fresh(dataset, f"{gpu_cache}-{cpu_cache}")
    check(gnn.pack(made, gpu_cache=gpu_cache, cpu_cache=cpu_cache, order="fixed"), "cuda")


def test_pages_of_a_disk_cache(dataset):
    made = fresh(dataset, "disk")
    made = gnn.pack(made, "8KiB", "32KiB", disk=dataset.features.nbytes, order="segments", segment=9, depth=2)
    check(made, "cuda")


def test_a_batch_that_is_not_copied_is_read_until_the_next_is_taken(run):
    with gnn.PackedLoader(run) as loader:
        known = [batch.x.double().sum().item() for _ in range(3) for batch in loader]
    with gnn.PackedLoader(run, device="cuda", copy=False) as loader:
        sums = []
        for _ in range(3):
            for batch in loader:
                torch.cuda._sleep(2_000_000)  # the host is far ahead; what it took before is read now
                sums.append(batch.x.double().sum())
    assert torch.allclose(torch.stack(sums).cpu(), torch.tensor(known, dtype=torch.float64), rtol=1e-12, atol=1e-9)


def test_each_batch_and_each_epoch_may_be_another_stream_s(run):
    with gnn.PackedLoader(run) as loader:
        known = [batch.x.double().sum().item() for _ in range(4) for batch in loader]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with gnn.PackedLoader(run, device="cuda", copy=False) as loader:
        sums = []
        for epoch in range(4):
            batches = iter(loader)
            for i in range(len(loader)):
                with torch.cuda.stream(streams[(i + epoch) % 2 if epoch < 2 else epoch % 2]):
                    batch = next(batches)
                    torch.cuda._sleep(2_000_000)  # what is on the other stream may pass it
                    sums.append(batch.x.double().sum())
            assert next(batches, None) is None
    torch.cuda.synchronize()
    assert torch.allclose(torch.stack(sums).cpu(), torch.tensor(known, dtype=torch.float64), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("copy", [True, False])
def test_breaks_and_resumes(run, copy):
    with gnn.PackedLoader(run) as loader:
        whole = [list(loader) for _ in range(3)]
    with gnn.PackedLoader(run, device="cuda", copy=copy) as loader:
        for epoch, most in ((0, 4), (1, 1)):
            for i, got in enumerate(loader):
                torch.cuda._sleep(2_000_000)  # under way when the loop is left
                same(got, whole[epoch][i])
                if i == most:
                    break
        state = loader.state_dict()
        for got, want in zip(loader, whole[2], strict=True):
            same(got, want)
    with gnn.PackedLoader(run, device="cuda", copy=copy) as loader:
        loader.load_state_dict(state)
        for got, want in zip(loader, whole[1][2:], strict=True):
            same(got, want)


def test_a_loader_may_be_closed_at_any_time(run):
    with gnn.PackedLoader(run) as loader:
        known = [batch.x for batch in loader]
    before = 0
    for turn in range(14):
        if turn == 2:  # behind what the first use of anything takes
            before = torch.cuda.mem_get_info()[0]
        loader = gnn.PackedLoader(run, device="cuda")
        kept = []
        for batch in loader:
            torch.cuda._sleep(500_000)
            kept.append(batch.x)
            if len(kept) > turn % 5:
                break
        loader.close()
        for got, want in zip(kept, known, strict=False):
            assert torch.equal(got.cpu(), want)
        with pytest.raises(overlace.Error, match="closed"):
            next(iter(loader))
    assert torch.cuda.mem_get_info()[0] > before - (64 << 20)


def test_damage_is_named_and_another_epoch_can_begin(dataset):
    made = gnn.pack(fresh(dataset, "damage"), gpu_cache="8KiB", cpu_cache="32KiB", order="shuffle", policy="static")
    packs = made.path / "packs-shuffle.ovk"
    whole = packs.read_bytes()
    at = len(whole) // 4  # of the first of two sampled epochs
    packs.write_bytes(whole[:at] + b"!" * 4096 + whole[at + 4096 :])
    with gnn.PackedLoader(made, device="cuda") as loader:
        with pytest.raises(overlace.IoError, match=r"packs-shuffle\.ovk: extent"):
            list(loader)
        packs.write_bytes(whole)
        assert len(list(loader)) == len(loader)


def test_what_does_not_fit_is_refused(run):
    with pytest.raises(overlace.Unsupported, match=f"device is cuda:{GPUS}, wanted one of the {GPUS} CUDA devices"):
        gnn.PackedLoader(run, device=f"cuda:{GPUS}")
    with pytest.raises(overlace.OutOfMemory, match="memory_bytes is 4096"):
        gnn.PackedLoader(run, device="cuda", memory="4KiB")
    with pytest.raises(overlace.InvalidArgument, match="device is cuda with format numpy"):
        gnn.PackedLoader(run, device="cuda", format="numpy")


@pytest.mark.skipif(GPUS < 2, reason="wants two GPUs")
def test_another_device_than_the_current_one(run):
    check(run, "cuda:1")


def test_batches_of_another_stream(run):
    with torch.cuda.stream(torch.cuda.Stream()):
        check(run, "cuda")
        torch.cuda.current_stream().synchronize()


@pytest.mark.parametrize("dtype", ["bf16", "i8", "fp16"])
def test_rows_of_other_types(dataset, dtype):
    program = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if program is None:
        pytest.skip("the command line is not there")
    path = dataset.path.parent / dtype
    path.mkdir()
    for name in ("indptr", "indices", "labels", "train"):
        shutil.copy(dataset.path / f"{name}.npy", path)
    features = np.array(dataset.features)
    kinds = {"fp16": features.astype(np.float16), "i8": (16 * features).clip(-127, 127).astype(np.int8)}
    np.save(path / "features.npy", kinds.get(dtype, (features.view(np.uint32) >> 16).astype(np.uint16)))
    words = ["--bf16"] if dtype == "bf16" else []
    subprocess.run([program, "gnn", "import", str(path), "--in-place", *words, "--quiet"], check=True, timeout=60)
    made = gnn.OfflineSampler(gnn.Dataset(path), [4, 3], batch_size=32, seed=7).run(f"{path}.ovg")
    check(gnn.pack(made, gpu_cache="4KiB", cpu_cache="16KiB", order="fixed"), "cuda")


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


STEPS = 12


def model_of(loader):
    """In fp64, so that the order in which a GPU adds is no difference; weights are drawn on the CPU."""
    from overlace.gnn.nn import Model

    torch.manual_seed(1)
    with torch.device("cpu"):
        return Model("sage", loader.dim, 16, loader.num_classes, layers=2).double().cuda()


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch), batch.y)


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train_rank(group, path, ranks, known):
    """One rank of a data-parallel training: the losses of one process."""
    rank = dist.get_rank()
    with gnn.PackedLoader(path, packs="fixed", device=f"cuda:{rank}", rank=rank, ranks=ranks) as loader:
        model = torch.nn.parallel.DistributedDataParallel(model_of(loader), device_ids=[rank], process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        losses = []
        while len(losses) < STEPS:
            for batch in loader:
                loss = loss_of(model, batch)
                step(optimizer, loss)
                total = loss.detach().clone()
                dist.all_reduce(total, group=group)
                losses.append(total.item() / ranks)
    np.testing.assert_allclose(losses[:STEPS], known, rtol=0, atol=1e-6)


@pytest.mark.skipif(GPUS < 2, reason="wants two GPUs")
def test_two_gpus_train_as_one_process(dataset):
    made = gnn.OfflineSampler(dataset, [5, 3], batch_size=64, seed=7).run(f"{dataset.path}-ranks.ovg")
    gnn.pack(made, gpu_cache="16KiB", cpu_cache="48KiB", order="fixed", ranks=FEW)
    loaders = [gnn.PackedLoader(made, packs="fixed", device="cuda:0", rank=r, ranks=FEW) for r in range(FEW)]
    torch.cuda.set_device(0)
    model = model_of(loaders[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    while len(losses) < STEPS:
        for batches in zip(*loaders, strict=True):
            loss = sum(loss_of(model, batch) for batch in batches) / FEW
            step(optimizer, loss)
            losses.append(loss.item())
    for loader in loaders:
        loader.close()
    assert losses[STEPS - 1] < losses[0]
    run_ranks(FEW, train_rank, str(made.path), FEW, losses[:STEPS])
