"""overlace.ops.moe against a dense layer by torch: results, gradients, repeats, graphs, refusals."""

import re

import pytest
from ranks import SIZES, overlace, run_ranks, torch

F = torch.nn.functional
HIDDEN, INTER = 12, 10
TOKENS = {1: [7], 2: [0, 8], 3: [6, 0, 9]}
ACTIVATIONS = {
    "silu": F.silu,
    "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
    "gelu_erf": F.gelu,
    "relu": torch.relu,
}
CASE = {"experts": 5, "top_k": 3, "dtype": torch.float32, "activation": "silu", "gated": True, "biases": ""}
CASES = [
    CASE | {"capacity_factor": 0.5, "activation": "relu"},
    CASE | {"dtype": torch.bfloat16, "experts": 8, "is_on_the_last": True},
    CASE | {"gated": False, "biases": "12", "activation": "gelu_tanh", "experts": 2, "top_k": 4},
    CASE | {"gated": False, "biases": "12", "activation": "gelu_erf", "dtype": torch.bfloat16, "capacity_factor": 1.0},
    CASE | {"gated": False, "biases": "2", "dtype": torch.float16, "experts": 1, "top_k": 1},
    CASE | {"gated": False, "biases": "1", "is_on_the_last": True},
]


def dense(x, idx, weights, stacks, kept, activation, gated):
    """The layer in the precision of x: each choice of all tokens, expert by expert."""
    out = torch.zeros_like(x)
    for j in range(idx.shape[1]):
        for e in range(len(stacks["w1"])):
            rows = ((idx[:, j] == e) & kept[:, j]).nonzero()[:, 0]
            h = F.linear(x[rows], stacks["w1"][e], stacks["b1"][e] if "b1" in stacks else None)
            first, *up = h.chunk(2 if gated else 1, 1)
            h = ACTIVATIONS[activation](first)
            h = h * up[0] if up else h
            y = F.linear(h, stacks["w2"][e], stacks["b2"][e] if "b2" in stacks else None)
            out = out.index_add(0, rows, (weights[rows, j, None] * y).to(x.dtype))
    return out


