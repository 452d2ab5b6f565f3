"""The results page follows from the records."""

import dataclasses
import json
import subprocess
import unittest

from support import ROOT, TreeTest

import baselines
import blocks
import gen_readme
import gen_results
import gpu_status
import result_records


def record(competitor: str, us: float, run: str = "1", m: int = 8192) -> dict:
    return {
        "run": run,
        "git": "abc",
        "machine": {"gpus": "4 x GPU", "driver": "1", "cuda": "13.0", "nccl": "2", "power_limit_w": 700.0},
        "case": {"name": "70B qkv", "m": m, "n": 8, "k": 8},
        "team": 4,
        "method": {"repetitions": 15},
        "competitor": competitor,
        "schedule": "hetero_unfused_1d",
        "time_us": {"median": us},
    }


class Derived(unittest.TestCase):
    def group(self, **times: float) -> dict:
        return {name: record(name, us) for name, us in times.items()}

    def test_limit_is_the_least_attained(self) -> None:
        d = gen_results.derived(self.group(compute=90, library=200, serial=180, limit=190, auto=150))
        self.assertEqual(d["limit"], 180)
        self.assertAlmostEqual(d["gain"], 200 / 150)

    def test_limit_below_the_gemm_alone_is_the_gemm(self) -> None:
        d = gen_results.derived(self.group(compute=100, library=200, serial=180, limit=90, auto=150))
        self.assertEqual(d["limit"], 100)

    def test_newest_run_counts(self) -> None:
        cases = gen_results.newest([record("auto", 5, "2"), record("auto", 7, "1")])
        self.assertEqual(gen_results.median(next(iter(cases.values())), "auto"), 5)

    def test_a_loss_is_named(self) -> None:
        slow = gen_results.derived(self.group(compute=90, library=100, serial=180, limit=95, auto=120))
        text = "\n".join(gen_results.summary([("ag_gemm", "70B qkv", 8192, slow)]))
        self.assertIn("70B qkv M 8192 (0.83)", text)


class RecordsTest(TreeTest):
    def use_own_records(self) -> None:
        self.addCleanup(setattr, result_records, "RESULTS", result_records.RESULTS)
        result_records.RESULTS = self.root / "bench" / "results"

    def write_records(self, name: str, rows: list[dict]) -> None:
        self.write(f"bench/results/{name}.jsonl", "".join(json.dumps(r) + "\n" for r in rows))


CHANGE = {
    "commit": "new1",
    "what": "library calls got cheaper",
    "schedules": ["library"],
    "void_host_share": 0.5,
    "older": ["old1"],
    "newer": ["new1"],
}


def timed(competitor: str, us: float, host_us: float | None, git: str = "old1", schedule: str = "k_slab") -> dict:
    row = {**record(competitor, us), "git": git, "schedule": schedule if competitor == "auto" else competitor}
    return row if host_us is None else {**row, "host_us": host_us}


