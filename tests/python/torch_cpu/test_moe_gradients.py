"""Gradients of experts by torch (moe_by_torch.py), which those of GPUs are compared with, on CPU ranks."""

import pytest
from moe_by_torch import gradients
from ranks import SIZES, run_ranks, torch
from test_moe_ops import CASE, Problem, run_step

NAMES = ("x", "weights", "w1", "w2")
CASES = [
    CASE,
    CASE | {"capacity_factor": 0.5},
    CASE | {"dtype": torch.bfloat16, "experts": 8, "is_on_the_last": True},
    CASE | {"dtype": torch.float16, "experts": 1, "top_k": 1, "capacity_factor": 1.0},
]


def by_torch(operands, dy, group, options):
    given = {n: t.detach() for n, t in operands.items()}
    options = {"num_experts": options["num_experts"]} | {
        name: options[name] for name in ("capacity_factor", "expert_begin") if name in options
    }
    return gradients(dy, **given, group=group, **options)


def same_as_dense(group, case):
    """Errors at most twice those of the unfused layer, and 1e-6 of the largest, the rounding of float32."""
    rank, size = group.rank(), group.size()
    problem = Problem(case, size)
    exact, plain = problem.solve(torch.float64), problem.solve(case["dtype"])
    operands, dy = problem.operands(rank), problem.part(problem.dy, rank)
    got = by_torch(operands, dy, group, problem.options())
    again = by_torch(operands, dy, group, problem.options())
    library, _, _ = run_step(operands, dy, group, **problem.options())
    for name, t, same in zip(NAMES, got, again, strict=True):
        mine = problem.part if name in ("x", "weights") else problem.mine
        want, other = mine(exact[name], rank), mine(plain[name], rank)
        assert t.shape == want.shape and t.dtype == other.dtype, name
        assert torch.equal(t, same), name
        if t.numel():
            bound = 2 * (plain[name] - exact[name]).abs().max() + 1e-6 * exact[name].abs().max().clamp(min=1)
            assert (t - want).abs().max() <= bound, (name, (t - want).abs().max(), bound)
            assert (t - library[name]).abs().max() <= 2 * bound, name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_same_as_dense(size, case):
    run_ranks(size, same_as_dense, case)


def strangers(group):
    """Numbers that are no experts make no copies, as on GPUs."""
    problem = Problem(CASE, group.size())
    operands, dy = problem.operands(group.rank()), problem.part(problem.dy, group.rank())
    want = by_torch(operands, dy, group, problem.options())
    idx = operands["idx"]
    operands["idx"] = torch.where(idx < 0, torch.tensor([7, -9, 2**31 - 1], dtype=torch.int32), idx)
    for a, b in zip(by_torch(operands, dy, group, problem.options()), want, strict=True):
        assert torch.equal(a, b)


def test_experts_that_do_not_exist_have_no_part():
    run_ranks(2, strangers)


def of_some(group):
    """Gradients that are not needed are not there, and do not change the others."""
    problem = Problem(CASE, group.size())
    operands, dy = problem.operands(group.rank()), problem.part(problem.dy, group.rank())
    want, _, _ = run_step(operands, dy, group, **problem.options())
    frozen = {name: t.detach().requires_grad_(name in ("x", "w2")) for name, t in operands.items()}
    found, _, _ = run_step(frozen, dy, group, **problem.options())
    assert torch.equal(found["x"], want["x"]) and torch.equal(found["w2"], want["w2"])
    assert found["w1"] is None and found["weights"] is None


def test_what_is_not_needed_is_not_there():
    run_ranks(2, of_some)
