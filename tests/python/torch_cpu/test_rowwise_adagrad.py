"""overlace.optim.RowwiseAdagrad against its formula in fp64: tables, state, sharded tables, refusals."""

import copy
import math

import pytest
from ranks import overlace, run_ranks, torch

RowwiseAdagrad = overlace.optim.RowwiseAdagrad
nn = torch.nn
ROWS, COLUMNS, STEPS = 9, 5, 12
LR, EPS, FIRST = 0.3, 1e-3, 0.25


def table_of(dtype):
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(3)).to(dtype)


def entries_of(step):
    """Rows, of which some come twice and some not at all, and their gradients, whose sizes differ by row."""
    generator = torch.Generator().manual_seed(100 + step)
    rows = torch.randint(0, ROWS - 2, (6,), generator=generator)
    rows[3] = rows[1]
    values = torch.randn(6, COLUMNS, generator=generator, dtype=torch.float64) * (1 + rows[:, None]) / 4
    return rows, values


def gradient_of(step, dtype, is_sparse):
    rows, values = entries_of(step)
    grad = torch.sparse_coo_tensor(rows[None], values.to(dtype), (ROWS, COLUMNS))  # not coalesced
    return grad if is_sparse else grad.coalesce().to_dense()


def oracle(table, gradients, rounded):
    """Row by row and number by number. `rounded`: to which dtype the table is rounded behind each step."""
    table, sums = table.double().tolist(), [FIRST] * ROWS
    for grad in gradients:
        for r, row in enumerate(grad.double().to_dense().tolist()):
            sums[r] += sum(g * g for g in row) / COLUMNS
            table[r] = [w - LR * g / (math.sqrt(sums[r]) + EPS) for w, g in zip(table[r], row, strict=True)]
        table = torch.tensor(table, dtype=torch.float64).to(rounded).tolist()
    return torch.tensor(table, dtype=torch.float64), torch.tensor(sums, dtype=torch.float64)


def trained(dtype, is_sparse, steps, table=None, optimizer=None):
    table = nn.Parameter(table_of(dtype)) if table is None else table
    if optimizer is None:
        optimizer = RowwiseAdagrad([table], LR, eps=EPS, initial_accumulator_value=FIRST)
    for step in steps:
        table.grad = gradient_of(step, dtype, is_sparse)
        optimizer.step()
    return table, optimizer


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_formula(dtype, is_sparse):
    """Errors at most twice those of the oracle whose tables are rounded once in a step."""
    table, optimizer = trained(dtype, is_sparse, range(STEPS))
    gradients = [gradient_of(step, dtype, is_sparse) for step in range(STEPS)]
    exact, sums = oracle(table_of(dtype), gradients, torch.float64)
    rounded, _ = oracle(table_of(dtype), gradients, dtype)
    near = 1e-13 if dtype == torch.float64 else 1e-6
    assert (exact - table_of(dtype)).abs().max() > 0.5
    assert (table - exact).abs().max() <= 2 * (rounded - exact).abs().max() + near
    state = optimizer.state[table]["sum"]
    assert state.shape == (ROWS,) and state.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(state.double(), sums, rtol=near, atol=0)
    assert torch.equal(table[-2:], table_of(dtype)[-2:]) and state[-2:].tolist() == [FIRST, FIRST]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dense_and_sparse_gradients_give_the_same_bits(dtype):
    tables = [nn.Parameter(table_of(dtype)) for _ in range(2)]
    optimizer = RowwiseAdagrad(tables, LR)
    for step in range(STEPS):
        tables[1].grad = gradient_of(step, dtype, True).coalesce()
        tables[0].grad = tables[1].grad.to_dense()
        optimizer.step()
    assert torch.equal(*tables)
    assert torch.equal(*(optimizer.state[table]["sum"] for table in tables))


