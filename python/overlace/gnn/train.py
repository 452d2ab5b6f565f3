"""Trains a model on an artefact: `overlace gnn train ARTEFACT`, or `python3 -m overlace.gnn.train ARTEFACT`.

On several processes: `torchrun --nproc-per-node 2 -m overlace.gnn.train ARTEFACT`, after `pack --ranks 2`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from overlace.gnn import PackedLoader

EXIT = {"invalid_argument": 2, "not_supported": 3, "io": 5}  # of errors, as of the command line
MODELS = ("sage", "gcn", "gat")


def parser() -> argparse.ArgumentParser:
    """The command line has these options too (tools/gen_reference.py)."""
    p = argparse.ArgumentParser(
        prog="overlace gnn train", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    add = p.add_argument
    add("artefact", help="directory that `overlace gnn pack` has packed")
    add("--model", choices=MODELS, default="sage", help=f"{', '.join(MODELS)} (default %(default)s)")
    add("--epochs", type=int, default=3, help="passes over the training split (default %(default)s)")
    add("--hidden", type=int, default=128, help="width of hidden layers (default %(default)s)")
    add("--heads", type=int, default=4, help="attention heads of gat (default %(default)s)")
    add("--lr", type=float, default=3e-3, help="learning rate of Adam (default %(default)s)")
    add("--dropout", type=float, default=0.0, help="share of inputs that a layer drops (default %(default)s)")
    add("--seed", type=int, default=0, help="seed of weights and of the sequence of batches (default %(default)s)")
    add("--packs", help="order of the packs (default: that of the first of train)")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="cuda: the GPU of this process (default %(default)s)")
    add("--memory", help="limit of each loader")
    add("--pace", help="bytes per second of a slower disk that is played, such as 200MiB")
    add("--trace", help="write a timeline of the last training epoch to this file, .json or .pftrace")
    add("--json", help="write the result as JSON to this file; - is stdout")
    return p


class Team:
    """This process among those that torchrun has started; alone where it has not. On CPUs or each on a GPU."""

    def __init__(self, device: str = "cpu") -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device("cpu")
        if device == "cuda":
            from overlace.gnn import _device

            self.device = _device.checked("--device", f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
            torch.cuda.set_device(self.device)
        self._dist = dist if self.ranks > 1 else None
        if self._dist and device == "cuda":
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
            dist.init_process_group("nccl")
        elif self._dist:
            dist.init_process_group("gloo")

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """On the device, and one whose gradients are those of all ranks."""
        model = model.to(self.device)
        if not self._dist:
            return model
        import torch

        return torch.nn.parallel.DistributedDataParallel(model)

    def sums(self, *values: float) -> list[float]:
        import torch

        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self._dist:
            self._dist.all_reduce(total)
        return total.tolist()

    def close(self) -> None:
        if self._dist:
            # A DistributedDataParallel holds the group in a circle. As the last one it would wait for the group's
            # thread, which may wait for Python's lock.
            gc.collect()
            self._dist.destroy_process_group()


def evaluate(model: torch.nn.Module, loader: PackedLoader, team: Team) -> float:
    """Share of the labelled seeds of all ranks whose class is right."""
    import torch

    model.eval()
    counts = torch.zeros(
        2, dtype=torch.int64, device=team.device
    )  # right, seen: read once, so that a GPU is not waited for
    with torch.no_grad():
        for batch in loader:
            if batch.is_repeated:
                continue
            known = batch.y >= 0
            counts += torch.stack((((model(batch).argmax(1) == batch.y) & known).sum(), known.sum()))
    of_all, seen_by_all = team.sums(*counts.tolist())
    return of_all / max(seen_by_all, 1)


def open_loaders(options: argparse.Namespace, team: Team) -> tuple[str | None, dict[str, PackedLoader | None]]:
    """Order of the packs, and a loader of each split that this rank has packs of."""
    from overlace.gnn import Artefact, PackedLoader

    run = Artefact(options.artefact)
    own = [p for p in run.manifest["packs"] if (p.get("rank", 0), p.get("ranks", 1)) == (team.rank, team.ranks)]
    order = options.packs or next((p["order"] for p in own if p["split"] == "train"), None)
    splits = {p["split"] for p in own if p["order"] == order}
    loaders: dict[str, PackedLoader | None] = {}
    for split in ("train", "valid", "test"):
        if split != "train" and split not in splits:
            loaders[split] = None
            continue
        name = order if split == "train" else f"{order}-{split}"
        loaders[split] = PackedLoader(
            run,
            split=split,
            packs=name,
            memory=options.memory,
            order_seed=options.seed,
            copy=split == "train",
            rank=team.rank,
            ranks=team.ranks,
            pace=options.pace,
            device=str(team.device),
        )
    return order, loaders


def train_epoch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: PackedLoader, team: Team) -> float:
    """Mean loss of the seeds of all ranks."""
    import torch
    from torch.nn import functional

    model.train()
    total, seeds = torch.zeros((), dtype=torch.float64, device=team.device), 0
    for batch in loader:
        loss = functional.cross_entropy(model(batch), batch.y, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not batch.is_repeated:
            total += loss.detach().double() * batch.batch_size
            seeds += batch.batch_size
    loss_of_all, seeds_of_all = team.sums(float(total), seeds)
    return loss_of_all / seeds_of_all


def train(options: argparse.Namespace, team: Team) -> dict:
    """Loss of each training epoch, accuracy on the other splits that were packed, test at the best of valid."""
    import torch

    from overlace.gnn.nn import Model

    torch.manual_seed(options.seed)
    order, loaders = open_loaders(options, team)
    first = loaders["train"]
    assert first is not None  # there are packs of it always
    sampled = json.loads((Path(options.artefact) / "manifest.json").read_text())["sampling"]
    model = team.model(
        Model(
            options.model,
            first.dim,
            options.hidden,
            first.num_classes,
            len(sampled["fanouts"]),
            options.heads,
            options.dropout,
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    result: dict[str, Any] = {
        "schema": "overlace.gnn_train/1",
        "artefact": options.artefact,
        "packs": order,
        "model": options.model,
        "ranks": team.ranks,
        "epochs": [],
    }
    shows = options.json != "-" and team.rank == 0
    best = -1.0
    for epoch in range(options.epochs):
        begin = time.perf_counter()
        loss = train_epoch(model, optimizer, first, team)
        row: dict[str, Any] = {
            "epoch": epoch,
            "loss": loss,
            "seconds": time.perf_counter() - begin,
            "stats": first.stats(),
        }
        if loaders["valid"]:
            row["valid"] = evaluate(model, loaders["valid"], team)
        if loaders["test"] and row.get("valid", epoch) > best:
            best = row.get("valid", epoch)
            result["test"] = evaluate(model, loaders["test"], team)
        result["epochs"].append(row)
        if options.trace and epoch + 1 == options.epochs and team.rank == 0:
            first.trace(options.trace)
        if shows:
            valid = f", valid {row['valid']:.4f}" if "valid" in row else ""
            print(f"epoch {epoch}: loss {row['loss']:.4f}{valid}, {row['seconds']:.2f} s", flush=True)
    if "test" in result and shows:
        print(f"test {result['test']:.4f}")
    for one in loaders.values():
        if one:
            one.close()
    return result


def check_writable(option: str, path: str) -> None:
    """Before the work for a file that cannot be written. "" and - pass."""
    from overlace.errors import IoError

    if path in ("", "-"):
        return
    target = Path(path)
    if target.is_dir():
        raise IoError(f"{option}: {path} is a directory, wanted a file")
    if not target.parent.is_dir():
        raise IoError(f"{option}: {path} cannot be written: there is no directory {target.parent}")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise IoError(f"{option}: {path} cannot be written")


def check_timeline(path: str) -> None:
    from overlace.errors import InvalidArgument

    if path and not path.endswith((".json", ".pftrace", ".perfetto-trace")):
        raise InvalidArgument(f"--trace: {path}, wanted a name that ends in .json, .pftrace or .perfetto-trace")
    check_writable("--trace", path)


def main(words: list[str] | None = None) -> int:
    options = parser().parse_args(words)
    from overlace import errors

    try:
        check_writable("--json", options.json or "")
        check_timeline(options.trace or "")
        try:
            import torch  # noqa: F401
        except ImportError:
            raise errors.Unsupported("gnn train: torch is missing, wanted as in docs/guides/pytorch.md") from None
        team = Team(options.device)
        try:
            result = train(options, team)
        finally:
            team.close()
        if team.rank == 0:
            write(result, options.json)
    except errors.Error as error:
        print(f"overlace: error: {error}", file=sys.stderr)
        return EXIT.get(error.code, 1)
    return 0


def write(result: dict, target: str | None) -> None:
    from overlace.errors import IoError

    text = json.dumps(result, indent=2)
    if target == "-":
        print(text)
    elif target:
        try:
            Path(target).write_text(text + "\n")
        except OSError as error:
            raise IoError(f"--json: {target} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
