"""Cases of embedding and All-to-All: tables of each rank, pooled for the samples of all ranks."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random

import draws

# Competitors, of bench/torch_embedding.py.
COMPUTE = "compute"  # torch's pooling of this rank's tables alone
FAMILIES = ("library_graph", "serial_graph")  # of overlace, forced
NAMES = ("torch", "torch_graph", "overlace", "overlace_graph", *FAMILIES, COMPUTE)
DISTRIBUTIONS = ("uniform", "zipf")
ZIPF = 1.05  # of the rows of a table in an order of chance: the i-th is wanted as 1 / i^1.05
ROWS = 200_000

# Drawn, log-uniform: tables of a rank, width in multiples of 4, samples of all ranks, mean length of a bag.
DRAWN_TABLES, DRAWN_DIMS, DRAWN_SAMPLES, DRAWN_LENGTHS = (1, 64), (16, 512), (64, 65536), (1, 80)
MOST_GATHERED = (2**32, 2**20)  # bytes that a rank reads, on GPUs and on CPU ranks: some milliseconds


@dataclasses.dataclass(frozen=True)
class Case:
    """T tables of a rank, D values of a row, B samples of all ranks, L the length of a bag in the mean."""

    name: str
    tables: int
    dim: int
    samples: int
    length: int
    distribution: str
    dtype: str
    rows: int = ROWS

    def gathered(self) -> int:
        """Bytes of the rows that a rank reads."""
        return self.tables * self.samples * self.length * self.dim * (2 if self.dtype == "bf16" else 4)

    def fields(self) -> dict:
        case = {"name": self.name, "what": self.what()}
        names = ("tables", "dim", "samples", "length", "distribution", "rows")
        case |= {name: getattr(self, name) for name in names}
        return {"workload": "embedding", "case": case, "dtype": self.dtype}

    def what(self) -> str:
        sizes = f"T {self.tables}, D {self.dim}, B {self.samples}, L {self.length}"
        return f"{sizes}, {self.rows} rows, {self.distribution}"

    def title(self) -> str:
        return f"embedding {self.name}, {self.what()}"


def draw(seed: int, number: int, on_gpus: bool = True) -> Case:
    """Case `number` of a seed, whatever others are drawn; distributions and types take turns."""
    source = random.Random(f"overlace embedding {seed} {number}")
    while True:
        tables, samples = draws.log_uniform(source, DRAWN_TABLES), draws.log_uniform(source, DRAWN_SAMPLES)
        dim, length = draws.log_uniform(source, DRAWN_DIMS, 4), draws.log_uniform(source, DRAWN_LENGTHS)
        dtype = ("fp32", "bf16")[number // 2 % 2]
        case = Case(f"draw {seed}.{number}", tables, dim, samples, length, DISTRIBUTIONS[number % 2], dtype)
        if not on_gpus:
            case = dataclasses.replace(case, rows=1000)
        if case.gathered() <= MOST_GATHERED[0 if on_gpus else 1]:
            return case


def of_sizes(name: str, tables: int, dim: int, samples: int, length: int, dtype: str = "fp32") -> list[Case]:
    return [Case(name, tables, dim, samples, length, each, dtype) for each in DISTRIBUTIONS]


LARGE = [
    *of_sizes("T16 D128", 16, 128, 4096, 32),
    *of_sizes("T64 D128", 64, 128, 2048, 32),
    *of_sizes("T32 D256", 32, 256, 2048, 64, "bf16"),
]
SETS = {
    "smoke": LARGE[:1],
    "canonical": LARGE,
    # Sizes of any kind, and what lies around the large ones.
    "sweep": [
        Case(f"T{t} B{b} D{d} L{n}", t, d, b, n, "uniform", "fp32")
        for t, b, d, n in itertools.product((16, 64), (4096, 16384), (64, 128, 256), (1, 4, 8, 16, 32))
        if t * b * d * n * 4 <= MOST_GATHERED[0]
    ],
    "verify": [
        Case("even", 2, 8, 16, 3, "uniform", "fp32", 50),
        Case("odd", 3, 12, 13, 5, "zipf", "fp32", 7),
        Case("short", 1, 4, 9, 1, "zipf", "bf16", 3),
    ],
    "cpu": [Case("small", 4, 64, 256, 8, each, "fp32", 1000) for each in DISTRIBUTIONS],
}


def chosen(o: argparse.Namespace, on_gpus: bool) -> list[Case]:
    """The cases of --set and --filter."""
    drawn = draws.read(o.set)
    if drawn is not None:
        cases = [draw(drawn[0], number, on_gpus) for number in range(drawn[1])]
    elif o.set and o.set not in SETS:
        known = ", ".join(SETS)
        raise SystemExit(f"--set is {o.set}, of which embedding has no cases; wanted {known} or random:SEED:COUNT")
    else:
        cases = SETS[o.set or ("smoke" if on_gpus else "cpu")]
    return [case for case in cases if o.filter in case.title()]
