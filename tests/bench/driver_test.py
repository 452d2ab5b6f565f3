"""What the driver makes of records: derived values, comparison, agreement, the table and the page."""

import contextlib
import io
import json
import math
import os
import re
import runpy
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from support import ROOT, FolderTest, bench, case, record

import compare
import draws
import moe_cases
import page
import programs
import protocol
import records
import schema
import table

TIMES = {"compute": 500.0, "comm": 300.0, "library": 900.0, "serial": 880.0, "limit": 520.0, "auto": 560.0}
DAYS = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z")


def scaled(run: str, **factors: float) -> list[dict]:
    return case(run, **{name: us * factors.get(name, 1.0) for name, us in TIMES.items()})


class DerivedTest(unittest.TestCase):
    def test_quantities(self) -> None:
        (group,) = records.groups(case(**TIMES))
        b = records.bounds_of(group)
        self.assertEqual((b.serial, b.limit, b.regime), (880.0, 520.0, False))
        d = records.derive(group.rows["auto"], b)
        self.assertAlmostEqual(d.rho, 560 / 520)
        self.assertAlmostEqual(d.hidden, 320 / 300)
        self.assertAlmostEqual(d.efficiency, 320 / 360)
        self.assertAlmostEqual(d.exposed, 60)
        self.assertAlmostEqual(d.tflops, 2 * 8192 * 2560 * 8192 / 560e-6 / 1e12)

    def test_serial_and_limit_are_the_least_attained(self) -> None:
        b = records.bounds({"compute": 90, "library": 200, "serial": 210, "limit": 205})
        self.assertEqual((b.serial, b.limit), (200, 200))

    def test_a_limit_below_the_gemm_alone_is_the_gemm(self) -> None:
        b = records.bounds({"compute": 100, "library": 200, "limit": 90})
        self.assertTrue(b.regime)
        self.assertEqual(b.limit, 100)
        self.assertFalse(records.bounds({"compute": 100, "library": 200, "limit": 99}).regime)

    def test_little_room_gives_no_efficiency(self) -> None:
        (group,) = records.groups(case(compute=95.0, library=100.0, limit=97.0, auto=98.0))
        self.assertTrue(math.isnan(records.derive(group.rows["auto"], records.bounds_of(group)).efficiency))

    def test_without_a_limit_there_is_no_rho(self) -> None:
        (group,) = records.groups(case(library=100.0, auto=90.0))
        d = records.derive(group.rows["auto"], records.bounds_of(group))
        self.assertTrue(math.isnan(d.rho))
        self.assertAlmostEqual(d.gain, 100 / 90)

    def test_ratios_by_repetition_cancel_drift(self) -> None:
        a, b = record("auto", [100.0, 200.0, 300.0]), record("library", [110.0, 220.0, 330.0])
        self.assertEqual([round(x, 6) for x in records.ratio(b, a)], [1.1, 1.1, 1.1])

    def test_newest_run_of_a_competitor_counts(self) -> None:
        rows = [record("auto", [5.0], DAYS[1]), record("auto", [7.0], DAYS[0])]
        self.assertEqual(records.groups(rows)[0].us("auto"), 5.0)


