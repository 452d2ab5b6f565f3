"""The operators on GPUs of one host: results, gradients, streams, graphs, layers. With one GPU a team of one: operands,
streams, graphs and gradients are what they are, nothing travels. Skipped without.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu`.
"""

import pytest
from gpu_ranks import FEW, GPUS, SIZES, dist, overlace, product, run_ranks, torch, whole


def results(group, m, n, k, dtype, plan):
    dtype, size, rank = getattr(torch, dtype), group.size(), group.rank()
    x, w = whole(m, k, 1, dtype), whole(n, k, 2 + rank, dtype)
    a, y = overlace.ops.ag_gemm(x.chunk(size)[rank], w.t(), group=group, return_a=True, plan=plan)
    assert torch.equal(a, x)
    assert torch.equal(y, product(x, w.t()).to(dtype))
    for b in (w.t(), w.t().contiguous()):
        total = product(x, b)
        dist.all_reduce(total)
        rs = overlace.ops.gemm_rs(x, b, group=group, out_dtype=torch.float32, plan="family=library")
        assert torch.equal(rs, total.chunk(size)[rank])
        # Partial sums are rounded to the dtype on their way: each of `size` addends by half an ulp.
        bound = total.abs().max() * torch.finfo(dtype).eps * size
        for got, want in (
            (overlace.ops.gemm_rs(x, b, group=group, plan=plan), total.chunk(size)[rank]),
            (overlace.ops.gemm_ar(x, b, group=group, plan=plan), total),
        ):
            assert got.dtype == dtype and (got.float() - want).abs().max() <= bound


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("plan", ["", "family=library", "family=hetero_unfused_1d"])
def test_results(size, dtype, plan):
    run_ranks(size, results, 1024, 512, 768, dtype, plan)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(8192, 2560, 8192), (2048, 8192, 2048), (64, 1024, 1024)])
def test_results_of_layers_as_the_planner_decides(size, shape):
    run_ranks(size, results, *shape, "bfloat16", "")


def misaligned(group):
    """Views that no tile could be loaded from are copied, not refused."""
    size, rank = group.size(), group.rank()
    x = whole(512 * size, 1032, 1, torch.bfloat16)[:, 3:1027].chunk(size)[rank]
    w = whole(1025, 1024, 2, torch.bfloat16).flatten()[1 : 1 + 1024 * 1024].view(1024, 1024)
    full = [torch.empty(512, 1024, dtype=torch.bfloat16) for _ in range(size)]
    dist.all_gather(full, x.contiguous())
    y = overlace.ops.ag_gemm(x, w.t(), group=group)
    assert torch.equal(y, product(torch.cat(full), w.t()).bfloat16())


def test_misaligned_views():
    run_ranks(FEW, misaligned)


def gradients(group):
    torch.manual_seed(1)
    size, rank = group.size(), group.rank()
    x, w1, w2 = (torch.randn(*s, dtype=torch.bfloat16) for s in ((1024, 512), (768, 512), (512, 768)))
    mine = [x.chunk(size)[rank], w1.chunk(size)[rank], w2.chunk(size, 1)[rank]]
    mine = [t.clone().requires_grad_() for t in mine]
    y = overlace.ops.gemm_rs(overlace.ops.ag_gemm(mine[0], mine[1].t(), group=group), mine[2].t(), group=group)
    y.float().square().sum().backward()
    full = [t.double().requires_grad_() for t in (x, w1, w2)]
    (full[0] @ full[1].t() @ full[2].t()).square().sum().backward()
    wants = [full[0].grad.chunk(size)[rank], full[1].grad.chunk(size)[rank], full[2].grad.chunk(size, 1)[rank]]
    for t, want in zip(mine, wants, strict=True):
        assert (t.grad.double() - want).abs().max() <= 0.02 * want.abs().max()


@pytest.mark.parametrize("size", SIZES)
def test_gradients(size):
    run_ranks(size, gradients)


def weight_gradients(group, plan):
    size, rank = group.size(), group.rank()
    x, dy = whole(512 * size, 256, 1, torch.bfloat16), whole(512 * size, 384, 2 + rank, torch.bfloat16)
    want = product(x.t(), dy)
    bound = 2 * want.abs().max() * torch.finfo(torch.bfloat16).eps  # libraries may round parts of a sum
    found = [overlace.ops.ag_wgrad(x.chunk(size)[rank], dy, group=group, plan=plan) for _ in range(3)]
    found += overlace.ops.ag_wgrad(x.chunk(size)[rank], [dy, dy[:, :100]], group=group, plan=plan)
    for got in found:
        assert got.dtype == torch.bfloat16 and (got.float() - want[:, : got.shape[1]]).abs().max() <= bound
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("plan", ["", "library", "shard_p2p", "hetero_unfused_1d,degree=2", "uniform_fused_2d"])
def test_weight_gradients(size, plan):
    run_ranks(size, weight_gradients, plan and f"family={plan}")


