"""The lines of the guide for programs, each block as it stands there."""

import copy
import functools
import re
from pathlib import Path

import overlace.compat.engines as compat_engines
import pytest
import ranks
import test_compile_engines as engines
from ranks import overlace, run_ranks, torch

nn, dist = torch.nn, torch.distributed
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "pytorch_programs.md"
BLOCKS = {
    title.strip().splitlines()[0]: re.findall(r"^```python\n(.*?)^```", title, re.DOTALL | re.MULTILINE)
    for title in re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)[1:]
}


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((8, 32), (32, 8)))

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Pair() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class RowParallelLinear(nn.Module):
    """A layer as an engine has it: the sum is the engine's own operator."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return torch.ops.vllm.all_reduce(nn.functional.linear(x, self.weight), engines.NAME)


class Rank(nn.Module):
    """The part of a Pair that a rank of an engine has."""

    def __init__(self, pair, group):
        super().__init__()
        up, down = (w.detach().chunk(group.size(), dim)[group.rank()] for dim, w in enumerate(weights(pair)))
        self.up, self.down = nn.Parameter(up), RowParallelLinear(down)

    def forward(self, x):
        return self.down(torch.relu(x @ self.up.t()))


def weights(pair):
    return pair.up.weight, pair.down.weight


def names_for(title, group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(31)
    n, is_engine = group.size(), title == "Serving engines"
    plan = {"up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1))}
    model = Blocks() if title.startswith("Inference") else Pair()
    return {
        "overlace": overlace,
        "torch": torch,
        "Shard": Shard,
        "parallelize_module": parallelize_module,
        "group": group,
        "tp": DeviceMesh.from_group(group, "cpu"),
        "plan": plan,
        "model": model,
        "x": torch.randn(2, 4, 8),
        "w1": torch.randn(6, 8),
        "w2": torch.randn(8, 6),
        "batch": torch.randn(8, 8),
        "residual": torch.randn(5, 8),
        "norm": nn.RMSNorm(8, eps=1e-5),
        "hidden": torch.randn(5, 16).chunk(n, 1)[group.rank()] if is_engine else 8,
        "weight": torch.randn(8, 16).chunk(n, 1)[group.rank()],
    }


def check(title, whole, names, group):
    """What the lines made computes what the unsharded model does."""
    x, n, rank = names["x"], group.size(), group.rank()
    if title.startswith("torchtitan"):
        torch.testing.assert_close(names["model"](x.chunk(n, 1)[rank].contiguous()), whole(x).chunk(n, 1)[rank])
    elif title.startswith("Layers"):
        full = torch.cat([x] * n)  # all ranks gave the same part
        up, down = (names[name].weight.full_tensor() for name in ("up", "down"))
        torch.testing.assert_close(names["y"], (torch.relu(full @ up.t()) @ down.t()).chunk(n)[rank])
    elif title.startswith("Modules"):
        mlp, full = names["mlp"], torch.cat([x] * n)
        fc1, fc2 = (linear.weight.full_tensor() for linear in (mlp.fc1, mlp.fc2))
        wanted = nn.functional.gelu(mlp.norm(full) @ fc1.t()) @ fc2.t()
        torch.testing.assert_close(names["y"], wanted.chunk(n)[rank])
    elif title == "Scripts":
        hidden = torch.cat([x] * n) @ names["w1"].t()
        total = n * (hidden @ names["w2"].t())
        torch.testing.assert_close(names["total"], total)
        torch.testing.assert_close(names["part"], total.chunk(n)[rank])
    else:
        torch.testing.assert_close(names["model"](x), whole(x))


def check_engine(block, whole, given, names, group):
    """What the lines for serving engines made is equal too, and an operator of overlace has run."""
    stats = overlace.context_of(group).stats
    if "gemm_ar_norm" in block:
        total = given["hidden"] @ given["weight"].t()
        dist.all_reduce(total, group=group)
        torch.testing.assert_close(names["residual"], given["residual"] + total)
        torch.testing.assert_close(names["y"], given["norm"](names["residual"]))
        return
    has_sizes, prepared = "batch" in block, stats().preparations
    for x in [given["batch"][:rows] for rows in (1, 2, 4, 8)] if has_sizes else [given["x"]]:
        calls = stats().calls
        with torch.inference_mode():
            torch.testing.assert_close(names["model"](x), whole(x))
        assert stats().calls == calls + 1
    assert not has_sizes or stats().preparations == prepared
    assert "adapter" not in names or names["adapter"].calls == {"gemm_ar": 2}


def run_block(_group, title, block):
    group = ranks.spare
    names = names_for(title, group)
    whole, given, before = copy.deepcopy(names["model"]), dict(names), (torch.compile, overlace.compile.enable)
    adapted = compat_engines.enable
    if title == "Serving engines":
        torch._dynamo.reset()  # the team is another one in each block
        engines.define(group)
        engines.define.groups[engines.NAME] = group
        names["model"] = Rank(whole, group)
        # On CPU ranks the planner sees no gain.
        overlace.compile.enable = functools.partial(before[1], when="always")
        compat_engines.enable = functools.partial(adapted, when="always")
    torch.compile = functools.partial(before[0], backend=overlace.compile.aot_eager)  # no C++ compiler is waited for
    try:
        exec(block, names)
        if title == "Serving engines":
            check_engine(block, whole, given, names, group)
        else:
            check(title, whole, names, group)
    finally:
        torch.compile, overlace.compile.enable = before
        compat_engines.enable = adapted
        if torch._inductor.config.post_grad_custom_pre_pass is not None:
            torch._inductor.config.post_grad_custom_pre_pass = None
        overlace.context_of(group).close()


@pytest.mark.parametrize("title", BLOCKS)
def test_lines_of_the_guide(title):
    assert BLOCKS[title]
    for block in BLOCKS[title]:
        run_ranks(2, run_block, title, block)