class CompareTest(unittest.TestCase):
    def test_four_percent_slower_twice_is_named(self) -> None:
        new = scaled(DAYS[1], auto=1.04) + scaled(DAYS[2], auto=1.045)
        lines, slower = compare.regressions(scaled(DAYS[0]), new)
        self.assertTrue(slower)
        self.assertRegex("\n".join(lines), r"slower +ag_gemm .*auto: \+4\.0 %")

    def test_four_percent_slower_once_is_no_verdict(self) -> None:
        lines, slower = compare.regressions(scaled(DAYS[0]), scaled(DAYS[1], auto=1.04))
        self.assertFalse(slower)
        self.assertIn("one run gives no verdict", lines[-1])
        lines, slower = compare.regressions(scaled(DAYS[0]), scaled(DAYS[1], auto=1.04) + scaled(DAYS[2]))
        self.assertFalse(slower)

    def test_one_percent_is_noise(self) -> None:
        new = scaled(DAYS[1], auto=1.01) + scaled(DAYS[2], auto=1.01)
        lines, slower = compare.regressions(scaled(DAYS[0]), new)
        self.assertFalse(slower)
        self.assertEqual(len(lines), 1)

    def test_short_calls_and_wide_spreads_have_wider_bands(self) -> None:
        short = {name: us / 10 for name, us in TIMES.items()}
        new = [r for day in DAYS[1:] for r in case(day, **{**short, "auto": short["auto"] * 1.05})]
        self.assertFalse(compare.regressions(case(DAYS[0], **short), new)[1])
        wide = [record(n, [0.9 * t, t, 1.1 * t], day) for day in DAYS[1:] for n, t in {**TIMES, "auto": 588.0}.items()]
        self.assertFalse(compare.regressions(scaled(DAYS[0]), wide)[1])

    def test_a_faster_machine_is_not_a_faster_operator(self) -> None:
        everything = dict.fromkeys(TIMES, 0.9)
        lines, slower = compare.regressions(scaled(DAYS[0]), scaled(DAYS[1], **everything))
        self.assertFalse(slower)
        self.assertIn("machine differs", lines[0])

    def test_another_machine_is_not_compared(self) -> None:
        other = [{**r, "machine": {"name": "8 x GPU"}} for r in scaled(DAYS[1], auto=2)]
        self.assertIn("nothing to compare", compare.regressions(scaled(DAYS[0]), other)[0][0])
        self.assertFalse(compare.agreement(scaled(DAYS[0]), other)[1])

    def test_two_runs_agree_within_two_percent(self) -> None:
        self.assertTrue(compare.agreement(scaled(DAYS[0]), scaled(DAYS[1], limit=1.01))[1])
        lines, good = compare.agreement(scaled(DAYS[0]), scaled(DAYS[1], limit=1.04))
        self.assertFalse(good)
        self.assertIn("DIFFER", lines[0])

    def test_a_against_a(self) -> None:
        self.assertTrue(compare.same_twice(case(**{"auto": 500.0, "auto@2": 503.0}))[1])
        self.assertFalse(compare.same_twice(case(**{"auto": 500.0, "auto@2": 510.0}))[1])
        self.assertTrue(compare.same_twice(case(**{"auto": 50.0, "auto@2": 51.0}))[1])
        self.assertFalse(compare.same_twice(case(auto=500.0))[1])

    def test_against_earlier_records(self) -> None:
        old = scaled(DAYS[0])
        lines, good = compare.against(old, scaled(DAYS[1], auto=1.009, library=1.3, limit=2.0), 1.01)
        self.assertTrue(good)
        self.assertEqual([line.split()[:2] for line in lines[:-1]],
                         [["-", "1.3000"], ["ok", "1.0000"], ["ok", "1.0090"]])  # fmt: skip
        self.assertRegex(
            lines[-1],
            r"2 ratios: geometric mean 1\.0045, worst 1\.0090 \(ag_gemm  70B qkv .*  auto\), wanted at most 1\.01",
        )
        lines, good = compare.against(old, scaled(DAYS[1], auto=1.011), 1.01)
        self.assertFalse(good)
        self.assertRegex(lines[2], r"ABOVE 1\.0110  ag_gemm  70B qkv .*  auto: 566\.16 us, was 560\.00")
        self.assertTrue(compare.against(old, scaled(DAYS[1], auto=1.011), 1.02)[1])

    def test_against_takes_the_median_of_runs(self) -> None:
        new = [row for day, factor in zip(DAYS, (1.0, 1.5, 1.002), strict=True) for row in scaled(day, auto=factor)]
        self.assertTrue(compare.against(scaled(DAYS[0]), new, 1.01)[1])

    def test_against_nothing_is_not_good(self) -> None:
        other = [{**r, "machine": {"name": "8 x GPU"}} for r in scaled(DAYS[1])]
        self.assertEqual(compare.against(scaled(DAYS[0]), other, 1.01)[1], False)
        lines, good = compare.against(scaled(DAYS[0]) + other, scaled(DAYS[1]), 1.01)
        self.assertTrue(good)
        self.assertIn("1 of 2 cases were not measured again", lines[-2])
        only = [r for r in scaled(DAYS[1]) if r["competitor"] == "library"]
        self.assertIn("nothing to compare", compare.against(scaled(DAYS[0]), only, 1.01)[0][-1])