class Problem:
    """A layer and the tokens of all ranks, one rank after the other."""

    def __init__(self, case, size, tokens=None):
        self.case, self.size, self.tokens = case, size, tokens or TOKENS[size]
        generator = torch.Generator().manual_seed(sum(map(ord, repr(sorted(case.items(), key=str)))) + size)

        def draw(*shape):
            return torch.randn(shape, generator=generator)

        experts, wide, total = case["experts"], INTER * (2 if case["gated"] else 1), sum(self.tokens)
        self.stacks = {"w1": draw(experts, wide, HIDDEN) / 3, "w2": draw(experts, HIDDEN, INTER) / 3}
        self.stacks |= {"b1": draw(experts, wide)} if "1" in case["biases"] else {}
        self.stacks |= {"b2": draw(experts, HIDDEN)} if "2" in case["biases"] else {}
        self.stacks = {name: t.to(case["dtype"]) for name, t in self.stacks.items()}
        self.x, self.dy = (draw(total, HIDDEN).to(case["dtype"]) for _ in range(2))
        self.idx = torch.randint(-1, experts, (total, case["top_k"]), generator=generator, dtype=torch.int32)
        self.idx[:1] = -1  # a token without experts
        self.idx[1:3, -1] = self.idx[1:3, 0] = experts - 1  # and two that choose one twice
        self.weights = torch.rand(total, case["top_k"], generator=generator)
        begins = [r * experts // size for r in range(size + 1)]
        self.begin = [0] * size + [experts] if case.get("is_on_the_last") else begins

    def part(self, t, rank):
        return t.split(self.tokens)[rank]

    def mine(self, t, rank):
        """A rank's part of what each expert has."""
        return t[self.begin[rank] : self.begin[rank + 1]]

    def kept(self):
        """By definition: how many choices of an expert the rank's tokens had before."""
        factor, out = self.case.get("capacity_factor", 0.0), []
        for idx in self.idx.split(self.tokens):
            limit = -(-factor * idx.numel() // self.case["experts"]) if factor else idx.numel()
            flat = idx.flatten().tolist()
            out.append(torch.tensor([e >= 0 and flat[:i].count(e) < limit for i, e in enumerate(flat)]).view(idx.shape))
        return torch.cat([t.bool() for t in out])

    def options(self):
        names = ("activation", "gated", "capacity_factor")
        given = {name: self.case[name] for name in names if name in self.case}
        given |= {"expert_begin": self.begin} if self.case.get("is_on_the_last") else {}
        return given | {"num_experts": self.case["experts"]}

    def operands(self, rank):
        """Operands as the operator takes them, with gradients."""
        tokens = {name: self.part(getattr(self, name), rank) for name in ("x", "idx", "weights")}
        all_of = tokens | {name: self.mine(t, rank) for name, t in self.stacks.items()}
        return {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in all_of.items()}

    def solve(self, dtype):
        """Result and gradients of the whole problem, in float64 or as an unfused layer."""
        given = {n: t.clone().to(dtype).requires_grad_() for n, t in ({"x": self.x} | self.stacks).items()}
        weights = self.weights.clone().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        stacks = {n: given[n] for n in self.stacks}
        options = (self.case["activation"], self.case["gated"])
        out = dense(given["x"], self.idx, weights, stacks, self.kept(), *options)
        out.backward(self.dy.to(dtype))
        return {"out": out.detach(), "weights": weights.grad} | {n: t.grad for n, t in given.items()}


def run_step(operands, dy, group, **options):
    for t in operands.values():
        t.grad = None
    out, load, dropped = overlace.ops.moe(**operands, group=group, return_load=True, **options)
    out.backward(dy)
    grads = {n: t.grad for n, t in operands.items() if n != "idx"}
    return {"out": out.detach()} | grads, load, dropped


def same_as_dense(group, case):
    """Errors at most twice those of the unfused layer, and 1e-6, the rounding of float32."""
    rank, size = group.rank(), group.size()
    problem = Problem(case, size)
    exact, plain = problem.solve(torch.float64), problem.solve(case["dtype"])
    operands, dy = problem.operands(rank), problem.part(problem.dy, rank)
    got, load, dropped = run_step(operands, dy, group, **problem.options())
    again, _, _ = run_step(operands, dy, group, **problem.options())
    for name, t in got.items():
        mine = problem.part if name in ("out", "x", "weights") else problem.mine
        want, other = mine(exact[name], rank), mine(plain[name], rank)
        assert t.shape == want.shape and t.dtype == other.dtype, name
        assert torch.equal(t, again[name]), name
        if t.numel():
            bound = 2 * (plain[name] - exact[name]).abs().max() + 1e-6
            assert (t - want).abs().max() <= bound, (name, (t - want).abs().max(), bound)
    kept = problem.kept()
    counts = torch.bincount(problem.idx[kept].long(), minlength=case["experts"])
    assert torch.equal(load, problem.mine(counts, rank))
    assert dropped == int(((problem.idx >= 0) & ~kept).split(problem.tokens)[rank].sum())
    return int(dropped)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_same_as_dense(size, case):
    dropped = sum(run_ranks(size, same_as_dense, case))
    assert (dropped > 0) == ("capacity_factor" in case)


def no_tokens(group):
    problem = Problem(CASE, 2, [0, 0])
    got, load, _ = run_step(problem.operands(group.rank()), problem.dy, group, **problem.options())
    assert got["out"].shape == (0, HIDDEN) and load.sum() == 0
    assert all((got[name] == 0).all() for name in ("w1", "w2"))


def test_without_any_tokens():
    run_ranks(2, no_tokens)


def padded(group):
    """Rows behind num_tokens, whatever they hold: zeros, no gradients, and the bits of all else as without them."""
    rank = group.rank()
    problem = Problem(CASE, 2, [6, 8])
    operands, dy = problem.operands(rank), problem.part(problem.dy, rank)
    real = 4 + rank
    tokens = ("x", "idx", "weights")
    cut = {n: (t[:real] if n in tokens else t).detach() for n, t in operands.items()}
    cut = {n: t.requires_grad_(n != "idx") for n, t in cut.items()}
    want, load, _ = run_step(cut, dy[:real], group, **problem.options())
    with torch.no_grad():
        operands["x"][real:] = torch.nan
        operands["weights"][real:] = torch.inf
    for num_tokens in (real, torch.tensor(real), torch.tensor([real], dtype=torch.int32)):
        got, again, _ = run_step(operands, dy, group, num_tokens=num_tokens, **problem.options())
        assert torch.equal(again, load)
        for name, t in got.items():
            rows = real if name in ("out", *tokens) else len(t)
            assert torch.equal(t[:rows], want[name]) and (t[rows:] == 0).all(), name


def test_padding_has_no_part():
    run_ranks(2, padded)


def other_forms(group):
    """More dimensions, other dtypes of choices, other strides: the same bits."""
    rank = group.rank()
    problem = Problem(CASE, 2, [6, 8])
    operands, dy = problem.operands(rank), problem.part(problem.dy, rank)
    want, _, _ = run_step(operands, dy, group, **problem.options())
    tokens = ("x", "idx", "weights")
    blocks = {n: t.detach().unflatten(0, (2, -1)) for n, t in operands.items() if n in tokens}
    blocks["idx"] = blocks["idx"].long()
    strided = {  # x by columns, w1 between other columns, w2 by rows of its transpose
        "x": blocks["x"].transpose(1, 2).contiguous().transpose(1, 2),
        "w1": torch.cat([operands["w1"].detach()] * 2, 2)[:, :, HIDDEN:],
        "w2": operands["w2"].detach().transpose(1, 2).contiguous().transpose(1, 2),
    }
    others = {n: t.requires_grad_(t.is_floating_point()) for n, t in (blocks | strided).items()}
    got, _, _ = run_step(others, dy.unflatten(0, (2, -1)), group, **problem.options())
    for name, t in got.items():
        assert torch.equal(t.reshape(want[name].shape), want[name]), name
    for is_everywhere in (False, True):  # autocast around the forward alone, and around both
        with torch.autocast("cpu", torch.bfloat16):
            out = overlace.ops.moe(**operands, group=group, **problem.options())
            grads = [operands[n] for n in want if n != "out"]
            found = torch.autograd.grad(out, grads, dy) if is_everywhere else None
        found = found or torch.autograd.grad(out, grads, dy)
        assert all(torch.equal(a, b) for a, b in zip([out, *found], want.values(), strict=True))
    half = operands | {"weights": operands["weights"].detach().bfloat16().requires_grad_()}
    run_step(half, dy, group, **problem.options())
    assert half["weights"].grad.dtype == torch.bfloat16
    bound = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(half["weights"].grad.float(), want["weights"], rtol=bound, atol=bound)
    only = {n: t.detach().requires_grad_(n == "w2") for n, t in operands.items()}
    overlace.ops.moe(**only, group=group, **problem.options()).backward(dy)
    assert torch.equal(only["w2"].grad, want["w2"]) and only["x"].grad is None


def test_other_forms_of_arguments():
    run_ranks(2, other_forms)


def in_graphs(group):
    """Operators by torch's own check; one graph, and checkpoints, give the bits of eager."""
    rank, name = group.rank(), group.group_name
    problem = Problem(CASES[2], group.size())
    operands, options = problem.operands(rank), problem.options()
    dy, given = problem.part(problem.dy, rank), [t.detach() for t in operands.values()]
    torch.library.opcheck(
        torch.ops.overlace.moe.default,
        (*operands.values(), options["num_experts"], name),
        {n: options[n] for n in ("activation", "gated")},
    )
    needs = [True, False, True, True, False]
    torch.library.opcheck(
        torch.ops.overlace.moe_grad.default,
        (dy, *given, options["num_experts"], name, needs),
        {n: options[n] for n in ("activation", "gated")},
    )

    def layer(operands):
        return torch.tanh(overlace.ops.moe(**operands, group=name, **options))

    torch._dynamo.reset()
    functions = [layer, torch.compile(layer, fullgraph=True, backend="aot_eager")]
    functions.append(lambda operands: torch.utils.checkpoint.checkpoint(layer, operands, use_reentrant=False))
    results = []
    for function in functions:
        for t in operands.values():
            t.grad = None
        out = function(operands)
        out.backward(dy)
        results.append([out.detach(), *(t.grad for n, t in operands.items() if n != "idx")])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    assert torch._dynamo.utils.counters["graph_break"].total() == 0


@pytest.mark.parametrize("size", [1, 3])
def test_in_graphs(size):
    run_ranks(size, in_graphs)


def twice(group):
    """First gradients are there with create_graph, too; what goes through them, to whatever operand, is refused."""
    rank = group.rank()
    problem = Problem(CASE, group.size())
    operands, dy = problem.operands(rank), problem.part(problem.dy, rank).clone().requires_grad_()
    want, _, _ = run_step(operands, dy.detach(), group, **problem.options())
    given = [t for n, t in operands.items() if n != "idx"]
    out = overlace.ops.moe(**operands, group=group, **problem.options())
    first = torch.autograd.grad(out, given, dy, create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, (want[n] for n in operands if n != "idx"), strict=True))
    for grad in first:
        for t in (*given, dy):
            with pytest.raises(overlace.Unsupported, match=r"^moe: backward through its own gradients \(create_graph"):
                torch.autograd.grad(grad.sum(), t, retain_graph=True)
    again, _, _ = run_step(operands, dy.detach(), group, **problem.options())  # nobody waits for a refused one
    assert all(torch.equal(a, b) for a, b in zip(again.values(), want.values(), strict=True))


@pytest.mark.parametrize("size", [1, 2])
def test_second_derivatives_are_refused(size):
    run_ranks(size, twice)


def refusals(group):
    """Rank 1 alone has a bad argument: both ranks raise, and the next call works."""
    rank = group.rank()
    problem = Problem(CASE, 2, [4, 5])
    good = {n: t.detach() for n, t in problem.operands(rank).items()} | {"group": group} | problem.options()
    want = overlace.ops.moe(**good)
    beyond = good["idx"].clone()
    beyond[3, 1] = 5
    for bad, text in (
        ({"idx": beyond}, r"token 3, choice 1.*5"),
        ({"idx": beyond.long() * 2**33}, r"token 0, choice . is -?214748364[78], wanted -1"),
        ({"idx": good["idx"].float()}, "idx must be i32, got fp32"),
        ({"idx": good["idx"][:, :0]}, r"idx must have 1 to 32 choices of a token, got \(\d, 0\)"),
        ({"weights": good["weights"][1:]}, r"weights must be \(5, 3\) as idx is, got \(4, 3\)"),
        ({"weights": good["weights"].double()}, "weights must be fp32, got fp64"),
        ({"weights": good["weights"].bool()}, r"weights is torch.bool, wanted one of torch.float64"),
        ({"x": good["x"][0]}, r"x must have 2 dimensions, got 1 \(12\)"),
        ({"x": good["x"].double()}, "x must be fp32, bf16 or fp16, got fp64"),
        ({"x": good["x"][:, 1:]}, r"w2 must be \(3, 11, 10\)"),
        ({"w1": good["w1"][1:]}, r"w1 must be \(3, 20, 12\), of the 3 experts of this rank, got \(2, 20, 12\)"),
        ({"w2": good["w2"][None, None]}, r"w2 is \[1, 1, 3, 12, 10\], wanted one to four dimensions"),
        ({"w2": good["w2"].bfloat16()}, r"w2 must have the dtype of x \(fp32\), got bf16"),
        ({"b1": torch.zeros(3, 20)}, r"b1 is \(3, 20\), wanted none with gated experts"),
        ({"b1": torch.zeros(3, 20).bool()}, "b1 is torch.bool, wanted one of torch.float64"),
        ({"activation": "tanh"}, "tanh.*silu"),
        ({"num_experts": 0}, "num_experts is 0, wanted 1 to 8192"),
        ({"capacity_factor": -1.0}, "-1"),
        ({"expert_begin": [0, 5]}, "expert_begin has 2 entries, wanted 3, one more than ranks"),
        ({"expert_begin": [0, 4, 3]}, "expert_begin has 3 entries"),
    ):
        text = text if rank == 1 else "rank 1 refused the call, so that no rank of team .* makes it"
        with pytest.raises(overlace.InvalidArgument, match=text):
            overlace.ops.moe(**(good | bad if rank == 1 else good))
    blocks = {"x": good["x"][:4].unflatten(0, (2, 2)), "idx": good["idx"][:4].unflatten(0, (2, 2))}
    blocks["weights"] = good["weights"][:4].unflatten(0, (2, 2))
    for name, bad, leads in (
        ("idx", blocks["idx"].reshape(1, 4, 3), "[1, 4, 3]"),
        ("idx", good["idx"][:4], "[4, 3]"),
        ("weights", blocks["weights"].reshape(4, 1, 3), "[4, 1, 3]"),
    ):
        text = f"moe: {name} is {leads}, wanted [2, 2, k], as x is [2, 2, 12]" if rank == 1 else "rank 1 refused the"
        with pytest.raises(overlace.InvalidArgument, match=re.escape(text)):
            overlace.ops.moe(**good | blocks | ({name: bad} if rank == 1 else {}))
    for name in ("x", "idx", "w1"):
        text = rf"moe: .*{name} is on meta, .* on cpu, wanted all on one" if rank == 1 else "rank 1 refused the call"
        with pytest.raises(overlace.InvalidArgument, match=text):
            overlace.ops.moe(**good | ({name: good[name].to("meta")} if rank == 1 else {}))
    with pytest.raises(overlace.PlanMismatch, match=r"rank 0 has .*silu.* rank 1 has .*relu"):
        overlace.ops.moe(**good | {"activation": "relu" if rank == 1 else "silu"})
    with pytest.raises(overlace.InvalidArgument, match=r"dy must|rank 1 refused"):  # in a gradient too
        name, experts = group.group_name, good["num_experts"]
        tensors = [good[n] for n in ("x", "idx", "weights", "w1", "w2")]
        dy = torch.zeros(1 if rank == 1 else 4, HIDDEN)
        torch.ops.overlace.moe_grad(dy, *tensors, None, None, experts, name, [True] * 5)
    wide, lead = torch.tensor([4, 4]), "moe: num_tokens is "
    for bad, text in (
        (6, "6, wanted 0 to 5, the rows of x"),
        (-1, "-1, wanted 0 to 5, the rows of x"),
        (wide, "torch.int64 [2] on cpu, wanted one int32 or int64 on cpu, where x is, or an int"),
        (torch.tensor(4.0), "torch.float32 [] on cpu, wanted one int32 or int64"),
    ):
        with pytest.raises(
            overlace.InvalidArgument, match=re.escape(lead + text) if rank == 1 else "rank 1 refused the"
        ):
            overlace.ops.moe(**good, num_tokens=bad if rank == 1 else None)
    assert torch.equal(overlace.ops.moe(**good), want)


def test_refusals():
    run_ranks(2, refusals)
