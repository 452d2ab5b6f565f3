"""Several sampled epochs and two ranks from one artefact: rows of the dataset, losses of one process."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
import weakref
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import overlace  # noqa: E402
from overlace import gnn  # noqa: E402
from overlace.gnn import train  # noqa: E402
from overlace.gnn.nn import Model  # noqa: E402

torch.set_num_threads(1)
EPOCHS, RANKS, TRAINED = 2, 2, 6


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gnn.Dataset:
    return gnn.generate(tmp_path_factory.mktemp("gnn") / "data", num_vertices=2**11, dim=16, seed=3)


@pytest.fixture(scope="module")
def run(dataset: gnn.Dataset) -> gnn.Artefact:
    sampler = gnn.OfflineSampler(dataset, [4, 3], batch_size=16, splits=("train", "valid"), seed=7, epochs=EPOCHS)
    made = sampler.run(dataset.path.parent / "data.ovg")
    gnn.pack(made, "4KiB", "16KiB", order="fixed", depth=2, memory="64KiB")
    gnn.pack(made, "4KiB", "16KiB", order="fixed", depth=2, memory="64KiB", ranks=RANKS)
    gnn.verify(made, dataset)
    return made


def model_of(loader: gnn.PackedLoader) -> Model:
    torch.manual_seed(1)
    return Model("sage", loader.dim, 16, loader.num_classes, 2)


def loss_of(model: torch.nn.Module, batch: gnn.Batch) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch), batch.y)


def train_rank(path: str, rank: int, meeting: str, how: str) -> list[float]:
    """One rank of a data-parallel training: the mean loss of each step."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    losses = losses_of_rank(path, rank, how)
    gc.collect()  # the model holds the group: as the last one it may wait for ever
    torch.distributed.destroy_process_group()
    return losses


