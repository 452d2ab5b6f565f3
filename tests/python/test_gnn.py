"""Training from packs gives the numbers of training from memory; batches and layers are right."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import overlace  # noqa: E402
from overlace import gnn  # noqa: E402
from overlace.gnn import _device, _native, nn  # noqa: E402
from overlace.gnn import train as program  # noqa: E402
from overlace.gnn.nn import GATConv, GCNConv, Model, SAGEConv  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gnn.Dataset:
    return gnn.generate(tmp_path_factory.mktemp("gnn") / "data", num_vertices=2**12, dim=16, seed=3)


@pytest.fixture(scope="module")
def run(dataset: gnn.Dataset) -> gnn.Artefact:
    sampler = gnn.OfflineSampler(dataset, [5, 3], batch_size=32, splits=("train", "valid", "test"), seed=7)
    made = sampler.run(dataset.path.parent / "data.ovg")
    steps: list[str] = []
    for order, policy in (("segments", "belady"), ("shuffle", "static")):
        gnn.pack(made, "16KiB", "24KiB", policy=policy, order=order, segment=5, depth=2, memory="64KiB",
                 progress=lambda what, share: steps.append(what))  # fmt: skip
    assert "pack segments" in steps and "plan shuffle-test" in steps
    gnn.verify(made, dataset)
    return made


def losses(batches: list[gnn.Batch], kind: str, dataset: gnn.Dataset) -> list[float]:
    torch.manual_seed(1)
    model = Model(kind, dataset.dim, 16, dataset.num_classes, 2, heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    out = []
    for batch in batches:
        loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


@pytest.mark.parametrize(("kind", "engine"), [("sage", "auto"), ("gcn", "pread"), ("gat", "buffered")])
def test_losses_are_those_of_training_from_memory(
    dataset: gnn.Dataset, run: gnn.Artefact, kind: str, engine: str
) -> None:
    features, labels = np.array(dataset.features), np.array(dataset.labels)
    with gnn.PackedLoader(run, packs="segments", engine=engine) as loader:
        packed = [batch for _ in range(2) for batch in loader]
    assert len(packed) == 2 * len(loader)
    from_memory = []
    for batch in packed:
        x, y = torch.from_numpy(features[batch.n_id]), torch.from_numpy(labels[batch.n_id[: batch.batch_size]])
        from_memory.append(gnn.Batch(**{**vars(batch), "x": x, "y": y}))
    seen, wanted = losses(packed, kind, dataset), losses(from_memory, kind, dataset)
    np.testing.assert_allclose(seen, wanted, rtol=0, atol=1e-6)
    assert np.mean(seen[len(seen) // 2 :]) < 0.97 * np.mean(seen[: len(seen) // 2])
    # A row of another vertex would be seen.
    from_memory[3].x = from_memory[3].x.roll(1, 0)
    assert np.abs(np.subtract(losses(from_memory, kind, dataset), seen)).max() > 1e-4


def test_batches_are_the_samples_of_the_graph(dataset: gnn.Dataset, run: gnn.Artefact) -> None:
    indptr, indices = dataset.indptr, dataset.indices
    seeds = []
    with gnn.PackedLoader(run, packs="shuffle", format="numpy", order_seed=9) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch.x, dataset.features[batch.n_id])
            np.testing.assert_array_equal(batch.y, dataset.labels[batch.n_id[: batch.batch_size]])
            assert sum(batch.num_sampled_nodes) == len(batch.n_id) == len(set(batch.n_id.tolist()))
            assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
            for source, target in batch.n_id[batch.edge_index.T[::17]]:
                assert source in indices[indptr[target] : indptr[target + 1]]
            # A hop's edges lead to what the hop before reached.
            edges, num_src, num_dst = batch.layer(1)
            assert edges[1].max(initial=0) < num_dst == batch.batch_size
            assert edges[0].max(initial=0) < num_src
            seeds += batch.n_id[: batch.batch_size].tolist()
        stats = loader.stats()
    assert sorted(seeds) == sorted(dataset.split("train").tolist())
    assert stats["bytes_read"] == loader.bytes_read > 0
    assert stats["gpu_rows"] > 0 and stats["cpu_rows"] > 0 and stats["ring_rows"] > 0


def test_a_loop_goes_on_where_its_state_was_saved(run: gnn.Artefact) -> None:
    with gnn.PackedLoader(run, packs="segments", format="numpy") as loader:
        whole = [[b.number for b in loader] for _ in range(3)]
        assert whole[0] != whole[1]  # segments are shuffled
    with gnn.PackedLoader(run, packs="segments", format="numpy") as loader:
        list(loader)
        for i, _ in enumerate(loader):
            if i == 6:
                break
        state = json.loads(json.dumps(loader.state_dict()))
        assert [b.number for b in loader] == whole[2]  # a loop that is left goes on with the next training epoch
    with gnn.PackedLoader(run, packs="segments", format="numpy", copy=False) as loader:
        loader.load_state_dict(state)
        assert [b.number for b in loader] == whole[1][7:]
        assert loader.state_dict() == {"epoch": 2, "position": 0, "order_seed": 0}
        with pytest.raises(overlace.InvalidArgument, match="order_seed is 0, wanted 4, as saved"):
            loader.load_state_dict({**state, "order_seed": 4})
    with pytest.raises(overlace.InvalidArgument, match="closed"):
        next(iter(loader))


@pytest.mark.parametrize("copy", [True, False])
def test_a_stream_is_set_behind_what_the_one_before_reads(
    run: gnn.Artefact, copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gnn.PackedLoader(run, copy=copy) as loader:
        list(loader)  # the first loop alone sets it before it starts
        called: list[str] = []
        call = _native.call

        def noted(name: str, *arguments: object) -> None:
            called.append(name.removeprefix("ovl_gnn_loader_"))
            call(name, *arguments)

        monkeypatch.setattr(_native, "call", noted)
        monkeypatch.setattr(loader, "_use_stream", lambda: called.append("use_stream"))
        loader._stream = 1
        list(loader)
    taken = ["use_stream", "next"]
    wanted = [*taken, "release"] * len(loader) + taken if copy else taken + ["release", *taken] * len(loader)
    assert called[: len(wanted) + 1] == ["start", *wanted]


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert [_device.checked("device", name).index for name in ("cuda", "cuda:0", "cuda:1")] == [1, 0, 1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(overlace.Unsupported, match="--device is cuda:2, wanted one of the 2 CUDA devices that torch"):
        program.Team("cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(run: gnn.Artefact) -> None:
    with pytest.raises(overlace.Unsupported, match="device is cuda, wanted one of the 0 CUDA devices"):
        gnn.PackedLoader(run, device="cuda")
    for on_gpu, error, text in (
        (2, overlace.InvalidArgument, "on_gpu is 2, wanted 0 to 1"),
        (1, overlace.Unsupported, "a loader on GPU 3"),
    ):
        options = _native.LoaderOptions(artefact=str(run.path).encode(), on_gpu=on_gpu, device=3)
        with pytest.raises(error, match=text):
            _native.call("ovl_gnn_loader_open", ctypes.byref(options), ctypes.byref(ctypes.c_void_p()))


def test_a_slower_disk_can_be_played(run: gnn.Artefact) -> None:
    with gnn.PackedLoader(run, packs="segments", format="numpy") as loader:
        wanted = [batch.x.tobytes() for batch in loader]
        rate = loader.bytes_read  # so that a training epoch takes a second
    with gnn.PackedLoader(run, packs="segments", format="numpy", pace=rate) as loader:
        begin = time.perf_counter()
        assert [batch.x.tobytes() for batch in loader] == wanted
        assert 0.9 < time.perf_counter() - begin < 30  # a busy machine may be late
        assert loader.stats()["bytes_read"] == rate
    with pytest.raises(overlace.InvalidArgument, match="pace is 'fast', wanted bytes such as 8GiB"):
        gnn.PackedLoader(run, pace="fast")


def test_the_timeline_has_the_stages_of_the_simulation(run: gnn.Artefact, tmp_path: Path) -> None:
    with gnn.PackedLoader(run, packs="shuffle", format="numpy") as loader:
        begin = time.perf_counter()
        for _ in loader:
            time.sleep(1e-3)
        seconds = time.perf_counter() - begin
        stats = loader.stats()
        loader.trace(tmp_path / "epoch.json")
        with pytest.raises(overlace.InvalidArgument, match=r"epoch.txt: wanted a name that ends in .json, .pftrace"):
            loader.trace(tmp_path / "epoch.txt")
        with pytest.raises(overlace.IoError, match="No such file or directory"):
            loader.trace(tmp_path / "nowhere" / "epoch.json")
    with pytest.raises(overlace.Error, match="closed"):
        loader.trace(tmp_path / "epoch.json")
    events = json.loads((tmp_path / "epoch.json").read_text())["traceEvents"]
    spans = {event["name"]: event["dur"] * 1e-6 for event in events if event["ph"] == "X"}
    trained = [spans[f"train[{i}]"] for i in range(2 * loader.num_batches) if f"train[{i}]" in spans]
    assert len(trained) == loader.num_batches
    assert loader.num_batches * 1e-3 <= sum(trained) <= seconds
    assert sum(spans[name] for name in spans if "read[" in name) == pytest.approx(stats["read_s"], abs=1e-4)
    assert 0 < stats["read_s"] < seconds
    if "OVERLACE_BIN" not in os.environ:
        pytest.skip("OVERLACE_BIN does not name the command line")
    words = ["sim", "graph", "gnn", str(run.path), "--packs", "shuffle", "--trace", str(tmp_path / "simulated.json")]
    subprocess.run([os.environ["OVERLACE_BIN"], *words], check=True, capture_output=True, timeout=60)
    words = ["trace", "diff", str(tmp_path / "epoch.json"), str(tmp_path / "simulated.json")]
    told = subprocess.run([os.environ["OVERLACE_BIN"], *words], capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr
    assert "gather" in told.stdout


def random_block(num_src: int, num_dst: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(num_src, 6, generator=generator)
    count = torch.zeros(num_src, num_src)  # [to, from], some edges twice, some rows without
    edge_index = torch.stack(
        [torch.randint(num_src, (40,), generator=generator), torch.randint(num_dst - 2, (40,), generator=generator)]
    )
    for source, target in edge_index.T:
        count[target, source] += 1
    return x, edge_index, count


def test_layers_are_their_formulas() -> None:
    num_dst = 9
    x, edge_index, count = random_block(15, num_dst)
    torch.manual_seed(2)
    sage, gcn, gat = SAGEConv(6, 5), GCNConv(6, 5), GATConv(6, 4, heads=3)
    mean = count @ x / count.sum(1, keepdim=True).clamp(min=1)
    wanted = mean @ sage.lin_l.weight.T + sage.lin_l.bias + x @ sage.lin_r.weight.T
    torch.testing.assert_close(sage(x, edge_index, num_dst), wanted[:num_dst], rtol=1e-5, atol=1e-5)

    loops = count + torch.eye(15)
    scale = loops.sum(1).rsqrt()
    wanted = (scale[:, None] * loops * scale) @ x @ gcn.lin.weight.T + gcn.bias
    torch.testing.assert_close(gcn(x, edge_index, num_dst), wanted[:num_dst], rtol=1e-5, atol=1e-5)

    h = (x @ gat.lin.weight.T).view(15, 3, 4)
    heads = []
    for k in range(3):
        score = (h[:, k] @ gat.att_src[k])[None, :] + (h[:, k] @ gat.att_dst[k])[:, None]
        weight = loops * torch.nn.functional.leaky_relu(score, 0.2).exp()
        heads.append(weight / weight.sum(1, keepdim=True) @ h[:, k])
    wanted = torch.cat(heads, 1) + gat.bias
    torch.testing.assert_close(gat(x, edge_index, num_dst), wanted[:num_dst], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_many_edges_are_counted(kind: torch.dtype) -> None:
    edges = 5000
    edge_index = torch.stack([torch.ones(edges, dtype=torch.int64), torch.zeros(edges, dtype=torch.int64)])
    counted = nn._in_degrees(edge_index[1], 2, torch.ones(2, 4, dtype=kind))
    assert counted.dtype == kind and counted.tolist() == [torch.tensor(edges, dtype=kind).item(), 0]


def test_the_program_trains_and_reports(run: gnn.Artefact, tmp_path: Path) -> None:
    words = [str(run.path), "--epochs", "6", "--hidden", "64", "--lr", "0.01", "--json", str(tmp_path / "out.json")]
    assert program.main([*words, "--trace", str(tmp_path / "last.json")]) == 0
    names = {event["name"] for event in json.loads((tmp_path / "last.json").read_text())["traceEvents"]}
    assert {"read[0]", "check[0]", "gather[0]", "admit[0]", "train[0]"} <= names
    out = json.loads((tmp_path / "out.json").read_text())
    first, *_, last = out["epochs"]
    assert last["loss"] < 0.8 * first["loss"]
    assert last["valid"] > 0.12 and out["test"] > 0.12  # chance is 1 of 32
    assert program.main([str(tmp_path)]) == 2


def test_the_program_refuses_a_result_that_cannot_be_written_before_it_works(
    run: gnn.Artefact, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "train", lambda *_: pytest.fail("it works"))
    nowhere = tmp_path / "nowhere"
    (tmp_path / "file").write_text("")
    for path, why in (
        (nowhere / "x.json", f"{nowhere}/x.json cannot be written: there is no directory {nowhere}"),
        (tmp_path / "file/x.json", f"{tmp_path}/file/x.json cannot be written: there is no directory {tmp_path}/file"),
        (tmp_path, f"{tmp_path} is a directory, wanted a file"),
    ):
        assert program.main([str(run.path), "--json", str(path)]) == 5
        assert capsys.readouterr() == ("", f"overlace: error: --json: {why}\n")
    assert program.main([str(run.path), "--trace", str(tmp_path / "x.txt")]) == 2
    assert "--trace: " in capsys.readouterr().err
    monkeypatch.setattr(program.os, "access", lambda path, _: False)  # root may write anywhere
    assert program.main([str(run.path), "--json", str(tmp_path / "x.json")]) == 5
    assert capsys.readouterr().err == f"overlace: error: --json: {tmp_path}/x.json cannot be written\n"


def test_a_disk_that_is_full_by_then_is_told(
    run: gnn.Artefact, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "train", lambda *_: {})
    assert program.main([str(run.path), "--json", "/dev/full"]) == 5
    assert capsys.readouterr().err == "overlace: error: --json: /dev/full cannot be written: No space left on device\n"


def test_numpy_batches_need_no_torch(run: gnn.Artefact) -> None:
    text = f"""
