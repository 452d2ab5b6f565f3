"""overlace.optim.CO2 around tensor parallelism: two groups of two ranks whose layers are split, by overlace's styles
and by torch's, against two groups of one."""

import pytest
from ranks import overlace, run_ranks, torch
from test_co2_groups import close, groups_of, options_of, whole

nn, optim = torch.nn, overlace.optim
STEPS = 11
SYNCED = {"warmup_sync_steps": 2, "cooldown_sync_steps": 2, "total_steps": STEPS}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 16), nn.Linear(16, 6)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def model_of() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(Mlp(), Mlp())


def split(model: nn.Module, groups, styles) -> nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import parallelize_module

    column, row = styles.ColwiseParallel, styles.RowwiseParallel
    plan = {f"{i}.up": column() for i in range(2)}
    plan |= {f"{i}.down": row(output_layouts=Replicate()) for i in range(2)}
    return parallelize_module(model, DeviceMesh.from_group(groups.inner, "cpu"), plan)


def backward(model: nn.Module, group: int, step: int) -> None:
    """The ranks of a group see the same batch."""
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * group + step))
    (model(x) - x.roll(1, 1).sin()).square().mean().backward()


def go_on(parts, group: int, first: int, last: int) -> list:
    model, inner, co2 = parts
    anchors = []
    for step in range(first, last):
        inner.zero_grad()
        backward(model, group, step)
        co2.step()
        if step in (4, 7):
            with co2.anchor_parameters():
                anchors.append(whole(model))
    return anchors


def start(groups, styles, **options):
    model = model_of() if styles is None else split(model_of(), groups, styles)
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    more = {"inner_group": None} if styles is None else {}
    return model, inner, optim.CO2(model, inner, **{**options_of(groups, **options), **more})


def end(parts) -> list:
    parts[2].flush()
    parts[2].close()
    return whole(parts[0])


def alone(_group, options):
    groups = groups_of(2)
    if groups.shard != 0:
        return None
    parts = start(groups, None, **options)
    anchors = go_on(parts, groups.group, 0, STEPS)
    stats = parts[2].stats()
    return end(parts), anchors, stats["bytes"]


def styles_of(name):
    import overlace.parallel
    from torch.distributed.tensor import parallel as torch_styles

    return overlace.parallel if name == "overlace" else torch_styles


def inside(_group, name, options):
    groups = groups_of(2)
    with overlace.init(groups.inner):
        parts = start(groups, styles_of(name), **options)
        anchors = go_on(parts, groups.group, 0, STEPS)
        stats = parts[2].stats()
        ended = end(parts)
        copies = [
            p.to_local() if hasattr(p, "to_local") else p for p in (parts[0][0].norm.weight, parts[0][1].down.bias)
        ]
    return ended, anchors, stats["bytes"], [copy.tolist() for copy in copies]


@pytest.mark.parametrize("options", ({}, SYNCED), ids=("bare", "synced"))
def test_split_layers_follow_groups_of_one_rank(options):
    wanted = run_ranks(4, alone, options)[0]
    for name in ("overlace", "torch"):
        ranks = run_ranks(4, inside, name, options)
        assert all(rank[0] == ranks[0][0] for rank in ranks), name
        # What both ranks of a group have is the same there to the bit: each had a slice of it and sent that.
        assert all(rank[3] == ranks[0][3] for rank in ranks), name
        for got, want in zip([ranks[0][0], *ranks[0][1]], [wanted[0], *wanted[1]], strict=True):
            assert close(got, want), name
        assert ranks[0][2] + ranks[1][2] == wanted[2], name  # no byte crosses twice
    assert wanted[1][0] != wanted[1][1]


def resumed(_group, folder):
    groups = groups_of(2)
    with overlace.init(groups.inner):
        styles = styles_of("overlace")
        straight = start(groups, styles)
        go_on(straight, groups.group, 0, 8)
        wanted = end(straight)
        for stop in (2, 3, 4, 6):
            first = start(groups, styles)
            go_on(first, groups.group, 0, stop)
            first[2].save(folder)
            first[2].close()
            later = start(groups, styles)
            go_on(later, groups.group, 0, 1)  # what is loaded counts
            later[2].load(folder)
            go_on(later, groups.group, stop, 8)
            assert end(later) == wanted, stop
        # Another layout is refused.
        plain = nn.parallel.DistributedDataParallel(model_of(), process_group=groups.inner)
        other = optim.CO2(plain, torch.optim.AdamW(plain.parameters(), lr=0.01), **options_of(groups))
        with pytest.raises(overlace.IoError, match="layout is Parallel, wanted: Slices"):
            other.load(folder)
        other.close()


def test_split_layers_resume_with_the_same_bits(tmp_path):
    run_ranks(4, resumed, str(tmp_path))


def refused(_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, distribute_tensor

    groups = groups_of(2)

    def expect(kind, text, mesh, placement):
        model = model_of()
        weight = distribute_tensor(torch.zeros(16, 6), mesh, [placement] if mesh.ndim == 1 else [placement] * 2)
        model[0].up.weight = nn.Parameter(weight)
        with pytest.raises(kind, match=text):
            optim.CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), **options_of(groups))

    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh.from_group(groups.inner, "cpu")
    two = init_device_mesh("cpu", (2, 2))
    expect(
        overlace.InvalidArgument, r"0\.up\.weight has a mesh of 2 dimensions", two, torch.distributed.tensor.Shard(0)
    )
    whole_mesh = init_device_mesh("cpu", (4,))
    expect(overlace.InvalidArgument, "a mesh of 4 ranks, wanted: 2", whole_mesh, torch.distributed.tensor.Shard(0))
    model = model_of()
    partial = torch.distributed.tensor.DTensor.from_local(torch.zeros(16, 6), mesh, [Partial()], run_check=False)
    model[0].up.weight = nn.Parameter(partial)
    with pytest.raises(overlace.Unsupported, match=r"is placed \(Partial.*supported: Shard and Replicate"):
        optim.CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), **options_of(groups))


def test_other_meshes_and_placements_are_refused():
    run_ranks(4, refused)
