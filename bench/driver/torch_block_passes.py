"""What Inductor made of a block: a pass behind its own that counts."""

from __future__ import annotations

import collections

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass


class Counter(CustomGraphPass):
    """Operators with a collective in them, over all graphs of one version; nothing is changed."""

    def __init__(self) -> None:
        self.found: collections.Counter[str] = collections.Counter()

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            space, _, name = str(node.target).removesuffix(".default").partition(".")
            if node.op == "call_function" and space in ("symm_mem", "overlace", "_c10d_functional"):
                self.found[name] += name != "wait_tensor"

    def uuid(self) -> None:
        """None: a graph from torch's cache would not be counted."""

    def fused(self) -> int:
        return sum(n for name, n in self.found.items() if name.startswith("fused_"))

    def __str__(self) -> str:
        return ", ".join(f"{n} {name}" for name, n in sorted(self.found.items()) if n)
