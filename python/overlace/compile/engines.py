"""Collectives of serving engines, which are operators of their own: torch's stand in for them while the pass looks."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from overlace._engines import COLLECTIVES, Collective
from overlace.compile.match import WAIT, Left, args_of, aten, c10d, hint, shape_of

# torch's collective, its arguments without the group, and the engine's name of the group.
_Form = tuple[torch._ops.OpOverload, tuple, str]


def _ratio(whole: Node, part: Node) -> int | None:
    """How often the rows of one are those of the other, which is how many ranks the operator is for."""
    rows, few = (shape_of(node)[0] for node in (whole, part))
    try:
        return hint(rows) // hint(few) if hint(few) > 0 else None
    except Left:
        return None


def _form_of(known: Collective, given: Mapping[str, Any]) -> _Form | None:
    """None: torch has no such collective, as it is along another dimension than the first, or for an unknown number of
    ranks. An operator that writes an argument is functional in a graph: what that held is given, what it holds then is
    a result."""
    sent, group = given[known.sent], given["group_name"]
    if known.does == "sum":
        return c10d.all_reduce.default, (sent, "sum"), group
    if given.get("dim", 0) % len(shape_of(sent)) != 0:
        return None
    if known.does == "gather":
        ranks = _ratio(given[known.output], sent) if known.output else given["world_size"]
        return None if ranks is None else (c10d.all_gather_into_tensor.default, (sent, ranks), group)
    ranks = _ratio(sent, given[known.output]) if known.output else given["world_size"]
    return None if ranks is None else (c10d.reduce_scatter_tensor.default, (sent, "sum", ranks), group)


@dataclasses.dataclass
class StandIn:
    """The engine's own call and its result, and the nodes in their place."""

    target: Any
    args: tuple
    kwargs: dict[str, Any]
    meta: dict
    name: str
    result: dict | None  # what torch knows of the result, where it is one of a tuple
    tensor: Node  # what is sent
    collective: Node
    wait: Node

    def put_back(self, graph: Graph) -> None:
        # The tensor is what the stand-in reads by now: the pass may have replaced what it read at first.
        now = args_of(self.collective)[0]
        args, kwargs = map_arg((self.args, self.kwargs), lambda n: now if n is self.tensor else n)
        with graph.inserting_before(self.collective):
            result = own = graph.create_node("call_function", self.target, args, kwargs, name=self.name)
            own.meta = self.meta
            if self.result is not None:
                result = graph.call_function(operator.getitem, (own, 1))
                result.meta = self.result
        self.wait.replace_all_uses_with(result)
        graph.erase_node(self.wait)
        graph.erase_node(self.collective)

    def forget(self, graph: Graph) -> None:
        """Erases what a call that is gone would have written."""
        given: list[Node] = []
        map_arg(self.kwargs, given.append)
        for node in given:
            if node.target is aten.empty.memory_format and not node.users and not node._erased:
                graph.erase_node(node)


def _arguments(node: Node) -> tuple[str, dict[str, Any]]:
    """Name and arguments by name of the operator that a node calls, itself or made functional by torch."""
    own: Any = node.target
    given: dict[str, Any] = dict(node.kwargs)
    if own in (auto_functionalized, auto_functionalized_v2):
        own = node.args[0]
        schema: Any = own._schema
        bases: Any = given.pop("_all_bases", [])
        for argument in schema.arguments:
            index: Any = given.pop(f"_{argument.name}_base_index", None)
            if index is not None:
                given[argument.name] = bases[index]
        is_whole = given.keys() == {
            argument.name for argument in schema.arguments
        }  # else a part of a tensor is written
        return (schema.name if is_whole and len(bases) <= 1 else ""), given
    schema = getattr(own, "_schema", None)
    if node.op != "call_function" or schema is None:
        return "", given
    given |= {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
    return schema.name, given


def _result_of(node: Node) -> Node | None:
    """The node itself, or what an operator that torch made functional has written, where nothing else is read of it."""
    if node.target not in (auto_functionalized, auto_functionalized_v2):
        return node
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 1 else None


def _drop_moves_to_the_same_place(graph: Graph) -> None:
    """What `movedim(0, 0)` leaves, by which an engine gathers along any dimension."""
    for node in list(graph.nodes):
        if node.target is aten.permute.default and list(args_of(node)[1]) == list(range(len(shape_of(node)))):
            node.replace_all_uses_with(args_of(node)[0])
            graph.erase_node(node)


def stand_in(graph: Graph, names: Mapping[str, str]) -> list[StandIn]:
    """Puts torch's collectives in place of the engines'. names: of process groups, by the names that engines use."""
    found = []
    for node in list(graph.nodes):
        name, given = _arguments(node)
        known = COLLECTIVES.get(name)
        if known is None:
            continue
        result = _result_of(node)
        made = None if result is None else _form_of(known, given)
        if result is None or made is None:
            continue
        target, args, group = made
        with graph.inserting_before(node):
            collective = graph.call_function(target, (*args, names.get(group, group)))
            wait = graph.call_function(WAIT, (collective,))
        for new in (collective, wait):
            new.meta = dict(result.meta)
        result.replace_all_uses_with(wait)
        of_result = None if result is node else dict(result.meta)
        found.append(
            StandIn(
                node.target,
                node.args,
                dict(node.kwargs),
                dict(node.meta),
                node.name,
                of_result,
                args[0],
                collective,
                wait,
            )
        )
        for old in dict.fromkeys((result, node)):
            graph.erase_node(old)
    if found:
        _drop_moves_to_the_same_place(graph)
    return found


def give_back(graph: Graph, stood_in: list[StandIn], left: set[Node]) -> None:
    """The engine's own calls come back where the pass left the collective: it has chosen them for a reason."""
    for one in stood_in:
        if one.collective in left:
            one.put_back(graph)
        else:
            one.forget(graph)
