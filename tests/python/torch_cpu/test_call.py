"""overlace.call: operators by name, those of the library beside overlace.ops, and one that a plugin adds."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import overlace
import pytest
import torch
from ranks import run_ranks

PLUGIN = Path(os.environ["OVERLACE_LIB"]).parent / "tests/toy_operator_plugin.so"


def _numbers(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, (rows, columns), generator=generator).float()


def _same_as_operators(group):
    rank, size = group.rank(), group.size()
    a, weight, bias = _numbers(12, 6, rank), _numbers(5, 6, 10 + rank), _numbers(1, 5, 99)[0]
    for plan in ("", "hetero_unfused_1d:2"):
        out = torch.empty(12 // size, 5)
        overlace.call("gemm_rs", {"a": a, "b": weight.t(), "bias": bias, "out": out}, plan=plan, group=group)
        assert torch.equal(out, torch.ops.overlace.gemm_rs(a, weight.t(), bias, "sum", 0, group.group_name, plan=plan))
        summed = torch.empty(12, 5)
        overlace.call("gemm_ar", {"a": a, "b": weight.t(), "bias": None, "out": summed}, plan=plan, group=group)
        assert torch.equal(summed[rank * len(out) :][: len(out)] + bias, out)
    offsets = [0, 5, 12]
    shard = a[offsets[rank] : offsets[rank + 1]].contiguous()
    c, full = torch.empty(12, 5), torch.empty(12, 6)
    overlace.call("ag_gemm", {"a_shard": shard, "b": weight.t(), "c": c, "a": full}, row_offsets=offsets, group=group)
    want_full, (want,) = torch.ops.overlace.ag_gemm(
        shard, [weight.t()], [], 0, group.group_name, return_a=True, row_offsets=offsets
    )
    assert torch.equal(c, want) and torch.equal(full, want_full)


def test_same_as_operators():
    run_ranks(2, _same_as_operators)


def _bad(group):
    a, b, out = _numbers(4, 6, 1), _numbers(6, 5, 2), torch.empty(2, 5)
    rank = group.rank()

    def refusal(tensors, op="gemm_rs", **fields):
        with pytest.raises(overlace.Error) as error:
            overlace.call(op, {"a": a, "b": b, "out": out} | tensors, group=group, **fields)
        return f"{type(error.value).__name__}: {error.value}"

    assert refusal({"a": 3}) == "InvalidArgument: gemm_rs: a is a int, wanted a torch.Tensor or None"
    assert refusal({"a": a.to("meta")}) == "InvalidArgument: gemm_rs: a is on meta, wanted cpu"
    assert refusal({"a": a[0, 0]}) == "InvalidArgument: gemm_rs: a is [], wanted one to four dimensions"
    assert "torch.bool, wanted one of torch.float64" in refusal({"a": a > 0})
    assert refusal({"a": a.clone().requires_grad_()}).startswith("Unsupported: gemm_rs: a needs a gradient")
    assert refusal({}, alpha={}) == (
        "InvalidArgument: gemm_rs: alpha is {}, wanted an int, a float, a bool, a str or a sequence of ints"
    )
    assert refusal({}, alpha=1) == (
        "InvalidArgument: gemm_rs: no argument is called 'alpha', wanted a, b, out, bias, a_scale, b_scale, "
        "row_offsets or activation"
    )
    assert refusal({}, row_offsets=[0, 4, 5]) == (
        "InvalidArgument: gemm_rs: row_offsets must be 3 ascending entries from 0 to M = 4, "
        f"got 3 entries: 0 4 5; rank {rank}"
    )
    assert "plan is 'serial:', wanted auto, FAMILY, FAMILY:DEGREE" in refusal({}, plan="serial:")
    assert refusal({}, plan=None) == "InvalidArgument: overlace.call: plan is None, wanted a text"
    assert refusal({}, op="gemm_rx").startswith('InvalidArgument: ovl_run: op is "gemm_rx", wanted ag_gemm')
    with pytest.raises(overlace.InvalidArgument, match="group 'none' has no overlace team"):
        overlace.call("gemm_rs", {}, group="none")
    overlace.call("gemm_rs", {"a": a, "b": b, "out": out}, group=group)


def test_bad_input():
    run_ranks(2, _bad)


def _toy(group):
    ctypes.CDLL(str(PLUGIN))
    rank, rows = group.rank(), [4, 3][group.rank()]
    for plan in ("", "serial", "pushed:3"):
        for call in range(3):
            x, y = torch.arange(rows * 5.0).reshape(rows, 5) + 100 * rank + call, torch.empty(7, 5)
            overlace.call("scale_ag", {"x": x, "y": y}, alpha=2.5, plan=plan, group=group)
            first, second = torch.arange(20.0) + call, torch.arange(15.0) + 100 + call
            assert torch.equal(y, torch.cat([first, second]).reshape(7, 5) * 2.5)
    with pytest.raises(overlace.InvalidArgument, match="scale_ag: field 'alpha' is missing, wanted a number; rank"):
        overlace.call("scale_ag", {"x": x, "y": y}, group=group)


def test_operator_of_a_plugin():
    run_ranks(2, _toy)
