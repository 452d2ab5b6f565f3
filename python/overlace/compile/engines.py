"""Collectives of serving engines, which are operators of their own: torch's stand in for them while the pass looks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from overlace.compile.match import WAIT, c10d, shape_of

# torch's collective, its arguments without the group, and the engine's name of the group.
_Form = tuple[torch._ops.OpOverload, tuple, str]


def _all_reduce(tensor: Node, group_name: str, *_method: str) -> _Form:
    return c10d.all_reduce.default, (tensor, "sum"), group_name


def _reduce_scatter(tensor: Node, dim: int, world_size: int, group_name: str) -> _Form | None:
    if dim % len(shape_of(tensor)) != 0:
        return None
    return c10d.reduce_scatter_tensor.default, (tensor, "sum", world_size), group_name


def _all_gather(tensor: Node, dim: int, world_size: int, group_name: str) -> _Form | None:
    if dim % len(shape_of(tensor)) != 0:
        return None
    return c10d.all_gather_into_tensor.default, (tensor, world_size), group_name


# By name of the engine's operator, whose arguments they take. None: torch has no such collective, as it is along
# another dimension than the first.
_FORMS: dict[str, Callable[..., _Form | None]] = {
    "vllm::all_reduce": _all_reduce,
    "vllm::reduce_scatter": _reduce_scatter,
    "vllm::all_gather": _all_gather,
    "sglang::outplace_all_reduce": _all_reduce,
}


@dataclasses.dataclass
class StandIn:
    """The engine's own call, and the nodes in its place. args: all of its arguments, of which the first is a tensor."""

    target: torch._ops.OpOverload
    args: tuple
    meta: dict
    name: str
    collective: Node
    wait: Node


def stand_in(graph: Graph, names: Mapping[str, str]) -> list[StandIn]:
    """Puts torch's collectives in place of the engines'. names: of process groups, by the names that engines use."""
    found = []
    for node in list(graph.nodes):
        schema: Any = getattr(node.target, "_schema", None)
        form = _FORMS.get(schema.name) if node.op == "call_function" and schema is not None else None
        if form is None:
            continue
        given = [
            *node.args,
            *(node.kwargs[a.name] for a in schema.arguments[len(node.args) :] if a.name in node.kwargs),
        ]
        made = form(*given)
        if made is None:
            continue
        target, args, group = made
        with graph.inserting_before(node):
            collective = graph.call_function(target, (*args, names.get(group, group)))
            wait = graph.call_function(WAIT, (collective,))
        for new in (collective, wait):
            new.meta = dict(node.meta)
        node.replace_all_uses_with(wait)
        found.append(StandIn(node.target, tuple(given), dict(node.meta), node.name, collective, wait))
        graph.erase_node(node)
    return found


def give_back(graph: Graph, stood_in: list[StandIn], left: set[Node]) -> None:
    """The engine's own calls come back where the pass left the collective: it has chosen them for a reason."""
    for one in stood_in:
        if one.collective not in left:
            continue
        with graph.inserting_before(one.collective):
            # The tensor is what the stand-in reads by now: the pass may have replaced what it read at first.
            args = (one.collective.args[0], *one.args[1:])
            own = graph.create_node("call_function", one.target, args, name=one.name)
        own.meta = one.meta
        one.wait.replace_all_uses_with(own)
        graph.erase_node(one.wait)
        graph.erase_node(one.collective)
