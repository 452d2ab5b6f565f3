"""The functions with the signatures of torch.ops.symm_mem: the same schemas, results and gradients."""

import pytest
from overlace import errors
from overlace.compat import symm_mem
from ranks import SIZES, assert_same, run_ranks, torch, whole

torch_symm_mem = pytest.importorskip("torch.distributed._symmetric_memory")


OF_TORCH = [s.partition("(")[0] for s in symm_mem.SCHEMAS if not s.startswith("fused_matmul_all_reduce")]


@pytest.mark.parametrize("name", OF_TORCH)
def test_schemas_are_those_of_torch(name):
    ours, theirs = (str(getattr(ns, name).default._schema) for ns in (torch.ops.overlace, torch.ops.symm_mem))
    assert ours.removeprefix("overlace::") == theirs.removeprefix("symm_mem::")


def unfused(a, bs, group, dim):
    parts = [torch.empty_like(a) for _ in range(group.size())]
    torch.distributed.all_gather(parts, a.contiguous(), group=group)
    full = torch.cat(parts, dim)
    return full, [full @ b for b in bs]


def swapped(group):
    from overlace.compat import symm_mem

    name, size, rank = group.group_name, group.size(), group.rank()
    a, bs = whole(6, 8, 1 + rank).reshape(2, 3, 8), [whole(8, 5, 2), whole(8, 3, 3)]
    for fused in (symm_mem.fused_all_gather_matmul, torch.ops.overlace.fused_all_gather_matmul):
        for dim in (0, 1):
            want, wants = unfused(a, bs, group, dim)
            full, outs = fused(a, bs, dim, name)
            assert_same(full, want)
            for out, product in zip(outs, wants, strict=True):
                assert_same(out, product)
        nothing, outs = fused(a, bs, 0, name, return_A=False)
        assert nothing is None and len(outs) == 2
    b = whole(8, 5, 4)
    a = whole(2 * size * 3, 8, 1 + rank).reshape(2 * size, 3, 8)
    total = a @ b
    torch.distributed.all_reduce(total, group=group)
    assert_same(torch.ops.overlace.fused_matmul_reduce_scatter(a, b, "sum", 0, name), total.chunk(size)[rank])
    assert_same(torch.ops.overlace.fused_matmul_all_reduce(a, b, "sum", name), total)
    average = symm_mem.fused_matmul_reduce_scatter(a, b, "avg", 0, name)
    torch.testing.assert_close(average, total.chunk(size)[rank] / size)


@pytest.mark.parametrize("size", SIZES)
def test_results_are_those_of_the_collectives(size):
    run_ranks(size, swapped)


def gradients(group):
    name, size = group.group_name, group.size()
    a, b = whole(4, 8, 1).requires_grad_(), whole(8, 5, 2).requires_grad_()
    _, (y,) = torch.ops.overlace.fused_all_gather_matmul(a, [b], 0, name)
    torch.ops.overlace.fused_matmul_reduce_scatter(y, torch.eye(5, dtype=y.dtype), "sum", 0, name).sum().backward()
    # Each rank's rows are summed over the ranks, which all have the same products.
    assert_same(a.grad, size * (torch.ones(4, 5, dtype=a.dtype) @ b.detach().t()))
    assert_same(b.grad, size * (a.detach().t() @ torch.ones(4, 5, dtype=a.dtype)))


def test_gradients_come_with_them():
    run_ranks(2, gradients)


@pytest.mark.parametrize("name", ["fused_all_gather_scaled_matmul", "fused_scaled_matmul_reduce_scatter"])
def test_scaled_ones_say_that_they_are_not_there(name):
    a, scale = torch.ones(2, 2, dtype=torch.float8_e4m3fn), torch.ones(())
    if name == "fused_all_gather_scaled_matmul":
        arguments = (a, [a], scale, [scale], 0, "tp", [None], [None], [None], [False])
    else:
        arguments = (a, a, scale, scale, "sum", 0, 0, "tp", [2, 2])
    for function in (getattr(symm_mem, name), getattr(torch.ops.overlace, name)):
        text = f"{name}: A is torch.float8_e4m3fn with scales, whose products are not there yet, wanted float32"
        with pytest.raises(errors.Unsupported, match=text) as caught:
            function(*arguments)
        assert caught.value.code == "not_supported"


def test_the_module_defines_what_it_lists():
    for schema in symm_mem.SCHEMAS:
        assert hasattr(torch.ops.overlace, schema.partition("(")[0])