def compiled(group, backend):
    """torch's own styles, compiled, against the same model in eager mode; the planner decides."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor import parallel as styles

    torch.manual_seed(3)
    nn, mesh = torch.nn, DeviceMesh.from_group(group, "cuda")
    model = nn.Sequential(nn.Linear(4096, 8192, False), nn.GELU(), nn.Linear(8192, 4096, False)).bfloat16()
    plan = {"0": styles.ColwiseParallel(input_layouts=Shard(0)), "2": styles.RowwiseParallel(output_layouts=Shard(0))}
    model = styles.parallelize_module(model, mesh, plan)
    torch.manual_seed(4 + group.rank())
    x = torch.randn(8192 // group.size(), 4096, dtype=torch.bfloat16)

    def step(function):
        model.zero_grad()
        y = function(x)
        y.float().square().mean().backward()
        return [y.detach(), *(p.grad.full_tensor() for p in model.parameters())]

    with overlace.compile.enable(mesh), torch._inductor.config.patch(force_disable_caches=True):
        kind = overlace.compile.aot_eager if backend == "aot_eager" else backend
        got = step(torch.compile(model, backend=kind, fullgraph=True))
    report = overlace.compile.report(clear=True)
    assert [c.became for c in report.candidates] == ["ag_gemm", "gemm_rs", "ag_gemm"], str(report)
    for mine, want in zip(got, step(model), strict=True):
        assert (mine.float() - want.float()).abs().max() <= 0.02 * want.float().abs().max()


@pytest.mark.skipif(GPUS < 2, reason="one GPU: torch leaves collectives of one rank out")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_with_the_pass(size, backend):
    run_ranks(size, compiled, backend)


def collectives(group, dtype):
    """Against torch's own NCCL; integers, so that sums are exact in any order."""
    size, rank = group.size(), group.rank()
    x = whole(512 * size, 768, 1 + rank, getattr(torch, dtype))
    full, part, turned, total = x.new_empty(512 * size * size, 768), x.new_empty(512, 768), x.clone(), x.clone()
    dist.all_gather_into_tensor(full, x)
    dist.reduce_scatter_tensor(part, x)
    dist.all_to_all_single(turned, x)
    dist.all_reduce(total)
    ops = overlace.ops
    for got, want in (
        (ops.all_gather(x, group=group), full),
        (ops.reduce_scatter(x, group=group), part),
        (ops.all_to_all(x, group=group), turned),
        (ops.all_reduce(x, group=group), total),
        (ops.all_gather(x.t(), group=group, dim=1), full.t()),
        (ops.reduce_scatter(x.t(), group=group, dim=1), part.t()),
        (ops.all_to_all(x.t(), group=group, dim=1), turned.t()),
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64"])
def test_collectives(size, dtype):
    run_ranks(size, collectives, dtype)


def streams_and_graphs(group):
    size, rank = group.size(), group.rank()
    x, w = whole(2048, 1024, 1, torch.bfloat16).chunk(size)[rank].clone(), whole(512, 1024, 2, torch.bfloat16)
    want = overlace.ops.ag_gemm(x, w.t(), group=group)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_side = overlace.ops.ag_gemm(x, w.t(), group=group)
        on_side.add_(0)  # behind it on the same stream
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(on_side, want)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = overlace.ops.ag_gemm(x, w.t(), group=group)
    for step in range(20):
        x.copy_(whole(2048, 1024, step, torch.bfloat16).chunk(size)[rank])
        eager = overlace.ops.ag_gemm(x, w.t(), group=group)
        graph.replay()
        assert torch.equal(captured, eager), step


def test_streams_and_graphs():
    run_ranks(FEW, streams_and_graphs)


def first_use_in_a_capture(group):
    size, rank = group.size(), group.rank()
    x, w = whole(1024, 512, 1, torch.bfloat16).chunk(size)[rank].clone(), whole(256, 512, 2, torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with (
        torch.cuda.graph(graph),
        pytest.raises(overlace.InvalidArgument, match=r"ag_gemm .*M 1024.*first use .* inside graph capture") as caught,
    ):
        overlace.ops.ag_gemm(x, w.t(), group=group)
    assert caught.value.code == "capture"
    want = overlace.ops.ag_gemm(x, w.t(), group=group)  # it went wrong at its call, and nothing else did
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = overlace.ops.ag_gemm(x, w.t(), group=group)
    graph.replay()
    assert torch.equal(captured, want)


def test_a_first_use_is_not_captured():
    run_ranks(FEW, first_use_in_a_capture)


def refusals(group):
    a, b = torch.ones(8, 8), torch.ones(8, 8)
    with pytest.raises(overlace.InvalidArgument, match=r"gemm_ar: a is on cpu, wanted cuda:\d, where rank \d of group"):
        overlace.ops.gemm_ar(a.cpu(), b.cpu(), group=group)
    with pytest.raises(overlace.InvalidArgument, match=r"gemm_ar: b is on cpu, wanted cuda:\d, where rank \d of group"):
        overlace.ops.gemm_ar(a, b.cpu(), group=group)
    if torch.cuda.device_count() > 1:  # all of them there, and one of them
        there, device = f"cuda:{(a.get_device() + 1) % torch.cuda.device_count()}", a.device
        for given, name in (((a.to(there), b.to(there)), "a"), ((a, b.to(there)), "b")):
            text = f"gemm_ar: {name} is on {there}, wanted {device}, where"
            with pytest.raises(overlace.InvalidArgument, match=text):
                overlace.ops.gemm_ar(*given, group=group)
        with pytest.raises(overlace.InvalidArgument, match=f"all_reduce: x is on {there}, wanted {device}, where"):
            overlace.ops.all_reduce(a.to(there), group=group)
    with pytest.raises(overlace.Unsupported, match="fp64"):
        overlace.ops.gemm_ar(a.double(), b.double(), group=group)


def test_what_gpus_do_not_take():
    run_ranks(FEW, refusals)