def test_the_order_of_a_dense_gradient_in_memory_makes_no_difference():
    tables = [nn.Parameter(torch.zeros(1000, 64)) for _ in range(2)]
    tables[0].grad = torch.randn(1000, 64, generator=torch.Generator().manual_seed(1))
    tables[1].grad = tables[0].grad.t().contiguous().t()
    optimizer = RowwiseAdagrad(tables)
    optimizer.step()
    assert torch.equal(*tables) and torch.equal(*(optimizer.state[table]["sum"] for table in tables))


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most elements that a dense result has, other than what is there already."""

    def __init__(self, there):
        super().__init__()
        self.elements, self.there = 0, {tensor.data_ptr() for tensor in there}

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        result = call(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, torch.Tensor) and each.layout == torch.strided and each.data_ptr() not in self.there:
                self.elements = max(self.elements, each.numel())
        return result


def test_of_a_sparse_gradient_only_its_rows_are_read_and_written():
    table = nn.Parameter(torch.zeros(1000, 4))
    table.grad = torch.sparse_coo_tensor([[3, 900, 3]], torch.ones(3, 4), (1000, 4))
    optimizer = RowwiseAdagrad([table])
    with Largest([table, optimizer.state[table]["sum"]]) as largest:
        optimizer.step()
    assert 0 < largest.elements <= 12 and table.count_nonzero() == 8


def test_the_first_step_of_a_row_has_no_other_size_than_lr():
    """Without a first value a row of equal numbers moves by lr, of small and large ones; one of zeros stays."""
    table = nn.Parameter(torch.zeros(3, 4))
    table.grad = torch.tensor([1e-3, -50.0, 0.0])[:, None].expand(3, 4).clone()
    RowwiseAdagrad([table], 0.5, eps=torch.finfo(torch.float32).tiny).step()
    torch.testing.assert_close(table.detach(), torch.tensor([-0.5, 0.5, 0.0])[:, None].expand(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state(dtype, tmp_path):
    """A run that goes on from a file gives the bits of the run that was not cut; sums are not rounded to bfloat16."""
    whole, _ = trained(dtype, True, range(STEPS))
    table, optimizer = trained(dtype, True, range(5))
    torch.save((table, optimizer.state_dict()), tmp_path / "state")
    saved, state = torch.load(tmp_path / "state", weights_only=False)
    again = RowwiseAdagrad([nn.Parameter(saved.detach().clone())], 7.0)
    again.load_state_dict(state)
    (loaded,) = again.param_groups[0]["params"]
    assert again.param_groups[0]["lr"] == LR and again.state[loaded]["sum"].dtype == torch.float32
    trained(dtype, True, range(5, STEPS), loaded, again)
    assert torch.equal(loaded, whole)
    assert torch.equal(state["state"][0]["sum"], optimizer.state[table]["sum"])  # not shared with what was saved


def test_groups_closure_and_schedulers():
    """Each group has its numbers; a table without a gradient and an empty parameter stay; a scheduler changes lr."""
    one, two, idle = (nn.Parameter(table_of(torch.float64)) for _ in range(3))
    empty = nn.Parameter(torch.empty(0))
    groups = [{"params": [one, empty, idle]}, {"params": [two], "lr": 2 * LR, "initial_accumulator_value": FIRST}]
    optimizer = RowwiseAdagrad(groups, LR, eps=EPS, initial_accumulator_value=FIRST)
    last = nn.Parameter(table_of(torch.float32))
    optimizer.add_param_group({"params": [last], "initial_accumulator_value": 3.0})
    assert optimizer.state[last]["sum"].tolist() == [3.0] * ROWS and optimizer.state[empty]["sum"].shape == (0,)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)

    def closure():
        optimizer.zero_grad()
        loss = (one * gradient_of(0, torch.float64, False)).sum() + (two * gradient_of(0, torch.float64, False)).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2 * (table_of(torch.float64) * gradient_of(0, torch.float64, False)).sum()
    moved = [(table - table_of(torch.float64)).detach() for table in (one, two)]
    want, _ = oracle(table_of(torch.float64), [gradient_of(0, torch.float64, False)], torch.float64)
    torch.testing.assert_close(moved[0], want - table_of(torch.float64))
    torch.testing.assert_close(moved[1], 2 * moved[0])
    assert torch.equal(idle, table_of(torch.float64)) and optimizer.state[idle]["sum"].tolist() == [FIRST] * ROWS
    scheduler.step()
    before = one.detach().clone()
    optimizer.step()
    assert torch.equal(one, before)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lr": -1.0}, "lr is -1.0, wanted a finite number of 0 or more"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": "fast"}, "lr is 'fast'"),
        ({"lr": True}, "lr is True"),
        ({"eps": 0.0}, "eps is 0.0, wanted a finite number of 1.18e-38 or more"),
        ({"eps": math.inf}, "eps is inf"),
        ({"initial_accumulator_value": -0.1}, "initial_accumulator_value is -0.1"),
    ],
)
def test_numbers_are_refused(options, text):
    table = nn.Parameter(table_of(torch.float32))
    with pytest.raises(overlace.InvalidArgument, match=f"RowwiseAdagrad: {text}"):
        RowwiseAdagrad([table], **options)
    optimizer = RowwiseAdagrad([table])
    other = nn.Parameter(table_of(torch.float32))
    with pytest.raises(overlace.InvalidArgument, match=text):
        optimizer.add_param_group({"params": [other], **options})
    assert len(optimizer.param_groups) == 1


def test_parameters_are_refused():
    for bad, text in (
        (torch.zeros(4), r"torch.float32 \[4\]"),
        (torch.zeros(2, 3, 4), r"torch.float32 \[2, 3, 4\]"),
        (torch.zeros(2, 3, dtype=torch.complex64), r"torch.complex64 \[2, 3\]"),
        (torch.zeros(2, 3).to(torch.float8_e4m3fn), r"torch.float8_e4m3fn \[2, 3\]"),
    ):
        with pytest.raises(overlace.InvalidArgument, match=rf"parameter 1 of its group is {text}, wanted \(rows"):
            RowwiseAdagrad([nn.Parameter(torch.zeros(2, 2)), nn.Parameter(bad)])


def test_gradients_are_refused_before_a_table_changes():
    good, bad = (nn.Parameter(table_of(torch.float32)) for _ in range(2))
    optimizer = RowwiseAdagrad([good, bad])
    good.grad = torch.ones(ROWS, COLUMNS)
    bad.grad = torch.ones(ROWS, COLUMNS).to_sparse()
    with pytest.raises(
        overlace.InvalidArgument, match=r"\[9, 5\] is torch.sparse_coo with 2 sparse dimensions, wanted"
    ):
        optimizer.step()
    assert torch.equal(good, table_of(torch.float32)) and not optimizer.state[good]["sum"].any()
    bad.grad, bad.data = None, torch.zeros(ROWS + 1, COLUMNS)
    bad.grad = torch.ones_like(bad)
    with pytest.raises(overlace.InvalidArgument, match=r"table \[10, 5\] has {'sum': \[9\]}, wanted sum \[10\]"):
        optimizer.step()
    assert torch.equal(good, table_of(torch.float32))


def made_of(kind, *shapes, stepped=True, **options):
    tables = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = kind(tables, 5.0, **options)
    for table in tables:
        table.grad = torch.ones_like(table)
    if stepped:
        optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (lambda: made_of(torch.optim.Adagrad, (ROWS, COLUMNS), (4, 3)), "eps is 1e-10|{'step': "),
        (lambda: made_of(torch.optim.SGD, (ROWS, COLUMNS), (4, 3)), "eps is None, wanted"),
        (
            lambda: made_of(torch.optim.Adam, (ROWS, COLUMNS), (4, 3), stepped=False),
            "initial_accumulator_value is None",
        ),
        (lambda: made_of(RowwiseAdagrad, (ROWS, COLUMNS)), r"groups of \[1\] parameters, wanted \[2\]"),
        (lambda: made_of(RowwiseAdagrad, (ROWS, COLUMNS), (5, 3)), r"\[4, 3\] has {'sum': \[5\]}, wanted sum \[4\]"),
        (
            lambda: {**made_of(RowwiseAdagrad, (ROWS, COLUMNS), (4, 3)), "state": {}},
            r"\[9, 5\] has {}, wanted sum \[9\]",
        ),
    ],
)
def test_states_are_refused(state, text):
    """States of another optimizer, of other tables, without some; nothing is taken."""
    optimizer = RowwiseAdagrad([nn.Parameter(torch.zeros(ROWS, COLUMNS)), nn.Parameter(torch.zeros(4, 3))], LR)
    with pytest.raises(overlace.InvalidArgument, match=f"RowwiseAdagrad: .*({text})"):
        optimizer.load_state_dict(state())
    assert not any(own["sum"].any() for own in optimizer.state.values()) and optimizer.param_groups[0]["lr"] == LR


def test_numbers_of_a_state_are_checked():
    optimizer = RowwiseAdagrad([nn.Parameter(torch.zeros(ROWS, COLUMNS))], LR)
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = math.nan
    with pytest.raises(overlace.InvalidArgument, match="lr is nan"):
        optimizer.load_state_dict(state)


TABLES = [(12, 4), (30, 8), (7, 6)]


def check_sharded(group, owners, is_sparse):
    """Tables on ranks, updated where they are, become those of the unsharded list, of the samples of all ranks."""
    torch.manual_seed(5)
    plain = nn.ModuleList(nn.EmbeddingBag(*shape, mode="sum", dtype=torch.float64) for shape in TABLES)
    layer = overlace.nn.ShardedEmbeddingBag.from_modules(copy.deepcopy(list(plain)), group=group, ranks=owners)
    layer.sparse = is_sparse
    places = [p.data_ptr() for p in layer.parameters()]
    mine, whole = (RowwiseAdagrad(model.parameters(), LR) for model in (layer, plain))
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        # Three entries of each table and sample, of two samples of each rank.
        entries = [torch.randint(0, rows, (2 * group.size(), 3), generator=generator) for rows, _ in TABLES]
        own = torch.stack([part[2 * group.rank() : 2 * group.rank() + 2] for part in entries])
        for optimizer in (mine, whole):
            optimizer.zero_grad()
        out = layer(own.flatten(), lengths=torch.full((len(TABLES), 2), 3))
        out.sin().sum().backward()
        torch.cat([bag(part) for bag, part in zip(plain, entries, strict=True)], 1).sin().sum().backward()
        for optimizer in (mine, whole):
            optimizer.step()
    for name, table in layer.full_state_dict().items():
        torch.testing.assert_close(table, plain.state_dict()[name], rtol=1e-11, atol=1e-12)
    assert [p.data_ptr() for p in layer.parameters()] == places
    assert len(mine.state) == max(1, owners.count(group.rank()))  # without tables the empty parameter


@pytest.mark.parametrize(("owners", "is_sparse"), [([1, 0, 1], False), ([0, 0, 0], True)])
def test_sharded_tables(owners, is_sparse):
    run_ranks(2, check_sharded, owners, is_sparse)
