"""overlace.tune: what is measured, and that the operators take it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from ranks import overlace, run_ranks, torch

FP32 = {"dtype": torch.float32}


def tuned_by_calls(group):
    a, b = torch.ones(96 // group.size(), 32), torch.ones(32, 24)
    with overlace.init(ranks.spare, machine="cpu2") as context:
        assert overlace.tune(group=ranks.spare) == [], "nothing was called"
        wanted = overlace.ops.ag_gemm(a, b, group=ranks.spare)
        before = overlace.plan("ag_gemm", 96, 24, 32, b_layout="kn", group=ranks.spare, **FP32)
        assert "kept in" not in before.reason
        found = overlace.tune(group=ranks.spare)
        assert [one.state for one in found] == ["measured"], found
        one = found[0]
        assert one.problem == "ag_gemm M 96 N 24 K 32 G 2 fp32", one
        assert min(one.usual_us, one.tuned_us, one.library_us) > 0 and one.failure == ""
        assert one.gain == one.usual_us / one.tuned_us
        after = overlace.plan("ag_gemm", 96, 24, 32, b_layout="kn", group=ranks.spare, **FP32)
        assert after.reason.endswith("; kept in this context") and after.family == one.tuned.partition(":")[0]
        assert torch.equal(overlace.ops.ag_gemm(a, b, group=ranks.spare), wanted)
        assert context.stats().calls >= 2
        return found


def test_what_was_called_is_measured_and_all_ranks_say_the_same():
    first, second = run_ranks(2, tuned_by_calls)
    assert first == second


def tuned_by_list(group):
    problems = [overlace.Problem("gemm_rs", 64, 16, 8, **FP32), overlace.Problem("gemm_ar", 5, 16, 8, **FP32)]
    with overlace.init(ranks.spare, machine="cpu2"):
        found = overlace.tune(problems, group=ranks.spare)
        assert [one.state for one in found] == ["measured", "measured"]
        left = overlace.tune(problems, seconds=1e-9, group=ranks.spare)
        assert [(one.problem, one.state, one.gain) for one in left] == [(one.problem, "left", 1.0) for one in found]
        assert overlace.tune([], group=ranks.spare) == []
        with pytest.raises(overlace.PlanMismatch, match="tune: the list differs between ranks"):
            overlace.tune(problems[group.rank() :], group=ranks.spare)


def test_a_list_is_measured():
    run_ranks(2, tuned_by_list)


def kept_in_a_file(group, path):
    problem = [overlace.Problem("gemm_rs", 64, 16, 8, **FP32)]
    with overlace.init(ranks.spare, machine="cpu2"):
        first = overlace.tune(problem, group=ranks.spare)
    with overlace.init(ranks.spare, machine="cpu2"):
        plan = overlace.plan("gemm_rs", 64, 16, 8, group=ranks.spare, **FP32)
        assert plan.reason.endswith(f"; kept in {path}"), plan.reason
        second = overlace.tune(problem, group=ranks.spare)
    assert [one.state for one in first + second] == ["measured", "measured before"]
    assert first[0].tuned_us == second[0].tuned_us


def test_winners_are_kept_for_the_next_context(tmp_path, monkeypatch):
    path = str(tmp_path / "plans.jsonl")
    monkeypatch.setenv("OVERLACE_PLAN_CACHE", path)
    run_ranks(2, kept_in_a_file, path, fresh=True)


def tuned_at_first_use(group):
    rank, size = group.rank(), group.size()
    with overlace.init(ranks.spare, machine="cpu2"):

        def gathered(m, n=24, plan=""):
            a = torch.arange(m * 32.0).reshape(m, 32)[rank * m // size : (rank + 1) * m // size] / 64
            return overlace.ops.ag_gemm(a, torch.ones(32, n), group=ranks.spare, plan=plan)

        def is_measured(m, n=24):
            plan = overlace.plan("ag_gemm", m, n, 32, b_layout="kn", group=ranks.spare, **FP32)
            return plan.reason.endswith("; kept in this context")

        with pytest.raises(overlace.InvalidArgument):  # of one rank, which the other learns
            gathered(96 if rank == 0 else 94, n=24)
        assert not is_measured(96)
        first = gathered(96)
        assert is_measured(96)
        assert torch.equal(gathered(96), first)
        gathered(48, plan="library")  # whose schedule the caller names
        assert not is_measured(48)
        usual = overlace.plan("ag_gemm", 64, 24, 32, b_layout="kn", group=ranks.spare, **FP32).family
        gathered(64, plan=usual if rank else "")  # one rank alone names it
        assert not is_measured(64)
        gathered(80, n=24 + 8 * rank)  # where they differ nobody has the others' problem
        assert not is_measured(80, n=24 + 8 * rank)
        gathered(80, n=40)  # as before but for what may differ
        assert not is_measured(80, n=40)
        assert torch.equal(gathered(96, n=40), gathered(96, n=40, plan="library"))
        left = overlace.tune([overlace.Problem("ag_gemm", 96, 24, 32, b_layout="kn", **FP32)], group=ranks.spare)
        assert [one.state for one in left] == ["measured"], "a file keeps what is measured, and there is none"
    with pytest.raises(overlace.Unsupported, match=r"OVERLACE_TUNE is first_use, but .* has no costs"):
        overlace.init(ranks.spare, machine="50GB/s,2TFLOP/s")


def test_first_uses_are_measured(monkeypatch):
    monkeypatch.setenv("OVERLACE_TUNE", "first_use")
    monkeypatch.setenv("OVERLACE_MACHINE", "cpu2")
    run_ranks(2, tuned_at_first_use, fresh=True)


def refused(group):
    with pytest.raises(overlace.Unsupported, match="which has no costs to choose candidates by"):
        overlace.tune([overlace.Problem("gemm_rs", 64, 16, 8, **FP32)], group=group)
    with pytest.raises(overlace.InvalidArgument, match="tune: seconds is -1, wanted 0 or more"):
        overlace.tune(seconds=-1, group=group)
    with pytest.raises(overlace.InvalidArgument, match="tune: seconds is '5', wanted a number"):
        overlace.tune(seconds="5", group=group)
    for problems in ([("gemm_rs", 64, 16, 8)], overlace.Problem("gemm_rs", 64, 16, 8, **FP32)):
        with pytest.raises(overlace.InvalidArgument, match=r"wanted a list of overlace\.Problem, or None"):
            overlace.tune(problems, group=group)
    with pytest.raises(overlace.InvalidArgument, match="tune: m is '64', wanted an integer"):
        overlace.tune([overlace.Problem("gemm_rs", "64", 16, 8, **FP32)], group=group)
    with pytest.raises(overlace.InvalidArgument, match="tune: b_layout is 'kk', wanted one of nk, kn"):
        overlace.tune([overlace.Problem("gemm_rs", 64, 16, 8, b_layout="kk", **FP32)], group=group)
    with pytest.raises(overlace.InvalidArgument, match=r"tune: dtype is torch\.int8"):
        overlace.tune([overlace.Problem("gemm_rs", 64, 16, 8, dtype=torch.int8)], group=group)


def test_refused():
    run_ranks(2, refused)


def test_the_program_of_the_guide(tmp_path):
    guide = Path(__file__).resolve().parents[3] / "docs" / "guides" / "tune.md"
    (program,) = re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "program.py").write_text(program)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"]
    env = {**os.environ, "PYTHONPATH": str(Path(overlace.__file__).absolute().parents[1])}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    line = r"ag_gemm M 128 N 32 K 64 G 2 fp32: \S+ took \d+ us, \S+ takes \d+ us\n"
    assert re.fullmatch(line, done.stdout), done.stdout