class StatusTest(unittest.TestCase):
    def test_a_record_older_than_its_sources_is_stale(self) -> None:
        def changed(commit: str) -> list[str]:
            if commit == "lost":
                raise LookupError("lost is not a commit of this checkout")
            return ["src/exec/run.cc"] if commit == "old" else []

        rows = [record("auto", [1.0], DAYS[0], git="old"), record("auto", [1.0], DAYS[1], git="new")]
        self.assertEqual(compare.stale("a", rows[:1], changed), ["stale    a  ag_gemm: 1 sources differ from old"])
        self.assertEqual(compare.stale("a", rows, changed), ["current  a  ag_gemm: new"])
        lost = [record("auto", [1.0], git="lost")]
        self.assertEqual(
            compare.stale("a", lost, changed), ["unknown  a  ag_gemm: lost is not a commit of this checkout"]
        )

    def test_committed_records_are_listed(self) -> None:
        done = bench("--status")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ag_gemm.jsonl", done.stdout)


class CompareCommandTest(FolderTest):
    def test_status_says_what_a_comparison_found(self) -> None:
        def write(name: str, rows: list[dict]) -> str:
            path = self.folder / name
            path.write_text("".join(schema.with_id(r) + "\n" for r in rows))
            return str(path)

        old = write("old", scaled(DAYS[0]))
        same = write("same", scaled(DAYS[1]) + scaled(DAYS[2]))
        slow = write("slow", scaled(DAYS[1], auto=1.05) + scaled(DAYS[2], auto=1.05))
        html = str(self.folder / "page.html")
        self.assertEqual(bench("--from", same, "--compare", old, "--agree", old, "--html", html).returncode, 0)
        self.assertIn("70B qkv", (self.folder / "page.html").read_text())
        done = bench("--from", slow, "--compare", old)
        self.assertEqual(done.returncode, 1)
        self.assertIn("slower", done.stdout)
        self.assertEqual(bench("--from", str(self.folder / "none")).returncode, 2)
        self.assertEqual(bench("--from", same, "--against", old).returncode, 0)
        done = bench("--from", slow, "--against", old)
        self.assertEqual(done.returncode, 1)
        self.assertIn("NOT OK", done.stdout)
        self.assertEqual(bench("--from", slow, "--against", old, "--worst", "1.06").returncode, 0)
        for words, why in ((["--worst", "1.1"], "--worst is 1.1 without --against, wanted both"),
                           (["--against", old, "--worst", "0"], "--worst is 0, wanted a ratio above 0")):  # fmt: skip
            done = bench("--from", same, *words)
            self.assertEqual((done.returncode, why in done.stderr), (2, True), done.stderr)


