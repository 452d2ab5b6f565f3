"""Sizes in a graph: where they come from, and what is written of those of a tensor that goes."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from overlace.compile.match import VIEWS, Left, args_of, aten, shape_of


def free_sizes(graph: Graph) -> None:
    """Sizes that are read from a result, but are a multiple of one of the inputs: computed from that, so that results
    are not kept for their sizes."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    known: dict[Any, Node] = {}
    origins: dict[Any, tuple[Node, int]] = {}
    for node in inputs:
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            known.setdefault(val.node.expr, node)
        for d, size in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                origins.setdefault(size.node.expr, (node, d))
    for node in [n for n in graph.nodes if n.target is aten.sym_size.int and args_of(n)[0].op != "placeholder"]:
        val = node.meta["val"]
        if isinstance(val, int):
            continue
        factor, symbol = val.node.expr.as_coeff_Mul()
        if not factor.is_Integer or symbol not in known | origins:
            continue
        if symbol not in known:
            of, d = origins[symbol]
            with graph.inserting_after(inputs[-1]):
                known[symbol] = graph.call_function(aten.sym_size.int, (of, d))
            known[symbol].meta["val"] = shape_of(of)[d]
        new = known[symbol]
        if factor != 1:
            with graph.inserting_before(node):
                new = graph.call_function(operator.mul, (new, int(factor)))
            new.meta["val"] = val
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def written_sizes(source: Node) -> list[int | Node]:
    """Sizes of a tensor that is going to be erased, as numbers and as nodes that stay."""
    shape = shape_of(source)
    if len(shape) == 2:
        return [-1, -1]
    node = source
    while node.target is aten.add.Tensor:
        node = args_of(node)[0]
    written = list(args_of(node)[1]) if node.target in VIEWS else [-1] * len(shape)
    sizes: list[int | Node] = [
        size if isinstance(size, int) else given for size, given in zip(shape, written, strict=True)
    ]
    if sum(isinstance(size, int) and size == -1 for size in sizes) > 0:
        raise Left("a size is known at run time only")
    return sizes
