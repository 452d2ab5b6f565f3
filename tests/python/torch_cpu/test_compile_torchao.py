"""torchao's float8 layers under its own tensor parallelism: the pass of overlace.compile makes operators of them."""

import pytest
from ranks import overlace, run_ranks, torch

float8 = pytest.importorskip("torchao.float8")
compile_ = overlace.compile
E4M3 = torch.float8_e4m3fn


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(32, 64, bias=False, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def of_dtype(dtype):
    """The layers with scales of tensors; `dtype` is what gradients of results are cast to."""
    torch.manual_seed(5)
    config = float8.Float8LinearConfig(cast_config_grad_output=float8.CastConfig(target_dtype=dtype))
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


def gradients(group):
    from torch.distributed.device_mesh import DeviceMesh

    size, rank = group.size(), group.rank()
    model, whole = sharded(E4M3, DeviceMesh.from_group(group, "cpu")), of_dtype(E4M3)
    torch.manual_seed(6)
    x, dy = (torch.randn(16 * size, 32).bfloat16() for _ in range(2))
    mine, everything = x.chunk(size)[rank].clone().requires_grad_(), x.clone().requires_grad_()
    compile_.report(clear=True)
    with compile_.enable(group, when="always"):
        y = torch.compile(model, backend=compile_.aot_eager, fullgraph=True)(mine)
        y.backward(dy.chunk(size)[rank])
    found = [
        (c.became, c.reason) for c in compile_.report(clear=True).candidates if c.reason != "the reduction is 'max'"
    ]
    want = whole(everything)
    want.backward(dy)
    pairs = [(y, want.chunk(size)[rank]), (mine.grad, everything.grad.chunk(size)[rank])]
    pairs += [(p.grad.full_tensor(), q.grad) for p, q in zip(model.parameters(), whole.parameters(), strict=True)]
    for got, expected in pairs:
        error, largest = (got - expected).abs().max().item(), expected.abs().max().item()
        assert error <= 0.01 * largest, (error, largest)  # partial sums are rounded to bf16, and to fp8 behind that
    return found


def test_forward_and_backward_become_operators_of_fp8():
    kept = "the gathered rows are a result too; as asked for"  # the gradient of a weight is of them
    for found in run_ranks(2, gradients):
        assert found == [("ag_gemm_scaled", kept), ("gemm_rs_scaled", "as asked for")] * 2


def e5m2(group):
    """What the pass leaves cannot run here: gloo gathers no fp8."""
    from torch.distributed.device_mesh import DeviceMesh

    model = sharded(torch.float8_e5m2, DeviceMesh.from_group(group, "cpu"))
    compile_.report(clear=True)
    with compile_.enable(group, when="always"):
        x = torch.randn(16, 32, dtype=torch.bfloat16, requires_grad=True)
        y = torch.compile(model, backend=compile_.aot_eager, fullgraph=True)(x)
        with pytest.raises(RuntimeError, match="Invalid scalar type"):
            y.sum().backward()
    return [c.reason for c in compile_.report(clear=True).candidates if not c.became and "'max'" not in c.reason]


def test_gradients_of_e5m2_are_left():
    for reasons in run_ranks(2, e5m2):
        assert reasons == ["it gathers torch.float8_e5m2", "no product feeds it, but _scaled_mm.default"]
