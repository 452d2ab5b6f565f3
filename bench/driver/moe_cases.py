"""Cases of the mixture-of-experts layer: those of published models, small ones for CPU ranks, and drawn ones."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random

import draws

# Competitors, of bench/torch_moe.py.
COMPUTE = "compute"  # the experts' GEMMs alone
FAMILIES = ("serial_graph", "fused_graph")  # of overlace, forced
NAMES = ("torch", "torch_graph", "torch_exchanged", "overlace", "overlace_graph", *FAMILIES, COMPUTE)
ROUTINGS = ("uniform", "zipf")
ZIPF = 1.2  # of the experts in an order of chance: the i-th is wanted as 1 / i^1.2

# (H, I, E, k) of a layer. DeepSeek-V3 keeps so many of its 256 experts as leave a rank of two GPUs with those of four.
MODELS = {
    "Qwen3-30B-A3B": (2048, 768, 128, 8),
    "Mixtral-8x7B": (4096, 14336, 8, 2),
    "DeepSeek-V3 cut": (7168, 2048, 64, 8),
}
TOKENS = (16, 64, 256, 1024, 4096, 8192)

# Drawn, all but E and k log-uniform: tokens of a rank, H and I in multiples of 8.
DRAWN_TOKENS, DRAWN_WIDTHS, DRAWN_EXPERTS, DRAWN_CHOICES = (1, 16384), (64, 8192), (2, 256), (1, 8)
# Most products (tokens k H I) and weights of all experts: some 10 ms on GPUs; beyond, one shape would take as long as
# ten others. On CPU ranks a second.
MOST_ON_GPUS, MOST_ON_CPUS = (2**40, 2**32), (2**30, 2**24)


@dataclasses.dataclass(frozen=True)
class Case:
    """H: width of a token, I: hidden values of an expert, E: experts of all ranks, k: experts of a token."""

    name: str
    tokens: int  # of a rank
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    routing: str
    dtype: str

    def fields(self) -> dict:
        case = {"name": self.name, "what": self.what()}
        names = ("tokens", "hidden", "intermediate", "experts", "top_k", "routing")
        case |= {name: getattr(self, name) for name in names}
        return {"workload": "moe", "case": case, "dtype": self.dtype}

    def what(self) -> str:
        sizes = f"H {self.hidden}, I {self.intermediate}, E {self.experts}, k {self.top_k}"
        return f"{self.tokens} tokens of a rank, {sizes}, {self.routing}"

    def title(self) -> str:
        return f"moe {self.name}, {self.what()}"


def draw(seed: int, number: int, on_gpus: bool = True) -> Case:
    """Case `number` of a seed, whatever others are drawn; routings take turns."""
    most_products, most_weights = MOST_ON_GPUS if on_gpus else MOST_ON_CPUS
    source = random.Random(f"overlace moe {seed} {number}")
    while True:
        tokens = draws.log_uniform(source, DRAWN_TOKENS)
        hidden, intermediate = (draws.log_uniform(source, DRAWN_WIDTHS, 8) for _ in range(2))
        experts = source.randint(*DRAWN_EXPERTS)
        top_k = min(source.randint(*DRAWN_CHOICES), experts)
        few_products = tokens * top_k * hidden * intermediate <= most_products
        if few_products and 3 * experts * hidden * intermediate <= most_weights:
            routing = ROUTINGS[number % len(ROUTINGS)]
            return Case(f"draw {seed}.{number}", tokens, hidden, intermediate, experts, top_k, routing, "fp32")


def models(tokens: tuple[int, ...], names: tuple[str, ...] = tuple(MODELS)) -> list[Case]:
    of = itertools.product(names, tokens, ROUTINGS)
    return [Case(name, count, *MODELS[name], routing, "bf16") for name, count, routing in of]


SETS = {
    "smoke": models((64, 1024), ("Qwen3-30B-A3B",)),
    "canonical": models(TOKENS),
    "decode": models(TOKENS[:3]),
    # Sizes of any kind: experts that ranks do not divide, a rank without any choice, one token.
    "verify": [
        Case("even", 48, 64, 40, 8, 2, "uniform", "fp32"),
        Case("odd", 33, 40, 24, 5, 3, "zipf", "fp32"),
        Case("lone", 1, 16, 8, 2, 1, "zipf", "fp32"),
        Case("half", 48, 64, 40, 7, 4, "zipf", "bf16"),
    ],
    "cpu": [Case("small", tokens, 256, 128, 16, 4, routing, "fp32") for tokens in (16, 256) for routing in ROUTINGS],
}


def chosen(o: argparse.Namespace, on_gpus: bool) -> list[Case]:
    """The cases of --set and --filter."""
    drawn = draws.read(o.set)
    if drawn is not None:
        cases = [draw(drawn[0], number, on_gpus) for number in range(drawn[1])]
    elif o.set and o.set not in SETS:
        raise SystemExit(f"--set is {o.set}, of which moe has no cases; wanted {', '.join(SETS)} or random:SEED:COUNT")
    else:
        cases = SETS[o.set or ("smoke" if on_gpus else "cpu")]
    if on_gpus:  # which have no layer in fp32
        cases = [dataclasses.replace(case, dtype="bf16") for case in cases]
    return [case for case in cases if o.filter in case.title()]
