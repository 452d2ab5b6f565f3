"""The pass of overlace.compile: what becomes of graphs, that they compute the same, and why others are left."""

import pytest
from ranks import assert_same, overlace, run_ranks, torch, whole

compile_ = overlace.compile
dist = torch.distributed
fc, c10d = torch.distributed._functional_collectives, torch.ops._c10d_functional
CALLS = {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar", "gemm_a2a", "a2a_gemm"}
CALLS |= {"ag_gemm_scaled", "gemm_rs_scaled", "gemm_ar_scaled"}
COLLECTIVES = {"all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "all_to_all_single", "mm", "addmm"}


def traced(function, inputs, mode="fake"):
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode=mode)(*inputs)


def skeleton(graph, more=frozenset()):
    """The operators and collectives of a graph, and those named in `more`, with where their operands come from."""
    number = {}

    def source(x):
        while isinstance(x, torch.fx.Node) and x not in number and x.all_input_nodes and x.op != "placeholder":
            x = x.all_input_nodes[0]
        return number.get(x, getattr(x, "name", x))

    lines = []
    for node in graph.nodes:
        name = str(node.target).split(".")[-2] if "." in str(node.target) else ""
        if node.op != "call_function" or name not in CALLS | COLLECTIVES | more:
            continue
        number[node] = f"%{len(number)}"
        operands = [source(x) for x in node.all_input_nodes]
        lines.append(f"{number[node]} = {name}({', '.join(operands)})")
    return lines


def passed(function, inputs, when="always", mode="fake", plan="", groups=None):
    """The graph behind the pass, checked and run; its candidates."""
    module = traced(function, inputs, mode)
    compile_.report(clear=True)
    compile_.Pass(groups, when=when, plan=plan)(module.graph)
    module.graph.lint()
    module.recompile()
    return module, compile_.report(clear=True).candidates


def gathered(x, dim, group):
    return fc.all_gather_tensor(x, dim, group)


def scattered(x, dim, group, op="sum"):
    return fc.reduce_scatter_tensor(x, op, dim, group)


def summed(x, group):
    return fc.all_reduce(x, "sum", group)


def copy_(over, result):
    return torch.ops.aten.copy(over, result)


def turned(x, group):
    return fc.all_to_all_single(x, None, None, group)


def column(x, ws, dim, group):
    full = gathered(x, dim, group)
    return [full @ w.t() for w in ws]


def operands_that_come_later(group):
    """Each product's operand is computed behind both gathers, of the other among them: moved nodes keep their order."""

    def function(x, y, v, w):
        first, second = gathered(x, 0, group), gathered(y, 0, group)
        kept = first + 1
        late = v * 2
        later = (w.relu()[:, :8] + late) + (second + 1)[:6]
        return kept, first @ later.t(), second @ late.t()

    return function


def graphs(group):
    """name: function, inputs; each is rewritten whole."""
    n = group.size()
    x, cube, ws = whole(4, 8, 1), whole(4 * n * 3, 8, 2).reshape(3, 4 * n, 8), [whole(k, 8, k) for k in (6, 5)]
    a, b, bias = whole(4 * n, 6, 3), whole(5, 6, 4), whole(1, 5, 5)[0]
    mine = cube[:, :4].contiguous()
    dy = whole(4 * n, 5, 6)
    linear = torch.nn.functional.linear
    return {
        "column": (lambda x, w: gathered(x, 0, group) @ w.t(), (x, ws[0])),
        "qkv": (lambda x, v, w: column(x, (v, w), 0, group), (x, *ws)),
        "cube": (lambda x, w: column(x, (w,), 0, group), (cube, ws[0])),
        "cube along 1": (lambda x, v, w: column(x, (v, w), 1, group), (mine, *ws)),
        "bias": (lambda x, w, c: linear(gathered(x, 0, group), w, c), (x, ws[1], bias)),
        "kept": (lambda x, w: ((f := gathered(x, 0, group)) @ w.t(), f.sum()), (x, ws[0])),
        "kept along 1": (lambda x, w: ((f := gathered(x, 1, group)) @ w.t(), f + 1), (mine, ws[0])),
        "gradients behind rs": (
            lambda dy, w, a: ((f := gathered(dy, 0, group)) @ w, f.t() @ a),
            (dy[:4], whole(5, 6, 8), a),
        ),
        "weight gradient": (lambda x, dy: gathered(x, 0, group).t() @ dy, (x, dy)),
        "weight gradient of t": (lambda x, dy: dy.t() @ gathered(x, 0, group), (x, dy)),
        "weight gradient along 1": (
            lambda x, dy: gathered(x, 1, group).flatten(0, 1).t() @ dy.flatten(0, 1),
            (mine, whole(3 * 4 * n, 5, 7).reshape(3, 4 * n, 5)),
        ),
        "row": (lambda a, b: scattered(a @ b.t(), 0, group), (a, b)),
        "row of cube": (lambda a, b: scattered(a @ b.t(), 0, group), (cube.movedim(1, 0).contiguous(), whole(5, 8, 9))),
        "row along 1": (lambda a, b: scattered(a @ b.t(), 1, group), (cube, whole(5, 8, 9))),
        "row avg": (lambda a, b: scattered(a @ b.t(), 0, group, "avg"), (a * n, b)),
        "row bias": (lambda a, b, c: scattered(linear(a, b, c / n), 0, group), (a, b, bias * n)),
        "row of sum": (
            lambda a, b, d, e: scattered(a @ b.t() + d @ e.t(), 0, group),
            (a, b, whole(4 * n, 7, 8), whole(5, 7, 9)),
        ),
        "row of sum along 1": (
            lambda a, b, e: scattered(a @ b.t() + (a + 1) @ e.t(), 1, group),
            (cube, whole(5, 8, 8), whole(5, 8, 9)),
        ),
        "sum of rows along 1": (
            lambda a, b, e: scattered(a @ b.t(), 1, group) + scattered(a @ e.t(), 1, group),
            (cube, whole(5, 8, 8), whole(5, 8, 9)),
        ),
        "kept before waiting": (
            lambda x, w: ((c := c10d.all_gather_into_tensor(x, n, group.group_name)), c10d.wait_tensor(c) @ w.t()),
            (x, ws[0]),
        ),
        "waited for by each": (
            lambda x, v, w: (
                (c := c10d.all_gather_into_tensor(x, n, group.group_name)),
                c10d.wait_tensor(c) @ v.t(),
                c10d.wait_tensor(c) @ w.t(),
            )[1:],
            (x, *ws),
        ),
        "sorted by each": (
            lambda x, v, w: (
                (c := c10d.all_gather_into_tensor(x, n, group.group_name)),
                torch.cat(c10d.wait_tensor(c).split(3), 1) @ v.t(),
                torch.cat(c10d.wait_tensor(c).split(3), 1) @ w.t(),
            )[1:],
            (mine, *ws),
        ),
        "scattered before waiting": (
            lambda a, b: (
                (c := c10d.reduce_scatter_tensor(a @ b.t(), "sum", n, group.group_name)),
                c10d.wait_tensor(c) + 1,
            ),
            (a, b),
        ),
        "reduced": (lambda a, b: fc.all_reduce(a @ b.t(), "sum", group), (a, b)),
        "operands that come later": (operands_that_come_later(group), (x, whole(4, 8, 10), ws[0], whole(6, 4 * n, 11))),
        "a view that nothing takes": (
            lambda x, w: ((f := gathered(x, 0, group)).view(2, -1, 8), f @ w.t())[1],
            (x, ws[0]),
        ),
        "reduced cube": (lambda a, b: fc.all_reduce(a @ b.t(), "sum", group), (cube, whole(5, 8, 9))),
    }


def in_place(group):
    """`dist.all_reduce(y)` and its like, as dynamo and functionalisation leave them."""
    n, cube = group.size(), whole(4 * group.size() * 3, 8, 2).reshape(3, 4 * group.size(), 8)
    b = whole(5, 8, 9)
    return {
        "sum in place": (lambda a, b: copy_(y := a @ b.t(), summed(y, group)) * 2, (cube[0], b)),
        "sum in place of cube": (
            lambda a, b: copy_(
                y := torch.ops.aten._unsafe_view(a.flatten(0, 1) @ b.t(), (3, 4 * n, 5)), summed(y, group)
            ),
            (cube, b),
        ),
        "gather in place": (
            lambda x, w: copy_(x.new_empty(4 * n, 8), gathered(x, 0, group)) @ w.t(),
            (whole(4, 8, 1), b),
        ),
    }


def exchanges(group):
    """Functions and operands where rows go from each rank to each."""
    n, linear = group.size(), torch.nn.functional.linear
    a, b, bias = whole(4 * n, 6, 3) + group.rank(), whole(5, 6, 4), whole(1, 5, 5)[0]
    blocks = whole(2 * n * 3, 6, 3).reshape(2 * n, 3, 6) + group.rank()
    return {
        "exchanged": (lambda a, b: turned(a @ b.t(), group), (a, b)),
        "exchanged cube": (lambda a, b: turned(a @ b.t(), group), (blocks, b)),
        "exchanged sum": (
            lambda a, b, c, d, e: turned(linear(a, b, c) + d @ e.t(), group),
            (a, b, bias, whole(4 * n, 7, 8), whole(5, 7, 9)),
        ),
        "of exchanged": (lambda a, b, c: linear(turned(a, group), b, c), (a, b, bias)),
        "of exchanged cube": (
            lambda a, b: turned(a, group) @ b.t(),
            (blocks, b),
        ),
        "of exchanged and kept": (
            lambda a, b, c: ((f := turned(a, group)) @ b.t(), f @ c.t(), f.sum()),
            (a, b, whole(7, 6, 9)),
        ),
    }


GOLDEN = {
    "column": ["%0 = ag_gemm(x_1, w_1)"],
    "qkv": ["%0 = ag_gemm(x_1, v_1, w_1)"],
    "cube": ["%0 = ag_gemm(x_1, w_1)"],
    "cube along 1": ["%0 = ag_gemm(x_1, v_1, w_1)"],
    "bias": ["%0 = ag_gemm(x_1, w_1, c_1)"],
    "kept": ["%0 = ag_gemm(x_1, w_1)"],
    "kept along 1": ["%0 = ag_gemm(x_1, w_1)"],
    "gradients behind rs": ["%0 = ag_gemm(dy_1, w_1)", "%1 = mm(%0, a_1)"],
    "weight gradient": ["%0 = ag_wgrad(x_1, dy_1)"],
    "weight gradient of t": ["%0 = ag_wgrad(x_1, dy_1)"],
    "weight gradient along 1": ["%0 = ag_wgrad(x_1, dy_1)"],
    "row": ["%0 = gemm_rs(a_1, b_1)"],
    "row of cube": ["%0 = gemm_rs(a_1, b_1)"],
    "row along 1": ["%0 = gemm_rs(a_1, b_1)"],
    "sum in place": ["%0 = gemm_ar(a_1, b_1)"],
    "sum in place of cube": ["%0 = gemm_ar(a_1, b_1)"],
    "gather in place": ["%0 = ag_gemm(x_1, w_1)"],
    "row avg": ["%0 = gemm_rs(a_1, b_1)"],
    "row bias": ["%0 = gemm_rs(a_1, b_1, c_1)"],
    "row of sum": ["%0 = gemm_rs(a_1, b_1)"],
    "row of sum along 1": ["%0 = gemm_rs(a_1, b_1)"],
    "sum of rows along 1": ["%0 = gemm_rs(a_1, b_1)"],
    "exchanged": ["%0 = gemm_a2a(a_1, b_1)"],
    "exchanged cube": ["%0 = gemm_a2a(a_1, b_1)"],
    "exchanged sum": ["%0 = gemm_a2a(a_1, b_1, c_1)"],
    "of exchanged": ["%0 = a2a_gemm(a_1, b_1, c_1)"],
    "of exchanged cube": ["%0 = a2a_gemm(a_1, b_1)"],
    "of exchanged and kept": ["%0 = a2a_gemm(a_1, c_1)", "%1 = mm(%0, b_1)"],
    "kept before waiting": ["%0 = ag_gemm(x_1, w_1)"],
    "waited for by each": ["%0 = ag_gemm(x_1, v_1, w_1)"],
    "sorted by each": ["%0 = ag_gemm(x_1, v_1, w_1)"],
    "scattered before waiting": ["%0 = gemm_rs(a_1, b_1)"],
    "reduced": ["%0 = gemm_ar(a_1, b_1)"],
    "operands that come later": [
        "%0 = ag_gemm(y_1, v_1)",
        "%1 = ag_gemm(x_1, w_1)",
    ],
    "a view that nothing takes": ["%0 = ag_gemm(x_1, w_1)"],
    "reduced cube": ["%0 = gemm_ar(a_1, b_1)"],
}


def flat(values):
    return torch.utils._pytree.tree_leaves(values)


def all_graphs(group, mode):
    found = {}
    for name, (function, inputs) in (graphs(group) | in_place(group) | exchanges(group)).items():
        if mode == "symbolic" and "along 1" not in name and name != "qkv":
            continue  # without sizes in the graph there is nothing new
        module, candidates = passed(function, inputs, mode=mode)
        for got, want in zip(flat(module(*inputs)), flat(function(*inputs)), strict=True):
            assert_same(got, want)
            assert got.stride() == want.stride() or got.numel() == 0, (name, got.stride(), want.stride())
        assert all(c.became and c.group == group.group_name for c in candidates), (name, candidates)
        found[name] = skeleton(module.graph)
    return found


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_patterns_become_operators_that_compute_the_same(mode):
    for found in run_ranks(2, all_graphs, mode):
        assert found == {name: GOLDEN[name] for name in found} and len(found) == (len(GOLDEN) if mode == "fake" else 7)


def late_sizes(group):
    """A view of what was gathered whose sizes are known behind the call alone stays where it is."""

    def function(x, w, y):
        full = gathered(x, 0, group)
        product = full @ w.t()
        return product, full.view(torch.cat([y, y]).shape[0], -1, full.shape[1]) + product.sum()

    inputs = (whole(12, 8, 1), whole(6, 8, 2), whole(3, 2, 3))
    module, (candidate,) = passed(function, inputs, mode="symbolic")
    assert candidate.became == "ag_gemm"
    for got, want in zip(module(*inputs), function(*inputs), strict=True):
        assert_same(got, want)


def test_a_view_whose_sizes_come_later_stays_there():
    run_ranks(2, late_sizes)


def left_alone(group):
    """name: function, inputs, words of the reason."""
    n = group.size()
    x, w, a, b = whole(4, 8, 1), whole(6, 8, 2), whole(4 * n, 6, 3), whole(5, 6, 4)
    alone = dist.new_group([group.rank()], use_local_synchronization=True)

    def dependent(x):
        full = gathered(x, 0, group)
        return full @ (full.t() + 1)[:, :5]

    def with_two_users(a, b):
        y = a @ b.t()
        return scattered(y, 0, group), y

    return {
        "no product": (lambda x: gathered(x, 0, group) + 1, (x,), "no product takes the gathered rows, but add.T"),
        "columns": (
            lambda x, w: gathered(x, 1, group) @ w.repeat(1, n).t(),
            (x, w),
            "the dimension that is summed over",
        ),
        "vector": (lambda v: gathered(v, 0, group), (x[0],), "it gathers a vector"),
        "dependent": (dependent, (x,), "its other operand depends on the collective"),
        "integers": (lambda x: gathered(x, 0, group), (x.long(),), "it gathers torch.int64"),
        "no team": (
            lambda x, w: gathered(x, 0, alone) @ w.t(),
            (x, w),
            f"group '{alone.group_name}' has no overlace team",
        ),
        "two users": (with_two_users, (a, b), "the product has other users"),
        "no product before": (lambda a: scattered(a * 2, 0, group), (a,), "no product feeds it, but mul.Tensor"),
        "scattered columns": (lambda a, b: scattered(a @ b, 1, group), (a, whole(6, 4, 4)), "columns of the product"),
        "max": (lambda a, b: fc.all_reduce(a @ b.t(), "max", group), (a, b), "the reduction is 'max'"),
        "shapes": (
            lambda a, b: fc.all_reduce((a @ b.t()).flatten() + (b @ a.t()).flatten(), "sum", group),
            (a, b),
            "the shapes of the products differ",
        ),
        "own bias": (
            lambda a, b, c: scattered(torch.addmm(c, a, b.t()), 0, group),
            (a, b, b[:, 0].clone()),
            "each rank adds a vector of its own",
        ),
        "all to all of nothing": (
            lambda a: fc.all_to_all_single(a * 2, None, None, group),
            (a,),
            "no product feeds it, but mul.Tensor; no product takes its rows",
        ),
        "uneven all to all": (
            lambda a, b: fc.all_to_all_single(a @ b.t(), [1, 4 * n - 1], [1, 4 * n - 1], group),
            (a, b),
            "its parts differ in size, and what other ranks send is not in the graph",
        ),
        "broadcast": (
            lambda a: c10d.wait_tensor(c10d.broadcast(a, 0, group.group_name)),
            (a,),
            "overlace has no operator for it yet",
        ),
        "unused": (lambda x: (gathered(x, 0, group), x + 1)[1], (x,), "no product takes the gathered rows, but"),
        "coalesced": (
            lambda x: [c10d.wait_tensor(t) for t in c10d.all_reduce_coalesced([x, x + 1], "sum", group.group_name)],
            (x,),
            "overlace has no operator for it yet",
        ),
        "strided bias": (
            lambda x, w, c: torch.addmm(c[:, 0], gathered(x, 0, group), w.t()),
            (x, w, whole(6, 2, 5)),
            "has gaps between its elements",
        ),
        "converted": (
            lambda a, b: scattered((a @ b.t()).float(), 0, group),
            (a, b),
            "no product feeds it, but _to_copy",
        ),
    }


def reasons(group):
    for name, (function, inputs, words) in left_alone(group).items():
        module, candidates = passed(function, inputs)
        (candidate,) = candidates
        assert not candidate.became and words in candidate.reason, (name, candidate)
        assert not CALLS & {line.split()[2].partition("(")[0] for line in skeleton(module.graph)}, name
    x, w = whole(4, 8, 1), whole(6, 8, 2)
    for options, words in (
        ({"when": "gain"}, "nothing to gain: "),
        ({"groups": []}, "is none of those that enable() was given"),
    ):
        _, (candidate,) = passed(lambda x, w: gathered(x, 0, group) @ w.t(), (x, w), **options)
        assert not candidate.became and words in candidate.reason
    _, (candidate,) = passed(lambda a, b: scattered(a @ b.t(), 0, group), (x, w), when="gain")
    assert not candidate.became and "nothing to gain" in candidate.reason
    # A product that does not fit stays, and takes what the operator gathered for the other.
    module, (candidate,) = passed(lambda x, w: ((f := gathered(x, 0, group)) @ w.t(), f @ (f.t() + 1)), (x, w))
    assert candidate.became == "ag_gemm" and "the gathered rows are a result too" in candidate.reason
    assert skeleton(module.graph) == ["%0 = ag_gemm(x_1, w_1)", "%1 = mm(%0, %0)"]
    text = str(overlace.compile.Report((candidate,)))
    assert text.splitlines()[1].split()[:3] == ["all_gather_into_tensor", group.group_name, "ag_gemm"]


def test_what_is_left_says_why():
    run_ranks(2, reasons)


def enabled(group):
    config = torch._inductor.config
    seen = []
    config.post_grad_custom_pre_pass = seen.append
    try:
        with compile_.enable(group, when="always") as mine:
            assert config.post_grad_custom_pre_pass is mine.own and mine.own.uuid() is None
            with pytest.raises(overlace.InvalidArgument, match="enabled already"):
                compile_.enable()
            graph = traced(lambda x: gathered(x, 0, group) @ x.t(), (whole(4, 8, 1),)).graph
            config.post_grad_custom_pre_pass(graph)
            assert seen == [graph] and compile_.report().candidates[-1].became == "ag_gemm"
        assert config.post_grad_custom_pre_pass == seen.append
    finally:
        config.post_grad_custom_pre_pass = None
    uuids = {compile_.Pass(*given).uuid() for given in ((None,), (group,))}
    uuids |= {compile_.Pass(when="always").uuid(), compile_.Pass(plan="library").uuid()}
    assert len(uuids) == 4 and {compile_.Pass().uuid(), compile_.Pass(plan="auto").uuid()} <= uuids
    with pytest.raises(overlace.InvalidArgument, match="when is 'often', wanted one of gain, always"):
        compile_.enable(when="often")
    with pytest.raises(overlace.InvalidArgument, match="group 'tp' has no overlace team"):
        compile_.enable("tp")


def test_enable_chains_passes_and_names_its_options():
    run_ranks(2, enabled)


class Block(torch.nn.Module):
    """A Llama-style block whose projections torch's own styles split."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.norms = nn.ModuleList(nn.RMSNorm(8, dtype=torch.float64) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False, dtype=torch.float64) for _ in range(4))
        self.gate, self.up = (nn.Linear(8, 12, bias=False, dtype=torch.float64) for _ in range(2))
        self.down = nn.Linear(12, 8, dtype=torch.float64)

    def forward(self, x):  # (batch, sequence, 8)
        h = self.norms[0](x)
        q, k, v = (layer(h).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        h = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


def parallel_block(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor import parallel as styles

    mesh = DeviceMesh.from_group(group, "cpu")
    torch.manual_seed(21)
    column, row = styles.ColwiseParallel(input_layouts=Shard(1)), styles.RowwiseParallel(output_layouts=Shard(1))
    plan = {f"norms.{i}": styles.SequenceParallel() for i in range(2)}
    plan |= {name: column for name in ("q", "k", "v", "gate", "up")} | {"o": row, "down": row}
    return styles.parallelize_module(Block(), mesh, plan)


def step(model, x):
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), x.grad] + [p.grad.full_tensor() for p in model.parameters()]


def compiled(group, make, backend, shapes, plan=""):
    torch._dynamo.reset()
    model = make(group)
    compile_.report(clear=True)
    with compile_.enable(group, when="always", plan=plan):
        faster = torch.compile(model, backend=backend, fullgraph=True)
        for shape in shapes:
            torch.manual_seed(group.rank())
            x = torch.randn(shape, dtype=torch.float64)
            calls = overlace.context_of(group).stats().calls
            got = step(faster, x)
            assert overlace.context_of(group).stats().calls > calls
            for mine, want in zip(got, step(model, x), strict=True):
                torch.testing.assert_close(mine, want)
    return [(c.became, c.reason.partition(";")[0]) for c in compile_.report(clear=True).candidates]


KEPT, LATER = "the gathered rows are a result too", "the sums are added before they are scattered"
OF_BLOCK = [
    ("ag_gemm", "3 products"),  # q, k, v
    ("gemm_rs", "as asked for"),
    ("ag_gemm", "2 products"),  # gate, up
    ("gemm_rs", "as asked for"),
    ("ag_gemm", KEPT),  # the gradient behind down, also for its weight's
    ("gemm_rs", f"part of reduce_scatter_tensor_3: {LATER}"),
    ("gemm_rs", "2 products are one along K"),
    ("ag_gemm", KEPT),
    ("gemm_rs", f"part of reduce_scatter_tensor_5: {LATER}"),
    ("gemm_rs", f"part of reduce_scatter_tensor_6: {LATER}"),
    ("gemm_rs", "3 products are one along K"),
]


def test_a_block_of_dtensors_becomes_operators_forward_and_backward():
    for found in run_ranks(2, compiled, parallel_block, compile_.aot_eager, ((2, 4, 8),)):
        assert found == OF_BLOCK


def parallel_layers(group):
    """Products and collectives alone: Inductor finds nothing to generate, and no C++ compiler is waited for."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor import parallel as styles

    torch.manual_seed(22)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 12, False), nn.Linear(12, 8, False)).double()
    plan = {"0": styles.ColwiseParallel(input_layouts=Shard(0)), "1": styles.RowwiseParallel(output_layouts=Shard(0))}
    return styles.parallelize_module(model, DeviceMesh.from_group(group, "cpu"), plan)


