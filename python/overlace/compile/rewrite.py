"""Collectives and the products beside them in a graph of aten, and the operators that take their place.

| found | becomes |
|---|---|
| all_gather_into_tensor, wait_tensor, then one product or several of the gathered rows | ag_gemm |
| the same, where all that takes the gathered rows is a sum over them (gradient of a weight) | ag_wgrad |
| product or sum of products, reduce_scatter_tensor, wait_tensor | gemm_rs |
| product or sum of products, all_reduce, wait_tensor | gemm_ar |
| product or sum of products, all_to_all_single of equal parts, wait_tensor | gemm_a2a |
| all_to_all_single of equal parts, wait_tensor, then a product of its rows | a2a_gemm |
| _scaled_mm of fp8 in place of the product | ag_gemm_scaled, gemm_rs_scaled, gemm_ar_scaled |

Views, and the split and cat by which another dimension than the first is gathered or scattered, may be in between. What
does not fit stays as it is, with the reason in its Candidate.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from overlace.compile.engines import give_back, stand_in
from overlace.compile.match import (
    COLLECTIVES,
    NOT_YET,
    VIEWS,
    WAIT,
    Consumers,
    Left,
    Problem,
    Product,
    adds_alike,
    args_of,
    aten,
    c10d,
    check_bias,
    check_dtypes,
    consumers_of,
    end_of_gather,
    hint,
    keeps_last,
    problem_of,
    same,
    shape_of,
    start_of_scatter,
    summands,
    take_results_themselves,
    what,
)
from overlace.compile.scaled import gather_scaled, kind_of_scales, of_one_element
from overlace.compile.sizes import free_sizes, written_sizes
from overlace.planning import FP8

if TYPE_CHECKING:
    from overlace.context import Context

_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
_PURE = {*VIEWS, operator.getitem, aten.add.Tensor, aten.split.Tensor}
_PURE |= {aten.mm.default, aten.addmm.default, aten.t.default, aten.permute.default, aten.cat.default}
_MERGED = {WAIT, operator.getitem, aten.split.Tensor, aten.cat.default}
_MAX_MOVED = 64  # nodes that may be computed earlier for one operand


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A collective of a graph. became: the operator that took its place, empty where it was left; reason: why."""

    collective: str
    group: str
    became: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Rules:
    """context: of a group's name, or raises Left. decide: why to rewrite, or raises Left. plan: for the operators.
    names: of process groups, by the names that serving engines use."""

    context: Callable[[str], Context]
    decide: Callable[[Context, Problem], str]
    plan: str = ""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)


def rewrite(graph: Graph, rules: Rules) -> list[Candidate]:
    """Rewrites what it can; one Candidate per collective, in the order of the graph."""
    stood_in = stand_in(graph, rules.names)
    collectives = [n for n in graph.nodes if n.op == "call_function" and n.target in COLLECTIVES | NOT_YET]
    if not collectives:
        return []
    free_sizes(graph)
    take_results_themselves(graph)
    rewriter = Rewriter(graph, rules)
    handlers: dict[Any, Callable[[Node], tuple[str, str]]] = {
        c10d.all_gather_into_tensor.default: rewriter.gather,
        c10d.reduce_scatter_tensor.default: rewriter.reduce,
        c10d.all_reduce.default: rewriter.reduce,
        c10d.all_to_all_single.default: rewriter.exchange,
    }
    found, left = {}, set()
    for node in sorted(collectives, key=lambda node: not _gathers_fp8(node)):  # before their scales
        name, group = node.name, args_of(node)[-1]
        try:
            if node.target in NOT_YET:
                raise Left("overlace has no operator for it yet")
            became, reason = rewriter.taken.get(node) or handlers[node.target](node)
        except Left as why:
            became, reason = "", str(why)
            left.add(node)
        found[node] = Candidate(name, str(group), became, reason)
    give_back(graph, stood_in, left)
    return [found[node] for node in collectives]


def _gathers_fp8(node: Node) -> bool:
    return getattr(node.meta["val"], "dtype", None) in FP8  # of coalesced collectives it is a list