import sys
sys.modules["torch"] = None
import overlace
from overlace import gnn
with gnn.PackedLoader({str(run.path)!r}, format="numpy") as loader:
    print(len(list(loader)), len(loader))
try:
    gnn.PackedLoader({str(run.path)!r}, format="blocks")
except overlace.Unsupported as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    count, said = done.stdout.splitlines(), done.stderr
    assert done.returncode == 0, said
    assert count[0].split()[0] == count[0].split()[1] != "0"
    assert "torch is not installed" in count[1]


def test_what_does_not_fit_is_refused(run: gnn.Artefact, dataset: gnn.Dataset, tmp_path: Path) -> None:
    for text, arguments in {
        "format is 'dgl', wanted one of numpy, dlpack, blocks, pyg": {"format": "dgl"},
        "split is 'all', wanted one of train, valid, test": {"split": "all"},
        "no packs fixed, there are: segments": {"packs": "fixed"},
    }.items():
        with pytest.raises(overlace.InvalidArgument, match=text):
            gnn.PackedLoader(run, **arguments)
    with pytest.raises(overlace.OutOfMemory, match="memory_bytes is 1024"):
        gnn.PackedLoader(run, memory="1KiB")
    with pytest.raises(overlace.InvalidArgument, match="cpu_cache is '5 GB', wanted bytes such as 8GiB"):
        gnn.pack(run, cpu_cache="5 GB")
    with pytest.raises(overlace.InvalidArgument, match="no artefact"):
        gnn.PackedLoader(tmp_path)
    with pytest.raises(overlace.InvalidArgument, match="has samples of seed 7"):
        gnn.OfflineSampler(dataset, [5, 3], batch_size=32, seed=8).run(run.path)

    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gnn.pack(run, order="fixed", progress=stop)