class TwinTest(unittest.TestCase):
    """The values of tests/unit/bench/protocol_test.cc."""

    def test_normal_values(self) -> None:
        got = [protocol.normal(1, 1, 0, 0), protocol.normal(1, 1000, 5, 77, 0.5), protocol.normal(7, 3, 123456, 8191)]
        for value, want in zip(got, NORMALS, strict=True):
            self.assertAlmostEqual(value, want, 6)

    def test_burst_orders(self) -> None:
        self.assertEqual(protocol.burst_order(6, 0, 1), ORDER)
        self.assertEqual(protocol.burst_order(6, 1, 1), ORDER[::-1])
        self.assertNotEqual(protocol.burst_order(6, 2, 1), ORDER)
        for repetition in range(8):
            self.assertEqual(sorted(protocol.burst_order(5, repetition, 9)), [0, 1, 2, 3, 4])

    def test_interleaved_bursts(self) -> None:
        names = ["a", "b", "c"]
        seen = list(protocol.interleaved(names, 4, 9))
        self.assertEqual(seen, [(r, names[i]) for r in range(4) for i in protocol.burst_order(3, r, 9)])
        self.assertEqual(list(protocol.interleaved([], 4, 9)), [])

    def test_calls_fill_a_burst_within_bounds(self) -> None:
        for call_us, calls in ((300, 3), (3000, 2), (1, 100), (0, 100)):
            self.assertEqual(protocol.burst_calls(1000, call_us, 2, 100), calls)

    def test_a_clock_settles_within_three_turns(self) -> None:
        for mhz, settled in (([1500, 1500], False), ([1000, 1980, 1975, 1970], True), ([1980, 1960, 1980], False)):
            self.assertEqual(protocol.is_settled(mhz), settled, mhz)

    def test_percentiles(self) -> None:
        self.assertEqual(protocol.median([3.0, 1.0, 2.0, 10.0]), 2.5)
        self.assertAlmostEqual(protocol.percentile([0.0, 10.0], 90), 9.0)

    def test_entropy(self) -> None:
        few, many = [1, 2, 3, 4] * 512, list(range(2048))
        self.assertIn("2.0 bits", protocol.low_entropy(few, many))
        self.assertIn("from one to the next", protocol.low_entropy(many, few))
        self.assertEqual(protocol.low_entropy(many, many), "")


NORMALS = (-0.5419128606113093, -0.0004434317315156187, -1.472313413907492)
ORDER = [3, 4, 5, 0, 1, 2]


class DrawsTest(unittest.TestCase):
    def test_shapes_depend_on_seed_and_number_alone(self) -> None:
        few, many = draws.cases("random:7:12")["random:7:12"], draws.cases("random:7:60")["random:7:60"]
        self.assertEqual(few, many[:12])
        self.assertNotEqual(few, draws.cases("random:8:12")["random:8:12"])
        self.assertEqual({row["op"] for row in few}, set(draws.OPERATORS))

    def test_shapes_cover_their_bounds_evenly_by_logarithm(self) -> None:
        rows = [draws.draw(1, number) for number in range(3000)]
        for key, (low, high), step in (("n", draws.COLUMNS, 8), ("k", draws.TERMS, 8)):
            self.assertTrue(all(low <= row[key] <= high and row[key] % step == 0 for row in rows))
        ms = [row["m"][0] for row in rows]
        self.assertTrue(all(draws.ROWS[0] <= m <= draws.ROWS[1] for m in ms))
        self.assertGreater(sum(m % 2 for m in ms), 1200)  # no multiple of anything
        middle = math.sqrt(draws.ROWS[0] * draws.ROWS[1])
        self.assertTrue(0.45 < sum(m < middle for m in ms) / len(ms) < 0.65)  # the largest products are left out
        self.assertTrue(all(m * row["n"] * row["k"] <= draws.MOST_PRODUCTS for m, row in zip(ms, rows, strict=True)))

    def test_layers_of_experts_are_drawn_within_their_bounds(self) -> None:
        cases = [moe_cases.draw(1, number) for number in range(2000)]
        self.assertEqual(cases[:9], [moe_cases.draw(1, number) for number in range(9)])
        self.assertNotEqual(cases[0], moe_cases.draw(2, 0))
        low, high = moe_cases.DRAWN_TOKENS
        self.assertTrue(all(low <= c.tokens <= high and 1 <= c.top_k <= min(8, c.experts) for c in cases))
        self.assertTrue(all(c.hidden % 8 == 0 and c.intermediate % 8 == 0 for c in cases))
        self.assertTrue(all(2 <= c.experts <= 256 for c in cases))
        self.assertGreater(sum(c.experts % 2 for c in cases), 800)  # which two ranks do not divide
        self.assertEqual({c.top_k for c in cases}, set(range(1, 9)))
        products = [c.tokens * c.top_k * c.hidden * c.intermediate for c in cases]
        self.assertTrue(all(p <= 2**40 for p in products))
        self.assertTrue(all(3 * c.experts * c.hidden * c.intermediate <= 2**32 for c in cases))
        self.assertEqual([c.routing for c in cases[:4]], ["uniform", "zipf"] * 2)

    def test_other_names_are_no_draws(self) -> None:
        for name in ("random", "random:1", "random:1:0", "random:x:3", "canonical"):
            self.assertIsNone(draws.read(name))
            with self.assertRaisesRegex(ValueError, "wanted random:SEED:COUNT"):
                draws.cases(name)


