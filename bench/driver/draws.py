"""Shapes that nobody chose: cases of the dense operators drawn from a seed."""

from __future__ import annotations

import math
import random
import re

import records

OPERATORS = tuple(records.OPERATORS)
ROWS = (64, 32768)  # M, any number
COLUMNS = (512, 32768)  # N of a rank, multiples of 8
TERMS = (512, 16384)  # K of a rank, multiples of 8
MOST_PRODUCTS = 2**42  # M N K: a GEMM of some 13 ms; beyond, one shape would take as long as ten others
NAME = re.compile(r"random:(\d+):([1-9]\d*)")


def read(name: str) -> tuple[int, int] | None:
    """Seed and count of "random:SEED:COUNT"; None of any other name."""
    found = NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def log_uniform(source: random.Random, bounds: tuple[int, int], step: int = 1) -> int:
    """A multiple of step within bounds, whose logarithm is uniform but for rounding."""
    low, high = bounds
    drawn = math.exp(source.uniform(math.log(low), math.log(high)))
    return min(max(round(drawn / step) * step, low), high)


def draw(seed: int, number: int) -> dict:
    """Case `number` of a seed, whatever others are drawn, as cases.json has it; operators take turns."""
    source = random.Random(f"overlace {seed} {number}")
    while True:
        m, n, k = log_uniform(source, ROWS), log_uniform(source, COLUMNS, 8), log_uniform(source, TERMS, 8)
        if m * n * k <= MOST_PRODUCTS:
            op = OPERATORS[number % len(OPERATORS)]
            return {"name": f"draw {seed}.{number}", "op": op, "n": n, "k": k, "m": [m]}


def cases(name: str) -> dict[str, list[dict]]:
    """The file of cases that the set "random:SEED:COUNT" stands for."""
    found = read(name)
    if found is None:
        raise ValueError(f"the set is {name}, wanted random:SEED:COUNT with a count of at least 1")
    seed, count = found
    return {name: [draw(seed, number) for number in range(count)]}