def in_inductor(group):
    with torch._inductor.config.patch(force_disable_caches=True):  # else the pass has nothing to do the second time
        return compiled(group, parallel_layers, "inductor", ((4, 8), (6, 8)))


def test_inductor_runs_the_pass():
    for found in run_ranks(2, in_inductor):
        # The second time for rows that may change.
        assert [became for became, _ in found] == ["ag_gemm", "gemm_rs", "ag_gemm", "gemm_rs"] * 2


def cached(group):
    from torch._inductor.utils import fresh_cache

    def found(plan):
        return compiled(group, parallel_layers, "inductor", ((4, 8),), plan)

    # The first trace of a DTensor's operator leaves other names in the graph, which are part of the cache's key.
    compiled(group, parallel_layers, compile_.aot_eager, ((4, 8),))
    with fresh_cache():
        return [len(found(plan)) for plan in ("", "", "family=library", "")]


def test_graphs_of_the_cache_are_those_of_the_same_options():
    for found in run_ranks(2, cached):
        assert found == [4, 0, 4, 0]  # what is taken from the cache calls the operators and is not seen again


def test_without_a_team_enable_warns_and_disable_takes_it_back():
    before = torch._inductor.config.post_grad_custom_pre_pass
    compile_.disable()  # nothing to take back
    with pytest.warns(UserWarning, match="compile.enable: no group has a team yet") as found:
        compile_.enable()
    assert found[0].filename == __file__
    assert isinstance(torch._inductor.config.post_grad_custom_pre_pass, compile_.Pass)
    compile_.disable()
    assert torch._inductor.config.post_grad_custom_pre_pass is before


def test_without_a_team_aot_eager_warns():
    with pytest.warns(UserWarning, match="compile.aot_eager: no group has a team yet"):
        torch.compile(lambda x: x + 1, backend=compile_.aot_eager)(torch.ones(2))