class Baselines(RecordsTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("bench/results/baselines.json", json.dumps({"changes": [CHANGE]}))
        self.use_own_records()
        self.changes = result_records.changes()

    def test_only_what_the_change_concerns_is_older(self) -> None:
        older = [timed("library", 100, 80), timed("auto", 100, 80, schedule="library_rs")]
        others = [timed("library", 100, 80, "new1"), timed("limit", 100, 80), timed("auto", 100, 80)]
        self.assertEqual([baselines.is_older(row, self.changes) for row in older + others], [True] * 2 + [False] * 3)

    def test_void_is_where_the_host_took_its_time(self) -> None:
        rows = [timed("library", 100, us) for us in (80, 50, 49, None)] + [timed("library", 100, 80, "new1")]
        self.assertEqual([baselines.is_void(row, self.changes) for row in rows], [True, True, False, True, False])

    def test_a_void_comparison_has_no_gain_and_is_in_no_summary(self) -> None:
        rows = [timed(c, 100 + i, 10) for i, c in enumerate(("compute", "serial", "limit", "auto"))]
        self.write_records("ag_gemm", [*rows, timed("library", 300, 280)])
        lines, facts = gen_results.dense_section("ag_gemm")
        self.assertIn("| 1.02 | void | k_slab |", "\n".join(lines))
        self.assertIn("0 of 0 cases, 0 of 1 whose comparison is void", "\n".join(gen_results.summary(facts)))
        self.write_records("ag_gemm", [*rows, timed("library", 300, 20)])
        lines, _ = gen_results.dense_section("ag_gemm")
        self.assertIn("| 1.02 | 2.91 | k_slab |", "\n".join(lines))

    def test_auto_that_took_an_old_library_path_is_void(self) -> None:
        rows = [timed(c, 100 + i, 10) for i, c in enumerate(("compute", "serial", "limit"))]
        self.write_records("ag_gemm", [*rows, timed("library", 300, 20), timed("auto", 90, 80, schedule="library")])
        self.assertIn("| void | void | library |", "\n".join(gen_results.dense_section("ag_gemm")[0]))

    def test_the_page_names_commits_and_change(self) -> None:
        note = baselines.note([timed("library", 100, 80), timed("limit", 9, 1, "other")], self.changes)
        self.assertIn("at old1 are older than a change of the baseline (new1: library calls got cheaper)", note)
        self.assertEqual(baselines.note([timed("library", 100, 80, "new1")], self.changes), "")

    def test_every_commit_is_in_one_list(self) -> None:
        rows = [timed("library", 9, 1), timed("library", 9, 1, "new1"), timed("limit", 9, 1, "elsewhere")]
        self.assertEqual(baselines.problems(rows, self.changes, self.root), [])
        self.assert_problem(
            baselines.problems([*rows, timed("library", 9, 1, "lost")], self.changes, self.root),
            "commit lost of records is in 0 of older and newer",
        )
        self.assert_problem(baselines.problems(rows[:1], self.changes, self.root), "no record is of commit new1")

    def test_git_knows_better(self) -> None:
        given = baselines.read(ROOT / "bench" / "results")
        if gpu_status.git(ROOT, "rev-parse", "--is-shallow-repository") != "false":
            self.skipTest("no history")
        wrong = [dataclasses.replace(c, older=c.newer, newer=c.older) for c in given]
        rows = [
            row for path in (ROOT / "bench/results").glob("*.jsonl") for row in result_records.bench_records.read(path)
        ]
        self.assertEqual(baselines.problems(rows, given, ROOT), [])
        self.assert_problem(baselines.problems(rows, wrong, ROOT), "git says otherwise")


class Blocks(unittest.TestCase):
    text = "a\n<!-- generated: x -->\nold 3 us\n<!-- end of x -->\nb 4 us\n"

    def test_found_and_replaced(self) -> None:
        self.assertEqual(blocks.found(self.text), {"x": "old 3 us\n"})
        new = blocks.replaced(self.text, {"x": "new"})
        self.assertEqual(new, self.text.replace("old 3 us", "new"))
        self.assertEqual(blocks.outside(self.text), "a\n\n\n\nb 4 us\n")

    def test_a_block_that_nobody_writes(self) -> None:
        for contents in ({}, {"x": "1", "y": "2"}):
            with self.assertRaisesRegex(ValueError, "one side only"):
                blocks.replaced(self.text, contents)


class Readme(TreeTest):
    def copied(self) -> str:
        text = (ROOT / "README.md").read_text()
        self.write("README.md", text)
        self.write(gpu_status.RECORD, (ROOT / gpu_status.RECORD).read_bytes())
        return text

    def test_a_changed_number_is_seen(self) -> None:
        text = self.copied()
        self.assertEqual(gen_readme.document(self.root, "README.md", is_new=False), text)
        gain = next(x for x in text.split() if x.endswith("x") and x[0].isdigit() and "." in x)
        self.write("README.md", text.replace(gain, "9.99x", 1))
        self.assertEqual(
            gen_readme.document(self.root, "README.md", is_new=False), text, "the record's number comes back"
        )

    def test_auto_and_losses_are_there(self) -> None:
        text = gen_readme.operators().replace("\n", " ")
        self.assertIn("overlace (`auto`)", text)
        self.assertRegex(text, r"no all-reduce, \d\.\d\d times as fast .*, 0\.98 times at worst, slower at 2 \(")
        self.assertRegex(text, r"slower at 2, without 7 at which its host was the limit\)")
        self.assertIn("asked for", gen_readme.few_tokens())

    def test_standing_counts_losses(self) -> None:
        self.assertIn("of 2, 0.50 times at worst, slower at 1", gen_readme.standing([2.0, 0.5]))

    def test_the_run_on_gpus_is_named_as_of_a_commit(self) -> None:
        self.assertIn("No whole run of the GPU tests is recorded yet.", gen_readme.gpu_tests(self.root, "", False))
        whole = {"commit": "abc", "date": "d", "machine": {"gpus": "G"}, "passed": 1, "failed": 0, "skipped": 0}
        self.write(gpu_status.RECORD, json.dumps({"last_whole": whole}))
        self.assertEqual(gen_readme.gpu_tests(self.root, "as it was", True), "as it was")  # without git
        git = ["git", "-C", str(self.root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
        heads = []
        subprocess.run([*git, "init", "-q"], check=True)
        for path in ("a.md", "b.cu", "c.cu"):
            self.write(path, "x")
            subprocess.run([*git, "add", "-A"], check=True)
            subprocess.run([*git, "commit", "-qm", "x"], check=True)
            heads.append(gpu_status.git(self.root, "rev-parse", "--short=12", "HEAD"))
        self.write(gpu_status.RECORD, json.dumps({"last_whole": {**whole, "commit": heads[0]}}))
        now = gen_readme.gpu_tests(self.root, "", True)
        self.assertIn(f"2 commits that touch GPU code came since, as of commit {heads[2]}", now.replace("\n", " "))
        then = gen_readme.gpu_tests(self.root, f"x, as of commit {heads[1]} (", False).replace("\n", " ")
        self.assertIn(f"1 commit that touches GPU code came since, as of commit {heads[1]}", then)


class Page(RecordsTest):
    def test_differs_when_a_record_changes(self) -> None:
        rows = [record(c, 100 + i) for i, c in enumerate(("compute", "library", "serial", "limit", "auto"))]
        self.write("bench/results/ag_gemm.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        self.use_own_records()
        first = gen_results.page()
        rows[-1]["time_us"]["median"] = 300
        self.write("bench/results/ag_gemm.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        self.assertNotEqual(first, gen_results.page())

    def test_committed_pages_are_current(self) -> None:
        for name, write in gen_results.PAGES.items():
            self.assertEqual((ROOT / "docs" / "results" / name).read_text(), write())

    def test_few_rows_are_compared_with_library_alone(self) -> None:
        rows = [record(c, 100 + i) for i, c in enumerate(("library", "auto"))]
        self.write("bench/results/ag_gemm.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        self.use_own_records()
        lines, facts = gen_results.dense_section("ag_gemm")
        self.assertIn("| - | 100 | - | - | 101 | - | 0.99 |", "\n".join(lines))
        self.assertEqual(len(facts), 1)

    def test_torch_is_compared_with_its_own_unfused_path(self) -> None:
        rows = [record("torch_library", 200), record("torch_async_tp", 160), record("torch_one_shot", 170)]
        rows = [{**r, "workload": "ag_gemm", "machine": {**r["machine"], "torch": "2.11"}} for r in rows]
        self.write("bench/results/torch.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        self.use_own_records()
        text = "\n".join(gen_results.torch_section([("ag_gemm", "70B qkv", 8192, {"gain": 1.5})]))
        self.assertIn("| ag_gemm | 70B qkv | 8192 | 200 | 160 | 170 | - | 1.25 | 1.50 |", text)


if __name__ == "__main__":
    unittest.main()
