"""A C program trains from packs with the losses of a loop in NumPy over every format of the loader."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

from overlace import gnn

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("OVERLACE_LIB", "")
EPOCHS, RATE = 3, 0.5  # those of tests/c/gnn_test.c


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not LIBRARY:
        pytest.skip("no C compiler" if compiler is None else "OVERLACE_LIB does not name the shared library")
    out = tmp_path_factory.mktemp("c") / "gnn"
    folders = [f"-I{ROOT / 'include'}", f"-I{ROOT}"]
    words = [compiler, "-std=c11", "-O1", *folders, str(ROOT / "tests" / "c" / "gnn_test.c"), "-o", str(out), LIBRARY]
    subprocess.run([*words, f"-Wl,-rpath,{Path(LIBRARY).resolve().parent}", "-lm"], check=True, timeout=60)
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> gnn.Artefact:
    folder = tmp_path_factory.mktemp("gnn")
    dataset = gnn.generate(folder / "g", num_vertices=2**12, dim=16, seed=3)
    made = gnn.OfflineSampler(dataset, [5, 3], batch_size=64, splits=("train",), seed=7).run(folder / "g.ovg")
    gnn.pack(made, cpu_cache="24KiB", order="fixed")
    return made


def losses(batches: Iterable[gnn.Batch], weights: np.ndarray, array: Callable) -> list[float]:
    """Classes by a linear map of a seed's row and of the mean over the rows of its edges, by gradient descent."""
    out = []
    for batch in batches:
        x, labels = array(batch.x).astype(np.float64), array(batch.y).astype(np.int64)
        source, target = array(batch.edge_index)
        count, is_of_seed = len(labels), target < len(labels)
        sums, degree = np.zeros((count, x.shape[1])), np.bincount(target[is_of_seed], minlength=count)
        np.add.at(sums, target[is_of_seed], x[source[is_of_seed]])
        inputs = np.hstack([x[:count], sums / np.maximum(degree, 1)[:, None]])
        p = np.exp(inputs @ weights.T)
        p /= p.sum(1, keepdims=True)
        out.append(float(-np.log(p[np.arange(count), labels]).mean()))
        p[np.arange(count), labels] -= 1
        weights -= RATE * p.T @ inputs / count
    return out


@pytest.mark.parametrize("format", ["numpy", "dlpack", "blocks", "pyg"])
def test_losses_of_a_c_program_are_those_of_every_format(program: Path, run: gnn.Artefact, format: str) -> None:
    words = [str(program), str(run.path.parent / "g"), str(run.path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    of_c = [float(line) for line in done.stdout.splitlines()[:-1]]
    array = np.from_dlpack if format == "dlpack" else np.asarray
    seen: list[float] = []
    with gnn.PackedLoader(run, packs="fixed", format=format) as loader:
        weights = np.zeros((loader.num_classes, 2 * loader.dim))
        for _ in range(EPOCHS):
            seen += losses(loader, weights, array)
    assert len(of_c) == len(seen) and seen[-1] < seen[0] - 0.1
    np.testing.assert_allclose(of_c, seen, rtol=0, atol=1e-9)
