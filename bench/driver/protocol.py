"""The twin of bench/common: data, order of bursts and statistics, the same from one seed in C++ and Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
SETTLED_TURNS, SETTLED_SHARE = 3, 0.01
T = TypeVar("T")
LEAST_VALUES, LEAST_BITS = 1024, 8.0  # of the entropy check


def mix(x: int) -> int:
    """splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014)."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def normal(seed: int, stream: int, row: int, col: int, scale: float = 1.0) -> float:
    """Element (row, col) of the matrix `stream` of `seed`, before it is rounded to its type."""
    key = mix((seed * GOLDEN + stream) & MASK)
    h = mix(key ^ mix((row * GOLDEN + col) & MASK))
    u, v = ((h >> 40) + 0.5) * 2.0**-24, ((h & 0xFFFFFFFF) >> 8) * 2.0**-24
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v) * scale


def burst_order(entrants: int, repetition: int, seed: int) -> list[int]:
    """A permutation for each pair of repetitions, reversed in the second of the pair."""
    order = list(range(entrants))
    state = mix((seed + GOLDEN * (repetition // 2 + 1)) & MASK)
    for left in range(entrants, 1, -1):
        state = (state + GOLDEN) & MASK
        other = mix(state) % left
        order[left - 1], order[other] = order[other], order[left - 1]
    return order[::-1] if repetition % 2 else order


def interleaved(entrants: Sequence[T], repetitions: int, seed: int) -> Iterator[tuple[int, T]]:
    """Repetition and entrant: each entrant once in each repetition, in burst_order."""
    for repetition in range(repetitions):
        for which in burst_order(len(entrants), repetition, seed):
            yield repetition, entrants[which]


def burst_calls(burst_us: float, call_us: float, least: int, most: int) -> int:
    """How many calls of `call_us` fill `burst_us`, from `least` to `most`."""
    return int(min(max(burst_us / max(call_us, 1e-3), least), most))


def is_settled(mhz: Sequence[float]) -> bool:
    """True if the SM clock moved by less than 1 % in the last three turns."""
    last = mhz[-SETTLED_TURNS:]
    return len(last) == SETTLED_TURNS and max(last) - min(last) < SETTLED_SHARE * max(last)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Linear between closest ranks."""
    ordered = sorted(samples)
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 50)


def time_fields(samples: Sequence[float]) -> dict:
    return {
        "median": median(samples),
        "p10": percentile(samples, 10),
        "p90": percentile(samples, 90),
        "min": min(samples),
        "samples": list(samples),
    }


def low_entropy(patterns: Sequence[int], steps: Sequence[int]) -> str:
    """Why values must not be timed, given the upper 16 bits of each and of each one's difference to the one before."""
    if len(patterns) < LEAST_VALUES:
        return ""
    bits = [entropy(one) for one in (patterns, steps)]
    if min(bits) >= LEAST_BITS:
        return ""
    return f"the data hold {bits[0]:.1f} bits per value and {bits[1]:.1f} from one to the next, wanted {LEAST_BITS:g}"


def entropy(values: Sequence[int]) -> float:
    return -sum(n / len(values) * math.log2(n / len(values)) for n in Counter(values).values())
