"""`overlace bench` as a user runs it, on CPU ranks."""

import json
import os
import signal
import subprocess
import time
import unittest

import support
from support import FolderTest, bench

import records
import schema


class VerifyTest(FolderTest):
    def test_every_competitor_of_every_operator_is_right(self) -> None:
        out = self.folder / "r.jsonl"
        done = bench("--verify-only", "--ranks", "3", "--out", str(out))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = records.read(out)
        self.assertEqual({r["workload"] for r in rows}, set(records.OPERATORS))
        outputs = [r for r in rows if r["competitor"] not in records.PARTS]
        self.assertTrue(all(r["verify"]["ok"] and r["status"] == "ok" for r in outputs))
        self.assertFalse([r for r in rows if "time_us" in r])
        self.assertEqual(schema.check_file(out), [])

    def test_one_wrong_element_refuses_a_competitor(self) -> None:
        out = self.folder / "r.jsonl"
        words = ["--filter", "half", "--competitors", "library,wrong,serial", "--repetitions", "1", "--burst-ms", "1"]
        done = bench("gemm_rs", "--set", "verify", "--warm-s", "0", *words, "--out", str(out))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        rows = {r["competitor"]: r for r in records.read(out)}
        self.assertEqual(rows["wrong"]["status"], "wrong")
        self.assertNotIn("time_us", rows["wrong"])
        self.assertIn("differs from that of library", rows["wrong"]["reason"])
        self.assertIn("time_us", rows["library"])
        self.assertIn("time_us", rows["serial"])
        self.assertIn("WRONG gemm_rs half wrong", done.stdout)

    def test_candidates_are_all_that_the_planner_considers_each_once(self) -> None:
        out = self.folder / "r.jsonl"
        words = ["--set", "verify", "--filter", "uneven", "--competitors", "library,candidates,auto", "--verify-only"]
        done = bench("ag_gemm", *words, "--out", str(out))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [r for r in records.read(out) if r["case"]["m"] == 131 and r["case"]["name"] == "uneven"]
        names = [r["competitor"] for r in rows]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual((names[0], names[-1]), ("library", "auto"))
        self.assertTrue({"serial", "hetero_unfused_1d:1", "hetero_unfused_1d:4"} <= set(names), names)
        degrees = {r["competitor"]: r.get("degree") for r in rows}
        self.assertEqual(degrees["hetero_unfused_1d:4"], 4)

    def test_layers_that_stream_have_the_bits_of_resident_ones(self) -> None:
        out = self.folder / "r.jsonl"
        shape = ["--cpu", "--config", "tiny", "--layers", "5", "--dtype", "fp32", "--sequence-length", "8"]
        words = [*shape, "--device-memory-mib", "27", "--repetitions", "1", "--passes", "1"]
        program = support.sibling("bench_offload")
        done = subprocess.run([program, *words, "--tokens", "16,8", "--out", out], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for streamed in (0, 3):
            line = f"8 tokens, 3 layers, {streamed} of them stream: largest error / rms of the fp64 oracle"
            self.assertIn(line, done.stdout)
        self.assertEqual(schema.check_file(out), [])
        rows = records.read(out)
        self.assertEqual([r["case"]["name"] for r in rows], ["host, 16"] * 2 + ["host, 8"] * 2)
        for row in rows:
            self.assertIn("time_us", row)
            self.assertEqual((row["attention"], row["status"], row["flags"]), ("cpu", "ok", []))
            self.assertTrue(row["verify"]["ok"])
            self.assertGreater(row["verify"]["max_error"], 0)
            self.assertLessEqual(row["verify"]["max_error"], row["verify"]["bound"])
            case = row["case"]
            self.assertEqual((case["sequence"], case["micro_batch"], case["values"]), (8, 0, "seeded"))
            self.assertEqual("waited_us" in row, row["competitor"] == "overlace")
            if row["competitor"] == "overlace":
                self.assertEqual(row["bytes"] % 5, 0)
        resident, overlace = rows[:2]
        self.assertEqual(overlace["verify"]["max_error"], resident["verify"]["max_error"])
        self.assertEqual(overlace["verify"]["bound"], resident["verify"]["max_error"])
        out.unlink()
        command = [program, *words, "--tokens", "16", "--oracle-layers", "0", "--micro-batch", "8", "--out", out]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(schema.check_file(out), [])
        for row in records.read(out):
            self.assertEqual(row["flags"], ["no_oracle"])
            self.assertNotIn("fp64", row["verify"]["oracle"])
            self.assertNotIn("max_error", row["verify"])
            self.assertEqual(row["case"]["micro_batch"], 8)
        done = subprocess.run([program, *words, "--weights", "disk"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--weights is disk without --checkpoint, wanted both", done.stderr)

    def test_low_entropy_is_refused_for_timing_only(self) -> None:
        words = [
            "ag_gemm",
            "--set",
            "verify",
            "--filter",
            "half",
            "--data",
            "ramp",
            "--out",
            str(self.folder / "r.jsonl"),
        ]
        self.assertEqual(bench(*words, "--verify-only").returncode, 0)
        timed = bench(*words)
        self.assertEqual(timed.returncode, 2, timed.stdout)
        self.assertIn("refused for timing", timed.stderr)

    def test_primitives_between_cpu_ranks(self) -> None:
        out = self.folder / "r.jsonl"
        done = bench("cpu", "--verify-only", "--out", str(out))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(schema.check_file(out), [])
        self.assertEqual({r["team"] for r in records.read(out)}, {2, 4})


class ChoicesTest(unittest.TestCase):
    """What docs/results/planner.md says of the shipped machine and the committed records."""

    def test_the_recurrence_is_within_2_percent_of_the_best(self) -> None:
        names = (
            "ag_gemm",
            "gemm_rs",
            "gemm_ar",
            "unseen_x4",
            "ag_gemm_x2",
            "gemm_ar_x2",
            "gemm_ar_slot_x2",
            "swiglu_x2",
        )
        files = [f"{name}.jsonl" for name in names] + ["fused_x4.json", "fused_x2_woven.json"]  # those of the page
        words = ["--choices", "--records", ",".join(str(support.ROOT / "bench/results" / name) for name in files)]
        done = subprocess.run([support.sibling("bench_sim"), *words], capture_output=True, text=True, check=True)
        lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
        rows = {row[0]: row[1:] for row in lines if len(row) == 8}

        def share(text: str) -> float:
            count, total = map(int, text.split(" of "))
            return count / total

        def percent(text: str) -> float:
            return float(text.removesuffix(" %"))

        within, _, mean, _, wrong, slower, _ = rows["recurrence"]
        self.assertEqual(within.split(" of ")[1], "101")
        self.assertGreaterEqual(share(within), 0.9)
        self.assertLessEqual(percent(mean), 2)
        self.assertLessEqual(percent(wrong), 8)
        self.assertEqual(slower, "0")
        self.assertGreaterEqual(share(rows["recurrence, held out"][0]), 0.83)  # 25 of 30; asked is 0.9 of all
        self.assertEqual(rows["auto"][5], "0")


class CommandLineTest(FolderTest):
    def test_list_names_workloads_sets_and_competitors(self) -> None:
        done = bench("--list")
        self.assertEqual(done.returncode, 0)
        for word in ("gemm_core", "canonical", "torch_async_tp", "runtime"):
            self.assertIn(word, done.stdout)

    def test_t3_layers_are_those_that_are_simulated(self) -> None:
        simulated = []
        for model, name in (("mega-gpt-2", "Mega-GPT-2"), ("t-nlg", "T-NLG")):
            words = [support.OVERLACE, "sim", "t3", "--model", model, "--tp", "2", "--config", "ideal_overlap"]
            done = subprocess.run([*words, "--json", "-"], capture_output=True, text=True, timeout=60, check=True)
            layers = json.loads(done.stdout)["rows"]
            simulated += [(f"{name} {x['layer']}", "gemm_rs", x["n"], x["k"], [x["m"]]) for x in layers]
        cases = json.loads((support.ROOT / "bench" / "dense" / "cases.json").read_text())["t3_layers"]
        self.assertEqual([(x["name"], x["op"], x["n"], x["k"], x["m"]) for x in cases], simulated)

    def test_unknown_names_show_the_nearest(self) -> None:
        done = bench("gem_rs")
        self.assertEqual(done.returncode, 2)
        self.assertIn("nearest is gemm_rs", done.stderr)
        done = bench("--set", "canonica")
        self.assertEqual(done.returncode, 2)
        self.assertIn("nearest is canonical", done.stderr)

    def test_bad_numbers(self) -> None:
        for words in (
            ["--repetitions", "0"],
            ["--ranks", "0"],
            ["--heap-gib", "0"],
            ["--repetitions", "x"],
            ["--burst-ms", "nan"],
        ):
            done = bench("ag_gemm", *words, "--out", str(self.folder / "r.jsonl"))
            self.assertEqual(done.returncode, 2, words)


class KilledRankTest(FolderTest):
    def test_records_so_far_stay_valid(self) -> None:
        out = self.folder / "r.jsonl"
        command = [support.OVERLACE, "bench", "ag_gemm", "--set", "cpu", "--repetitions", "50", "--out", str(out)]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OVERLACE_TIMEOUT_S": "20"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        victim = self.rank_of(process.pid)
        os.kill(victim, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 4, err)
        if out.exists():
            self.assertEqual(schema.check_file(out), [])

    def rank_of(self, driver: int) -> int:
        """A bench_dense below the driver, once it has run for a moment."""
        for _ in range(100):
            for pid in descendants(driver):
                if command_of(pid).endswith("bench_dense"):
                    time.sleep(0.5)
                    return pid
            time.sleep(0.1)
        self.fail("no rank was started")


def descendants(pid: int) -> list[int]:
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(x) for x in file.read().split()]
    except OSError:
        return found
    for child in children:
        found += [child, *descendants(child)]
    return found


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().split("\0")[0]
    except OSError:
        return ""


class RecordsTest(unittest.TestCase):
    def test_committed_records_fit_the_schema(self) -> None:
        files = sorted((support.ROOT / "bench" / "results").glob("*.jsonl"))
        self.assertTrue(files)
        for path in files:
            self.assertEqual(schema.check_file(path), [])

    def test_committed_records_can_be_cited(self) -> None:
        for path in sorted((support.ROOT / "bench" / "results").glob("*.jsonl")):
            for row in records.read(path):
                self.assertFalse(row["git"].endswith("-dirty"), path)
                if "gpus" in row["machine"]:
                    self.assertNotIn("unattested", row.get("flags", []), path)
                    self.assertNotIn("no_oracle", row.get("flags", []), path)

    def test_schema_names_what_is_missing_or_bad(self) -> None:
        wanted = json.loads(schema.PATH.read_text())
        good = support.record("auto", [1.0, 2.0])
        self.assertEqual(schema.complaints(good, wanted), [])
        for change, complaint in (
            ({"status": "fine"}, "wanted one of"),
            ({"team": "4"}, "wanted integer"),
            ({"team": True}, "wanted integer"),
            ({"time_us": {"median": -1.0}}, "wanted at least 0"),
            ({"time_us": {"median": 1.0, "samples": []}}, "wanted at least 1"),
            ({"date": "yesterday"}, "wanted ^20"),
            ({"flags": ["odd"]}, "record.flags[0]"),
        ):
            self.assertIn(complaint, " ".join(schema.complaints({**good, **change}, wanted)), change)
        del good["machine"]
        self.assertIn("record has no machine", schema.complaints(good, wanted))


class IdTest(FolderTest):
    def test_an_edited_record_is_noticed(self) -> None:
        path = self.folder / "r.jsonl"
        line = schema.with_id(support.record("auto", [100.0]))
        path.write_text(line + "\n")
        self.assertEqual(schema.check_file(path), [])
        path.write_text(line.replace("100.0", "90.0") + "\n")
        self.assertIn("its id is not that of its content", schema.check_file(path)[0])


if __name__ == "__main__":
    unittest.main()
