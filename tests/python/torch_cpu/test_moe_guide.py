"""The lines of the guide for mixtures of experts, one block after the other, on ranks that have no team yet."""

import re
from pathlib import Path

import ranks
from ranks import overlace, run_ranks, torch

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "moe.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def run_blocks(_group):
    group = ranks.spare
    torch.manual_seed(8)
    x = torch.randn(5 - 2 * group.rank(), 8)
    names = {"overlace": overlace, "torch": torch, "group": group, "x": x, "target": x.roll(1, 1)}
    try:
        for block in BLOCKS:
            exec(block, names)
        layer, moe = names["layer"], names["block"].moe
        assert names["y"].shape == x.shape and int(overlace.ops.all_reduce(layer.load.sum(), group=group)) == 16
        grads = [p.grad for one in (layer, moe) for n, p in one.named_parameters() if n not in one.expert_parameters()]
        assert len(grads) == 4
        return [grad.flatten().tolist() for grad in grads]
    finally:
        overlace.context_of(group).close()


def test_lines_of_the_guide():
    assert len(BLOCKS) == 4
    first, second = run_ranks(2, run_blocks)
    assert first == second
    assert all(any(grad) for grad in first)


def test_names_of_the_guide_exist():
    rows = [line for line in GUIDE.splitlines() if line.startswith("| ") and "=" in line]
    options = {name for row in rows for name in re.findall(r"(\w+)=", row)}
    assert len(rows) == 4 and options <= set(overlace.nn.MoELayer.__init__.__annotations__)
