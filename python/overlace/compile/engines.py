"""Collectives of serving engines, which are operators of their own: torch's stand in for them while the pass looks."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch.fx import Graph, Node

from overlace._engines import ENGINE_COLLECTIVES, EngineCollective, arguments_by_name
from overlace.compile.match import WAIT, Left, aten, c10d, hint, shape_of


def _ratio(whole: Node, part: Node) -> int | None:
    """How often the rows of one are those of the other, which is how many ranks the operator is for."""
    rows, few = (shape_of(node)[0] for node in (whole, part))
    try:
        return hint(rows) // hint(few) if hint(few) > 0 else None
    except Left:
        return None


def _collective_of(form: EngineCollective, given: Mapping[str, Any]) -> tuple[torch._ops.OpOverload, tuple] | None:
    """torch's, and its arguments but for the group. None: it has none along another dimension than the first."""
    sent = given[form.sent]
    if not form.is_along_rows(given, len(shape_of(sent))):
        return None
    if form.kind == "all_reduce":
        return c10d.all_reduce.default, (sent, "sum")
    is_gather = form.kind == "all_gather"
    ranks = given.get("world_size")
    if ranks is None:
        written = given[form.written]
        ranks = _ratio(written, sent) if is_gather else _ratio(sent, written)
    if ranks is None:
        return None
    return (
        (c10d.all_gather_into_tensor.default, (sent, ranks))
        if is_gather
        else (c10d.reduce_scatter_tensor.default, (sent, "sum", ranks))
    )


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
        now: Any = self.collective.args[0]
        args, kwargs = torch.fx.node.map_arg((self.args, self.kwargs), lambda n: now if n is self.tensor else n)
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
        """Of a call that is gone, what it would have written."""
        given: list[Node] = []
        torch.fx.node.map_arg(self.kwargs, given.append)
        for node in given:
            if node.target is aten.empty.memory_format and not node.users and not node._erased:
                graph.erase_node(node)


def _arguments(node: Node) -> tuple[str, dict[str, Any]]:
    """Name and arguments by name of the operator that a node calls, itself or made functional by torch: what it writes
    is given then, and what that holds afterwards is a result."""
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
    return schema.name, arguments_by_name([argument.name for argument in schema.arguments], node.args, node.kwargs)


def _result_of(node: Node) -> Node | None:
    """The node itself, or what an operator that torch made functional has written, where nothing else is read of it."""
    if node.target not in (auto_functionalized, auto_functionalized_v2):
        return node
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 1 else None


def _drop_moves_to_the_same_place(graph: Graph) -> None:
    """What `movedim(0, 0)` leaves, by which an engine gathers along any dimension."""
    for node in list(graph.nodes):
        if node.target is aten.permute.default and list(node.args[1]) == list(range(len(shape_of(node)))):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def stand_in(graph: Graph, names: Mapping[str, str]) -> list[StandIn]:
    """Puts torch's collectives in place of the engines'. names: of process groups, by the names that engines use."""
    found = []
    for node in list(graph.nodes):
        name, given = _arguments(node)
        form = ENGINE_COLLECTIVES.get(name)
        result = None if form is None else _result_of(node)
        made = None if form is None or result is None else _collective_of(form, given)
        if result is None or made is None:
            continue
        target, args = made
        group = given["group_name"]
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
