"""The results page follows from the records."""

import json
import unittest

from support import ROOT, TreeTest

import gen_results


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


class Page(TreeTest):
    def test_differs_when_a_record_changes(self) -> None:
        rows = [record(c, 100 + i) for i, c in enumerate(("compute", "library", "serial", "limit", "auto"))]
        self.write("bench/results/ag_gemm.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        old = gen_results.RESULTS
        self.addCleanup(setattr, gen_results, "RESULTS", old)
        gen_results.RESULTS = self.root / "bench" / "results"
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
        old = gen_results.RESULTS
        self.addCleanup(setattr, gen_results, "RESULTS", old)
        gen_results.RESULTS = self.root / "bench" / "results"
        lines, facts = gen_results.dense_section("ag_gemm")
        self.assertIn("| - | 100 | - | - | 101 | - | 0.99 |", "\n".join(lines))
        self.assertEqual(len(facts), 1)

    def test_torch_is_compared_with_its_own_unfused_path(self) -> None:
        rows = [record("torch_library", 200), record("torch_async_tp", 160), record("torch_one_shot", 170)]
        rows = [{**r, "workload": "ag_gemm", "machine": {**r["machine"], "torch": "2.11"}} for r in rows]
        self.write("bench/results/torch.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        old = gen_results.RESULTS
        self.addCleanup(setattr, gen_results, "RESULTS", old)
        gen_results.RESULTS = self.root / "bench" / "results"
        text = "\n".join(gen_results.torch_section([("ag_gemm", "70B qkv", 8192, {"gain": 1.5})]))
        self.assertIn("| ag_gemm | 70B qkv | 8192 | 200 | 160 | 170 | - | 1.25 | 1.50 |", text)


if __name__ == "__main__":
    unittest.main()