def _is_pure(node: Node) -> bool:
    return node.target in _PURE or not node.is_impure()  # the latter takes long


class Rewriter:
    def __init__(self, graph: Graph, rules: Rules) -> None:
        self.graph, self.rules = graph, rules
        self.nothing: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self.taken: dict[Node, tuple[str, str]] = {}  # collectives that became a part of another's operator
        self.last: Node = next(iter(graph.nodes))  # new nodes come behind it
        self.like: Node | None = None  # they tell of the same lines of the user's program

    def wait_of(self, collective: Node) -> Node:
        """The node that waits. DTensor of torch 2.15 waits and sorts once per user of the result: they become one."""
        stack = [collective]
        while stack:
            first: dict[str, Node] = {}
            for user in sorted(stack.pop().users):
                if user.target not in _MERGED:
                    continue
                same_as = first.setdefault(f"{user.target} {args_of(user)} {user.kwargs}", user)
                if same_as is not user:
                    user.replace_all_uses_with(same_as)
                    self.graph.erase_node(user)
            stack.extend(first.values())
        waits = [user for user in collective.users if user.target is WAIT]
        if not waits:
            raise Left("nothing waits for it")
        return waits[0]

    def call(self, target: Any, *args: Any, val: Any = None, **kwargs: Any) -> Node:
        with self.graph.inserting_after(self.last):
            node = self.graph.call_function(target, args, kwargs)
        if val is None:
            of = map_arg((args, kwargs), lambda n: n.meta["val"])
            val = target(*of[0], **of[1])
        node.meta["val"] = val
        if self.like is not None and "stack_trace" in self.like.meta:
            node.meta["stack_trace"] = self.like.meta["stack_trace"]
        self.last = node
        return node

    def with_plan(self) -> dict[str, Any]:
        return {"plan": self.rules.plan} if self.rules.plan else {}

    def size(self, node: Node, dim: int) -> int | Node:
        """A size as an argument: a number, or a node where it may change."""
        size = shape_of(node)[dim]
        return size if isinstance(size, int) else self.call(aten.sym_size.int, node, dim, val=size)

    def sizes(self, node: Node) -> list[int | Node]:
        """Those that rows_back asks for, of all dimensions."""
        dims = range(len(shape_of(node)))
        return [self.size(node, d) for d in dims] if len(dims) > 2 else [-1] * len(dims)

    def rows_first(self, node: Node, dim: int) -> Node:
        """The node as a matrix whose rows are cut along `dim`."""
        others = [d for d in range(len(shape_of(node))) if d != dim]
        if dim != 0:
            node = self.call(aten.permute.default, node, [dim, *others])
        return self.as_matrix(node)

    def rows_back(self, matrix: Node, sizes: Sequence[int | Node], dim: int) -> Node:
        """The inverse; `sizes` of the result, but for `dim` and the last."""
        num_dims = len(sizes)
        if num_dims == 2:
            return matrix
        inner = [d for d in range(num_dims - 1) if d != dim]
        node = self.call(aten.reshape.default, matrix, [-1, *(sizes[d] for d in inner), self.size(matrix, 1)])
        if dim == 0:
            return node
        order = [inner.index(d) + 1 if d != dim else 0 for d in range(num_dims - 1)]
        node = self.call(aten.permute.default, node, [*order, num_dims - 1])
        return self.call(aten.clone.default, node, memory_format=torch.contiguous_format)

    def as_matrix(self, node: Node) -> Node:
        if len(shape_of(node)) == 2:
            return node
        return self.call(aten.reshape.default, node, [-1, self.size(node, -1)])

    def erase(self, *nodes: Node) -> None:
        """Those that nothing uses any more, and then what fed them alone."""
        stack = list(nodes)
        while stack:
            node = stack.pop()
            is_ours = node.target in COLLECTIVES or node.target is WAIT
            if node._erased or node.users or node.op != "call_function" or not (is_ours or _is_pure(node)):
                continue
            inputs = node.all_input_nodes
            self.graph.erase_node(node)
            stack.extend(inputs)

    def replace(self, collective: Node, wait: Node, new: Node) -> None:
        for old in (wait, collective):  # what was kept without waiting is complete now
            old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not wait)

    def moved(self, operands: Sequence[Node], behind: Node, not_there: set[Node]) -> list[Node]:
        """What must be computed right behind `behind`, so that `operands` are there; in order."""
        order: list[Node] = []
        seen: set[Node] = set()

        def visit(node: Node) -> None:
            if node in not_there:
                raise Left("its other operand depends on the collective")
            if node in seen or node <= behind:
                return
            seen.add(node)
            is_plain = node.op in ("call_function", "get_attr") and _is_pure(node)
            if len(seen) > _MAX_MOVED or not is_plain or node.target in COLLECTIVES:
                raise Left("its other operand is computed later")
            for given in node.all_input_nodes:
                visit(given)
            order.append(node)

        for operand in operands:
            visit(operand)
        return order

    def begin(self, behind: Node, order: Sequence[Node], like: Node) -> None:
        """New nodes come behind this one, and behind those of `order`, which move there."""
        self.last, self.like = behind, like
        for node in order:
            self.last.append(node)
            self.last = node

    def before_first(self, consumers: Consumers, collective: Node, full: Node) -> tuple[Node, set[Node]]:
        """Behind which node the call comes that gives what consumers take, so that most operands are there by then; and
        what is not there yet."""
        kept = [user for user in collective.users if user.target is not WAIT]
        first = min((*consumers.nodes(), *kept), default=None)
        return (full if first is None else first.prev), {full, *consumers.views}

    def move_views(self, consumers: Consumers) -> None:
        """Views of what was gathered that stand before the call which gives it come behind that; without users they
        go."""
        views = sorted(view for view in consumers.views if not view._erased)
        for view in reversed(views):
            if not view.users:
                self.graph.erase_node(view)
        for view in [view for view in views if not view._erased and view < self.last]:
            self.last.append(view)
            self.last = view

    # ---- all-gather ----

    def gather(self, collective: Node) -> tuple[str, str]:
        _, ranks, name = args_of(collective)
        context = self.rules.context(name)
        wait = self.wait_of(collective)
        full, dim = end_of_gather(wait, ranks)
        shape, dtype = shape_of(full), full.meta["val"].dtype
        if len(shape) < 2:
            raise Left("it gathers a vector")
        if dim == len(shape) - 1:
            raise Left("it gathers the dimension that is summed over")
        consumers = consumers_of(full)
        if any(product.scales is not None for product in consumers.products):
            return gather_scaled(self, collective, full, dim, consumers, context)
        if dtype not in _DTYPES:
            raise Left(f"it gathers {dtype}")
        is_kept = len(collective.users) > 1
        if is_kept and dim != 0:
            raise Left("what came is kept in the order of the ranks")
        behind, not_there = self.before_first(consumers, collective, full)
        products, order, why = self._fitting(consumers, behind, not_there, dtype)
        if not products:
            if consumers.sums and not consumers.others and not is_kept:
                return self._weight_gradients(consumers, collective, full, dim, context)
            first = consumers.others or [wait]
            raise Left(why or f"no product takes the gathered rows, but {what(first[0])}")
        num_fitting = len(consumers.products)
        needs_full = bool(consumers.others or consumers.sums or is_kept or len(products) < num_fitting)
        rows = math.prod(hint(size) for size in shape[:-1])
        widest = max(hint(shape_of(p.b)[1]) for p in products)
        has_bias = any(p.bias is not None for p in products)
        op = torch.ops.overlace.ag_gemm.__name__
        problem = Problem(op, rows, widest, hint(shape[-1]), dtype, has_bias, needs_full)
        reason = self.rules.decide(context, problem)

        self.begin(behind, order, products[0].node)
        self._ag_gemm(products, collective, full, dim, needs_full)
        self.move_views(consumers)
        self.erase(full, collective)
        notes = [f"{len(products)} products"] if len(products) > 1 else []
        notes += ["the gathered rows are a result too"] if needs_full else []
        return op, "; ".join([*notes, reason])

    def _fitting(
        self, consumers: Consumers, behind: Node, not_there: set[Node], dtype: torch.dtype
    ) -> tuple[list[Product], list[Node], str]:
        """The products that can be part of one call, what must be computed earlier for them, why not the others."""
        products, order, why = [], [], ""
        for product in sorted(consumers.products, key=lambda p: p.node):
            operands = [product.b] if product.bias is None else [product.b, product.bias]
            try:
                check_dtypes(dtype, (product.node, *operands))
                check_bias(product.bias)
                order += [n for n in self.moved(operands, behind, not_there) if n not in order]
                products.append(product)
            except Left as left:
                why = str(left)
        return products, order, why

    def _ag_gemm(self, products: list[Product], collective: Node, full: Node, dim: int, needs_full: bool) -> None:
        shard, _, group = args_of(collective)
        a = self.rows_first(shard, dim)
        biases = [p.bias for p in products]
        has_all = all(b is not None for b in biases)
        outs = [p.node.meta["val"] for p in products]
        val = full.meta["val"]
        gathered = self.gathered_val(full, dim) if needs_full else self.nothing_like(val)
        kwargs: dict[str, Any] = ({"return_a": True} if needs_full else {}) | self.with_plan()
        both = self.call(
            torch.ops.overlace.ag_gemm.default,
            a,
            [p.b for p in products],
            biases if has_all else [],
            0,
            group,
            val=(gathered, outs),
            **kwargs,
        )
        of_all = self.call(operator.getitem, both, 1, val=outs)
        for i, product in enumerate(products):
            new = self.call(operator.getitem, of_all, i, val=outs[i])
            if not has_all and product.bias is not None:
                new = self.call(aten.add.Tensor, new, product.bias, val=outs[i])
            if dim != 0:
                new = self.as_matrix(self.rows_back(new, self.sizes(shard), dim))
            product.node.replace_all_uses_with(new)
            self.erase(product.node)
        if needs_full:
            self.put_gathered(both, gathered, shard, dim, full, collective)

    def put_gathered(self, both: Node, val: torch.Tensor, shard: Node, dim: int, full: Node, collective: Node) -> None:
        """The first result of `both` in place of what was gathered."""
        new = self.rows_back(self.call(operator.getitem, both, 0, val=val), self.sizes(shard), dim)
        full.replace_all_uses_with(new)
        collective.replace_all_uses_with(new, delete_user_cb=lambda user: user.target is not WAIT)

    def gathered_val(self, full: Node, dim: int) -> torch.Tensor:
        val = full.meta["val"]
        return val if val.dim() == 2 and dim == 0 else val.new_empty((math.prod(val.shape[:-1]), val.shape[-1]))

    def nothing_like(self, val: torch.Tensor) -> torch.Tensor:
        key = (val.dtype, val.device)
        if key not in self.nothing:
            self.nothing[key] = val.new_empty((0, 0))
        return self.nothing[key]

    def _weight_gradients(
        self, consumers: Consumers, collective: Node, full: Node, dim: int, context: Context
    ) -> tuple[str, str]:
        shard, _, name = args_of(collective)
        dtype = full.meta["val"].dtype
        nodes = [node for node, *_ in consumers.sums]
        first = min(nodes)
        factors = [factor for _, factor, _ in consumers.sums]
        check_dtypes(dtype, factors)
        rows, k = math.prod(hint(size) for size in shape_of(full)[:-1]), hint(shape_of(full)[-1])
        widest = max(hint(factor.meta["val"].numel()) // max(rows, 1) for factor in factors)
        op = torch.ops.overlace.ag_wgrad.__name__
        reason = self.rules.decide(context, Problem(op, rows, widest, k, dtype, b_layout="kn"))
        order = self.moved(factors, first.prev, {full, *nodes})
        self.begin(first.prev, order, first)
        x = self.rows_first(shard, dim)
        dys = []
        for _, factor, is_transposed in consumers.sums:
            dy = self.call(aten.permute.default, factor, [1, 0]) if is_transposed else factor
            dys.append(dy if dim == 0 else self._in_gathered_order(dy, shard, dim))
        results = [x.meta["val"].new_empty((shape_of(x)[1], shape_of(dy)[1])) for dy in dys]
        kwargs = self.with_plan()
        every = self.call(torch.ops.overlace.ag_wgrad.default, x, dys, 0, name, val=results, **kwargs)
        for i, (node, _, is_transposed) in enumerate(consumers.sums):
            new = self.call(operator.getitem, every, i, val=results[i])
            if is_transposed:
                new = self.call(aten.permute.default, new, [1, 0])
                new = self.call(aten.clone.default, new, memory_format=torch.contiguous_format)
            node.replace_all_uses_with(new)
        self.erase(*nodes)
        return op, reason

    def _in_gathered_order(self, matrix: Node, shard: Node, dim: int) -> Node:
        """Rows as they are gathered along `dim`, of a matrix whose rows are in the order of the user's tensor."""
        leading = [-1 if d == dim else size for d, size in enumerate(self.sizes(shard)[:-1])]
        return self.rows_first(self.call(aten.reshape.default, matrix, [*leading, self.size(matrix, 1)]), dim)

    # ---- reduce-scatter and all-reduce ----

    def reduce(self, collective: Node) -> tuple[str, str]:
        is_scatter = collective.target is c10d.reduce_scatter_tensor.default
        own = torch.ops.overlace
        packets = (own.gemm_rs, own.gemm_rs_scaled) if is_scatter else (own.gemm_ar, own.gemm_ar_scaled)
        given, reduce_op, name = args_of(collective)[0], args_of(collective)[1], args_of(collective)[-1]
        context = self.rules.context(name)
        wait = self.wait_of(collective)
        if reduce_op not in ("sum", "avg"):
            raise Left(f"the reduction is '{reduce_op}'")
        source, dim = start_of_scatter(given, context.size) if is_scatter else (given, 0)
        shape, dtype = shape_of(source), source.meta["val"].dtype
        if dtype not in _DTYPES:
            raise Left(f"it reduces {dtype}")
        if is_scatter and (len(shape) < 2 or dim == len(shape) - 1):
            raise Left("it scatters the columns of the product")
        products = summands(source, keeps_last if is_scatter else lambda view: True)
        scales = kind_of_scales(products)
        packet = packets[scales != "none"]
        check_dtypes(dtype, (x for p in products for x in ((p.node, p.a) if scales == "none" else (p.node,))))
        if any(
            not same(x, y) for p in products for x, y in zip(*map(shape_of, (p.node, products[0].node)), strict=True)
        ):
            raise Left("the shapes of the products differ")
        bias = self._bias_of(products, reduce_op, context.size)
        if is_scatter and (late := self._merged_into(wait, source, dim, products, context)) is not None:
            return packet.__name__, f"part of {late.name}: the sums are added before they are scattered"
        reason = self.rules.decide(context, problem_of(packets[0].__name__, products, bias is not None, scales))
        sizes = written_sizes(source) if is_scatter or len(shape) != 2 else [-1, -1]

        self.begin(collective.prev, [], products[0].node)
        factors = [self._rows_of(p.a, sizes, dim) for p in products]
        a, b = factors[0], products[0].b
        if len(products) > 1:
            a = self.call(aten.cat.default, factors, 1)
            b = self.call(aten.cat.default, [p.b for p in products])
        kwargs, factors = self.with_plan(), [a, b]
        if products[0].scales is not None:
            of_a, of_b = products[0].scales
            is_rows = scales == "rows"
            of_a = self._rows_of(of_a, sizes, dim) if is_rows else of_one_element(self, of_a)
            factors = [a, of_a, b, of_b if is_rows else of_one_element(self, of_b)]
            kwargs["out_dtype"] = dtype
        like = wait.meta["val"]
        operands = (*factors, bias, reduce_op, *([0] if is_scatter else []), name)
        val = like if len(shape) == 2 else like.new_empty((like.numel() // shape_of(b)[1], shape_of(b)[1]))
        new = self.call(packet.default, *operands, val=val, **kwargs)
        if is_scatter:
            new = self.rows_back(new, sizes, dim)
        elif len(shape) != 2:
            new = self.call(aten.reshape.default, new, sizes)
        wait.replace_all_uses_with(new)
        collective.replace_all_uses_with(new, delete_user_cb=lambda user: user is not wait)
        self.erase(wait)
        return packet.__name__, f"{len(products)} products are one along K; {reason}" if len(products) > 1 else reason

    # ---- all-to-all ----

    def exchange(self, collective: Node) -> tuple[str, str]:
        given, received_sizes, sent_sizes, name = args_of(collective)
        context = self.rules.context(name)
        wait = self.wait_of(collective)
        dtype = given.meta["val"].dtype
        if dtype not in _DTYPES:
            raise Left(f"it exchanges {dtype}")
        if len(shape_of(given)) < 2:
            raise Left("it exchanges a vector")
        sizes = [x.meta["val"] if isinstance(x, Node) else x for x in (*received_sizes, *sent_sizes)]
        if any(not same(size, sizes[0]) for size in sizes):
            raise Left("its parts differ in size, and what other ranks send is not in the graph")
        try:
            products = summands(given, keeps_last)
            return self._gemm_a2a(collective, wait, products, context)
        except Left as before:
            consumers = consumers_of(wait)
            if not consumers.products:
                raise Left(f"{before}; no product takes its rows") from None
        return self._a2a_gemm(collective, wait, consumers, context)

    def _gemm_a2a(self, collective: Node, wait: Node, products: list[Product], context: Context) -> tuple[str, str]:
        dtype, name = args_of(collective)[0].meta["val"].dtype, args_of(collective)[-1]
        biases = [p.bias for p in products if p.bias is not None]
        check_dtypes(dtype, (x for p in products for x in (p.node, p.a)))
        if len(biases) > 1:
            raise Left("what is added to the product is no vector")
        bias = biases[0] if biases else None
        check_bias(bias)
        op = torch.ops.overlace.gemm_a2a.__name__
        problem = problem_of(op, products, bias is not None)
        reason = self.rules.decide(context, dataclasses.replace(problem, m=problem.m * context.size))
        sizes = written_sizes(args_of(collective)[0])
        self.begin(collective.prev, [], products[0].node)
        a, b = products[0].a, products[0].b
        if len(products) > 1:
            a = self.call(aten.cat.default, [p.a for p in products], 1)
            b = self.call(aten.cat.default, [p.b for p in products])
        kwargs = self.with_plan()
        val = products[0].node.meta["val"]
        new = self.call(torch.ops.overlace.gemm_a2a.default, a, b, bias, name, val=val.new_empty(val.shape), **kwargs)
        new = self.rows_back(new, sizes, 0)
        wait.replace_all_uses_with(new)
        collective.replace_all_uses_with(new, delete_user_cb=lambda user: user is not wait)
        self.erase(wait)
        return op, f"{len(products)} products are one along K; {reason}" if len(products) > 1 else reason

    def _a2a_gemm(self, collective: Node, wait: Node, consumers: Consumers, context: Context) -> tuple[str, str]:
        """The exchange hides behind the widest product; others take what came."""
        given, name = args_of(collective)[0], args_of(collective)[-1]
        dtype = given.meta["val"].dtype
        behind, not_there = self.before_first(consumers, collective, wait)
        fitting, _, why = self._fitting(consumers, behind, not_there, dtype)
        if not fitting:
            raise Left(why)
        product = max(fitting, key=lambda p: hint(shape_of(p.b)[1]))
        _, order, _ = self._fitting(Consumers([product]), behind, not_there, dtype)
        num_others = len(consumers.products) - 1 + len(consumers.sums) + len(consumers.others)
        needs_rows = num_others > 0 or len(collective.users) > 1
        rows, (n, k) = math.prod(hint(size) for size in shape_of(wait)[:-1]), map(hint, reversed(shape_of(product.b)))
        has_bias = product.bias is not None
        packet = torch.ops.overlace.a2a_gemm
        problem = Problem(packet.__name__, rows * context.size, n, k, dtype, has_bias, needs_rows)
        reason = self.rules.decide(context, problem)

        self.begin(behind, order, product.node)
        out = product.node.meta["val"]
        came = out.new_empty((rows, k)) if needs_rows else self.nothing_like(out)
        kwargs: dict[str, Any] = ({"return_a": True} if needs_rows else {}) | self.with_plan()
        operands = (self.as_matrix(given), product.b, product.bias, name)
        both = self.call(packet.default, *operands, val=(came, out), **kwargs)
        product.node.replace_all_uses_with(self.call(operator.getitem, both, 1, val=out))
        self.erase(product.node)
        if needs_rows:
            self.put_gathered(both, came, given, 0, wait, collective)
        self.move_views(consumers)
        self.erase(wait, collective)
        return packet.__name__, f"the rows that came are a result too; {reason}" if needs_rows else reason

    def _merged_into(
        self, wait: Node, source: Node, dim: int, products: list[Product], context: Context
    ) -> Node | None:
        """The later reduce-scatter whose result is added to this one, if one call can compute both: it gets the sum."""
        add = next(iter(wait.users)) if len(wait.users) == 1 else wait
        if add.target is not aten.add.Tensor or add.kwargs or args_of(add)[0] is args_of(add)[1] or not adds_alike(add):
            return None
        other = args_of(add)[0] if args_of(add)[1] is wait else args_of(add)[1]
        late = args_of(other)[0] if other.target is WAIT else other
        if late.target is not args_of(wait)[0].target or args_of(late)[1:] != args_of(args_of(wait)[0])[1:]:
            return None
        try:
            late_source, late_dim = start_of_scatter(args_of(late)[0], context.size)
            more = summands(late_source, keeps_last)
            if any(p.bias is not None or p.scales is not None for p in (*products, *more)):
                return None
            self.rules.decide(context, problem_of(torch.ops.overlace.gemm_rs.__name__, [*products, *more], False))
        except Left:
            return None
        is_alike = late_dim == dim and len(shape_of(late_source)) == len(shape_of(source))
        alone = len(other.users) == 1 and len(late.users) == 1 and len(args_of(wait)[0].users) == 1
        if not (is_alike and alone and source < late_source):
            return None
        user = next(iter(late_source.users))
        self.begin(late_source, [], products[0].node)
        both = self.call(aten.add.Tensor, source, late_source, val=late_source.meta["val"])
        user.replace_input_with(late_source, both)
        add.replace_all_uses_with(other)
        self.erase(add)
        return late

    def _rows_of(self, a: Node, sizes: Sequence[int | Node], dim: int) -> Node:
        """A matrix whose rows are those of a tensor of `sizes`, cut along `dim` of that."""
        if dim == 0:
            return a
        return self.rows_first(self.call(aten.reshape.default, a, [*sizes[:-1], self.size(a, 1)]), dim)

    def _bias_of(self, products: list[Product], reduce_op: str, ranks: int) -> Node | None:
        """What is added once. A rank's part of a vector that all hold alike is that vector over the ranks."""
        biases = [p.bias for p in products if p.bias is not None]
        if not biases:
            return None
        bias = biases[0]
        is_part = (
            bias.target in (aten.div.Tensor, aten.div.Scalar) and args_of(bias)[1] == ranks and len(shape_of(bias)) == 1
        )
        if len(biases) > 1 or not is_part or reduce_op != "sum" or not isinstance(args_of(bias)[0], Node):
            raise Left("each rank adds a vector of its own")
        check_bias(args_of(bias)[0])
        return args_of(bias)[0]
