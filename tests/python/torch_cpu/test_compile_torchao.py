"""torchao's float8 layers under its own tensor parallelism: the pass of overlace.compile makes operators of them."""

import unittest.mock

import pytest
from ranks import overlace, run_ranks, torch

float8 = pytest.importorskip("torchao.float8")
compile_ = overlace.compile
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(32, 64, bias=False, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class InFp64:
    """torch._scaled_mm of the quantised operands in fp64, rounded once."""

    def __init__(self):
        self.factors = []

    def __call__(self, a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
        assert bias is None and scale_result is None
        self.factors.append((a.dtype, b.dtype))
        return ((a.double() * scale_a.double()) @ (b.double() * scale_b.double())).to(out_dtype)


def of_dtype(dtype):
    """The layers with scales of tensors; `dtype`: what gradients of results are cast to; None: torchao's default."""
    torch.manual_seed(5)
    cast = {} if dtype is None else {"cast_config_grad_output": float8.CastConfig(target_dtype=dtype)}
    config = float8.Float8LinearConfig(**cast)
    return float8.convert_to_float8_training(FeedForward(), config=config)


def sharded(dtype, mesh):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import parallelize_module
    from torchao.float8 import float8_tensor_parallel as styles

    plan = {
        "up": styles.Float8ColwiseParallel(input_layouts=Shard(0)),
        "down": styles.Float8RowwiseParallel(output_layouts=Shard(0)),
    }
    return parallelize_module(of_dtype(dtype), mesh, plan)


def step(model, x, dy):
    """The result and all gradients, x's first."""
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(dy)
    of_parameters = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
    return [y.detach(), x.grad, *of_parameters]


def gradients(group, dtype):
    from torch.distributed.device_mesh import DeviceMesh

    size, rank = group.size(), group.rank()
    model = sharded(dtype, DeviceMesh.from_group(group, "cpu"))
    torch.manual_seed(6)
    x, dy = (torch.randn(16 * size, 32).bfloat16() for _ in range(2))
    compile_.report(clear=True)
    with compile_.enable(group, when="always"):
        compiled = torch.compile(model, backend=compile_.aot_eager, fullgraph=True)
        got = step(compiled, x.chunk(size)[rank], dy.chunk(size)[rank])
    found = [
        (c.became, c.reason) for c in compile_.report(clear=True).candidates if c.reason != "the reduction is 'max'"
    ]
    by_torch = step(of_dtype(dtype), x, dy)
    oracle = InFp64()
    with unittest.mock.patch.object(torch, "_scaled_mm", oracle):
        exact = step(of_dtype(dtype), x, dy)
    of_gradients = dtype or E5M2
    assert set(oracle.factors) == {(E4M3, E4M3), (of_gradients, E4M3)} and len(oracle.factors) == 6
    for want in (by_torch, exact):
        mine = [part.chunk(size)[rank] for part in want[:2]] + want[2:]
        for one, expected in zip(got, mine, strict=True):
            error, largest = (one - expected).abs().max().item(), expected.abs().max().item()
            assert error <= 0.01 * largest, (error, largest)  # partial sums are rounded to bf16, and to fp8 behind that
    return found


@pytest.mark.parametrize("dtype", [None, E4M3])
def test_forward_and_backward_become_operators_of_fp8(dtype):
    kept = "the gathered rows are a result too; as asked for"  # the gradient of a weight is of them
    for found in run_ranks(2, gradients, dtype):
        assert found == [("ag_gemm_scaled", kept), ("gemm_rs_scaled", "as asked for")] * 2
