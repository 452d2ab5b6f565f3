"""The guide to slow links: its commands are run, its lines for groups are run on four ranks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, said_by_programs, torch

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "guides" / "train-over-slow-links.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^ +(\d+) +(\d+\.\d+) +(\d+\.\d+) +(\d+\.\d+) +(\d+\.\d)% +(\d+\.\d)%$")


def test_the_command_shows_loss_exposed_and_predicted_share():
    (command,) = COMMANDS
    program, *words = command.split()
    assert program == "python3"
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    shown = re.search(r"^```text\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)[1].splitlines()
    assert lines[:2] == shown[:2]
    assert lines[-1] == shown[-1]
    rows = [[float(word) for word in _ROW.match(line).groups()] for line in lines[2:-1]]
    assert [row[0] for row in rows] == [2, 6, 24]
    for tau, _, step_ms, all_reduce_ms, exposed, predicted in rows:
        assert step_ms > 0
        assert all_reduce_ms == 57.5
        assert 0 <= exposed <= 100  # on a loaded machine ranks wait for each other too
        # A round is as long as the longer of its steps and the exchange; other work may make steps long.
        assert abs(predicted - 100 * max(0.0, 1 - tau * step_ms / all_reduce_ms)) < 0.3, done.stdout


def exec_groups(_group, lines):
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3))
    names = {
        "overlace": overlace,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    exec(lines, names)
    for step in range(7):
        names["optimizer"].zero_grad()
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + torch.distributed.get_rank()))
        model(x).square().mean().backward()
        names["optimizer"].step()
    names["optimizer"].flush()
    names["optimizer"].close()
    return [p.tolist() for p in model.parameters()]


def test_lines_for_groups_of_several_ranks():
    (lines,) = [block for block in PYTHON if "make_groups" in block]
    first, *others = run_ranks(4, exec_groups, lines)
    assert all(other == first for other in others)


LOOP = """
import json, sys
import accelerate, overlace, torch
import torch.distributed as dist

def make():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)

torch.set_num_threads(1)
x = torch.randn(96, 5, generator=torch.Generator().manual_seed(2))
y = torch.stack([x[:, 0] * x[:, 1], x.sum(1), x[:, 2].sin()], 1)
model, optimizer = make()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
names = {"overlace": overlace, "torch": torch, "model": model, "optimizer": optimizer, "loader": loader}
names["Accelerator"] = lambda **options: accelerate.Accelerator(cpu=True, **options)
exec(sys.argv[1], names)
assert isinstance(names["model"], torch.nn.parallel.DistributedDataParallel)
assert names["accelerator"].num_processes == 2

def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])

# The same by torch alone: accelerate gives every second batch to a rank.
alone, inner = make()
rank = dist.get_rank()
with overlace.optim.CO2(alone, inner, tau=4) as co2:
    for i in range(12):
        at = slice(4 * (2 * i + rank), 4 * (2 * i + rank) + 4)
        (torch.nn.functional.mse_loss(alone(x[at]), y[at]) / 2).backward()
        if i % 2 == 1:
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            inner.step()
            inner.zero_grad()
    apart = flat(alone).tolist()
print(json.dumps([flat(model).tolist(), flat(alone).tolist(), apart]), flush=True)
dist.destroy_process_group()
"""


def test_lines_for_a_loop_of_accelerate():
    pytest.importorskip("accelerate")
    (lines,) = [block for block in PYTHON if "Accelerator(" in block]
    (first, alone, apart), (second, _, other) = said_by_programs(LOOP, 2, lines)
    assert first == second == alone
    assert apart != other  # in a round


def test_lines_that_plan(capsys):
    (lines,) = [block for block in PYTHON if "plan_tau" in block]
    exec(lines, {"overlace": overlace, "parameters": 1e9})
    assert capsys.readouterr().out.startswith("44 {11: 0.725, ")  # 1.1 * 4 GB / 1 GB/s / 100 ms


@pytest.mark.parametrize("text", ["co2.skipped_step()", "co2.anchor_parameters()", "co2.state_dict()"])
def test_names_of_the_table_exist(text):
    assert text in GUIDE
    assert hasattr(overlace.optim.CO2, text.removeprefix("co2.").removesuffix("()"))
