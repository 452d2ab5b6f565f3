"""The mixture of experts on GPUs: a dense layer beside it, router, module, graphs, refusals. With one GPU a team of 1.
Skipped without.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_moe_gpu.py`.
"""

import pytest
from gpu_ranks import FEW, SIZES, dist, overlace, run_ranks, torch
from moe_by_torch import gradients as gradients_by_torch
from overlace.ops._moe_router import _choose_by_torch


def drawn(rank, tokens, hidden, inter, experts, top_k, dtype):
    """Weights that are the same on all ranks, tokens and choices of one."""
    torch.manual_seed(1)
    w1 = torch.randn(experts, 2 * inter, hidden, dtype=dtype) * hidden**-0.5
    w2 = torch.randn(experts, hidden, inter, dtype=dtype) * inter**-0.5
    torch.manual_seed(10 + rank)
    x = torch.randn(tokens, hidden, dtype=dtype)
    idx = torch.rand(tokens, experts).sort(1).indices[:, :top_k].to(torch.int32)
    idx[::7, 0] = -1
    return x, idx, torch.rand(tokens, top_k), w1, w2


def dense(x, idx, weights, w1, w2):
    """The layer of rounded operands, in fp32."""
    x, w1, w2 = x.float(), w1.float(), w2.float()
    out = torch.zeros_like(x)
    for e in range(len(w1)):
        gate, up = (x @ w1[e].t()).chunk(2, 1)
        y = (torch.nn.functional.silu(gate) * up) @ w2[e].t()
        out += y * torch.where(idx == e, weights, 0).sum(1, keepdim=True)
    return out


