"""Where the tables of embedding_a2a lie, as src/spec/families/placement.h reads it."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import torch


class Feature(NamedTuple):
    """Columns [first, first + width) of a table, which become [column, column + width) of the result."""

    table: int
    rank: int
    first: int
    width: int
    column: int


class Placement:
    def __init__(self, tables: list[dict[str, int]], features: list[dict[str, int]]) -> None:
        self.rows = [table["rows"] for table in tables]
        self.padding = [table.get("padding", -1) for table in tables]
        read = []
        for f in features:
            first = f.get("first", 0)
            width = f.get("width", tables[f["table"]]["dim"] - first)
            read.append(Feature(f["table"], f["rank"], first, width, f["column"]))
        self.features = sorted(read, key=lambda f: f.rank)
        self.columns = max(f.column + f.width for f in read)

    def of(self, rank: int) -> list[Feature]:
        return [f for f in self.features if f.rank == rank]

    def slices(self, rank: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Shapes (rows, width) of the slices that the rank holds; of each of its features, which slice it reads."""
        known: dict[tuple[int, int, int], int] = {}
        shapes: list[tuple[int, int]] = []
        at: list[int] = []
        for f in self.of(rank):
            key = (f.table, f.first, f.width)
            if key not in known:
                known[key] = len(shapes)
                shapes.append((self.rows[f.table], f.width))
            at.append(known[key])
        return shapes, at

    def packed_columns(self, size: int) -> tuple[torch.Tensor, list[int]]:
        """The result's columns rank by rank, as each packs those of its features; how many there are of each rank."""
        order = [torch.arange(f.column, f.column + f.width) for f in self.features]
        return torch.cat(order), [sum(f.width for f in self.of(rank)) for rank in range(size)]


@functools.lru_cache(maxsize=64)
def read_placement(text: str) -> Placement | None:
    """None where the library would refuse it, which says why; of what else the library refuses, anything."""
    try:
        json_of_text: Any = json.loads(text)
        return Placement(json_of_text["tables"], json_of_text["features"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