class StepsTest(unittest.TestCase):
    """What would be started on a machine with GPUs."""

    def plan(self, *workloads: str, **changes: object) -> programs.Plan:
        plan = programs.Plan(list(workloads), Path("/x/overlace"), Path("/x"), gpus=4, **changes)
        self.enterContext(unittest.mock.patch.object(programs.Plan, "program", lambda _, name: f"/x/{name}"))
        self.enterContext(unittest.mock.patch.object(programs, "gpu_names", lambda: ["GPU"] * 4))
        return plan

    def test_operators_run_on_all_gpus(self) -> None:
        (step,) = programs.steps(self.plan("ag_gemm", "gemm_rs", set="canonical", graph=True))
        text = " ".join(step.command)
        self.assertIn("/x/overlace run -n 4 -- /x/bench_dense", text)
        self.assertIn("--ops ag_gemm,gemm_rs", text)
        self.assertIn("--backend cuda_peer", text)
        self.assertIn("--launch graph", text)
        self.assertNotIn("--link", text)

    def test_drawn_shapes_are_a_file_of_cases_for_all_programs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            names = ("candidates", "torch_library")
            plan = self.plan("gemm_ar", set="random:7:5", competitors=names, out=Path(folder) / "r.jsonl", heap_gib=40)
            own, foreign = programs.steps(plan)
            for step in (own, foreign):
                cases = Path(step.command[step.command.index("--cases") + 1])
                self.assertEqual(json.loads(cases.read_text()), draws.cases("random:7:5"))
                self.assertEqual(step.command[step.command.index("--set") + 1], "random:7:5")
            self.assertIn("--heap-gib 40", " ".join(own.command))

    def test_torch_runs_in_a_process_of_its_own_with_its_variables(self) -> None:
        own, foreign = programs.steps(self.plan("gemm_ar", competitors=("library", "torch_one_shot")))
        self.assertIn("--competitors library ", " ".join(own.command))
        self.assertIn("--competitors torch_one_shot ", " ".join(foreign.command))
        self.assertIn("torch_competitors.py", " ".join(foreign.command))
        self.assertEqual(foreign.env["MASTER_ADDR"], "127.0.0.1")
        self.assertGreater(int(foreign.env["MASTER_PORT"]), 1023)

    def test_torch_has_no_competitor_of_the_gradient_of_a_weight(self) -> None:
        own, foreign = programs.steps(self.plan("ag_wgrad", "ag_gemm", competitors=("library", "torch_library")))
        self.assertIn("--ops ag_wgrad,ag_gemm", " ".join(own.command))
        self.assertIn("--ops ag_gemm ", " ".join(foreign.command))
        (own,) = programs.steps(self.plan("ag_wgrad", competitors=("library", "torch_library")))
        self.assertIn("/x/bench_dense", own.command)

    def test_layers_of_experts_are_ranks_of_torch(self) -> None:
        (step,) = programs.steps(self.plan("moe", set="random:3:2", filter="draw", python="py", verify_only=True))
        text = " ".join(step.command)
        self.assertRegex(
            text, "/x/overlace run -n 4 -- py .*/bench/torch_moe.py --seed 1 --set random:3:2 --filter draw"
        )
        self.assertIn("--verify-only", step.command)
        self.assertNotIn("--competitors", step.command)  # those that are default are the dense operators'
        self.assertEqual(step.env["MASTER_ADDR"], "127.0.0.1")
        (step,) = programs.steps(self.plan("moe", competitors=("overlace", "torch"), settle_s=0))
        self.assertIn("--competitors overlace,torch --settle-s 0", " ".join(step.command))

    def test_a_link_asks_for_cpu_ranks(self) -> None:
        (step,) = programs.steps(self.plan("ag_gemm", link="2GB/s,20us"))
        self.assertIn("--backend cpu --link 2GB/s,20us", " ".join(step.command))

    def test_gpu_workloads(self) -> None:
        names = ["runtime", "gemm_core", "gather_rows", "offload", "run"]
        steps = list(programs.steps(self.plan(*names, verify_only=True)))
        self.assertEqual([s.title for s in steps], names)
        for step in steps[:4]:
            self.assertIn("--verify-only", step.command)
        self.assertNotIn("--link", steps[4].command)

    def test_a_foreign_process_on_the_gpus_refuses_the_run(self) -> None:
        with unittest.mock.patch.object(programs, "nvidia_smi", lambda *_: ["4711, python3"]):
            with self.assertRaises(programs.Refused) as caught:
                programs.refuse_foreign_processes()
            self.assertEqual(caught.exception.exit, 3)
            self.assertIn("4711, python3", str(caught.exception))
        with unittest.mock.patch.object(programs, "nvidia_smi", lambda *_: []):
            programs.refuse_foreign_processes()

    def test_one_run_at_a_time(self) -> None:
        with programs.machine_lock(), self.assertRaises(programs.Refused) as caught, programs.machine_lock():
            self.fail("two at once")
        self.assertEqual(caught.exception.exit, 3)

    def test_a_program_that_does_not_end_is_stopped(self) -> None:
        plan = self.plan("cpu", timeout_s=0.5)
        step = programs.Step("sleeps", [sys.executable, "-c", "print('here', flush=True); import time; time.sleep(60)"])
        lines: list[str] = []
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(programs.run(step, plan, lines.append), 4)
        self.assertIn("sleeps did not end within 0.5 s", said.getvalue())
        self.assertEqual(lines, ["here"])


