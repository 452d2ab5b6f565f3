"""overlace.optim.CO2 with groups of several ranks: 2 groups of 2 against 2 groups of 1, over every layout."""

import pytest
from ranks import overlace, run_ranks, torch

nn, dist = torch.nn, torch.distributed
optim = overlace.optim
KINDS = ("slices", "hook", "zero1", "zero2", "zero3")
STEPS, TAU = 11, 3
MOST = 1.7  # norm of gradients
_groups: dict = {}


def groups_of(size: int):
    """Groups are made once per process: they live as long as it does."""
    if size not in _groups:
        _groups[size] = optim.make_groups(ranks_per_group=size)
    return _groups[size]


def model_of() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 3))


def batch_of(row: int, step: int) -> tuple:
    generator = torch.Generator().manual_seed(1000 * row + step)
    x = torch.randn(8, 6, generator=generator)
    return x, torch.stack([x[:, 0] * x[:, 1], x.sum(1), x[:, 2].sin()], 1)


def backward(model: nn.Module, row: int, step: int) -> None:
    x, y = batch_of(row, step)
    (model(x) - y).square().mean().backward()


def whole(model: nn.Module) -> list:
    from torch.distributed.tensor import DTensor

    values = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([v.detach().flatten() for v in values]).tolist()


def inside(kind: str, groups) -> tuple:
    """A model and its optimizer, in a group of several ranks."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = model_of()
    if kind.startswith("zero") and kind != "zero1":
        mesh = DeviceMesh.from_group(groups.inner, "cpu")
        fully_shard(model[2], mesh=mesh, reshard_after_forward=kind == "zero3")
        fully_shard(model, mesh=mesh, reshard_after_forward=kind == "zero3")
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)
    if kind == "hook":
        model = nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(groups, optim.co2_hook)
    else:
        model = nn.parallel.DistributedDataParallel(model, process_group=groups.inner)
    if kind == "zero1":
        return model, ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, process_group=groups.inner, lr=0.01
        )
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def options_of(groups, transport="host", **options) -> dict:
    return dict(
        outer_group=groups.outer,
        inner_group=groups.inner,
        tau=TAU,
        gap="adaptive",
        phi=0.5,
        check_every=1,
        transport=transport,
        outer_timeout_s=20,
        **options,
    )


def train_inside(_group, kind, transport, options):
    groups = groups_of(2)
    model, inner = inside(kind, groups)
    anchors = []
    with optim.CO2(model, inner, **options_of(groups, transport, **options)) as co2:
        for step in range(STEPS):
            inner.zero_grad()
            backward(model, 2 * groups.group + groups.shard, step)
            nn.utils.clip_grad_norm_(model.parameters(), MOST)  # over the shards of a group
            inner.step()
            if step in (4, 7):
                before = whole(model)
                with co2.anchor_parameters():
                    anchors.append(whole(model))
                assert whole(model) == before
        co2.flush()
        stats = co2.stats()
    return whole(model), anchors, stats["clipped"], stats["bytes"]


def train_alone(group, options):
    """Trains with a group's two batches on one rank."""
    groups = groups_of(2)
    if groups.shard != 0:
        return None
    model = model_of()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    anchors, norms = [], []
    with optim.CO2(model, inner, **{**options_of(groups, **options), "inner_group": None}) as co2:
        for step in range(STEPS):
            inner.zero_grad()
            for shard in range(2):
                backward(model, 2 * groups.group + shard, step)
            for p in model.parameters():
                p.grad /= 2
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), MOST)))
            inner.step()
            if step in (4, 7):
                with co2.anchor_parameters():
                    anchors.append(whole(model))
        co2.flush()
        stats = co2.stats()
    assert max(norms) > MOST > min(norms)
    return whole(model), anchors, stats["clipped"], stats["bytes"]