def losses_of_rank(path: str, rank: int, how: str) -> list[float]:
    losses = []
    with gnn.PackedLoader(path, packs="fixed", rank=rank, ranks=RANKS) as loader, contextlib.ExitStack() as stack:
        model = model_of(loader)
        if how == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        if how == "co2":  # rounds of a step that are waited for: data-parallel training
            world = torch.distributed.group.WORLD
            optimizer = overlace.optim.CO2(model, optimizer, outer_group=world, tau=1, rule="local_sgd")
            stack.callback(optimizer.close)
            stack.callback(optimizer.flush)
        for _ in range(TRAINED):
            for batch in loader:
                loss = loss_of(model, batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total = loss.detach().clone()
                torch.distributed.all_reduce(total)
                losses.append(total.item() / RANKS)
    return losses


def train_alone(run: gnn.Artefact) -> list[float]:
    """The same steps on one process, which takes the batches of all ranks."""
    loaders = [gnn.PackedLoader(run, packs="fixed", rank=rank, ranks=RANKS) for rank in range(RANKS)]
    model = model_of(loaders[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for _ in range(TRAINED):
        for batches in zip(*loaders, strict=True):
            loss = sum(loss_of(model, batch) for batch in batches) / RANKS
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def started(words: list[str], env: dict[str, str]) -> subprocess.Popen:
    env = {**env, "PYTHONFAULTHANDLER": "1"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def said_by(ranks: list[subprocess.Popen], timeout_s: float) -> list[tuple[str, str]]:
    """What ranks printed, all of which ended well. Who does not end says where its threads are."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and any(rank.poll() is None for rank in ranks):
        time.sleep(0.05)
    late = [number for number, rank in enumerate(ranks) if rank.poll() is None]
    for number in late:
        ranks[number].send_signal(signal.SIGABRT)  # PYTHONFAULTHANDLER
    said = [rank.communicate() for rank in ranks]
    assert late == [], f"ranks {late} did not end within {timeout_s} s: {said}"
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    return said


@pytest.mark.parametrize("how", ["ddp", "co2"])
def test_two_ranks_train_as_one_process(run: gnn.Artefact, tmp_path: Path, how: str) -> None:
    words = [sys.executable, __file__, str(run.path), how, str(tmp_path / "meeting")]
    # NOTE: threads of two ranks on two cores wait for each other by spinning, beside other work for minutes.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [started([*words, str(rank)], env) for rank in range(RANKS)]
    losses = [json.loads(out.splitlines()[-1]) for out, _ in said_by(ranks, 240)]
    assert losses[0] == losses[1]
    alone = train_alone(run)
    assert len(alone) > 40
    np.testing.assert_allclose(losses[0], alone, rtol=0, atol=1e-6)
    assert np.mean(alone[-9:]) < 0.97 * np.mean(alone[:9])


def test_the_program_trains_on_two_ranks(run: gnn.Artefact, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        sys.executable,
        "-m",
        "overlace.gnn.train",
        str(run.path),
        "--epochs",
        "4",
        "--hidden",
        "16",
        "--lr",
        "0.02",
    ]
    ranks = []
    for rank in range(RANKS):
        team = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        out = ["--json", str(tmp_path / f"{rank}.json")]
        ranks.append(started([*words, *out], {**os.environ, **team}))
    said = said_by(ranks, 120)
    assert said[0][0].count("epoch ") == 4 and said[1][0] == ""
    assert not (tmp_path / "1.json").exists()
    result = json.loads((tmp_path / "0.json").read_text())
    assert result["ranks"] == RANKS and result["packs"] == "fixed"
    losses = [row["loss"] for row in result["epochs"]]
    assert losses[-1] < 0.97 * losses[0]
    # A share of the whole split: what both ranks have seen of it.
    count = len(gnn.Dataset(run.manifest["dataset"]["directory"]).split("valid"))
    for row in result["epochs"]:
        assert abs(row["valid"] * count - round(row["valid"] * count)) < 1e-6


def test_a_model_is_gone_before_its_group() -> None:
    model = torch.nn.Linear(2, 2)
    model.itself = [model]  # a circle, as a DistributedDataParallel is one
    seen, held = [], weakref.ref(model)
    del model
    team = train.Team("cpu")
    team._dist = types.SimpleNamespace(destroy_process_group=lambda: seen.append(held()))
    team.close()
    assert seen == [None]


def test_sampled_epochs_are_taken_in_turn_and_resumed(dataset: gnn.Dataset, run: gnn.Artefact) -> None:
    features = np.array(dataset.features)

    def places(loader: gnn.PackedLoader, most: int = 1 << 20) -> list[tuple[int, int]]:
        out = []
        for batch in loader:
            np.testing.assert_array_equal(batch.x, features[batch.n_id])
            out.append((batch.sampled_epoch, batch.number))
            if len(out) == most:
                break
        return out

    with gnn.PackedLoader(run, format="numpy") as loader:
        assert loader.sampled_epochs == EPOCHS
        whole = [places(loader) for _ in range(3)]
        read = 0
        for _ in range(EPOCHS):
            list(loader)
            read += loader.stats()["bytes_read"]
        assert read == loader.bytes_read > loader.feature_bytes > 0
    assert whole[0] == [(0, b) for b in range(len(loader))]
    assert whole[1] == [(1, b) for b in range(len(loader))]
    assert whole[2] == whole[0]
    with gnn.PackedLoader(run, format="numpy") as loader:
        places(loader)
        assert places(loader, 5) == whole[1][:5]
        state = loader.state_dict()
    with gnn.PackedLoader(run, format="numpy") as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert places(loader) == whole[1][5:]
        assert places(loader) == whole[0]


def test_ranks_share_the_batches(dataset: gnn.Dataset, run: gnn.Artefact) -> None:
    for split in ("train", "valid"):
        seeds, steps = [], set()
        for rank in range(RANKS):
            with gnn.PackedLoader(run, split=split, format="numpy", rank=rank, ranks=RANKS) as loader:
                steps.add(len(loader))
                for batch in loader:
                    if not batch.is_repeated:
                        seeds += batch.n_id[: batch.batch_size].tolist()
        assert len(steps) == 1
        assert sorted(seeds) == sorted(dataset.split(split).tolist())


def test_pyg_batches_say_where_they_are_from(run: gnn.Artefact) -> None:
    pytest.importorskip("torch_geometric")
    arguments = {"split": "valid", "rank": RANKS - 1, "ranks": RANKS}
    with gnn.PackedLoader(run, format="pyg", **arguments) as loader, gnn.PackedLoader(run, **arguments) as again:
        for data, batch in zip(loader, again, strict=True):
            assert (data.is_repeated, data.sampled_epoch) == (batch.is_repeated, batch.sampled_epoch)
            assert torch.equal(data.x, batch.x)


def test_what_does_not_fit_is_refused(dataset: gnn.Dataset, run: gnn.Artefact) -> None:
    with pytest.raises(overlace.InvalidArgument, match=r"rank is 2 of 2, wanted one in \[0, 2\)"):
        gnn.PackedLoader(run, rank=2, ranks=2)
    with pytest.raises(overlace.InvalidArgument, match="no packs of train for rank 0 of 3"):
        gnn.PackedLoader(run, rank=0, ranks=3)
    with pytest.raises(overlace.InvalidArgument, match="epochs is 0, wanted at least 1"):
        gnn.OfflineSampler(dataset, [3], epochs=0)
    with pytest.raises(overlace.InvalidArgument, match="ranks is 0, wanted at least 1"):
        gnn.pack(run, ranks=0)
    with pytest.raises(overlace.InvalidArgument, match="ranks is 2000, wanted 1 to 1024"):
        gnn.pack(run, ranks=2000)


if __name__ == "__main__":
    path, how, meeting, rank = sys.argv[1:]
    print(json.dumps(train_rank(path, int(rank), meeting, how)))
