"""Trains a model on an artefact: `overlace gnn train ARTEFACT`, or `python3 -m overlace.gnn.train ARTEFACT`.

On several processes: `torchrun --nproc-per-node 2 -m overlace.gnn.train ARTEFACT`, after `pack --ranks 2`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlace import errors

if TYPE_CHECKING:
    import torch

    from overlace.gnn import PackedLoader

UNSUPPORTED = 3  # the exit code of not_supported, as of the command line


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="overlace gnn train", description=__doc__.splitlines()[0])
    parser.add_argument("artefact", help="directory that `overlace gnn pack` has packed")
    parser.add_argument("--model", choices=("sage", "gcn", "gat"), default="sage")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4, help="of gat")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of weights and of the sequence of batches")
    parser.add_argument("--packs", help="order of the packs (default: that of the first of train)")
    parser.add_argument("--memory", help="limit of each loader")
    parser.add_argument("--pace", help="bytes per second of a slower disk that is played, such as 200MiB")
    parser.add_argument("--json", help="results as data; - is stdout")
    return parser.parse_args(words)


class Team:
    """This process among those that torchrun has started; alone where it has not."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank, self.ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self._dist = dist if self.ranks > 1 else None
        if self._dist:
            dist.init_process_group("gloo")

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """One whose gradients are those of all ranks."""
        if not self._dist:
            return model
        import torch

        return torch.nn.parallel.DistributedDataParallel(model)

    def sums(self, *values: float) -> list[float]:
        import torch

        total = torch.tensor(values, dtype=torch.float64)
        if self._dist:
            self._dist.all_reduce(total)
        return total.tolist()

    def close(self) -> None:
        if self._dist:
            self._dist.destroy_process_group()


def evaluate(model: torch.nn.Module, loader: PackedLoader, team: Team) -> float:
    """Share of the labelled seeds of all ranks whose class is right."""
    import torch

    model.eval()
    right = seen = 0
    with torch.no_grad():
        for batch in loader:
            if batch.is_repeated:
                continue
            known = batch.y >= 0
            right += int((model(batch).argmax(1)[known] == batch.y[known]).sum())
            seen += int(known.sum())
    of_all, seen_by_all = team.sums(right, seen)
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
        )
    return order, loaders


def train_epoch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: PackedLoader, team: Team) -> float:
    """Mean loss of the seeds of all ranks."""
    from torch.nn import functional

    model.train()
    total, seeds = 0.0, 0
    for batch in loader:
        loss = functional.cross_entropy(model(batch), batch.y, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not batch.is_repeated:
            total += float(loss.detach()) * batch.batch_size
            seeds += batch.batch_size
    loss_of_all, seeds_of_all = team.sums(total, seeds)
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
        if shows:
            valid = f", valid {row['valid']:.4f}" if "valid" in row else ""
            print(f"epoch {epoch}: loss {row['loss']:.4f}{valid}, {row['seconds']:.2f} s", flush=True)
    if "test" in result and shows:
        print(f"test {result['test']:.4f}")
    for one in loaders.values():
        if one:
            one.close()
    return result


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("overlace: error: gnn train: torch is not installed; see docs/guides/pytorch.md", file=sys.stderr)
        return UNSUPPORTED
    team = Team()
    try:
        result = train(options, team)
    except errors.Error as error:
        print(f"overlace: error: {error}", file=sys.stderr)
        return {"not_supported": UNSUPPORTED, "invalid_argument": 2}.get(error.code, 1)
    finally:
        team.close()
    if team.rank > 0:
        return 0
    if options.json == "-":
        print(json.dumps(result, indent=2))
    elif options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
