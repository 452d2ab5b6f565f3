"""From a dataset to packs: sampled once, written in the order of use."""

from __future__ import annotations

import ctypes as c
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from overlace import errors
from overlace.gnn import _native
from overlace.gnn.dataset import Dataset

Progress = Callable[[str, float], None]


class Artefact:
    """A directory that `OfflineSampler.run` or `overlace gnn sample` has made. InvalidArgument where there is none."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / "manifest.json").exists():
            raise errors.InvalidArgument(f"{path}: no artefact: manifest.json is missing; see overlace gnn sample")

    @property
    def manifest(self) -> dict:
        """What is whole in the directory: dataset, sampling, traces, packs."""
        return json.loads((self.path / "manifest.json").read_text())

    def __repr__(self) -> str:
        return f"Artefact({str(self.path)!r}: packs {[p['name'] for p in self.manifest['packs']]})"


def as_artefact(run: Artefact | str | Path) -> Artefact:
    return run if isinstance(run, Artefact) else Artefact(run)


def dataset_of(run: Artefact, dataset: Dataset | None = None) -> bytes:
    """The directory of an artefact's dataset, where it was sampled if nobody says otherwise."""
    return str(dataset.path if dataset else run.manifest["dataset"]["directory"]).encode()


class OfflineSampler:
    """Samples all batches of a training epoch before training; the same for any number of threads and any machine.

    `fanouts`: in-neighbours per vertex, from the seeds outward, -1 for all. `epochs` training epochs are sampled anew;
    training takes them in turn. `splits` other than train are sampled once, in their own sequence, to be evaluated.
    """

    def __init__(
        self,
        dataset: Dataset,
        fanouts: Sequence[int],
        batch_size: int = 1024,
        splits: Sequence[str] = ("train",),
        seed: int = 0,
        replace: bool = False,
        threads: int = 0,
        epochs: int = 1,
    ) -> None:
        if epochs < 1:
            raise errors.InvalidArgument(f"epochs is {epochs}, wanted at least 1")
        self.dataset = dataset
        self.fanouts = list(fanouts)
        self.batch_size = batch_size
        self.splits = sum({1 << _native.word("splits", split, _native.SPLITS) for split in splits})
        self.seed = seed
        self.replace = replace
        self.threads = threads
        self.epochs = epochs

    def run(self, path: str | Path, progress: Progress | None = None) -> Artefact:
        """Writes what the artefact at `path` does not have yet. InvalidArgument where it has other samples."""
        request = _native.Sample(
            dataset=str(self.dataset.path).encode(),
            artefact=str(path).encode(),
            fanouts=(c.c_int32 * len(self.fanouts))(*self.fanouts),
            num_fanouts=len(self.fanouts),
            replace=int(self.replace),
            batch_size=self.batch_size,
            seed=self.seed,
            splits=self.splits,
            threads=self.threads,
            epochs=self.epochs,
        )
        _native.call_with_progress("ovl_gnn_make_samples", request, progress)
        return Artefact(path)


def pack(
    run: Artefact | str | Path,
    gpu_cache: int | str = 0,
    cpu_cache: int | str = 0,
    disk: int | str | None = None,
    policy: str = "belady",
    order: str = "auto",
    segment: int = 256,
    depth: int = 3,
    memory: int | str = "1GiB",
    dataset: Dataset | None = None,
    progress: Progress | None = None,
    ranks: int = 1,
) -> Artefact:
    """Writes the rows of each batch in the order of use; goes on where a killed call was.

    Sizes are bytes or text such as "8GiB": of the caches, of packs and disk cache together (`disk`, None: no limit),
    and of what is held of the features (`memory`). `dataset`: where it is, if not where it was sampled. With `ranks`
    each rank of a data-parallel training has packs of its share of the batches, and caches of these sizes.
    InvalidArgument with the smallest `disk` that would do; IoError where the disk has no room, before the first byte.
    """
    if ranks < 1:
        raise errors.InvalidArgument(f"ranks is {ranks}, wanted at least 1")
    run = as_artefact(run)
    request = _native.Pack(
        dataset=dataset_of(run, dataset),
        artefact=str(run.path).encode(),
        gpu_bytes=_native.size("gpu_cache", gpu_cache),
        cpu_bytes=_native.size("cpu_cache", cpu_cache),
        disk_bytes=_native.size("disk", disk),
        memory_bytes=_native.size("memory", memory),
        segment_batches=segment,
        policy=_native.word("policy", policy, _native.POLICIES),
        order=_native.word("order", order, _native.ORDERS),
        depth=depth,
        ranks=ranks,
    )
    _native.call_with_progress("ovl_gnn_make_packs", request, progress)
    return run


def verify(run: Artefact | str | Path, dataset: Dataset | None = None) -> None:
    """Reads all files and checks every checksum and index; with a dataset every packed byte is made anew and compared.

    IoError with file, place and both values.
    """
    deep = None if dataset is None else str(dataset.path).encode()
    _native.call("ovl_gnn_verify", str(as_artefact(run).path).encode(), deep)


def repair(run: Artefact | str | Path, dataset: Dataset | None = None) -> int:
    """Packs anew, from the dataset, the packs that are missing, cut or damaged, and returns their number.

    The files are then as they were first. `dataset`: where it is, if not where it was sampled. IoError for samples that
    are damaged, which cannot be made again.
    """
    run = as_artefact(run)
    num_packs = c.c_int64()
    _native.call("ovl_gnn_repair", str(run.path).encode(), dataset_of(run, dataset), c.byref(num_packs))
    return num_packs.value