def test_pyg_takes_batches_and_has_the_same_layers(run: gnn.Artefact) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    trim = pytest.importorskip("torch_geometric.utils").trim_to_layer
    torch.manual_seed(4)
    ours = [SAGEConv(16, 8), GCNConv(16, 8), GATConv(16, 4, heads=2)]
    theirs = [pyg.SAGEConv(16, 8), pyg.GCNConv(16, 8), pyg.GATConv(16, 4, heads=2)]
    for mine, other in zip(ours, theirs, strict=True):
        state = mine.state_dict()
        if isinstance(mine, GATConv):
            state = {k: v[None] if k.startswith("att") else v for k, v in state.items()}
        other.load_state_dict(state)
    with gnn.PackedLoader(run, format="pyg") as loader, gnn.PackedLoader(run, format="blocks") as again:
        for data, batch in zip(loader, again, strict=True):
            assert data.num_nodes == len(batch.n_id) and data.batch_size == batch.batch_size
            edge_index, _, num_dst = batch.layer(0)
            for mine, other in zip(ours, theirs, strict=True):
                wanted = other(data.x, data.edge_index)[:num_dst]
                torch.testing.assert_close(mine(batch.x, edge_index, num_dst), wanted, rtol=1e-5, atol=1e-5)
            x, edges, _ = trim(1, data.num_sampled_nodes, data.num_sampled_edges, data.x, data.edge_index)
            last, num_src, _ = batch.layer(1)
            assert x.shape[0] == num_src and torch.equal(edges, last)