def mine(group, experts, *stacks):
    begin = [r * experts // group.size() for r in range(group.size() + 1)]
    return [t[begin[group.rank()] : begin[group.rank() + 1]] for t in stacks]


def close(got, want, dtype):
    bound = 8 * torch.finfo(dtype).eps * want.abs().max().clamp(min=1)
    return got.dtype == dtype and got.shape == want.shape and bool(((got.float() - want).abs() <= bound).all())


def layer(group, dtype):
    dtype = getattr(torch, dtype)
    for hidden, inter, experts, top_k, tokens in ((256, 136, 7, 2, 300), (2048, 768, 32, 8, 1000), (64, 8, 3, 3, 1)):
        x, idx, weights, w1, w2 = drawn(group.rank(), tokens + 5 * group.rank(), hidden, inter, experts, top_k, dtype)
        options = {"num_experts": experts, "max_tokens": 1024, "group": group}
        y, load, dropped = overlace.ops.moe(x, idx, weights, *mine(group, experts, w1, w2), return_load=True, **options)
        assert close(y, dense(x, idx, weights, w1, w2), dtype)
        total = torch.stack([(idx == e).sum() for e in range(experts)])
        dist.all_reduce(total)
        assert torch.equal(load, mine(group, experts, total)[0]) and load.is_cuda and dropped.item() == 0
        again = overlace.ops.moe(x, idx.long(), weights, *mine(group, experts, w1, w2), **options)
        assert torch.equal(again, y)
        for family in ("serial", "fused"):
            way = overlace.ops.moe(x, idx, weights, *mine(group, experts, w1, w2), family=family, **options)
            assert torch.equal(way, y)
        none = overlace.ops.moe(x[:0], idx[:0], weights[:0], *mine(group, experts, w1, w2), **options)
        assert none.shape == (0, hidden)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dense_layer_gives_the_same(size, dtype):
    run_ranks(size, layer, dtype)


def gradients(group):
    """Gradients of the sum of all ranks' losses, against dense layers in fp32 and torch's products; in the second turn
    rank 0 is empty."""
    rank, options = group.rank(), {"num_experts": 7, "max_tokens": 512, "group": group}
    for tokens in (300, 0):
        wanted, parts = None, []
        for r in range(group.size()):
            x, idx, weights, w1, w2 = drawn(r, tokens + 5 * r, 256, 136, 7, 2, torch.bfloat16)
            wanted = wanted or [w.float().requires_grad_() for w in (w1, w2)]
            torch.manual_seed(50 + r)
            parts.append((x, idx, weights, torch.randn_like(x)))
            x, weights = x.float().requires_grad_(), weights.requires_grad_()
            dense(x, idx, weights, *wanted).backward(parts[-1][-1].float())
            if r == rank:
                of_tokens = [x.grad, weights.grad]
        x, idx, weights, dy = parts[rank]
        stacks = mine(group, 7, w1, w2)
        operands = [t.detach().clone().requires_grad_() for t in (x, weights, *stacks)]
        for _ in range(2):
            again = [t.grad for t in operands]
            for t in operands:
                t.grad = None
            overlace.ops.moe(operands[0], idx, *operands[1:], **options).backward(dy)
        assert all(torch.equal(t.grad, same) for t, same in zip(operands, again, strict=True))
        begin = [r * 7 // group.size() for r in range(group.size() + 1)]
        by_torch = gradients_by_torch(dy, x, idx, weights.detach(), *stacks, 7, group, 0.0, begin)
        dense_ones = [*of_tokens, *mine(group, 7, *(w.grad for w in wanted))]
        for t, want, other in zip(operands, dense_ones, by_torch, strict=True):
            if want.numel():
                assert (t.grad.float() - other.float()).abs().max() <= 0.02 * want.abs().max()
            assert t.grad.dtype == t.dtype and t.grad.shape == want.shape
            if want.numel():
                assert (t.grad.float() - want).abs().max() <= 0.02 * want.abs().max()


@pytest.mark.parametrize("size", SIZES)
def test_gradients(size):
    run_ranks(size, gradients)


def captured(group):
    x, idx, weights, w1, w2 = drawn(group.rank(), 128, 256, 128, 8, 2, torch.bfloat16)
    w1, w2 = mine(group, 8, w1, w2)
    options = {"num_experts": 8, "max_tokens": 128, "group": group}
    want = [overlace.ops.moe(t, idx, weights, w1, w2, **options) for t in (x, x.flip(0))]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = overlace.ops.moe(x, idx, weights, w1, w2, **options)
    for turn in range(6):
        graph.replay()
        assert torch.equal(y, want[turn % 2])
        x.copy_(x.flip(0))
    leaves = [t.clone().requires_grad_() for t in (x, weights, w1, w2)]

    def slopes():
        y = overlace.ops.moe(leaves[0], idx, *leaves[1:], **options)
        return torch.autograd.grad(y, leaves, x)

    for _ in range(2):  # the first backward of a size takes memory
        want_slopes = slopes()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = slopes()
    for _ in range(3):
        for t in got:
            t.fill_(torch.nan)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(got, want_slopes, strict=True))
    torch.cuda.synchronize()
    real = torch.tensor(128)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = overlace.ops.moe(x, idx, weights, w1, w2, num_tokens=real, **options)
    for count in (128, 50, 0):
        real.fill_(count)
        graph.replay()
        assert torch.equal(y[:count], want[0][:count]) and (y[count:] == 0).all()
    torch.cuda.synchronize()
    dist.barrier()


def test_a_graph_is_replayed_with_other_tokens():
    run_ranks(FEW, captured)


def test_the_router_of_gpus_chooses_as_that_of_hosts():
    torch.manual_seed(3)
    for experts, options in (
        (64, {"top_k": 6, "score": "softmax", "renormalize": True}),
        (32, {"top_k": 8, "score": "sigmoid", "num_groups": 8, "kept_groups": 3, "route_scale": 2.5}),
        (5, {"top_k": 5, "num_groups": 5, "kept_groups": 5}),
    ):
        x, gate = torch.randn(500, 128), torch.randn(experts, 128)
        gate[3] = gate[1]  # equal scores
        x[7, 3] = torch.nan
        bias = torch.randn(experts) * 0.1
        bias[2] = -torch.inf
        idx, weights = overlace.ops.moe_router(x, gate, bias, **options)
        there = overlace.ops.moe_router(x.cuda(), gate.cuda(), bias.cuda(), **options)
        assert all(t.is_cuda for t in there)
        same = (there[0].cpu() == idx).all(1)
        assert same.float().mean() > 0.99  # sums of other order may swap neighbours
        assert torch.allclose(there[1].cpu()[same], weights[same], rtol=1e-4, atol=1e-6)
    with pytest.raises(overlace.InvalidArgument, match="top_k"):
        overlace.ops.moe_router(x.cuda(), gate.cuda(), top_k=6)
    want = overlace.ops.moe_router(x.cuda(), gate.cuda(), top_k=3)
    with torch.autocast("cuda", torch.bfloat16):
        got = overlace.ops.moe_router(x.cuda(), gate.cuda(), top_k=3)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def copied(group):
    """Views that kernels could not take are copied."""
    x, idx, weights, w1, w2 = drawn(group.rank(), 65, 256, 128, 8, 2, torch.bfloat16)
    w1, w2 = mine(group, 8, w1, w2)
    options = {"num_experts": 8, "max_tokens": 96, "group": group}
    want = overlace.ops.moe(x, idx, weights, w1, w2, **options)
    odd = torch.empty(65 * 256 + 1, dtype=torch.bfloat16)[1:].view(65, 256).copy_(x)
    woven = w1.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(overlace.ops.moe(odd, idx, weights, woven, w2, **options), want)
    wide = torch.zeros(65, 260, dtype=torch.bfloat16)[:, :256].copy_(x)
    assert torch.equal(overlace.ops.moe(wide, idx, weights, w1, w2, **options), want)


def test_views_are_copied():
    run_ranks(FEW, copied)


def module(group):
    experts, hidden = 8, 256
    torch.manual_seed(5)
    gate = torch.randn(experts, hidden, dtype=torch.bfloat16)
    _, _, _, w1, w2 = drawn(0, 1, hidden, 128, experts, 2, torch.bfloat16)
    options = {"top_k": 2, "renormalize": True, "group": group}
    moe = overlace.nn.MoELayer.from_stacks(gate, w1, w2, max_tokens=512, **options)
    x = torch.randn(2, 150 + group.rank(), hidden, dtype=torch.bfloat16)
    y = moe(x)
    rows = x.flatten(0, 1)
    weights, idx = _choose_by_torch(rows, gate, None, 2, "softmax", True, 1, 1, 1.0)
    assert close(y.flatten(0, 1), dense(rows, idx, weights, w1, w2), torch.bfloat16)
    assert moe.load.is_cuda and moe.dropped.item() == 0
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in moe.parameters())


