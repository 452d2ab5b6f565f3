"""overlace.nn.MoELayer against a dense layer by torch: results, training, state, DDP and FSDP, refusals."""

import pytest
from ranks import overlace, run_ranks, torch
from test_moe_ops import ACTIVATIONS, dense
from test_moe_router import scores_of, weights_of

nn, F = torch.nn, torch.nn.functional
HIDDEN, INTER, SHARED = 8, 6, 5
PLAIN = {"num_experts": 5, "top_k": 2, "renormalize": True, "shared_size": SHARED}
BIASED = {"num_experts": 2, "top_k": 1, "gated": False, "bias": True, "activation": "gelu_erf", "score": "sigmoid"}
WIDE = {"num_experts": 6, "top_k": 3, "num_groups": 3, "kept_groups": 2, "route_scale": 2.5, "expert_bias": True}
STEPS = 200


def layer_of(group, options, seed=5, **others):
    from overlace.nn import MoELayer

    torch.manual_seed(seed)
    options = options | others
    return MoELayer(options.pop("num_experts"), HIDDEN, INTER, group=group, **options)


def drawn(options, seed=5):
    """The state of the unsharded layer, by nn.Linear alone."""
    torch.manual_seed(seed)
    wide, bias = 1 if options.get("gated") is False else 2, options.get("bias", False)
    state = {"gate.weight": nn.Linear(HIDDEN, options["num_experts"], bias=False).weight}
    for e in range(options["num_experts"]):
        up, down = nn.Linear(HIDDEN, wide * INTER, bias), nn.Linear(INTER, HIDDEN, bias)
        parts = {"w1": up.weight, "w2": down.weight, "b1": up.bias, "b2": down.bias}
        state |= {f"experts.{e}.{name}": t for name, t in parts.items() if t is not None}
    if size := options.get("shared_size"):
        for name, linear in (("up", nn.Linear(HIDDEN, wide * size, bias)), ("down", nn.Linear(size, HIDDEN, bias))):
            state |= {f"shared.{name}.{part}": t for part, t in linear.named_parameters()}
    if options.get("expert_bias"):
        state["expert_bias"] = torch.zeros(options["num_experts"])
    return {name: t.detach() for name, t in state.items()}


class Dense:
    """The unsharded layer by torch, on experts that were chosen elsewhere: near ties go either way."""

    def __init__(self, state, dtype, options):
        self.state = {n: t.clone().to(dtype).requires_grad_() for n, t in state.items() if n != "expert_bias"}
        self.options = options

    def stacks(self):
        names = [name for name in ("w1", "w2", "b1", "b2") if f"experts.0.{name}" in self.state]
        experts = range(self.options["num_experts"])
        return {name: torch.stack([self.state[f"experts.{e}.{name}"] for e in experts]) for name in names}

    def __call__(self, x, idx):
        o, s = self.options, self.state
        activation, gated = o.get("activation", "silu"), o.get("gated", True)
        scores = scores_of(x, s["gate.weight"], o.get("score", "softmax"))
        weights = weights_of(scores, idx, o.get("renormalize", False), o.get("route_scale", 1.0))
        out = dense(x, idx, weights, self.stacks(), torch.ones_like(idx, dtype=torch.bool), activation, gated)
        if "shared.up.weight" not in s:
            return out, scores.detach()
        first, *up = F.linear(x, s["shared.up.weight"], s.get("shared.up.bias")).chunk(2 if gated else 1, 1)
        h = ACTIVATIONS[activation](first)
        return out + F.linear(
            h * up[0] if up else h, s["shared.down.weight"], s.get("shared.down.bias")
        ), scores.detach()


def tokens_of(rank, step):
    """Tokens of a rank, as many as it likes, none of one of them in some steps."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    count = 0 if step % 5 == rank == 1 else 4 + (rank + step) % 4
    return torch.randn(count, HIDDEN, generator=generator)


def of_all(t, group):
    parts = [None] * group.size()
    torch.distributed.all_gather_object(parts, t.detach(), group=group)
    return torch.cat(parts)


def routed(layer, x):
    """Routes as the layer does, on this rank."""
    return overlace.ops.moe_router(x, layer.gate.weight.detach(), layer.expert_bias, **layer.routing)[0]


def shards_of(dense_grads, layer):
    """Those gradients that this rank's parameters have, of gradients by unsharded names."""
    out = {n: dense_grads[n] for n, _ in layer.named_parameters() if n in dense_grads}
    for name, p in layer.expert_parameters().items():
        mine = [dense_grads[f"experts.{e}.{name}"] for e in layer.mine]
        out[name] = torch.stack(mine) if mine else torch.zeros_like(p)
    return out


