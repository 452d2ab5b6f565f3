"""Trains a model on an artefact: `overlace gnn train ARTEFACT`, or `python3 -m overlace.gnn.train ARTEFACT`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from overlace import errors

UNSUPPORTED = 3  # the exit code of not_supported, as of the command line


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="overlace gnn train", description=__doc__)
    parser.add_argument("artefact", help="directory that `overlace gnn pack` has packed")
    parser.add_argument("--model", choices=("sage", "gcn", "gat"), default="sage")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4, help="of gat")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of weights and of the sequence of batches")
    parser.add_argument("--packs", help="name in the manifest (default: the first of train)")
    parser.add_argument("--memory", help="limit of each loader")
    parser.add_argument("--json", help="results as data; - is stdout")
    return parser.parse_args(words)


def evaluate(model: object, loader: object) -> float:
    """Share of the labelled seeds whose class is right."""
    import torch

    model.eval()
    right = seen = 0
    with torch.no_grad():
        for batch in loader:
            known = batch.y >= 0
            right += int((model(batch).argmax(1)[known] == batch.y[known]).sum())
            seen += int(known.sum())
    return right / max(seen, 1)


def train(options: argparse.Namespace) -> dict:
    """Loss of each training epoch, accuracy on the other splits that were packed, test at the best of valid."""
    import torch
    from torch.nn import functional

    from overlace.gnn import Artefact, PackedLoader
    from overlace.gnn.nn import Model

    torch.manual_seed(options.seed)
    run = Artefact(options.artefact)
    order = options.packs or next((p["name"] for p in run.manifest["packs"] if p["split"] == "train"), None)
    names = {p["name"] for p in run.manifest["packs"]}

    def loader(split: str) -> PackedLoader | None:
        name = order if split == "train" else f"{order}-{split}"
        if split != "train" and name not in names:
            return None
        return PackedLoader(
            run, split=split, packs=name, memory=options.memory, order_seed=options.seed, copy=split == "train"
        )

    loaders = {split: loader(split) for split in ("train", "valid", "test")}
    model = Model(
        options.model,
        loaders["train"].dim,
        options.hidden,
        loaders["train"].num_classes,
        len(run.manifest["sampling"]["fanouts"]),
        options.heads,
        options.dropout,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    result = {"artefact": str(run.path), "packs": order, "model": options.model, "epochs": []}
    best = -1.0
    for epoch in range(options.epochs):
        model.train()
        begin, total, seeds = time.perf_counter(), 0.0, 0
        for batch in loaders["train"]:
            loss = functional.cross_entropy(model(batch), batch.y, ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * batch.batch_size
            seeds += batch.batch_size
        row = {"epoch": epoch, "loss": total / seeds, "seconds": time.perf_counter() - begin}
        row["stats"] = loaders["train"].stats()
        if loaders["valid"]:
            row["valid"] = evaluate(model, loaders["valid"])
        if loaders["test"] and row.get("valid", epoch) > best:
            best = row.get("valid", epoch)
            result["test"] = evaluate(model, loaders["test"])
        result["epochs"].append(row)
        if options.json != "-":
            valid = f", valid {row['valid']:.4f}" if "valid" in row else ""
            print(f"epoch {epoch}: loss {row['loss']:.4f}{valid}, {row['seconds']:.2f} s", flush=True)
    if "test" in result and options.json != "-":
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
    try:
        result = train(options)
    except errors.Error as error:
        print(f"overlace: error: {error}", file=sys.stderr)
        return {"not_supported": UNSUPPORTED, "invalid_argument": 2}.get(error.code, 1)
    if options.json == "-":
        print(json.dumps(result, indent=2))
    elif options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