def close(got, want) -> bool:
    return torch.allclose(torch.tensor(got), torch.tensor(want), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "options", ({}, {"warmup_sync_steps": 2, "cooldown_sync_steps": 2, "total_steps": STEPS}), ids=("bare", "synced")
)
def test_every_layout_follows_groups_of_one_rank(options):
    wanted = run_ranks(4, train_alone, options)[0]
    ends = {kind: run_ranks(4, train_inside, kind, "host", options) for kind in KINDS}
    for kind, ranks in ends.items():
        assert ranks[0][0] == ranks[1][0] == ranks[2][0] == ranks[3][0], kind
        for got, want in zip([ranks[0][0], *ranks[0][1]], [wanted[0], *wanted[1]], strict=True):
            assert close(got, want), kind
        assert sum(ranks[shard][3] for shard in range(2)) == wanted[3], kind  # shards: no byte twice
    assert wanted[1][0] != wanted[1][1]
    # The same gradients summed over the same two ranks, and element by element from there: the same bits.
    assert ends["hook"][0][0] == ends["slices"][0][0]
    assert close(ends["zero1"][0][0], ends["slices"][0][0])


def train_in_small_pieces(group, kept):
    """With `kept` bytes of slices on their way inside the group at a time; how often they were gathered."""
    from overlace.optim import _layout

    before, gather, sizes = _layout.SPREAD_BYTES, dist.all_gather, []

    def seen(tensors, tensor, **options):
        sizes.append(sum(t.nbytes for t in (*tensors, tensor)))
        return gather(tensors, tensor, **options)

    _layout.SPREAD_BYTES, dist.all_gather = kept, seen
    try:
        return *train_inside(group, "slices", "host", {})[:2], sizes
    finally:
        _layout.SPREAD_BYTES, dist.all_gather = before, gather


def test_slices_are_spread_piece_by_piece():
    ends = {kept: run_ranks(4, train_in_small_pieces, kept)[0] for kept in (8 << 20, 600, 12)}
    assert len({str(end[:2]) for end in ends.values()}) == 1  # the same bits
    assert all(max(end[2]) <= kept for kept, end in ends.items())
    counts = [len(end[2]) for end in ends.values()]
    # Slices of 51, 9, 26 and 2 elements: at once, in pieces of 50, one by one.
    assert counts[1] == 2 * counts[0] and counts[2] == 88 * counts[0] > 0


def test_process_groups_carry_shards_with_the_same_bits():
    for kind in ("slices", "zero3"):
        ends = [run_ranks(4, train_inside, kind, transport, {})[0][0] for transport in ("host", "process_group")]
        assert ends[0] == ends[1], kind


def resume_inside(_group, kind):
    groups = groups_of(2)

    def start():
        model, inner = inside(kind, groups)
        return model, inner, optim.CO2(model, inner, **options_of(groups))

    def go_on(parts, first, last):
        model, inner, co2 = parts
        for step in range(first, last):
            inner.zero_grad()
            backward(model, 2 * groups.group + groups.shard, step)
            co2.step()

    def end(parts):
        parts[2].flush()
        parts[2].close()
        return whole(parts[0])

    straight = start()
    go_on(straight, 0, 8)
    wanted = end(straight)
    for stop in (2, 3, 4, 6):
        first = start()
        go_on(first, 0, stop)
        state = first[2].state_dict()
        first[2].close()
        later = start()
        go_on(later, 0, 1)  # what the state brings counts
        later[2].load_state_dict(state)
        go_on(later, stop, 8)
        assert end(later) == wanted, f"{kind}: stopped after step {stop}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_resumes_with_the_same_bits(kind):
    run_ranks(4, resume_inside, kind)


def consolidated(_group, kind, folder):
    groups = groups_of(2)

    def run(first, last, load, save):
        model, inner = inside(kind, groups)
        co2 = optim.CO2(model, inner, **options_of(groups))
        if load:
            co2.load(folder)
        loaded = whole(model)
        for step in range(first, last):
            inner.zero_grad()
            backward(model, 2 * groups.group + groups.shard, step)
            co2.step()
        if save:
            co2.save(folder, consolidate=True)
        co2.flush()  # a rank that closes with an exchange on its way ends it for those that are not there yet
        end = whole(model)
        co2.close()
        return loaded, end

    _, saved = run(0, 5, False, True)
    loaded, end = run(5, 9, True, False)
    assert loaded == saved
    assert run(5, 9, True, False) == (loaded, end)
    assert end != loaded