def same_as_dense(group, options):
    """Result, gradients and counts in fp32: errors at most twice those of the dense layer, and 1e-6."""
    layer, state = layer_of(group, options), drawn(options)
    full = layer.full_state_dict()
    assert sorted(full) == sorted(state) and all(torch.equal(full[name], t) for name, t in state.items())
    if "expert_bias" in options:
        layer.expert_bias.copy_(torch.linspace(-0.1, 0.1, options["num_experts"]))
    mine = tokens_of(group.rank(), 1).requires_grad_()
    x, idx = of_all(mine, group), of_all(routed(layer, mine), group)
    out = layer(mine.unflatten(0, (1, -1)))[0]
    out.square().sum().backward()
    models = {dtype: Dense(state, dtype, options) for dtype in (torch.float32, torch.float64)}
    outs = {dtype: model(x.to(dtype), idx)[0] for dtype, model in models.items()}
    for whole in outs.values():
        whole.square().sum().backward()

    def near(got, plain, exact, of_rank, name):
        bound = 2 * (plain - exact).abs().max() + 1e-6
        assert got.numel() == 0 or (got - of_rank(exact)).abs().max() <= bound, name

    counts = [len(t) for t in (tokens_of(rank, 1) for rank in range(group.size()))]
    near(out.detach(), *(t.detach() for t in outs.values()), lambda t: t.split(counts)[group.rank()], "out")
    for p in (layer.gate.weight, *(layer.shared.parameters() if layer.shared else ())):
        p.grad = overlace.ops.all_reduce(p.grad, group=group)
    plain, exact = (shards_of({n: t.grad for n, t in m.state.items()}, layer) for m in models.values())
    for name, p in layer.named_parameters():
        if p.numel():
            near(p.grad, plain[name], exact[name], lambda t: t, name)
    assert torch.equal(layer.load, torch.bincount(idx.flatten(), minlength=options["num_experts"])[layer.mine])
    assert layer.dropped == 0


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("options", [PLAIN, BIASED, WIDE], ids=["plain", "biased", "wide"])
def test_same_as_dense(size, options):
    run_ranks(size, same_as_dense, options)


def twice(group):
    """A penalty on gradients is refused by all that reaches the experts, and training goes on."""
    layer = layer_of(group, PLAIN, reduce_op="avg")
    x = tokens_of(group.rank(), 1).requires_grad_()
    loss = layer(x).square().sum()
    first = torch.autograd.grad(loss, [x, *layer.parameters()], create_graph=True)
    for t in (x, *layer.parameters()):
        with pytest.raises(overlace.Unsupported, match=r"^moe: backward through its own gradients \(create_graph"):
            torch.autograd.grad(first[0].square().sum(), t, retain_graph=True, allow_unused=True)
    loss.backward()
    for grad, p in zip(first[1:], layer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, grad.detach())


@pytest.mark.parametrize("size", [1, 2])
def test_second_derivatives_are_refused(size):
    run_ranks(size, twice)


def losses(group):
    """Losses of both in each step: fp32 of the layer, and of the dense one beside fp64."""
    layer = layer_of(group, PLAIN)
    models = [Dense(drawn(PLAIN), dtype, PLAIN) for dtype in (torch.float32, torch.float64)]
    optimizers = [
        torch.optim.SGD(p, lr=0.02, momentum=0.8) for p in (layer.parameters(), *(m.state.values() for m in models))
    ]
    found = []
    for step in range(STEPS):
        mine = tokens_of(group.rank(), step)
        x, idx = of_all(mine, group), of_all(routed(layer, mine), group)
        loss = (layer(mine) - mine.roll(1, 1)).square().sum() / len(x)
        optimizers[0].zero_grad()
        loss.backward()
        for p in (layer.gate.weight, *layer.shared.parameters()):
            p.grad = overlace.ops.all_reduce(p.grad, group=group)
        optimizers[0].step()
        row = [overlace.ops.all_reduce(loss.detach(), group=group).item()]
        for model, optimizer in zip(models, optimizers[1:], strict=True):
            given = x.to(model.state["gate.weight"].dtype)
            out, scores = model(given, idx)
            best = scores.topk(PLAIN["top_k"], 1)[0]
            torch.testing.assert_close(scores.gather(1, idx.long()), best, rtol=0, atol=1e-3)
            other = (out - given.roll(1, 1)).square().sum() / len(x)
            optimizer.zero_grad()
            other.backward()
            optimizer.step()
            row.append(other.item())
        found.append(row)
    return found