class ShownTest(unittest.TestCase):
    def test_the_table_names_the_wrong_and_the_absent(self) -> None:
        rows = case(**TIMES)
        rows += [record("bad", [1.0], status="wrong", reason="off by one"), record("far", [1.0], status="absent")]
        for row in rows[-2:]:
            del row["time_us"]
        text = table.text(records.groups(rows))
        self.assertRegex(text, r"bad +WRONG  off by one")
        self.assertRegex(text, r"far +absent")
        self.assertRegex(text, r"auto +560 +554\.\.566 +1\.61 +1\.57 +1\.08")
        self.assertIn("^ limit", text)

    def layer(self, run: str = DAYS[0], **us: float) -> list[dict]:
        """A case of the mixture-of-experts layer, one competitor replayed from a graph."""
        fields = moe_cases.SETS["verify"][0].fields()
        return [
            {**row, **fields, "launch": "graph" if "graph" in row["competitor"] else "stream"}
            for row in case(run, **us)
        ]

    def test_layers_of_experts_are_ranked_beside_the_fastest_of_torch(self) -> None:
        us = {"torch": 400.0, "torch_exchanged": 500.0, "overlace": 210.0, "overlace_graph": 200.0, "compute": 160.0}
        rows = self.layer(**us)
        text = table.text(records.groups(rows))
        self.assertEqual(text.count("moe  even  48 tokens of a rank, H 64, I 40, E 8, k 2, uniform"), 1)
        self.assertRegex(text, r"overlace_graph +200 .* 2\.00 x torch\n *overlace +210 .* 1\.90 x torch")
        (section,) = [b for b in page.data(rows)["blocks"] if b.get("title", [""])[0] == "moe "]
        names = [row["name"] for row in section["parts"][0]["rows"]]
        self.assertEqual(names, ["compute", "overlace_graph", "overlace", "torch", "torch_exchanged"])

    def test_layers_of_experts_are_compared_by_their_ratio_to_torch(self) -> None:
        old = self.layer(torch=400.0, overlace=200.0)
        later = [row for day in DAYS[1:] for row in self.layer(day, torch=200.0, overlace=104.5)]
        lines, slower = compare.regressions(old, later)
        self.assertTrue(slower)
        self.assertRegex("\n".join(lines), r"slower +moe .*overlace: \+4\.5 %")
        later = [row for day in DAYS[1:] for row in self.layer(day, torch=200.0, overlace=101.0)]
        self.assertFalse(compare.regressions(old, later)[1])

    def test_without_torch_all_are_absent(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "torch.py").write_text("raise ImportError('not here')\n")
            out = Path(folder) / "r.jsonl"
            words = [str(ROOT / "bench/torch_moe.py"), "--set", "verify", "--filter", "lone", "--out", str(out)]
            env = {**os.environ, "PYTHONPATH": folder}
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(schema.check_file(out), [])
            rows = records.read(out)
        self.assertEqual([r["competitor"] for r in rows], list(moe_cases.NAMES))
        self.assertEqual({(r["status"], r["reason"]) for r in rows}, {("absent", "PyTorch is not installed")})

    def test_the_page_is_self_contained_and_escapes(self) -> None:
        rows = [*case(**TIMES), record("x</script><y>", [10.0])]
        html = page.html(rows)
        self.assertIn("x\\u003c/script\\u003e\\u003cy\\u003e", html)
        self.assertFalse(re.search(r"<script (?!type=\"application/json\")|src=|href=|url\((?!#)|http", html))
        self.assertEqual((html.count("<script"), html.count("</script>"), html.count("@DATA@")), (2, 2, 0))
        block = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
        self.assertEqual(json.loads(block[1]), page.data(rows))
        self.assertEqual(html, page.html(rows))

    def test_the_page_shows_times_and_what_is_derived(self) -> None:
        (section,) = [b for b in page.data(case(**TIMES))["blocks"] if b.get("id") == "c0"]
        rows = {row["name"][0]: row["cells"] for row in section["parts"][0]["rows"]}
        us, ratio, rho, tflops = rows["auto"][1:]
        self.assertEqual((us[0], ratio, rho, tflops), ("560", "1.61", "1.08", "614"))
        self.assertEqual(rows["compute"][2:4], ["-", "-"])
        scale = 560 / rows["auto"][0]["bars"][0]["at"]
        self.assertAlmostEqual(rows["library"][0]["bars"][0]["at"] * scale, 900, delta=0.1)
        self.assertEqual([mark["kind"] for mark in rows["auto"][0]["marks"]], ["compute", "limit"])

    def test_the_page_shows_every_dense_operator(self) -> None:
        sections = {
            operator: len(page.data([{**r, "workload": operator} for r in case(**TIMES)])["blocks"])
            for operator in records.DENSE
        }
        self.assertEqual(len(set(sections.values())), 1, sections)

    def test_emulated_is_said(self) -> None:
        rows = [{**r, "machine": {"name": "CPU", "link": "1GB/s,20us"}} for r in case(**TIMES)]
        self.assertIn("EMULATED", page.html(rows))
        self.assertIn("EMULATED", table.text(records.groups(rows)))

    def test_status_looks_at_all_device_code_of_operators(self) -> None:
        measured = runpy.run_path(str(ROOT / "bench" / "driver" / "__main__.py"), run_name="driver")["MEASURED"]
        self.assertEqual([p for p in measured if not (ROOT / p).is_dir()], [])
        kernels = [p for p in ROOT.glob("src/ops/**/*.cuh")]
        named = {n for p in kernels for n in re.findall(r'#include "((?:src|overlace)/[^"]+\.cuh)"', p.read_text())}
        paths = {n if n.startswith("src/") else f"include/{n}" for n in named}
        self.assertGreater(len(paths), 5)
        self.assertEqual([p for p in sorted(paths) if not p.startswith(tuple(f"{m}/" for m in measured))], [])


if __name__ == "__main__":
    unittest.main()