@pytest.mark.parametrize("kind", KINDS)
def test_a_consolidated_state_of_shards(kind, tmp_path):
    run_ranks(4, consolidated, kind, str(tmp_path))
    shards = ["shard_0.pt", "shard_1.pt"]  # of one group
    assert sorted(p.name for p in next(tmp_path.glob("save-*")).iterdir()) == shards


def made(group):
    groups = optim.make_groups(ranks_per_group=2)
    ranks = dist.get_process_group_ranks
    for bad in (0, 3, 5):
        with pytest.raises(overlace.InvalidArgument, match=f"ranks_per_group is {bad} with 4 ranks at rank 0, wanted"):
            optim.make_groups(ranks_per_group=bad)
    part = optim.make_groups(groups.outer, ranks_per_group=1)
    return ranks(groups.inner), ranks(groups.outer), groups.group, groups.shard, ranks(part.outer)


def test_make_groups():
    assert run_ranks(4, made) == [
        ([0, 1], [0, 2], 0, 0, [0, 2]),
        ([0, 1], [1, 3], 0, 1, [1, 3]),
        ([2, 3], [0, 2], 1, 0, [0, 2]),
        ([2, 3], [1, 3], 1, 1, [1, 3]),
    ]


def refused(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    groups = groups_of(2)
    model = model_of()
    plain = torch.optim.SGD(model.parameters(), lr=0.05)

    def expect(kind, text, model=model, optimizer=plain, **options):
        given = {**options_of(groups), **options}
        with pytest.raises(kind, match=text):
            optim.CO2(model, optimizer, **given)

    expect(overlace.InvalidArgument, "are in one inner group and in one outer group", outer_group=dist.group.WORLD)
    ddp = nn.parallel.DistributedDataParallel
    spanning = ddp(model_of())
    expect(overlace.InvalidArgument, "DistributedDataParallel over 4 ranks.*register_comm_hook", model=spanning)
    spanning.register_comm_hook(None, optim.co2_hook)
    expect(overlace.InvalidArgument, "co2_hook averages over 1 ranks, wanted: 2", model=spanning)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    expect(overlace.InvalidArgument, r"process_group of ranks \[0, 1, 2, 3\], wanted", optimizer=zero)
    expect(overlace.InvalidArgument, "is a ZeroRedundancyOptimizer, wanted", optimizer=zero, inner_group=None)
    hsdp = model_of()
    fully_shard(hsdp, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    inner = torch.optim.SGD(hsdp.parameters(), lr=0.05)
    expect(overlace.InvalidArgument, r"a mesh of 2 dimensions \(2, 2\)", model=hsdp, optimizer=inner)
    spread = model_of()
    fully_shard(spread, mesh=init_device_mesh("cpu", (4,)))
    inner = torch.optim.SGD(spread.parameters(), lr=0.05)
    expect(overlace.InvalidArgument, "a mesh of 4 ranks, wanted: 2", model=spread, optimizer=inner)
    expect(overlace.InvalidArgument, "are DTensors, wanted", model=spread, optimizer=inner, inner_group=None)


def uneven(_group):
    rank = dist.get_rank()
    pair, last, first, ends = (dist.new_group(ranks) for ranks in ([0, 1], [2], [1], [0, 2]))
    if rank == 3:
        return
    inner, outer = pair if rank < 2 else last, first if rank == 1 else ends
    model = model_of()
    with pytest.raises(overlace.InvalidArgument, match="wanted: the same number everywhere"):
        optim.CO2(model, torch.optim.SGD(model.parameters(), lr=0.05), tau=2, outer_group=outer, inner_group=inner)


def test_bad_groups_are_refused_before_anything_moves():
    run_ranks(4, refused)


def test_groups_of_unequal_size_are_refused_on_all_ranks():
    run_ranks(4, uneven)
