"""The lines of the guide for programs, each block as it stands there."""

import copy
import functools
import re
from pathlib import Path

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


class Rank(nn.Module):
    """The part of a Pair that a rank of an engine has; the sum is the engine's own operator."""

    def __init__(self, pair, group):
        super().__init__()
        n, rank = group.size(), group.rank()
        self.up, self.down = (nn.Parameter(w.detach().chunk(n, dim)[rank]) for dim, w in enumerate(weights(pair)))

    def forward(self, x):
        part = torch.relu(x @ self.up.t()) @ self.down.t()
        return torch.ops.vllm.all_reduce(part, engines.NAME)


def weights(pair):
    return pair.up.weight, pair.down.weight


def names_for(title, group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(31)
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
        "hidden": 8,
        "x": torch.randn(2, 4, 8),
        "w1": torch.randn(6, 8),
        "w2": torch.randn(8, 6),
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


def run_block(_group, title, block):
    group = ranks.spare
    names = names_for(title, group)
    whole, before = copy.deepcopy(names["model"]), torch.compile
    if title == "Serving engines":
        engines.define(group)
        engines.define.groups[engines.NAME] = group
        names["model"] = Rank(whole, group)
    torch.compile = functools.partial(before, backend=overlace.compile.aot_eager)  # no C++ compiler is waited for
    try:
        exec(block, names)
        check(title, whole, names, group)
    finally:
        torch.compile = before
        if torch._inductor.config.post_grad_custom_pre_pass is not None:
            torch._inductor.config.post_grad_custom_pre_pass = None
        overlace.context_of(group).close()


@pytest.mark.parametrize("title", BLOCKS)
def test_lines_of_the_guide(title):
    assert BLOCKS[title]
    for block in BLOCKS[title]:
        run_ranks(2, run_block, title, block)
