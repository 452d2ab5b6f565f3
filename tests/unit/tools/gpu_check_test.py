"""gpu_check runs everything or says what it did not run: its plan, its counts, its table and its record."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

from support import ROOT, TreeTest

import gpu_check
import gpu_status
import gpu_tests
import runner
from gpu_tests import FAILED, NOT_RUN, PASSED, SKIPPED, Row, Scheduler, Unit


def simulated(
    units: list[Unit], gpus: int, budget_s: float, part: int = 0
) -> tuple[list[tuple[float, str, tuple]], list[Row], float]:
    """(start, name, GPUs) of all that starts, where each unit takes as long as last time, 50 s if that is unknown."""
    plan, now, log, running = Scheduler(units, gpus, budget_s, part), 0.0, [], []
    while not plan.is_done():
        for unit, on, limit_s in plan.start(now):
            log.append((now, unit.name, on))
            running.append((now + min(50 if unit.seconds is None else unit.seconds, limit_s), unit))
        if not running:
            break
        running.sort(key=lambda x: x[0])
        now, unit = running.pop(0)
        plan.ended(unit)
    return log, plan.not_run, now


def wide(name: str, seconds: float | None) -> Unit:
    return Unit(name, seconds=seconds)


def narrow(name: str, seconds: float | None) -> Unit:
    return Unit(name, is_wide=False, seconds=seconds)


class Plan(unittest.TestCase):
    def test_longest_first_and_what_needs_all_gpus_alone(self) -> None:
        units = [wide("short", 5), wide("long", 20), narrow("n1", 4), narrow("n2", 9), narrow("n3", 6)]
        log, not_run, end = simulated(units, 2, 500)
        self.assertEqual([name for _, name, _ in log], ["long", "short", "n2", "n3", "n1"])
        self.assertEqual([on for _, _, on in log], [(0, 1), (0, 1), (0,), (1,), (1,)])
        self.assertEqual([start for start, _, _ in log], [0, 20, 25, 25, 31])
        self.assertEqual((not_run, end), ([], 35))

    def test_what_may_share_gpus_comes_first_a_few_at_once(self) -> None:
        shared = [Unit(f"s{seconds}", is_shared=True, seconds=seconds) for seconds in (30, 20, 15, 10, 5)]
        log, not_run, end = simulated([wide("alone", 40), *shared, narrow("n", 3)], 2, 500)
        self.assertEqual(
            [(start, name) for start, name, _ in log],
            [*((0, f"s{n}") for n in (30, 20, 15, 10)), (10, "s5"), (30, "alone"), (70, "n")],
        )
        self.assertEqual({on for _, name, on in log if name.startswith("s")}, {(0, 1)})
        self.assertEqual((not_run, end), ([], 73))
        self.assertEqual(gpu_tests.SHARED & gpu_tests.ONE_GPU, frozenset())
        self.assertLessEqual(gpu_tests.SHARED | gpu_tests.ALONE, set(gpu_tests.expected_names(ROOT)))

    def test_what_failed_beside_others_runs_alone(self) -> None:
        row = Row("gpu_x", FAILED, passed=4, failed=2, failures=["S.A: got 1", "P/S.B/3: late"], seconds=9, skipped=1)
        unit = gpu_tests.alone(Unit("gpu_x", ("gpu_x", "--xml"), is_shared=True), row)
        self.assertEqual((unit.command, unit.is_shared), (("gpu_x", "--xml", "--gtest_filter=S.A:P/S.B/3"), False))
        failed = Row("torch_gpu", FAILED, passed=1, failures=["tests.python.torch_gpu.test_gpu.test_a[x-1.5]: late"])
        whole = ("py", "-v", "tests/python/torch_gpu/test_gpu.py")
        unit = gpu_tests.alone(Unit("torch_gpu", whole, is_shared=True), failed)
        self.assertEqual(unit.command, ("py", "-v", "tests/python/torch_gpu/test_gpu.py::test_a[x-1.5]"))
        both = gpu_tests.joined(row, Row("gpu_x", PASSED, passed=2, seconds=3))
        self.assertEqual((both.outcome, both.passed, both.failed, both.skipped, both.seconds), (PASSED, 6, 0, 1, 12))
        self.assertIn("2 failed beside others and passed alone: S.A: got 1", both.detail)
        still = gpu_tests.joined(row, Row("gpu_x", FAILED, passed=1, failed=1, failures=["S.A: got 1"]))
        self.assertEqual((still.outcome, still.passed, still.failed), (FAILED, 5, 1))
        late = gpu_tests.joined(row, Row("gpu_x", NOT_RUN))
        self.assertEqual((late.outcome, late.failed, late.failures), (FAILED, 2, row.failures))

    def test_what_was_cut_short_beside_others_runs_whole_alone(self) -> None:
        row = Row("gpu_x", FAILED, passed=53, failed=2, failures=["S.A: late", "stopped after 601 s in S.B"])
        row.seconds, row.cut_short = 601, True
        unit = gpu_tests.alone(Unit("gpu_x", ("gpu_x",), is_shared=True), row)
        self.assertEqual((unit.command, unit.is_shared), (("gpu_x",), False))
        both = gpu_tests.joined(row, Row("gpu_x", PASSED, passed=80, seconds=500))
        self.assertEqual((both.outcome, both.passed, both.failed, both.seconds), (PASSED, 80, 0, 1101))
        self.assertEqual(both.detail, "beside others: S.A: late; stopped after 601 s in S.B")
        self.assertFalse(both.cut_short)
        late = gpu_tests.joined(row, Row("gpu_x", NOT_RUN))
        self.assertEqual((late.outcome, late.passed, late.failed), (FAILED, 53, 2))

    def test_no_gpu_is_used_twice_at_a_time(self) -> None:
        units = [narrow(f"n{i}", 3 + i % 4) for i in range(17)] + [wide(f"w{i}", 2) for i in range(3)]
        log, _, _ = simulated(units, 3, 500)
        self.assertEqual(len(log), 20)
        seconds = {u.name: u.seconds for u in units}
        for start, name, on in log:
            for start2, name2, on2 in log:
                if name != name2 and set(on) & set(on2):
                    apart = start + seconds[name] <= start2 or start2 + seconds[name2] <= start
                    self.assertTrue(apart, f"{name} and {name2} share a GPU")

    def test_shards_of_a_program_run_side_by_side_and_beside_nothing_else(self) -> None:
        shards = gpu_tests.shards_of(Unit("gpu_fault", ("gpu_fault",), seconds=50))
        self.assertEqual([u.name for u in shards], ["gpu_fault.1of3", "gpu_fault.2of3", "gpu_fault.3of3"])
        self.assertEqual([(u.shard, u.shards, u.program) for u in shards], [(i, 3, "gpu_fault") for i in range(3)])
        log, _, _ = simulated([wide("first", 90), *shards, wide("last", 8)], 2, 1000)
        self.assertEqual([start for start, name, _ in log if name.startswith("gpu_fault")], [90, 90, 90])
        self.assertEqual([start for start, name, _ in log if name == "last"], [140])
        self.assertEqual([u.name for u in gpu_tests.shards_of(Unit("gpu_ops"))], ["gpu_ops"])

    def test_what_failed_beside_other_shards_runs_alone(self) -> None:
        shards = gpu_tests.shards_of(Unit("gpu_fault", ("gpu_fault",), seconds=50))
        row = Row("gpu_fault.2of3", FAILED, 20, 1, failures=["S.A: got 1"])
        self.assertTrue(shards[1].runs_again(row))
        again = gpu_tests.alone(shards[1], row)
        self.assertEqual((again.name, again.command), ("gpu_fault.2of3", ("gpu_fault", "--gtest_filter=S.A")))
        self.assertFalse(again.runs_again(dataclasses.replace(row, passed=1)))
        self.assertFalse(shards[1].runs_again(dataclasses.replace(row, cut_short=True)))
        self.assertFalse(shards[1].runs_again(Row("gpu_fault.2of3", PASSED, 21)))
        plan = gpu_tests.Scheduler(shards, 2, 1000)
        running = [unit for unit, _, _ in plan.start(0)]
        plan.ended(running[1])
        plan.again(again)
        self.assertEqual(plan.start(40), [])
        plan.ended(running[0])
        self.assertEqual(plan.start(45), [])
        plan.ended(running[2])
        self.assertEqual([unit for unit, _, _ in plan.start(50)], [again])

    def test_shards_are_one_row(self) -> None:
        first = Row("gpu_fault.1of3", PASSED, passed=2, skipped=1, seconds=40, reasons={"x": 1})
        second = Row("gpu_fault.2of3", FAILED, passed=1, failed=1, seconds=50, failures=["S.A: got 1"])
        third = Row("gpu_fault.3of3", PASSED, passed=3, skipped=1, seconds=45, reasons={"x": 1})
        other = Row("gpu_ops", PASSED, passed=1)
        both, same = gpu_tests.merged([first, second, other, third])[:2]
        self.assertEqual((both.name, both.outcome, both.seconds, same), ("gpu_fault", FAILED, 50, other))
        self.assertEqual((both.passed, both.failed, both.skipped, both.reasons), (6, 1, 2, {"x": 2}))
        self.assertEqual(both.failures, ["S.A: got 1"])
        gone = gpu_tests.merged([first, Row("gpu_fault.2of3", NOT_RUN, detail="10 s were left")])
        self.assertEqual([(r.outcome, r.passed, r.detail) for r in gone], [(NOT_RUN, 2, "10 s were left")])

    def test_shards_are_told_which_they_are(self) -> None:
        shown = "import os; print(os.environ['GTEST_SHARD_INDEX'], os.environ['GTEST_TOTAL_SHARDS'])"
        told = [sys.executable, "-c", shown]
        with tempfile.TemporaryDirectory() as folder:
            for unit in gpu_tests.shards_of(Unit("gpu_fault", tuple(told))):
                gpu_check.run_unit(unit, (), [], 60, Path(folder), Path(folder))
                log = (Path(folder) / f"{unit.name}.log").read_text()
                self.assertEqual(log.split(), [str(unit.shard), "3"])

    def test_what_does_not_fit_is_listed_and_shorter_ones_still_run(self) -> None:
        log, not_run, _ = simulated([wide("long", 90), wide("mid", 50), wide("short", 8)], 2, 100)
        self.assertEqual([name for _, name, _ in log], ["long", "short"])
        self.assertEqual(
            [(r.name, r.outcome, r.detail) for r in not_run],
            [("mid", NOT_RUN, "10 s were left, it took 50 s last time")],
        )

    def test_unknown_length_goes_last_and_gets_what_is_left(self) -> None:
        plan = Scheduler([wide("known", 30), wide("new", None), wide("newer", None)], 2, 100)
        ((unit, _, _),) = plan.start(0)
        self.assertEqual(unit.name, "known")
        plan.ended(unit)
        ((unit, _, limit_s),) = plan.start(30)
        self.assertEqual((unit.name, limit_s), ("new", 70))
        plan.ended(unit)
        self.assertEqual(plan.start(100), [])
        self.assertEqual([r.detail for r in plan.not_run], ["0 s were left, it never ended before"])

    def test_every_unit_is_started_or_listed_once(self) -> None:
        units = [wide(f"w{i}", i * 7 % 40 if i % 5 else None) for i in range(20)]
        units += [narrow(f"n{i}", i * 11 % 60) for i in range(20)] + [Unit("gone", missing="was not built")]
        for gpus in (0, 1, 2, 8):
            for budget_s in (0, 10, 120, 10000):
                log, not_run, _ = simulated(units, gpus, budget_s)
                names = sorted([name for _, name, _ in log] + [row.name for row in not_run])
                self.assertEqual(names, sorted(u.name for u in units))

    def test_parts_of_a_machine_do_not_meet(self) -> None:
        """What needs all GPUs gets all of a part, and is alone there."""
        shared = [dataclasses.replace(wide(f"s{i}", 10), is_shared=True) for i in range(9)]
        units = [*shared, *(wide(f"w{i}", 20 - i) for i in range(4)), narrow("n1", 4), narrow("n2", 3)]
        log, not_run, end = simulated(units, 5, 500, part=2)
        self.assertEqual(not_run, [])
        self.assertEqual([on for start, name, on in log if start == 0], [(0, 1)] * 4 + [(2, 3)] * 4)
        begun = {name: (start, on) for start, name, on in log}
        self.assertEqual(begun["s8"][0], 10)
        self.assertEqual({begun[f"w{i}"][1] for i in range(4)}, {(0, 1), (2, 3)})
        for name, (start, on) in begun.items():
            if not name.startswith("w"):
                continue
            seconds = 20 - int(name[1])
            beside = [
                n for n, (s, o) in begun.items() if n != name and start <= s < start + seconds and set(o) & set(on)
            ]
            self.assertEqual(beside, [], name)
        self.assertTrue(all(len(begun[n][1]) == 1 for n in ("n1", "n2")))
        self.assertLess(end, simulated(units, 2, 500)[2])
        log, not_run, _ = simulated(units, 1, 500, part=2)
        self.assertEqual((log, not_run[0].detail), ([], "this machine has 1 GPUs, no part of 2"))

    def test_without_gpus_nothing_starts(self) -> None:
        log, not_run, _ = simulated([wide("a", 1)], 0, 100)
        self.assertEqual((log, [r.detail for r in not_run]), ([], ["this machine has no GPU"]))

    def test_the_programs_of_one_gpu_exist_and_ask_for_no_second(self) -> None:
        for name in gpu_tests.ONE_GPU:
            source = next((ROOT / "tests" / "gpu").glob(name.removeprefix("gpu_") + "_test.c*"))
            self.assertNotRegex(source.read_text(), r"OVERLACE_NEED_GPUS\((?!1\))|gpu_count\(\)(?! > 1\) GTEST_SKIP)")

    def test_every_test_of_the_tree_is_expected(self) -> None:
        names = gpu_tests.expected_names(ROOT)
        self.assertEqual(len(names), len(set(names)))
        files = [*(ROOT / "tests" / "gpu").glob("*_test.c*"), *(ROOT / gpu_tests.PYTEST_FOLDER).glob("test_*.py")]
        self.assertEqual(len(names), len(files))
        self.assertTrue({"gpu_soak", "gpu_ops", "torch_gpu", "torch_program"} <= set(names))
        self.assertTrue(all((ROOT / gpu_tests.pytest_file(n)).is_file() for n in names if gpu_tests.is_python(n)))


GTEST_XML = """<?xml version="1.0"?><testsuites><testsuite name="S">
<testcase name="A" status="run" classname="S" /><testcase name="B" status="run" classname="S"><skipped
message="x.cc:3&#x0A;wants 4 GPUs, found 2" /></testcase>{}</testsuite></testsuites>"""
FAILED_CASE = '<testcase name="C" classname="S"><failure message="x.cc:9&#x0A;got 1, want 2" /></testcase>'
CUT = """[ RUN      ] S.A
[       OK ] S.A (12 ms)
[ RUN      ] S/P.B/0
[  SKIPPED ] S/P.B/0 (0 ms)
[ RUN      ] S.C
[  FAILED  ] S.C (3 ms)
[ RUN      ] S/P.D/3
waiting
"""
PYTEST_CUT = """tests/python/torch_gpu/test_gpu.py::test_a[2-x] PASSED  [ 10%]
tests/python/torch_gpu/test_gpu.py::test_b SKIPPED (one GPU) [ 20%]
tests/python/torch_gpu/test_gpu.py::test_c FAILED [ 30%]
"""


class Counts(TreeTest):
    def row(self, done: runner.Done, xml: str | None = None, is_cut: bool = False, name: str = "gpu_x") -> Row:
        if xml is not None:
            self.write("x.xml", xml)
        return gpu_check.row_of(Unit(name), done, self.root / "x.xml", is_cut)

    def test_a_report(self) -> None:
        row = self.row(runner.Done(0, "", 2.5), GTEST_XML.format(""))
        self.assertEqual((row.outcome, row.passed, row.failed, row.skipped, row.seconds), (PASSED, 1, 0, 1, 2.5))
        self.assertEqual(row.reasons, {"wants 4 GPUs, found 2": 1})

    def test_a_report_of_pytest(self) -> None:
        xml = '<testsuites><testsuite><testcase classname="t" name="a"/><testcase classname="t" name="b"><skipped'
        row = self.row(runner.Done(0, "", 1), xml + ' message="one GPU"/></testcase></testsuite></testsuites>')
        self.assertEqual((row.passed, row.reasons), (1, {"one GPU": 1}))

    def test_failures_are_named(self) -> None:
        row = self.row(runner.Done(1, "", 1), GTEST_XML.format(FAILED_CASE))
        self.assertEqual((row.outcome, row.passed, row.failed), (FAILED, 1, 1))
        self.assertEqual(row.failures, ["S.C: got 1, want 2"])

    def test_what_ranks_said_stands_with_their_case(self) -> None:
        before = "[ RUN      ] S.B\nof another\n[  SKIPPED ] S.B (0 ms)\n"
        said = "[ RUN      ] S.C\nnet.cc:7: Failure\n  rank 0: late\n[  FAILED  ] S.C (3 ms)\nbehind it\n"
        row = self.row(runner.Done(1, before + said, 1), GTEST_XML.format(FAILED_CASE))
        self.assertEqual(row.failures, ["S.C: got 1, want 2 | net.cc:7: Failure rank 0: late"])

    def test_a_program_that_dies_has_failed(self) -> None:
        self.assertEqual(self.row(runner.Done(-11, "", 1), GTEST_XML.format("")).failed, 1)
        row = gpu_check.row_of(Unit("gpu_x"), runner.Done(-6, "boom", 1), self.root / "none.xml", False)
        self.assertEqual((row.outcome, row.failed), (FAILED, 1))
        self.assertIn("boom", row.failures[0])

    def test_all_skipped_is_neither_passed_nor_whole(self) -> None:
        xml = '<testsuite><testcase classname="t" name="a"><skipped message="no GPU"/></testcase></testsuite>'
        row = self.row(runner.Done(5, "", 1), xml, name="torch_gpu")
        self.assertEqual((row.outcome, row.failed), (SKIPPED, 0))
        self.assertFalse(gpu_tests.whole([Row("a", PASSED, passed=1), row]))
        self.assertEqual(gpu_tests.exit_code([Row("a", PASSED, passed=1), row]), 2)

    def test_no_case_at_all_has_failed(self) -> None:
        self.assertEqual(self.row(runner.Done(0, "", 1), "<testsuites/>").outcome, FAILED)

    def test_its_own_timeout_is_a_failure(self) -> None:
        row = self.row(runner.Done(-9, CUT, 600, timed_out=True))
        self.assertEqual((row.outcome, row.passed, row.failed, row.skipped), (FAILED, 1, 2, 1))
        self.assertEqual(row.failures, ["S.C", "stopped after 600 s in S/P.D/3"])

    def test_the_end_of_the_minutes_is_not_a_failure(self) -> None:
        row = self.row(runner.Done(-9, CUT.replace("FAILED  ", "      OK"), 30, timed_out=True), is_cut=True)
        self.assertEqual((row.outcome, row.passed, row.failed), (NOT_RUN, 2, 0))
        self.assertEqual(row.detail, "stopped after 30 s in S/P.D/3, the minutes were over; it never ended")
        failed = self.row(runner.Done(-9, PYTEST_CUT, 30, timed_out=True), is_cut=True, name="torch_gpu")
        self.assertEqual((failed.passed, failed.failed, failed.skipped), (1, 1, 1))
        self.assertEqual(gpu_tests.exit_code([failed]), 1)


ROWS = [
    Row("gpu_a", PASSED, 3, 0, 1, 2.0, reasons={"wants 4 GPUs": 1}),
    Row("gpu_long", FAILED, 7, 1, 0, 90.0, failures=["S.C: got 1"]),
    Row("gpu_late", NOT_RUN, detail="3 s were left, it took 40 s last time"),
]
ABOUT = {"commit": "abc", "date": "d", "command": "c", "machine": {"gpus": "2 x GPU", "driver": "1"}, "minutes": 9}


class TableAndRecord(unittest.TestCase):
    def test_table(self) -> None:
        self.assertEqual(
            gpu_tests.table(ROWS).splitlines(),
            [
                "name      passed  failed  skipped  seconds",
                "gpu_long       7       1        0     90.0",
                "gpu_a          3       0        1      2.0",
                "gpu_late       0       0        0      0.0  not run: 3 s were left, it took 40 s last time",
                "all           10       1        1",
                "skipped: gpu_a: 1 x wants 4 GPUs",
                "failed: gpu_long: S.C: got 1",
            ],
        )

    def test_exit_code(self) -> None:
        self.assertEqual(gpu_tests.exit_code(ROWS), 1)
        self.assertEqual(gpu_tests.exit_code([ROWS[0], ROWS[2]]), 2)
        self.assertEqual(gpu_tests.exit_code(ROWS[:1]), 0)
        self.assertEqual(gpu_tests.exit_code([]), 2)

    def test_a_partial_run_keeps_the_summary_of_the_whole_one_and_the_durations(self) -> None:
        first = [Row("gpu_a", PASSED, 3, seconds=2), Row("gpu_late", PASSED, 1, seconds=40)]
        old = gpu_tests.record(first, ABOUT, None)
        self.assertTrue(old["last"]["whole"])
        self.assertEqual((old["last_whole"]["commit"], old["last_whole"]["passed"]), ("abc", 4))
        new = gpu_tests.record(ROWS, {**ABOUT, "commit": "def"}, old)
        self.assertEqual((new["last"]["commit"], new["last"]["whole"], new["last"]["not_run"]), ("def", False, 1))
        self.assertEqual(new["last_whole"], old["last_whole"])
        self.assertEqual(gpu_tests.known_seconds(new), {"gpu_a": 2.0, "gpu_late": 40.0, "gpu_long": 90.0})
        self.assertEqual(gpu_tests.known_seconds(None), {})

    def test_what_was_skipped_whole_has_no_length_and_is_run_again(self) -> None:
        rows = [Row("gpu_a", SKIPPED, skipped=3, seconds=0.1), Row("gpu_b", PASSED, 1, seconds=4)]
        new = gpu_tests.record(rows, ABOUT, None)
        self.assertEqual(gpu_tests.known_seconds(new), {"gpu_b": 4.0})
        self.assertEqual([r.name for r in gpu_tests.carried(new, "abc", ABOUT["machine"])], ["gpu_b"])

    def test_no_whole_run_is_none(self) -> None:
        self.assertIsNone(gpu_tests.record(ROWS, ABOUT, None)["last_whole"])


FAKE_SMI = """#!/bin/sh
echo "0, GPU-aa, Fake H1, 1.2.3"
echo "1, GPU-bb, Fake H1, 1.2.3"
"""
FAKE = """#!/bin/sh
{before}
report="${{1#--gtest_output=xml:}}"
echo "$CUDA_VISIBLE_DEVICES" > "$report.seen"
cat > "$report" <<'X'
{xml}
X
case "$*" in *gtest_filter*) cat > "$report" <<'X'
{again}
X
exit {again_rc};; esac
exit {rc}
"""


class Run(TreeTest):
    """The tool itself in a tree without .git, with programs that are scripts and an nvidia-smi that is one, too."""

    def setUp(self) -> None:
        super().setUp()
        for path in ("gpu_check.py", "gpu_pack.py", "gpu_tests.py", "ci/results.py", "ci/runner.py"):
            (self.root / "tools" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "tools" / path, self.root / "tools" / path)
        (self.root / "docs" / "results").mkdir(parents=True)
        self.program("bin/nvidia-smi", FAKE_SMI)

    def program(self, path: str, text: str) -> None:
        self.write(path, text)
        (self.root / path).chmod(0o755)

    def fake(self, name: str, xml: str, rc: int = 0, before: str = "", again: str | None = None) -> None:
        """`again`: what it reports with a filter, and then ends with 0; else the same as without."""
        self.write(f"tests/gpu/{name}_test.cc", "")
        repeated = (xml, rc) if again is None else (again, 0)
        text = FAKE.format(xml=xml, rc=rc, before=before, again=repeated[0], again_rc=repeated[1])
        self.program(f"carried/gpu_{name}", text)

    def test_what_fails_beside_others_and_passes_alone_is_told(self) -> None:
        passed = '<testsuites><testsuite><testcase name="C" status="run" classname="S"/></testsuite></testsuites>'
        self.fake("ops", GTEST_XML.format(FAILED_CASE), rc=1, again=passed)
        self.fake("soak", GTEST_XML.format(""))
        done = self.check("--git", "abc123")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("gpu_ops: failed beside others in", done.stdout)
        (row,) = [p for p in self.recorded()["last"]["programs"] if p["name"] == "gpu_ops"]
        self.assertEqual((row["outcome"], row["passed"], row["failed"], row["skipped"]), (PASSED, 2, 0, 1))
        self.assertIn("1 failed beside others and passed alone: S.C: got 1, want 2", row["detail"])

    def check(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.call("--binaries", str(self.root / "carried"), *arguments)

    def call(self, *arguments: str) -> subprocess.CompletedProcess:
        env = {**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        words = [sys.executable, str(self.root / "tools/gpu_check.py")]
        return subprocess.run([*words, *arguments], env=env, capture_output=True, text=True, check=False, timeout=60)

    def recorded(self) -> dict:
        return json.loads((self.root / "docs/results/gpu_tests.json").read_text())

    def test_a_clean_run(self) -> None:
        self.fake("ops", GTEST_XML.format(""))
        self.fake("co_residency", GTEST_XML.format(""))
        done = self.check("--git", "abc123")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        run = self.recorded()
        self.assertEqual(run["last_whole"]["commit"], "abc123")
        self.assertEqual(run["last"]["machine"], {"gpus": "2 x Fake H1", "driver": "1.2.3"})
        self.assertEqual(run["last"]["command"], "tools/gpu_check.py --binaries carried --git abc123")
        self.assertEqual((run["last"]["passed"], run["last"]["skipped"]), (2, 2))
        seen = {n: (self.root / f"build/gpu_check/gpu_{n}.xml.seen").read_text() for n in ("ops", "co_residency")}
        self.assertEqual(seen, {"ops": "\n", "co_residency": "0\n"})

    def test_an_archive_is_run_like_the_folder_that_it_was(self) -> None:
        self.fake("ops", GTEST_XML.format(""))
        self.write("tests/gpu/net_test.cc", "")
        (self.root / "build/cuda").mkdir(parents=True)
        (self.root / "carried").rename(self.root / "build/cuda/tests")
        self.write("build/cuda/python/overlace/__init__.py", "x = 1\n")
        self.write("python/overlace/nn/linear.py", "y = 1\n")
        (self.root / "build/cuda/python/overlace/nn").symlink_to(self.root / "python/overlace/nn")
        packed = self.call("--pack", str(self.root / "gpu.tar.xz"))
        self.assertEqual((packed.returncode, packed.stderr), (2, ""))
        self.assertIn("gpu.tar.xz: 3 files", packed.stdout)
        self.assertIn("not built: gpu_net\n", packed.stdout)
        shutil.rmtree(self.root / "build/cuda")
        done = self.call("--binaries", str(self.root / "gpu.tar.xz"), "--git", "abc123")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("not run: not in binaries", done.stdout)
        run = self.recorded()["last"]
        self.assertEqual((run["passed"], run["command"]), (1, "tools/gpu_check.py --binaries gpu.tar.xz --git abc123"))
        self.assertEqual(run["package"], "build")
        for name in ("__init__.py", "nn/linear.py"):
            self.assertTrue((self.root / "build/gpu_check/binaries/python/overlace" / name).exists(), name)

    def test_a_package_from_a_wheel_is_named(self) -> None:
        self.fake("ops", GTEST_XML.format(""))
        (self.root / "build/cuda").mkdir(parents=True)
        (self.root / "carried").rename(self.root / "build/cuda/tests")
        self.write("installed/overlace/lib/liboverlace.so.0.1.0", "")
        self.write("installed/overlace-0.1.0.dist-info/WHEEL", "")
        packed = self.call("--pack", str(self.root / "gpu.tar.xz"), "--packages", str(self.root / "installed"))
        self.assertEqual((packed.returncode, packed.stdout.count("not built")), (0, 0), packed.stdout + packed.stderr)
        done = self.call("--binaries", str(self.root / "gpu.tar.xz"), "--git", "abc123")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.recorded()["last"]["package"], "wheel overlace-0.1.0")

    def test_an_archive_stays_in_its_folder(self) -> None:
        with tarfile.open(self.root / "bad.tar", "w") as archive:
            archive.add(self.root / "bin/nvidia-smi", arcname="../outside")
        done = self.call("--binaries", str(self.root / "bad.tar"), "--git", "abc123")
        self.assertIn("bad.tar holds ../outside; wanted plain files below it", done.stderr)

    def test_a_failure_and_a_program_that_was_not_carried(self) -> None:
        self.fake("ops", GTEST_XML.format(FAILED_CASE), rc=1)
        self.write("tests/gpu/net_test.cc", "")
        done = self.check("--git", "abc123")
        self.assertEqual(done.returncode, 1)
        self.assertIn("failed: gpu_ops: S.C: got 1, want 2", done.stdout)
        self.assertIn("not run: not in carried", done.stdout)
        self.assertIsNone(self.recorded()["last_whole"])

    def test_the_minutes_end_a_unit_and_say_so(self) -> None:
        self.fake("soak", GTEST_XML.format(""), before="echo '[ RUN      ] S.A'; sleep 50")
        self.fake("ops", GTEST_XML.format(""))
        self.write(
            "docs/results/gpu_tests.json", json.dumps({"last": {"programs": [{"name": "gpu_ops", "known_s": 60}]}})
        )
        done = self.check("--git", "abc123", "--minutes", "0.3")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("in S.A, the minutes were over", done.stdout)
        self.assertIn("it took 60 s last time", done.stdout)

    def test_what_did_not_fit_is_run_by_the_next_command(self) -> None:
        self.fake("ops", GTEST_XML.format(""))
        self.fake("soak", GTEST_XML.format(FAILED_CASE), rc=1)
        (self.root / "carried/gpu_soak").rename(self.root / "later")
        self.assertEqual(self.check("--git", "abc123").returncode, 2)
        (self.root / "later").rename(self.root / "carried/gpu_soak")
        (self.root / "carried/gpu_ops").unlink()  # is not run again
        done = self.check("--git", "abc123", "--continue")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        run = self.recorded()
        self.assertEqual((run["last_whole"]["passed"], run["last_whole"]["failed"]), (2, 1))
        self.assertEqual(run["last"]["minutes"], 18)
        self.assertEqual(run["last"]["command"].count("tools/gpu_check.py"), 2)

    def test_another_commit_or_machine_is_not_continued(self) -> None:
        self.fake("ops", GTEST_XML.format(""))
        for words in (("--continue", "--git", "abc123"), ("--git", "abc123")):
            done = self.check(*words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("is of commit abc123, this run of def456", self.check("--git", "def456", "--continue").stderr)
        self.program("bin/nvidia-smi", FAKE_SMI.replace("Fake H1", "Fake H2"))
        self.assertIn("is of machine", self.check("--git", "abc123", "--continue").stderr)
        with self.assertRaisesRegex(ValueError, "files differ from commit abc"):
            gpu_tests.carried({"last": {"commit": "abc+", "machine": {}, "programs": []}}, "abc+", {})
        with self.assertRaisesRegex(ValueError, "no record to continue"):
            gpu_tests.carried(None, "abc", {})

    def test_without_git_the_commit_must_be_named(self) -> None:
        self.fake("ops", GTEST_XML.format(""))
        done = self.check()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("name the commit with --git", done.stderr)

    def test_without_gpus_the_record_stays(self) -> None:
        self.fake("ops", GTEST_XML.format(""))
        self.program("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        done = self.check("--git", "abc123")
        self.assertEqual(done.returncode, 2)
        self.assertIn("this machine has no GPU", done.stdout)
        self.assertFalse((self.root / "docs/results/gpu_tests.json").exists())

    def test_pytest_that_is_not_there_is_not_run(self) -> None:
        self.fake("ops", GTEST_XML.format(""))
        self.write("tests/python/torch_gpu/test_gpu.py", "")
        self.write("carried/python/overlace/__init__.py", "")  # a build that never made the library
        done = self.check("--git", "abc123")
        self.assertEqual(done.returncode, 2)
        self.assertIn("torch_gpu       0       0        0      0.0  not run: python holds no package", done.stdout)


class GitTest(TreeTest):
    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.root), "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, path: str, text: str = "x") -> str:
        self.write(path, text)
        self.git("add", "-A")
        self.git("commit", "-qm", path)
        return self.git("rev-parse", "--short=12", "HEAD")


class Commit(GitTest):
    def test_is_head_and_says_if_files_differ(self) -> None:
        self.git("init", "-q")
        self.commit(gpu_tests.RECORD, "{}")
        head = self.commit("src/a.cc")
        self.assertEqual(gpu_check.commit_of(self.root, ""), head)
        self.write(gpu_tests.RECORD, "{1}")  # which the run itself writes
        self.write("new.txt", "x")
        self.assertEqual(gpu_check.commit_of(self.root, ""), head)
        self.write("src/a.cc", "y")
        self.assertEqual(gpu_check.commit_of(self.root, ""), head + "+")
        self.assertEqual(gpu_check.commit_of(self.root, "given"), "given")


class Status(GitTest):
    def record(self, commit: str) -> None:
        whole = {"commit": commit, "date": "2026-01-02", "machine": {"gpus": "2 x GPU"}, "passed": 9, "failed": 0}
        self.write(gpu_tests.RECORD, json.dumps({"last_whole": {**whole, "skipped": 4}}))

    def test_counts_commits_that_touch_gpu_code(self) -> None:
        self.git("init", "-q")
        first = self.commit("README.md")
        self.assertEqual(gpu_status.sentence(self.root), "no whole run of the GPU tests is recorded yet.")
        self.record(first)
        self.assertIn("9 passed, 0 failed, 4 skipped; 0 commits that touch GPU code", gpu_status.sentence(self.root))
        self.commit("docs/a.md")
        self.commit("src/plan/choose.cc")
        self.commit("src/exec/cuda/executor.cc")
        self.assertIn("; 1 commit that touches GPU code came since", gpu_status.sentence(self.root))
        last = self.commit("src/x/y.cuh")
        self.commit("tests/gpu/ops_test.cc")
        self.assertIn("; 3 commits that touch GPU code came since", gpu_status.sentence(self.root))
        self.assertEqual(gpu_status.commits_since(self.root, first, last), 2)

    def test_a_commit_that_is_not_in_this_history(self) -> None:
        self.git("init", "-q")
        self.commit("README.md")
        self.record("0123456789ab")
        self.assertIn("an unknown number of commits", gpu_status.sentence(self.root))

    def test_without_git(self) -> None:
        self.record("0123456789ab")
        self.assertIn("an unknown number of commits", gpu_status.sentence(self.root))


if __name__ == "__main__":
    unittest.main()
