"""Reading a graph of aten: products, what feeds a collective, what takes its result."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from overlace.planning import FP8

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
COLLECTIVES = {c10d.all_gather_into_tensor.default, c10d.reduce_scatter_tensor.default, c10d.all_reduce.default}
COLLECTIVES |= {c10d.all_to_all_single.default}
NOT_YET = {c10d.all_gather_into_tensor_coalesced.default}
NOT_YET |= {c10d.reduce_scatter_tensor_coalesced.default, c10d.all_reduce_coalesced.default, c10d.broadcast.default}
WAIT = c10d.wait_tensor.default


class Left(Exception):
    """A candidate stays as it is; the text says why."""


@dataclasses.dataclass
class Product:
    node: Node
    a: Node
    b: Node
    bias: Node | None = None
    scales: tuple[Node, Node] | None = None  # those of a and b where they are fp8

    @property
    def is_plain(self) -> bool:
        return self.bias is None and self.scales is None


@dataclasses.dataclass(frozen=True)
class Problem:
    """What would be computed, for who decides whether it is worth it. Sizes as overlace.plan takes them."""

    op: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    bias: bool = False
    return_a: bool = False
    b_layout: str = "nk"
    scales: str = "none"
    out_dtype: torch.dtype | None = None
    b_dtype: torch.dtype | None = None


def args_of(node: Node) -> Any:
    """Whatever the target takes: it is for whoever has looked at that to know what they are."""
    return node.args


def shape_of(node: Node) -> torch.Size:
    return node.meta["val"].shape


def check_dtypes(dtype: torch.dtype, nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.meta["val"].dtype != dtype:
            raise Left(f"the dtypes of a product differ: {node.meta['val'].dtype} and {dtype}")


def check_bias(bias: Node | None) -> None:
    """Operators add a vector without gaps."""
    if bias is None:
        return
    if len(shape_of(bias)) != 1:
        raise Left("what is added to the product is no vector")
    if not bias.meta["val"].is_contiguous():
        raise Left("what is added to the product has gaps between its elements")


def same(a: Any, b: Any) -> bool:
    return statically_known_true(a == b)


def keeps_last(view: Node) -> bool:
    """A view that cuts the rows otherwise, and leaves the columns."""
    before, after = shape_of(args_of(view)[0]), shape_of(view)
    return len(before) > 0 and len(after) > 0 and same(before[-1], after[-1])


def is_transpose(node: Node) -> bool:
    if node.target is aten.t.default:
        return True
    if node.target is aten.permute.default:
        return list(args_of(node)[1]) == [1, 0]
    return node.target is aten.transpose.int and sorted(d % 2 for d in args_of(node)[1:]) == [0, 1]


def product_of(node: Node) -> Product | None:
    if node.target is aten.mm.default:
        return Product(node, *args_of(node))
    if node.target is aten.addmm.default and all(factor == 1 for factor in node.kwargs.values()):
        bias, a, b = args_of(node)
        return Product(node, a, b, bias)
    return _scaled_product_of(node) if node.target is aten._scaled_mm.default else None


def _scaled_product_of(node: Node) -> Product | None:
    names = [argument.name for argument in aten._scaled_mm.default._schema.arguments]
    given: dict[str, Any] = dict(zip(names, args_of(node), strict=False)) | node.kwargs
    a, b = given["self"], given["mat2"]
    if given.get("scale_result") is not None or any(x.meta["val"].dtype not in FP8 for x in (a, b)):
        return None
    return Product(node, a, b, given.get("bias"), (given["scale_a"], given["scale_b"]))


def hint(size: Any) -> int:
    if isinstance(size, int):
        return size
    if size.node.hint is None:
        raise Left("a size is known at run time only")
    return size.node.hint


def what(node: Node) -> str:
    return node.op if node.op != "call_function" else str(node.target).removeprefix("aten.")


def problem_of(op: str, products: list[Product], bias: bool, scales: str = "none") -> Problem:
    """The problem of the sum of the products as one."""
    m, n = (hint(size) for size in shape_of(products[0].node))
    k = sum(hint(shape_of(p.a)[1]) for p in products)
    dtype, b_dtype, out_dtype = (node.meta["val"].dtype for node in (products[0].a, products[0].b, products[0].node))
    return Problem(op, m, n, k, dtype, bias, scales=scales, out_dtype=out_dtype, b_dtype=b_dtype)


def _parts(node: Node) -> list[Node] | None:
    """All parts of a split in order, each used once, if `node` is a cat of just those."""
    parts = args_of(node)[0] if node.target is aten.cat.default else []
    split = args_of(parts[0])[0] if parts and parts[0].target is operator.getitem else None
    if split is None or split.target is not aten.split.Tensor or len(split.users) != len(parts):
        return None
    is_in_order = all(p.target is operator.getitem and args_of(p) == (split, i) for i, p in enumerate(parts))
    return list(parts) if is_in_order and all(len(p.users) == 1 for p in parts) else None


def take_results_themselves(graph: Graph) -> None:
    """Collectives in place (`dist.all_reduce(y)`) become a copy of their result over all of what was given or of a
    tensor made for it, and users read that copy: they read the result itself from here on."""
    for node in list(graph.nodes):
        if node.target is not aten.copy.default or len(args_of(node)) != 2 or args_of(node)[1].target is not WAIT:
            continue
        over, result = (arg.meta["val"] for arg in args_of(node))
        if over.dtype != result.dtype or over.dim() != result.dim():
            continue
        layouts = zip((*over.shape, *over.stride()), (*result.shape, *result.stride()), strict=True)
        if all(same(p, q) for p, q in layouts):
            node.replace_all_uses_with(args_of(node)[1])
            graph.erase_node(node)


def end_of_gather(wait: Node, ranks: int) -> tuple[Node, int]:
    """Where all is together, and along which dimension: behind split and cat, or the wait itself."""
    node = next(iter(wait.users)) if len(wait.users) == 1 else wait
    if node.target is aten.split.Tensor and (len(args_of(node)) < 3 or args_of(node)[2] == 0):
        cats = {user for part in node.users for user in part.users}
        cat = cats.pop() if len(cats) == 1 else node
        parts = _parts(cat)
        if parts is not None and len(parts) == ranks:
            return cat, (args_of(cat)[1] if len(args_of(cat)) > 1 else 0) % len(shape_of(cat))
    return wait, 0


def start_of_scatter(given: Node, ranks: int) -> tuple[Node, int]:
    """What is scattered, and along which dimension."""
    parts = _parts(given)
    if parts is None or len(parts) != ranks or (args_of(given)[1] if len(args_of(given)) > 1 else 0) != 0:
        return given, 0
    split = args_of(parts[0])[0]
    if len(given.users) != 1:
        raise Left("what is scattered has other users")
    source = args_of(split)[0]
    return source, (args_of(split)[2] if len(args_of(split)) > 2 else 0) % len(shape_of(source))


def summands(root: Node, may_view: Callable[[Node], bool]) -> list[Product]:
    """The products whose sum `root` is; none of them, and nothing in between, has another user."""
    stack, products = [root], []
    while stack:
        node = stack.pop()
        if len(node.users) != 1:
            raise Left("the product has other users" if product_of(node) else f"{what(node)} has other users")
        product = product_of(node)
        if product is not None:
            products.append(product)
        elif node.target in VIEWS and may_view(node):
            stack.append(args_of(node)[0])
        elif node.target is aten.add.Tensor and not node.kwargs and adds_alike(node):
            stack.extend(reversed(args_of(node)))
        else:
            raise Left(f"no product feeds it, but {what(node)}")
    return products


def adds_alike(add: Node) -> bool:
    """Two tensors of one shape and dtype."""
    return all(
        isinstance(x, Node)
        and x.meta["val"].dtype == add.meta["val"].dtype
        and len(shape_of(x)) == len(shape_of(add))
        and all(same(p, q) for p, q in zip(shape_of(x), shape_of(add), strict=True))
        for x in args_of(add)
    )


@dataclasses.dataclass
class Consumers:
    """What takes gathered rows: products of them, sums over them (with whether the result is transposed), others."""

    products: list[Product] = dataclasses.field(default_factory=list)
    sums: list[tuple[Node, Node, bool]] = dataclasses.field(default_factory=list)  # product, other factor, transposed
    others: list[Node] = dataclasses.field(default_factory=list)
    views: list[Node] = dataclasses.field(default_factory=list)  # between the gathered rows and those

    def nodes(self) -> list[Node]:
        return [*(p.node for p in self.products), *(node for node, *_ in self.sums), *self.others]


def consumers_of(full: Node) -> Consumers:
    found, rows = Consumers(), [full]
    while rows:
        node = rows.pop()
        is_matrix = len(shape_of(node)) == 2
        for user in node.users:
            product = product_of(user)
            if user.target in VIEWS and keeps_last(user) and len(shape_of(user)) > 1:
                found.views.append(user)
                rows.append(user)
            elif is_matrix and product is not None and product.a is node and product.b is not node:
                found.products.append(product)
            elif is_matrix and product is not None and product.b is node and product.is_plain:
                found.sums.append((user, product.a, True))
            elif is_matrix and is_transpose(user):
                found.views.append(user)
                for behind in user.users:
                    product = product_of(behind)
                    if product and product.is_plain and product.a is user and product.b is not user:
                        found.sums.append((behind, product.b, False))
                    else:
                        found.others.append(behind)
            else:
                found.others.append(user)
    return found
