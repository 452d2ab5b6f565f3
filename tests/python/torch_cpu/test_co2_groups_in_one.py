"""bench/co2_groups.py, all groups in one process, against overlace.optim.CO2 on two ranks; and bench/co2_tasks.py."""

import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, run_ranks, torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "driver")]

import co2_groups  # noqa: E402
import co2_tasks  # noqa: E402
import co2_tasks_page  # noqa: E402
import records  # noqa: E402
import schema  # noqa: E402

STEPS, TAU, WARM_UP, COOL_DOWN, RATE, BATCH = 40, 4, 3, 6, 0.02, 8


def begin() -> list:
    generator = torch.Generator().manual_seed(4)
    return [0.3 * torch.randn(shape, generator=generator) for shape in ((6, 12), (12, 3))]


def batch_of(seed: int, rank: int, step: int) -> tuple:
    generator = torch.Generator().manual_seed(10000 * seed + 1000 * rank + step)
    x = torch.randn(BATCH, 6, generator=generator)
    return x, torch.stack([x[:, 0] * x[:, 1], x.sum(1), x[:, 2].sin()], 1)


def of_ranks(group, names: list, seeds: int) -> dict:
    """Parameters of each rule and seed after training of ranks."""
    ends = {}
    for name in names:
        for seed in range(seeds):
            model = torch.nn.ParameterList(begin())
            inner = torch.optim.AdamW(model.parameters(), lr=RATE)
            syncs = dict(warmup_sync_steps=WARM_UP, cooldown_sync_steps=COOL_DOWN, total_steps=STEPS)
            options = dict(outer_group=group, tau=TAU, outer_timeout_s=20, **syncs, **co2_tasks.RULES[name])
            co2 = overlace.optim.CO2(model, inner, **options)
            for step in range(STEPS):
                inner.param_groups[0]["lr"] = RATE * min(1.0, (STEPS - step) / 10)
                inner.zero_grad()
                x, y = batch_of(seed, group.rank(), step)
                (torch.tanh(x @ model[0]) @ model[1] - y).square().mean().backward()
                co2.step()
            co2.close()
            ends[name, seed] = [p.detach().tolist() for p in model]
    return ends


def in_one(name: str, seeds: int) -> list:
    x = [p.expand(seeds, 2, *p.shape).clone().requires_grad_() for p in begin()]
    optimizer = torch.optim.AdamW(x, lr=RATE)

    def loss_of(step: int) -> "torch.Tensor":
        parts = [[batch_of(seed, rank, step) for rank in range(2)] for seed in range(seeds)]
        inputs, wanted = (torch.stack([torch.stack([p[i] for p in ranks]) for ranks in parts]) for i in (0, 1))
        return (torch.tanh(inputs @ x[0]) @ x[1] - wanted).square().mean((2, 3)).sum()

    sizes = dict(steps=STEPS, tau=TAU, warm_up=WARM_UP, cool_down=COOL_DOWN, decay=10)
    co2_groups.train(x, loss_of, optimizer, co2_tasks.RULES[name], **sizes)
    return x


def test_rules_in_one_process_are_those_of_ranks() -> None:
    names, seeds = [name for name, options in co2_tasks.RULES.items() if options is not None], 2
    ends = run_ranks(2, of_ranks, names, seeds)[0]
    seen = []
    for name in names:
        x = in_one(name, seeds)
        for seed in range(seeds):
            for p, wanted in zip(x, ends[name, seed], strict=True):
                assert torch.equal(p[seed, 0], p[seed, 1])
                torch.testing.assert_close(p[seed, 0].detach(), torch.tensor(wanted), rtol=2e-4, atol=2e-5, msg=name)
        seen.append(x[0].detach())
    distances = [float((a - b).abs().max()) for i, a in enumerate(seen) for b in seen[:i]]
    assert min(distances) > 1e-3  # so that a rule in the place of another would be found


@pytest.mark.parametrize("task", ["plateau", "polygons"])
def test_records_of_a_task(task: str, tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    words = ["--task", task, "--tau", "2", "--rules", "ddp,co2", "--steps", "20", "--seeds", "2", "--batch", "4"]
    command = [sys.executable, str(ROOT / "bench" / "co2_tasks.py"), *words, "--rates", "0.004", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = records.read(out)
    assert [row["competitor"] for row in rows] == ["ddp", "co2"]
    for row in rows:
        assert len(row["training"]["loss"]["samples"]) == len(row["accuracy"]["samples"]) == 2
        assert 0 < row["training"]["loss"]["min"] < 4


def test_what_a_task_refuses() -> None:
    command = [sys.executable, str(ROOT / "bench" / "co2_tasks.py"), "--task"]
    for words, status, text in (
        (["plateau", "--rules", "ddp,fast"], 2, "rules ['fast'] are not known"),
        (["plateau", "--tau", "8,0"], 2, "tau ['0']"),
        (["digits", "--digits", "/nowhere/digits.csv.gz"], 3, "digits.csv.gz"),
    ):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        assert text in done.stdout


def test_memory_of_a_process(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    words = ["--layers", "2", "--width", "512", "--competitors", "group_ddp,co2_ddp", "--out", str(out)]
    command = [sys.executable, str(ROOT / "bench" / "co2_memory.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = {row["competitor"]: row for row in records.read(out)}
    plain, co2 = (rows[name]["memory"]["process_bytes"] for name in ("group_ddp", "co2_ddp"))
    share = rows["co2_ddp"]["training"]["parameters"] // 2
    assert 4 * share < co2 - plain < 12 * share + (64 << 20)


def test_the_page_is_what_the_records_say() -> None:
    pages = records.read(co2_tasks_page.TASKS), records.read(co2_tasks_page.MEMORY)
    assert schema.check_file(co2_tasks_page.TASKS) == schema.check_file(co2_tasks_page.MEMORY) == []
    assert co2_tasks_page.PAGE.read_text() == co2_tasks_page.text(*pages)
