"""Errors about dtypes: each has the dtype that was got."""

import re

import pytest
from ranks import overlace, run_ranks, torch, whole

errors = overlace.errors
MULTIPLIED = "which cannot be multiplied, wanted float32, bfloat16, float16, or float64 on CPUs"
ADDED = "which cannot be added, wanted float64, float32, bfloat16, float16, int64 or int32"
SPLITS = [[2, 2], [2, 2]]
WANTED = {
    "factors": "gemm_ar: a is [4, 6] on rank 0, b is [6, 5]: dtypes float64 and float32, wanted one",
    "second factor": "ag_gemm: a is [4, 6] on rank 0, bs[1] is [6, 5]: dtypes float64 and bfloat16, wanted one",
    "rows that go": "gemm_a2a: a is [4, 6] on rank 0, b is [6, 5]: dtypes float64 and float16, wanted one",
    "rows that come": "a2a_gemm: a is [4, 6] on rank 0, b is [6, 5]: dtypes float64 and float32, wanted one",
    "dy": "ag_wgrad: x is [4, 6] on rank 0, dys[0] is [8, 5]: dtypes float64 and float32, wanted one",
    "integers": f"gemm_ar: a is int64, {MULTIPLIED}",
    "bools": f"ag_gemm: a is bool, {MULTIPLIED}",
    "small integers": f"gemm_rs: a is int8, {MULTIPLIED}",
    "complex": f"gemm_rs: a is ComplexFloat, {MULTIPLIED}",
    "fp8": f"ag_gemm: a is Float8_e4m3fn, {MULTIPLIED}",
    "out_dtype": f"gemm_rs: out_dtype is int32, {MULTIPLIED}",
    "out_dtype that is narrower": "out must have the dtype of a (fp64), got bf16",
    "bias": "bias must have the dtype of out (fp64) or of a (fp64), got fp32",
    "sum": f"all_reduce: x is bool, {ADDED}",
    "sum of bytes": f"reduce_scatter: x is uint8, {ADDED}",
    "mean": "reduce_scatter: reduce_op is 'avg' of int64, wanted 'sum'",
    "plan": "plan: dtype is torch.int8, wanted one of torch.float64, torch.float32, torch.float16, torch.bfloat16",
    "plan of a text": "plan: dtype is 'float32', wanted one of torch.float64, torch.float32",
    "plan's out_dtype": "plan: out_dtype is torch.int64, wanted one of torch.float64, torch.float32",
    "call": "gemm_ar: a is torch.complex64, wanted one of torch.float64, torch.float32",
    "call of integers": "a must be fp32, bf16, fp16, e4m3, e5m2 or fp64, got i64",
    "symmetric": "empty_symmetric: dtype is 'float32', wanted a torch.dtype",
    "CO2": "CO2: parameter weight is torch.float64, wanted float32, bfloat16 or float16",
    "CO2's wire": "CO2: wire_dtype is torch.float16, wanted torch.float32, torch.bfloat16 or torch.int8",
}


def bad_calls(group):
    ops, call = overlace.ops, overlace.call
    a, b, bias = whole(4, 6, 1), whole(6, 5, 2), whole(1, 5, 3)[0]

    def co2(dtype, **options):
        layer = torch.nn.Linear(2, 2, dtype=dtype)
        overlace.optim.CO2(layer, torch.optim.SGD(layer.parameters(), 0.1), tau=1, outer_group=group, **options)

    def integers():
        long = a.long()
        call("gemm_ar", {"a": long, "b": b.long(), "out": torch.empty(4, 5, dtype=torch.int64)}, group=group)

    return {
        "factors": lambda: ops.gemm_ar(a, b.float(), group=group),
        "second factor": lambda: ops.ag_gemm(a, [b, b.bfloat16()], group=group),
        "rows that go": lambda: ops.gemm_a2a(a, b.half(), group=group, splits=SPLITS),
        "rows that come": lambda: ops.a2a_gemm(a, b.float(), group=group, splits=SPLITS),
        "dy": lambda: ops.ag_wgrad(a, whole(8, 5, 1).float(), group=group),
        "integers": lambda: ops.gemm_ar(a.long(), b.long(), group=group),
        "bools": lambda: ops.ag_gemm(a > 0, b > 0, group=group),
        "small integers": lambda: ops.gemm_rs(a.to(torch.int8), b.to(torch.int8), group=group),
        "complex": lambda: ops.gemm_rs(a.to(torch.complex64), b.to(torch.complex64), group=group),
        "fp8": lambda: ops.ag_gemm(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), group=group),
        "out_dtype": lambda: ops.gemm_rs(a, b, group=group, out_dtype=torch.int32),
        "out_dtype that is narrower": lambda: ops.gemm_rs(a, b, group=group, out_dtype=torch.bfloat16),
        "bias": lambda: ops.gemm_rs(a, b, group=group, bias=bias.float()),
        "sum": lambda: ops.all_reduce(a > 0, group=group),
        "sum of bytes": lambda: ops.reduce_scatter(a.to(torch.uint8), group=group),
        "mean": lambda: ops.reduce_scatter(a.long(), group=group, reduce_op="avg"),
        "plan": lambda: overlace.plan("ag_gemm", 8, 5, 6, dtype=torch.int8, group=group),
        "plan of a text": lambda: overlace.plan("ag_gemm", 8, 5, 6, dtype="float32", group=group),
        "plan's out_dtype": lambda: overlace.plan(
            "ag_gemm", 8, 5, 6, dtype=torch.float32, out_dtype=torch.int64, group=group
        ),
        "call": lambda: call("gemm_ar", {"a": a.to(torch.complex64)}, group=group),
        "call of integers": integers,
        "symmetric": lambda: overlace.empty_symmetric(4, "float32", group=group),
        "CO2": lambda: co2(torch.float64),
        "CO2's wire": lambda: co2(torch.float32, wire_dtype=torch.float16),
    }


def messages(group):
    found = {}
    for name, body in bad_calls(group).items():
        with pytest.raises(errors.InvalidArgument) as caught:
            body()
        found[name] = str(caught.value)
    return found


def test_the_dtype_that_was_got_is_named():
    found = run_ranks(2, messages)[0]
    assert found.keys() == WANTED.keys()
    for name, text in WANTED.items():
        assert re.search(re.escape(text), found[name]), (name, found[name])


def test_the_pass_names_both_dtypes():
    from overlace.compile.match import Left, check_dtypes

    node = torch.fx.Graph().placeholder("x")
    node.meta["val"] = torch.empty(1, dtype=torch.float16)
    check_dtypes(torch.float16, [node])
    with pytest.raises(Left, match=r"the dtypes of a product differ: torch\.float16 and torch\.float32"):
        check_dtypes(torch.float32, [node])
