"""Collectives of serving engines, which are operators of their own: torch's stand in for them while the pass looks."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch.fx import Graph, Node

from overlace.compile.match import WAIT, Left, aten, c10d, hint, shape_of

# torch's collective, its arguments without the group, and the engine's name of the group.
_Form = tuple[torch._ops.OpOverload, tuple, str]


def _all_reduce(given: Mapping[str, Any]) -> _Form:
    return c10d.all_reduce.default, (given["tensor"], "sum"), given["group_name"]


def _reduce_scatter(given: Mapping[str, Any]) -> _Form | None:
    if given["dim"] % len(shape_of(given["tensor"])) != 0:
        return None
    args = (given["tensor"], "sum", given["world_size"])
    return c10d.reduce_scatter_tensor.default, args, given["group_name"]


def _all_gather(given: Mapping[str, Any]) -> _Form | None:
    if given["dim"] % len(shape_of(given["tensor"])) != 0:
        return None
    return c10d.all_gather_into_tensor.default, (given["tensor"], given["world_size"]), given["group_name"]


def _ratio(whole: Node, part: Node) -> int | None:
    """How often the rows of one are those of the other, which is how many ranks the operator is for."""
    rows, few = (shape_of(node)[0] for node in (whole, part))
    try:
        return hint(rows) // hint(few) if hint(few) > 0 else None
    except Left:
        return None


def _all_gather_into(given: Mapping[str, Any]) -> _Form | None:
    ranks = _ratio(given["output"], given["input"])
    if ranks is None:
        return None
    return c10d.all_gather_into_tensor.default, (given["input"], ranks), given["group_name"]


def _reduce_scatter_into(given: Mapping[str, Any]) -> _Form | None:
    ranks = _ratio(given["input"], given["output"])
    if ranks is None:
        return None
    return c10d.reduce_scatter_tensor.default, (given["input"], "sum", ranks), given["group_name"]


# By name of the engine's operator; of its arguments by name. None: torch has no such collective, as it is along another
# dimension than the first. Those that write one of their arguments are functional in a graph: what it held is given,
# and what it holds then is a result.
_FORMS: dict[str, Callable[[Mapping[str, Any]], _Form | None]] = {
    "vllm::all_reduce": _all_reduce,
    "vllm::reduce_scatter": _reduce_scatter,
    "vllm::all_gather": _all_gather,
    "sglang::outplace_all_reduce": _all_reduce,
    "sglang::inplace_all_reduce": _all_reduce,
    "sglang::reg_all_gather_into_tensor": _all_gather_into,
    "sglang::reg_reduce_scatter_tensor": _reduce_scatter_into,
}


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
        """Erases what a call that is gone would have written."""
        given: list[Node] = []
        torch.fx.node.map_arg(self.kwargs, given.append)
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
        if node.target is aten.permute.default and list(node.args[1]) == list(range(len(shape_of(node)))):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def stand_in(graph: Graph, names: Mapping[str, str]) -> list[StandIn]:
    """Puts torch's collectives in place of the engines'. names: of process groups, by the names that engines use."""
    found = []
    for node in list(graph.nodes):
        name, given = _arguments(node)
        result = _result_of(node) if name in _FORMS else None
        made = _FORMS[name](given) if result is not None else None
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
