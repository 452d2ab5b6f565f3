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


def scaled(group, of_a):
    from overlace.compat import symm_mem

    name, size, rank = group.group_name, group.size(), group.rank()
    a, b = whole(2 * 3, 16, 1 + rank).reshape(2, 3, 16).to(of_a), whole(5, 16, 2).to(torch.float8_e4m3fn).t()
    rows, columns = whole(6, 1, 4 + rank).abs().float().reshape(2, 3, 1) + 0.5, whole(1, 5, 5).abs().float() + 0.5
    one = torch.tensor(0.75)
    wide = torch.float32
    for dim in (0, 1):
        for a_scale, b_scale in ((rows, columns), (one, one)):
            mine = a.double() * a_scale
            _full, (product,) = unfused(mine, [b.double() * b_scale], group, dim)
            got, (out,) = symm_mem.fused_all_gather_scaled_matmul(
                a, [b], a_scale, [b_scale], dim, name, [None], [None], [wide], [False]
            )
            assert out.dtype == wide and got.dtype == of_a
            torch.testing.assert_close(out.double(), product, rtol=1e-6, atol=1e-6)
            parts = [torch.empty(2, 3, 16) for _ in range(size)]
            torch.distributed.all_gather(parts, a.float(), group=group)
            assert_same(got.float(), torch.cat(parts, dim))
    a = whole(2 * size * 3, 16, 1 + rank).to(of_a)  # flattened, as torch's pass gives it
    rows = whole(2 * size * 3, 1, 6 + rank).abs().float() + 0.5
    for a_scale, b_scale in ((rows, columns), (one, one)):
        total = ((a.double() * a_scale) @ (b.double() * b_scale)).reshape(3, 2 * size, 5)
        torch.distributed.all_reduce(total, group=group)
        out = torch.ops.overlace.fused_scaled_matmul_reduce_scatter(
            a, b, a_scale, b_scale, "avg", 1, 1, name, [3, 2 * size, 5], out_dtype=wide
        )
        torch.testing.assert_close(out.double(), total.chunk(size, 1)[rank] / size, rtol=1e-5, atol=1e-5)


def one_row_of_each(group):
    """A row's scale is one number, too, and each rank has its own."""
    from overlace.compat import symm_mem

    rank, fp8, wide = group.rank(), torch.float8_e4m3fn, torch.float32
    for columns in (1, 5):
        a, b = whole(1, 16, 1 + rank).to(fp8), whole(columns, 16, 2).to(fp8).t()
        row, of_b = torch.full((1, 1), 0.5 + rank), whole(1, columns, 5).abs().float() + 0.5
        _full, (product,) = unfused(a.double() * row, [b.double() * of_b], group, 0)
        _got, (out,) = symm_mem.fused_all_gather_scaled_matmul(
            a, [b], row, [of_b], 0, group.group_name, [None], [None], [wide], [False]
        )
        torch.testing.assert_close(out.double(), product, rtol=1e-6, atol=1e-6)
    with pytest.raises(errors.InvalidArgument, match=r"A_scale is \(1, 1\), B_scale \(1, 4\), wanted \(1, 1\)"):
        symm_mem.fused_all_gather_scaled_matmul(
            a, [b, b], row, [of_b, of_b[:, :4]], 0, group.group_name, [None] * 2, [None] * 2, [wide] * 2, [False] * 2
        )


@pytest.mark.parametrize("size", SIZES)
def test_one_row_of_each_rank_has_its_own_scale(size):
    run_ranks(size, one_row_of_each)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("of_a", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scaled_results_are_those_of_the_wide_products(size, of_a):
    run_ranks(size, scaled, of_a)


@pytest.mark.parametrize("name", ["fused_all_gather_scaled_matmul", "fused_scaled_matmul_reduce_scatter"])
def test_scaled_ones_give_no_fp8(name):
    a, scale = torch.ones(16, 16, dtype=torch.float8_e4m3fn), torch.ones(())
    for result_scale, out_dtype, text in (
        (None, None, "out_dtype is None, which is the type of the operands there, wanted bfloat16"),
        (scale, torch.bfloat16, r"result_scale is \[\], wanted None"),
    ):
        if name == "fused_all_gather_scaled_matmul":
            arguments = (a, [a], scale, [scale], 0, "tp", [None], [result_scale], [out_dtype], [False])
        else:
            arguments = (a, a, scale, scale, "sum", 0, 0, "tp", [16, 16], None, result_scale, out_dtype)
        for function in (getattr(symm_mem, name), getattr(torch.ops.overlace, name)):
            with pytest.raises(errors.Unsupported, match=f"{name}: {text}") as caught:
                function(*arguments)
            assert caught.value.code == "not_supported"


def test_lists_of_other_lengths_are_refused():
    a, scale = torch.ones(16, 16, dtype=torch.float8_e4m3fn), torch.ones(())
    with pytest.raises(errors.InvalidArgument, match="2 biases for 1 Bs, wanted as many"):
        symm_mem.fused_all_gather_scaled_matmul(
            a, [a], scale, [scale], 0, "tp", [None, None], [None], [torch.bfloat16], [False]
        )
    with pytest.raises(errors.InvalidArgument, match="Bs is empty, wanted one matrix or more"):
        symm_mem.fused_all_gather_scaled_matmul(a, [], scale, [], 0, "tp", [], [], [], [])


def test_the_module_defines_what_it_lists():
    for schema in symm_mem.SCHEMAS:
        assert hasattr(torch.ops.overlace, schema.partition("(")[0])