def test_a_module():
    run_ranks(FEW, module)


def refused(group):
    x, idx, weights, w1, w2 = drawn(group.rank(), 64, 256, 128, 8, 2, torch.bfloat16)
    stacks = mine(group, 8, w1, w2)

    def says(text, *tensors, error=overlace.InvalidArgument, **options):
        given = {"num_experts": 8, "max_tokens": 64, "group": group}
        with pytest.raises(error, match=text):
            overlace.ops.moe(*tensors, **given | options)

    says("max_tokens is 0, wanted at least 1", x, idx, weights, *stacks, max_tokens=0)
    says("dtype is fp32, wanted bf16 or fp16", x.float(), idx, weights, *(t.float() for t in stacks))
    says("gated relu experts on GPUs", x, idx, weights, *stacks, error=overlace.Unsupported, activation="relu")
    says("x has 64 rows, wanted at most the 32 tokens", x, idx, weights, *stacks, max_tokens=32)
    says("is on cpu", x.cpu(), idx, weights, *stacks)
    says("capacity_factor is -1, wanted 0", x, idx, weights, *stacks, capacity_factor=-1.0)
    y = overlace.ops.moe(x, idx, weights, *stacks, num_experts=8, max_tokens=64, group=group)
    assert close(y, dense(x, idx, weights, w1, w2), torch.bfloat16)


def test_what_is_refused_leaves_the_team_working():
    run_ranks(FEW, refused)