def test_damaged_rows_come_from_the_dataset_and_packs_are_made_anew(dataset: gnn.Dataset, tmp_path: Path) -> None:
    made = gnn.OfflineSampler(dataset, [5, 3], batch_size=32, seed=7).run(tmp_path / "run.ovg")
    gnn.pack(made, "16KiB", "24KiB", policy="static", order="shuffle")
    packs = made.path / "packs-shuffle.ovk"
    good = packs.read_bytes()
    last = len(good) - 4096  # rows stand at the end of an extent
    packs.write_bytes(good[:last] + bytes([good[last] ^ 1]) + good[last + 1 :])
    features = torch.from_numpy(np.array(dataset.features))
    with gnn.PackedLoader(made) as loader, pytest.raises(overlace.IoError, match="checksum of rows"):
        list(loader)
    with gnn.PackedLoader(made, on_corrupt="source") as loader:
        with pytest.warns(UserWarning, match="rows of packs shuffle are damaged and came from the dataset") as told:
            for batch in [*loader, *loader]:
                assert torch.equal(batch.x, features[batch.n_id])
        assert len(told) == 1
        assert loader.stats()["mended_rows"] > 0
    with gnn.PackedLoader(made, checksum="off") as loader:
        assert not all(torch.equal(batch.x, features[batch.n_id]) for batch in loader)
        assert loader.stats()["mended_rows"] == 0
    with pytest.raises(overlace.InvalidArgument, match="checksum is 'none', wanted one of on, off"):
        gnn.PackedLoader(made, checksum="none")
    with pytest.raises(overlace.InvalidArgument, match="on_corrupt is 'skip', wanted one of error, source"):
        gnn.PackedLoader(made, on_corrupt="skip")
    assert gnn.repair(made) == 1
    assert packs.read_bytes() == good
    assert gnn.repair(made, dataset) == 0