def test_training_is_that_of_the_dense_layer():
    first, second = run_ranks(2, losses)
    assert first == second
    sharded, plain, exact = torch.tensor(first, dtype=torch.float64).unbind(1)
    assert exact[-10:].mean() < 0.6 * exact[:10].mean()
    noise = (plain - exact).abs().cummax(0)[0]
    assert ((sharded - exact).abs() <= 2 * noise + 2e-5).all(), (sharded - exact).abs().max()


def states(group):
    """The union of the ranks' states is that of the unsharded layer, which loads, in a model too."""
    from overlace.nn import MoELayer

    rank, options = group.rank(), PLAIN | {"num_experts": 2}
    layer, state = layer_of(group, options, seed=6), drawn(options)
    layer.load_state_dict(state)
    own, mine = layer.state_dict(), set(layer.mine)
    assert sorted(own) == sorted(n for n in state if not n.startswith("experts.") or int(n.split(".")[1]) in mine)
    assert len(mine) == (0 if group.size() == 3 and rank == 0 else 2 // min(group.size(), 2))
    assert all(torch.equal(t, state[name]) for name, t in own.items())
    layer.load_state_dict(own)
    want = layer(tokens_of(rank, 2)).detach()

    model = nn.Sequential(nn.Identity(), layer_of(group, options, seed=7, device="meta"))
    model.load_state_dict({f"1.{name}": t for name, t in state.items()}, assign=True)
    assert torch.equal(model(tokens_of(rank, 2)), want)
    assert all(p.requires_grad and not p.is_meta for p in model.parameters())
    stacks = [torch.stack([state[f"experts.{e}.{name}"] for e in range(2)]) for name in ("w1", "w2")]
    taken = MoELayer.from_stacks(state["gate.weight"], *stacks, top_k=2, renormalize=True, group=group)
    plain = layer_of(group, options | {"shared_size": 0})
    plain.load_state_dict({n: t for n, t in state.items() if not n.startswith("shared.")})
    assert torch.equal(taken(tokens_of(rank, 2)), plain(tokens_of(rank, 2)))
    half = layer.bfloat16()(tokens_of(rank, 2).bfloat16())
    assert half.dtype == torch.bfloat16 and (half - want).norm() <= 0.02 * want.norm() + 1e-6

    for strange in ("nonsense", "experts.2.w1", "experts.0.b1", "shared.more", "expert_bias"):
        with pytest.raises(RuntimeError, match=strange):
            layer.load_state_dict(own | {strange: torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"experts.1.w2 is \[3\], wanted \[8, 6\]"):
        layer.load_state_dict(state | {"experts.1.w2": torch.zeros(3)})
    if mine:
        with pytest.raises(RuntimeError, match=rf"Missing key.*experts.{min(mine)}.w1"):
            layer.load_state_dict({n: t for n, t in own.items() if n != f"experts.{min(mine)}.w1"})
    biased = layer_of(group, WIDE)
    biased.load_state_dict(drawn(WIDE) | {"expert_bias": torch.arange(6.0)})
    assert biased.state_dict()["expert_bias"].tolist() == list(range(6))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_state(size):
    run_ranks(size, states)


def assigned(group):
    """Ranks without experts take the dtype of the state, as the others do, from others' experts or from the router."""
    options = PLAIN | {"num_experts": 1, "top_k": 1}
    layer = layer_of(group, options).bfloat16()
    for state in (layer.full_state_dict(), layer.state_dict()):
        other = layer_of(group, options, device="meta")
        other.load_state_dict(state, assign=True)
        assert {(p.dtype, p.device.type) for p in other.parameters()} == {(torch.bfloat16, "cpu")}
        x = tokens_of(group.rank(), 2).bfloat16()
        assert torch.equal(other(x), layer(x))
    return len(layer.mine)


def test_a_rank_without_experts_takes_the_dtype_of_the_state():
    assert run_ranks(2, assigned) == [0, 1]


def hooked(group):
    """Hooks that are to run before a state is loaded may rename what they find."""
    layer, seen = layer_of(group, PLAIN), []
    state = {f"old.{name}" if "experts" in name else name: t + 1 for name, t in layer.state_dict().items()}

    def rename(module, state, prefix, *_):
        seen.append((module, prefix, torch.is_grad_enabled()))
        for name in [name for name in state if name.startswith(f"{prefix}old.")]:
            state[prefix + name.removeprefix(f"{prefix}old.")] = state.pop(name)

    before = layer.w1.detach().clone()
    handle = layer.register_load_state_dict_pre_hook(rename)
    layer.load_state_dict(state)
    assert torch.equal(layer.w1, before + 1) and seen == [(layer, "", True)]
    handle.remove()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*old\.experts"):
        layer.load_state_dict(state)


def test_hooks_before_loading():
    run_ranks(2, hooked)


def check_alike(group):
    """Ranks with seeds of their own hold one router and one shared expert, and keep their own experts alone."""
    layer = layer_of(group, PLAIN, seed=group.rank())
    for t in (layer.gate.weight, *layer.shared.parameters()):
        parts = of_all(t[None], group)
        assert torch.equal(parts[0], parts[1])
    assert sorted(layer.expert_parameters()) == ["w1", "w2"] and len(layer.w1) == len(layer.mine) == 2 + group.rank()
    full = layer.full_state_dict()
    of_ranks = of_all(full["experts.1.w1"][None], group)
    assert torch.equal(of_ranks[0], of_ranks[1])


def test_ranks_hold_one_router():
    run_ranks(2, check_alike)


def reset(group, options):
    """From the meta device each module draws its own: the same as at construction, in the same order."""
    layer = layer_of(group, options, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for t in (*layer.parameters(), *layer.buffers()):
            t.fill_(torch.nan)
    torch.manual_seed(5)
    layer.gate.reset_parameters()
    layer.reset_parameters()
    for module in layer.shared.children() if layer.shared else ():
        module.reset_parameters()
    full, state = layer.full_state_dict(), drawn(options)
    assert sorted(full) == sorted(state) and all(torch.equal(full[name], t) for name, t in state.items())
    assert all(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("options", [PLAIN, BIASED, WIDE], ids=["plain", "biased", "wide"])
def test_reset_parameters(options):
    run_ranks(3, reset, options)


def cast(group):
    """The bias of the choice stays float32, as small steps on it need."""
    layer = layer_of(group, WIDE)
    layer.expert_bias.copy_(torch.linspace(0.5, 0.501, 6))
    values = layer.expert_bias.clone()
    for cast in (layer.bfloat16, layer.double, lambda: layer.to(torch.float16)):
        cast()
        assert layer.gate.weight.dtype != torch.float32
        assert torch.equal(layer.expert_bias, values) and layer.expert_bias.dtype == torch.float32
    assert layer.to("meta").expert_bias.is_meta
    torch.set_default_dtype(torch.float64)
    try:
        assert layer_of(group, WIDE, device="meta").expert_bias.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_bias_of_the_choice_stays_float32():
    run_ranks(1, cast)


def alone_in_ddp(group):
    """DistributedDataParallel of the layer itself leaves the experts out without being told."""
    layer = layer_of(group, PLAIN, reduce_op="avg")
    before = layer.full_state_dict()
    model = nn.parallel.DistributedDataParallel(layer, process_group=group)
    assert all(torch.equal(t, before[name]) for name, t in layer.full_state_dict().items())
    model(tokens_of(group.rank(), 2)).square().mean().backward()
    gates = of_all(layer.gate.weight.grad[None], group)
    assert torch.equal(gates[0], gates[1]) and gates.any()
    plain = layer_of(group, PLAIN, reduce_op="avg")
    plain(tokens_of(group.rank(), 2)).square().mean().backward()
    assert all(torch.equal(p.grad, plain.get_parameter(name).grad) for name, p in layer.expert_parameters().items())


def test_alone_in_ddp():
    run_ranks(2, alone_in_ddp)


class Model(nn.Module):
    def __init__(self, moe):
        super().__init__()
        self.norm, self.moe = nn.LayerNorm(HIDDEN), moe

    def forward(self, x):
        return x + self.moe(self.norm(x))


def check_full_state(moe):
    """Plain tensors, each with memory of its own, though parameters are in parts and experts in stacks."""
    full, state = moe.full_state_dict(), drawn(PLAIN)
    assert sorted(full) == sorted(state)
    for name, t in full.items():
        assert type(t) is torch.Tensor and torch.equal(t, state[name]), name
        assert t.untyped_storage().nbytes() == t.numel() * t.element_size(), name


def wrapped(group, by):
    """Gradients of DDP and FSDP are of the mean of the ranks' losses; those of experts by reduce_op="avg" too."""
    from overlace.nn import MoELayer

    model = Model(layer_of(group, PLAIN, reduce_op="avg"))
    moe, mine = model.moe, tokens_of(group.rank(), 2)
    x, idx = of_all(mine, group), of_all(routed(moe, model.norm(mine)), group)
    exact = Dense(drawn(PLAIN), torch.float32, PLAIN)
    counts = [len(tokens_of(rank, 2)) for rank in range(group.size())]
    out = x + exact(model.norm(x), idx)[0]
    sum(part.square().mean() for part in out.split(counts)).div(group.size()).backward()
    of_norm = model.norm.weight.grad.clone()
    model.zero_grad()
    if by == "ddp":
        names = [f"moe.{name}" for name in moe.expert_parameters()]
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        runs = nn.parallel.DistributedDataParallel(model, process_group=group)
    else:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cpu")
        runs = fully_shard(model, mesh=mesh, ignored_params=set(moe.expert_parameters().values()))
    check_full_state(moe)
    runs(mine).square().mean().backward()
    check_full_state(moe)
    assert isinstance(moe, MoELayer)
    grads = {n: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for n, p in moe.named_parameters()}
    want = shards_of({n: t.grad for n, t in exact.state.items()}, moe)
    assert sorted(grads) == sorted(want)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, want[name], msg=name)
    of_model = model.norm.weight.grad
    torch.testing.assert_close(of_model.full_tensor() if by == "fsdp" else of_model, of_norm)


@pytest.mark.parametrize("by", ["ddp", "fsdp"])
def test_beside_wrappers(by):
    run_ranks(2, wrapped, by)


def in_graphs(group):
    layer = layer_of(group, PLAIN, reduce_op="avg", capacity_factor=0.5)
    x = tokens_of(group.rank(), 2)
    torch._dynamo.reset()
    functions = [layer, torch.compile(layer, fullgraph=True, backend="aot_eager")]
    functions.append(lambda x: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False))
    results = []
    for function in functions:
        layer.zero_grad()
        out = function(x)
        out.square().sum().backward()
        results.append([out.detach(), layer.load, layer.dropped, *(p.grad for p in layer.parameters())])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    assert results[0][2] > 0


def test_in_graphs():
    run_ranks(2, in_graphs)


def with_nan(group):
    """A token with a NaN on one rank: zeros for it, no gradient through it, and the bits of all else as before."""
    layer = layer_of(group, PLAIN | {"shared_size": 0})
    found = []
    for value in (0.5, torch.nan):
        x = tokens_of(group.rank(), 2)
        if group.rank() == 1:
            x[2, 3] = value
        x.requires_grad_()
        out = layer(x)
        weight = torch.ones(len(x), 1)
        weight[2] = float(group.rank() == 0)
        layer.zero_grad()
        (out * weight).square().sum().backward()
        found.append([out.detach(), x.grad, *(p.grad for p in layer.parameters())])
    if group.rank() == 1:
        assert (found[1][0][2] == 0).all() and (found[1][1][2] == 0).all()
        found[0][0][2] = 0
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    for a, b in zip(found[0][2:], found[1][2:], strict=True):
        torch.testing.assert_close(a, b)


def test_a_token_with_nan_reaches_no_other():
    run_ranks(2, with_nan)


def padded(group):
    """With a shared expert and NaN behind the tokens: zeros there, and the bits of the tokens alone."""
    layer, real = layer_of(group, PLAIN), 2 + group.rank()
    x = tokens_of(group.rank(), 2)[:real]
    found = []
    for rows, num_tokens in ((x, None), (torch.cat([x, torch.full((3, 8), torch.nan)]), torch.tensor(real))):
        rows.requires_grad_()
        layer.zero_grad()
        out = layer(rows, num_tokens)
        out.square().sum().backward()
        assert (out[real:] == 0).all() and (rows.grad[real:] == 0).all()
        found.append([out[:real].detach(), rows.grad[:real], *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_padding_has_no_part():
    run_ranks(2, padded)


def refusals(group):
    """Rank 1 alone has bad tokens: both ranks raise, and the next call works."""
    rank, layer = group.rank(), layer_of(group, PLAIN)
    x, good = tokens_of(rank, 2), layer.routing
    want = layer(x)
    for bad, text in (
        (x[:, 1:], r"x is torch.float32 \[\d, 7\] on cpu, wanted torch.float32 \(..., 8\) on cpu"),
        (x.double(), r"x is torch.float64 \[\d, 8\] on cpu, wanted torch.float32"),
        (x[0], r"x is torch.float32 \[8\] on cpu"),
        (x.to("meta"), r"x is torch.float32 \[\d, 8\] on meta, wanted torch.float32 \(..., 8\) on cpu"),
    ):
        with pytest.raises(overlace.InvalidArgument, match=text if rank == 1 else "rank 1 refused the call"):
            layer(bad if rank == 1 else x)
    assert torch.equal(layer(x), want)
    for bad, text in (
        ({"top_k": 6}, "top_k is 6, wanted 1 to 5"),
        ({"score": "tanh"}, 'score is "tanh", wanted softmax or sigmoid'),
        ({"num_groups": "2"}, "num_groups"),
    ):
        layer.routing = good | bad if rank == 1 else good
        # torch, not the library, finds fault with what has no such type.
        with pytest.raises((overlace.InvalidArgument, RuntimeError), match=text if rank == 1 else "rank 1 refused"):
            layer(x)
    layer.routing = good
    assert torch.equal(layer(x), want)
    for bad, text in (
        ({"num_experts": 0}, "num_experts is 0, wanted 1 to 8192"),
        ({"activation": "tanh"}, "activation is 'tanh', wanted one of silu"),
        ({"reduce_op": "max"}, "reduce_op is 'max', wanted 'sum' or 'avg'"),
        ({"bias": True}, "bias is True with gated experts, wanted gated=False"),
        (
            {"expert_begin": [0, 4, 3]},
            r"expert_begin is \[0, 4, 3\], wanted 3 numbers that do not fall, from 0 to the 5",
        ),
    ):
        with pytest.raises(overlace.InvalidArgument, match=text):
            layer_of(group, PLAIN, **bad)
    for bad, text in (
        ({"num_experts": 8193}, "num_experts is 8193, wanted 1 to 8192"),
        ({"top_k": 0}, "top_k is 0, wanted 1 to 6, at most 32 and the experts of 1 of 1 groups"),
        ({"top_k": 7}, "top_k is 7, wanted 1 to 6"),
        ({"top_k": 5, "num_groups": 3, "kept_groups": 2}, "top_k is 5, wanted 1 to 4, .* the experts of 2 of 3 groups"),
        ({"top_k": 33, "num_experts": 64}, "top_k is 33, wanted 1 to 32"),
        ({"score": "tanh"}, "score is 'tanh', wanted 'softmax' or 'sigmoid'"),
        ({"num_groups": 4}, "num_groups is 4, wanted a divisor of the 6 experts"),
        ({"num_groups": 0}, "num_groups is 0, wanted a divisor of the 6 experts"),
        ({"num_groups": 3, "kept_groups": 4}, "kept_groups is 4, wanted 1 to the 3 groups"),
        ({"kept_groups": 0}, "kept_groups is 0, wanted 1 to the 1 groups"),
        ({"capacity_factor": -1.0}, "capacity_factor is -1.0, wanted 0 or more"),
        ({"capacity_factor": float("nan")}, "capacity_factor is nan, wanted 0 or more"),
        ({"shared_size": -1}, "shared_size is -1, wanted 0 or more"),
    ):
        with pytest.raises(overlace.InvalidArgument, match=f"^MoELayer: {text}"):
            layer_of(group, {"num_experts": 6, "top_k": 2}, device="meta", **bad)
    stacks = [torch.zeros(shape, dtype=torch.bfloat16) for shape in ((5, 12, 8), (5, 8, 6))]
    with pytest.raises(
        overlace.InvalidArgument, match=r"gate is torch.float32, wanted torch.bfloat16, the dtype of w1$"
    ):
        type(layer).from_stacks(torch.zeros(5, 8), *stacks, top_k=2, group=group)
    shapes = layer_of(group, PLAIN, device="meta")  # on all ranks without a call
    assert shapes(x.to("meta")).is_meta


def test_refusals():
    run_ranks(2, refusals)
