"""Products of fp8 whose scales are operands: torch._scaled_mm, and what overlace's operators take of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from overlace.compile.match import (
    VIEWS,
    WAIT,
    Consumers,
    Left,
    Problem,
    Product,
    args_of,
    aten,
    c10d,
    check_bias,
    end_of_gather,
    hint,
    same,
    shape_of,
)

if TYPE_CHECKING:
    from overlace.compile.rewrite import Rewriter
    from overlace.context import Context

_MULTIPLE = 16  # elements of a row of fp8
_RESULTS = {torch.bfloat16, torch.float16, torch.float32}


def kind_of_scales(products: Sequence[Product]) -> str:
    """As overlace.plan names it; "none" where none has scales."""
    product = products[0]
    if all(p.scales is None for p in products):
        return "none"
    if len(products) > 1 or product.scales is None:
        raise Left("products with scales are added up before the sum over ranks")
    (m, k), (_, n) = shape_of(product.a), shape_of(product.b)
    if not same(k % _MULTIPLE, 0):
        raise Left(f"K is {k}, and operators of fp8 want a multiple of {_MULTIPLE}")
    if all(factor.meta["val"].dtype == torch.float8_e5m2 for factor in (product.a, product.b)):
        raise Left("both its operands are torch.float8_e5m2")
    if not same(product.b.meta["val"].stride(0), 1):
        raise Left("the columns of its weight are not contiguous")
    if product.node.meta["val"].dtype not in _RESULTS:
        raise Left(f"its result is {product.node.meta['val'].dtype}")
    check_bias(product.bias)
    if product.bias is not None and product.bias.meta["val"].dtype != product.node.meta["val"].dtype:
        raise Left("its bias is of another dtype than its result")
    shapes = [tuple(shape_of(scale)) for scale in product.scales]
    if all(len(shape) < 3 and math.prod(shape) == 1 for shape in shapes):
        return "tensor"
    wanted = ((m, 1), (1, n))
    if all(len(s) == 2 and same(s[0], w[0]) and same(s[1], w[1]) for s, w in zip(shapes, wanted, strict=True)):
        return "rows"
    raise Left(f"its scales are {list(shapes[0])} and {list(shapes[1])}, neither of tensors nor of rows and columns")


def of_one_element(rewriter: Rewriter, scale: Node) -> Node:
    return scale if len(shape_of(scale)) == 1 else rewriter.call(aten.reshape.default, scale, [1])


def _gathered_beside(scale: Node, collective: Node, dim: int) -> Node:
    """The collective that gathers the scales of rows as `collective` does their rows."""
    node = scale
    while node.target in (*VIEWS, aten.cat.default, aten.split.Tensor, operator.getitem):
        given = args_of(node)[0]
        node = given[0] if isinstance(given, (list, tuple)) else given
    source = args_of(node)[0] if node.target is WAIT else node
    if source.target is not c10d.all_gather_into_tensor.default or args_of(source)[1:] != args_of(collective)[1:]:
        raise Left("the scales of its rows are not gathered beside them")
    end, dim_of_scales = end_of_gather(node, args_of(source)[1])
    is_end = scale is end or (scale.target in VIEWS and args_of(scale)[0] is end)
    rows = shape_of(args_of(collective)[0])[:-1]
    shard = shape_of(args_of(source)[0])
    is_alike = len(shard) == len(rows) + 1 and all(same(p, q) for p, q in zip(shard, (*rows, 1), strict=True))
    if not is_end or dim_of_scales != dim or not is_alike:
        raise Left("the scales of its rows are gathered in another order")
    return source


def gather_scaled(
    rewriter: Rewriter, collective: Node, full: Node, dim: int, consumers: Consumers, context: Context
) -> tuple[str, str]:
    """The gather hides behind the widest product that fits; others take what came."""
    is_kept = len(collective.users) > 1
    if is_kept and dim != 0:
        raise Left("what came is kept in the order of the ranks")
    needs_full = len(consumers.nodes()) > 1 or is_kept
    behind, not_there = rewriter.before_first(consumers, collective, full)
    fitting, why = [], ""
    for product in consumers.products:
        if product.scales is None:
            continue
        try:
            kind, (a_scale, b_scale) = kind_of_scales([product]), product.scales
            beside = _gathered_beside(a_scale, collective, dim) if kind == "rows" else None
            of_a = a_scale if beside is None else args_of(beside)[0]
            operands = [of_a, product.b, b_scale, *([] if product.bias is None else [product.bias])]
            order = rewriter.moved(operands, behind, not_there)
            fitting.append((product, kind, beside, (of_a, b_scale), order))
        except Left as left:
            why = str(left)
    if not fitting:
        raise Left(why)
    product, kind, beside, scales, order = max(fitting, key=lambda found: hint(shape_of(found[0].b)[1]))
    packet, out = torch.ops.overlace.ag_gemm_scaled, product.node.meta["val"]
    rows, k, has_bias = math.prod(hint(size) for size in shape_of(full)[:-1]), hint(shape_of(full)[-1]), product.bias
    op, n = torch.ops.overlace.ag_gemm.__name__, hint(out.shape[1])
    dtype, b_dtype = (node.meta["val"].dtype for node in (full, product.b))
    problem = Problem(
        op, rows, n, k, dtype, has_bias is not None, needs_full, scales=kind, out_dtype=out.dtype, b_dtype=b_dtype
    )
    reason = rewriter.rules.decide(context, problem)

    rewriter.begin(behind, order, product.node)
    shard, _, group = args_of(collective)
    if kind == "rows":
        of_a, of_b = rewriter.rows_first(scales[0], dim), scales[1]
    else:
        of_a, of_b = (of_one_element(rewriter, scale) for scale in scales)
    val = full.meta["val"]
    gathered = rewriter.gathered_val(full, dim) if needs_full else rewriter.nothing_like(val)
    kwargs: dict[str, Any] = ({"return_a": True} if needs_full else {}) | {"out_dtype": out.dtype}
    kwargs |= rewriter.with_plan()
    given = (rewriter.rows_first(shard, dim), of_a, product.b, of_b, product.bias, 0, group)
    both = rewriter.call(packet.default, *given, val=(gathered, out), **kwargs)
    new = rewriter.call(operator.getitem, both, 1, val=out)
    if dim != 0:
        new = rewriter.as_matrix(rewriter.rows_back(new, rewriter.sizes(shard), dim))
    product.node.replace_all_uses_with(new)
    rewriter.erase(product.node)
    if needs_full:
        rewriter.put_gathered(both, gathered, shard, dim, full, collective)
    rewriter.move_views(consumers)
    rewriter.erase(full, collective)
    if beside is not None and beside._erased:
        rewriter.taken[beside] = packet.__name__, "these scales travel with their rows"
    return packet.__name__, f"the gathered rows are a result too; {reason}" if needs_full else reason
