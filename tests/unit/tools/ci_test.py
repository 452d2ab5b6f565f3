"""The counts, outcomes and deadlines of CI, and what it reads out of ptxas and nm."""

import contextlib
import fnmatch
import io
import json
import os
import re
import struct
import sys
import tempfile
import time
import unittest
import unittest.mock
import zipfile
from pathlib import Path

import support
import device_units
import compile_fail
import examples
import install_tree
import jobs
import main
import results
import runner
import sanitizers
import wheel
from results import FAILED, PASSED, SKIPPED, Case

GTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="1" disabled="1" errors="0" name="AllTests"><testsuite name="A" tests="4">
<testcase name="Good" status="run" result="completed" classname="A" />
<testcase name="Bad" status="run" result="completed" classname="A">
<failure message="x.cc:3&#10;Expected 1" type=""/></testcase>
<testcase name="Later" status="run" result="skipped" classname="A">
<skipped message="x.cc:9&#10;no GPU here" /></testcase>
<testcase name="DISABLED_Never" status="notrun" result="suppressed" classname="A" />
</testsuite></testsuites>
"""


os.environ.pop("OVERLACE_CI_UNTIL", None)  # these tests are not to end with the run that they are a part of


class ResultsTest(support.TreeTest):
    def test_outcomes_of_a_report(self) -> None:
        self.write("a.xml", GTEST)
        cases = results.read_xml(self.root / "a.xml")
        self.assertEqual([c.outcome for c in cases], [PASSED, FAILED, SKIPPED, SKIPPED])
        self.assertEqual(cases[2].detail, "no GPU here")

    def test_counts_and_last_line(self) -> None:
        cases = [Case("a", outcome, "because") for outcome in (PASSED, PASSED, FAILED, SKIPPED)]
        run = results.Results([results.Ran("job", cases)])
        text, last = run.report()
        self.assertEqual(last, "2 passed, 1 failed, 1 skipped")
        self.assertIn("job: a: because", text)
        self.assertFalse(run.ok())

    def test_a_run_without_tests_fails(self) -> None:
        for cases in ([], [Case("a", SKIPPED, "no GPU")]):
            run = results.Results([results.Ran("job", cases)])
            self.assertEqual(run.report()[1], f"0 passed, 1 failed, {len(cases)} skipped")
            self.assertFalse(run.ok())


class SummaryTest(unittest.TestCase):
    def test_names_the_last_whole_run_on_gpus(self) -> None:
        fake = {"fake": lambda: iter([Case("a", PASSED)])}
        printed, told = io.StringIO(), "the last whole run is of commit abc; 3 commits came since."
        with (
            unittest.mock.patch.object(jobs, "JOBS", fake),
            unittest.mock.patch.object(main, "OUT", Path(tempfile.gettempdir())),
            unittest.mock.patch.object(main.gpu_status, "sentence", lambda _: told),
            unittest.mock.patch.object(main, "make_room", list),
            unittest.mock.patch.dict("os.environ"),
            contextlib.redirect_stdout(printed),
        ):
            os.environ.pop("OVERLACE_CI_SUMMARY", None)
            self.assertEqual(main.main(["fake"]), 0)
        self.assertEqual(
            printed.getvalue().splitlines()[-3:], [f"On GPUs: {told}", "", "1 passed, 0 failed, 0 skipped"]
        )


class RunnerTest(support.TreeTest):
    def program(self, text: str, *labels: str, timeout_s: float = 30) -> runner.Program:
        self.write("p.py", "import sys\nout = [a.partition(':')[2] for a in sys.argv if 'xml:' in a]\n" + text)
        return runner.Program("p", (sys.executable, str(self.root / "p.py")), labels, timeout_s, self.root)

    def cases(self, program: runner.Program) -> list[Case]:
        return runner.run_programs([program], self.root / "out", 1)

    def test_gtest_cases_are_counted(self) -> None:
        cases = self.cases(self.program(f"open(out[0], 'w').write({GTEST!r})\nsys.exit(1)\n", "unit", "gtest"))
        self.assertEqual([c.outcome for c in cases], [PASSED, FAILED, SKIPPED, SKIPPED])

    def test_a_crash_is_a_failure(self) -> None:
        cases = self.cases(self.program("import os\nprint('deep trouble')\nsys.stdout.flush()\nos.abort()\n", "gtest"))
        self.assertEqual([c.outcome for c in cases], [FAILED])
        self.assertIn("deep trouble", cases[0].detail)

    def test_a_bad_end_after_good_cases_is_a_failure(self) -> None:
        good = GTEST.replace('<failure message="x.cc:3&#10;Expected 1" type=""/>', "")
        cases = self.cases(self.program(f"open(out[0], 'w').write({good!r})\nsys.exit(66)\n", "gtest"))
        self.assertEqual(cases[-1].outcome, FAILED)
        self.assertIn("exit code 66", cases[-1].detail)

    def test_a_case_that_fails_once_is_named_with_its_run(self) -> None:
        always = GTEST.replace('<failure message="x.cc:3&#10;Expected 1" type=""/>', "")
        count = self.root / "count"
        body = (
            f"import pathlib\ncount = pathlib.Path({str(count)!r})\n"
            "n = int(count.read_text()) + 1 if count.exists() else 1\ncount.write_text(str(n))\n"
            f"open(out[0], 'w').write({GTEST!r} if n == 2 else {always!r})\nsys.exit(n == 2)\n"
        )
        cases = list(jobs.repeated(self.program(body, "gtest"), 3, self.root / "out"))
        self.assertEqual(
            sorted((c.name, c.outcome) for c in cases),
            [
                ("p: A.Bad, run 2 of 3", FAILED),
                ("p: A.DISABLED_Never", SKIPPED),
                ("p: A.Good, 3 of 3", PASSED),
                ("p: A.Later", SKIPPED),
            ],
        )

    def test_a_report_of_an_earlier_run_does_not_count(self) -> None:
        self.write("out/p.xml", GTEST)
        self.assertEqual([c.outcome for c in self.cases(self.program("sys.exit(0)\n", "gtest"))], [FAILED])

    def test_deadline_ends_children_too(self) -> None:
        start = time.monotonic()
        text = "import subprocess\nsubprocess.run(['sleep', '60'])\n"
        cases = self.cases(self.program(text, timeout_s=1))
        self.assertEqual([c.outcome for c in cases], [FAILED])
        self.assertIn("stopped after 1 s", cases[0].detail)
        self.assertLess(time.monotonic() - start, 30)

    def test_no_terminal_and_no_input(self) -> None:
        cases = self.cases(self.program("sys.exit(0 if sys.stdin.read() == '' and not sys.stdout.isatty() else 1)\n"))
        self.assertEqual([c.outcome for c in cases], [PASSED])

    def test_a_crash_of_the_leak_checker_is_no_failure_of_the_program(self) -> None:
        text = (
            "import os\nprint(os.environ['ASAN_OPTIONS'])\n"
            "if 'detect_leaks=1' in os.environ['ASAN_OPTIONS']:\n"
            f"    sys.exit('==1=={runner.LEAK_CHECK_CRASHED}.')\n"
            "sys.exit(BAD)\n"
        )
        env = {"ASAN_OPTIONS": "a=1:detect_leaks=1"}
        for rc, outcome in ((0, PASSED), (3, FAILED)):
            program = self.program(text.replace("BAD", str(rc)))
            cases = runner.run_programs([program], self.root / "out", 1, env=env)
            self.assertEqual([c.outcome for c in cases], [outcome, SKIPPED])
            self.assertIn("failed in the first run: p", cases[1].detail)
            self.assertEqual((self.root / "out/p.log").read_text(), "a=1:detect_leaks=0\n")

    def test_the_first_error_is_shown_however_much_follows(self) -> None:
        lines = [
            "[1/9] Building error.cc.o",
            "x.cc:3: fatal: No space left on device",
            *(f"[{n}/9] b" for n in range(100)),
        ]
        why = runner.Done(1, "\n".join(lines), 1).why(lines=5)
        self.assertEqual(why.splitlines()[:3], ["exit code 1", "x.cc:3: fatal: No space left on device", "[0/9] b"])
        self.assertEqual(why.splitlines()[-1], "[99/9] b")
        self.assertNotIn("[50/9]", why)

    def test_the_compilers_words_come_before_all_that_ran_beside(self) -> None:
        lines = ["[1/9] a", "FAILED: b.o ", "c++ -c " + 500 * "x", "b.cc:1:2: error: empty struct", "[2/9] c"]
        why = runner.Done(1, "\n".join(lines), 1).why()
        self.assertEqual(why.splitlines(), ["exit code 1", "b.cc:1:2: error: empty struct", "[2/9] c"])
        self.assertEqual(runner.Done(1, "a\nb", 1).why(lines=1), "exit code 1\nb")
        self.assertEqual(runner.Done(1, "FAILED: b.o\nc++", 1).why().splitlines()[1], "FAILED: b.o")

    def test_folders_of_finished_jobs_go_where_space_is_little(self) -> None:
        for name in ("cpu", "tsan"):
            self.write(f"build/{name}/x.o", "")
        with unittest.mock.patch.object(runner, "ROOT", self.root):
            self.assertEqual(runner.make_room(0), [])
            self.assertEqual(runner.make_room(2**40), [self.root / "build/tsan"])
        self.assertTrue((self.root / "build/cpu/x.o").exists())
        self.assertFalse((self.root / "build/tsan").exists())

    def test_what_two_presets_compile_alike_is_found_by_its_text(self) -> None:
        for preset, wanted in (("cpu", {}), ("cuda", {}), ("asan", {"CCACHE_DEPEND": "1"})):
            with unittest.mock.patch.object(runner, "run") as called:
                runner.build(preset, "x")
            self.assertEqual(called.call_args.args[2], wanted)

    def test_a_missing_program_is_a_failure(self) -> None:
        self.assertEqual(runner.run(["/nonexistent/program"]).rc, 127)


class JobsTest(support.TreeTest):
    def test_a_job_is_told_its_processor_time(self) -> None:
        before = main.processor_seconds()
        burn = "import time\nwhile time.process_time() < 0.3: pass\n"
        runner.run([sys.executable, "-c", burn], 60)
        self.assertGreaterEqual(main.processor_seconds() - before, 0.3)
        ran = [results.Ran("a", [Case("x", PASSED)], 2.0, 3.25), results.Ran("b", [], 1.0, 0.5)]
        lines = results.Results(ran, 2.5).report()[0].splitlines()
        self.assertIn("a                2.0        3.2  1 passed, 0 failed, 0 skipped", lines)
        self.assertIn("all              2.5        3.8", lines)

    def test_weekly_is_everything_and_the_default_is_not(self) -> None:
        self.assertEqual(main.chosen(["weekly"]), list(jobs.JOBS))
        weekly = {
            "clang-test",
            "asan-gcc",
            "tsan-all",
            "seeds",
            "fuzz-long",
            "faults",
            "gnn-large",
            "coverage",
            "mutate",
        }
        self.assertEqual(set(jobs.JOBS) - set(main.chosen([])), weekly)
        self.assertEqual(main.chosen(["seeds"]), ["seeds"])

    def test_make_test_and_make_check_are_the_default_together(self) -> None:
        quick, thorough = main.chosen(["quick"]), main.chosen(["thorough"])
        self.assertEqual(quick, list(jobs.QUICK))
        self.assertFalse(set(quick) & set(thorough))
        self.assertEqual(quick + thorough, main.chosen([]))

    def test_each_job_of_a_run_is_in_one_lane(self) -> None:
        """Those that share a build folder in the same one, or one part behind the other."""
        alone = {*jobs.NO_FOLDER, *jobs.COMPILE_ALONE}
        for words in ([], ["quick"], ["thorough"], ["weekly"], ["asan"], ["format"], ["seeds", "format", "long"]):
            names = main.chosen(words)
            for has_room in (True, False):
                parts = jobs.lanes(names, has_room)
                found = [name for part in parts for lane in part for name in lane.names]
                wanted = [n for n in names if has_room or n not in jobs.AHEAD]
                self.assertEqual(sorted(found), sorted(wanted), words)
                for part in parts:
                    for lane in part:
                        inside = set(lane.names)
                        if len(part) > 1 and has_room:
                            self.assertIn(inside & alone, (set(), inside), words)
                            self.assertFalse(inside & {*jobs.WEEKLY_ONLY, *jobs.BEHIND} and inside & alone, words)
                        self.assertEqual(lane.is_patient, len(part) > 1 and inside <= {*jobs.COMPILE_ALONE}, words)
                    self.assertLessEqual(sum(lane.may_make_room for lane in part), 1, words)
                    self.assertFalse(part[0].is_patient, "the first lane is the process that prints")
        self.assertEqual([len(part) for part in jobs.lanes(main.chosen(["weekly"]))], [3, 1, 1])
        self.assertEqual([len(part) for part in jobs.lanes(main.chosen(["weekly"]), has_room=False)], [2, 1])

    def test_what_others_test_is_compiled_before(self) -> None:
        parts = jobs.lanes(main.chosen(["thorough"]))
        beside, behind = parts
        self.assertEqual(behind[0].names, jobs.BEHIND)
        self.assertEqual([lane.names for lane in beside if lane.is_patient], [jobs.COMPILE_ALONE])
        folders = [name for name in ("tsan", "cuda") if name in runner.OF_ONE_JOB]
        self.assertTrue(folders and not any(lane.may_make_room for lane in beside), "or they would be removed there")

    def test_a_patient_process_leaves_the_cores_to_others(self) -> None:
        with unittest.mock.patch.object(runner, "prefix", ()):
            before = int(runner.run(["nice"], 10).output)
            runner.be_patient()
            done = runner.run(["sh", "-c", "nice; exit 7"], 10)
        self.assertEqual((int(done.output), done.rc), (min(before + 10, 19), 7))

    def test_jobs_beside_each_other_are_told_their_own_time_and_what_ended_a_lane(self) -> None:
        burn = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass\n"]

        def meets(own: str, other: str) -> Case:
            (self.root / own).touch()
            end = time.monotonic() + 30
            while not (self.root / other).exists() and time.monotonic() < end:
                time.sleep(0.01)
            return Case("met", PASSED if (self.root / other).exists() else FAILED)

        fake = {
            "a": lambda: iter([meets("a", "b"), runner.step("burn", runner.run(burn, 60))]),
            "b": lambda: iter([meets("b", "a")]),
            "c": lambda: os._exit(3),
            "d": lambda: iter([Case("x", PASSED)]),
        }
        with unittest.mock.patch.object(jobs, "JOBS", fake), contextlib.redirect_stdout(io.StringIO()):
            lanes = [jobs.Lane(("a",), False), jobs.Lane(("b", "c", "d"), False)]
            ran = {done.job: done for done in main.run_beside(lanes)}
        self.assertEqual([c.outcome for c in ran["a"].cases + ran["b"].cases], [PASSED] * 3)
        self.assertGreaterEqual(ran["a"].processor_s, 0.3)
        self.assertLess(ran["b"].processor_s, 0.3)
        for name in ("c", "d"):
            self.assertEqual([(c.outcome, c.detail) for c in ran[name].cases], [(FAILED, "its process ended: 3")])

    def test_what_has_not_begun_in_time_is_skipped_and_named(self) -> None:
        self.write("p.py", "")
        program = runner.Program("p", (sys.executable, str(self.root / "p.py")), (), 30, self.root)
        for until, outcome in ((time.time() + 600, PASSED), (time.time() - 1, SKIPPED)):
            fake = {"fake": lambda: iter(runner.run_programs([program], self.root / "out", 1))}
            with (
                unittest.mock.patch.dict("os.environ", {"OVERLACE_CI_UNTIL": str(until)}),
                unittest.mock.patch.object(jobs, "JOBS", fake),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                cases = [*main.run_job("fake").cases, *runner.run_programs([program], self.root / "out", 1)]
            self.assertEqual([c.outcome for c in cases], [outcome] * 2)
            self.assertEqual([c.detail for c in cases], [runner.OVER if outcome == SKIPPED else ""] * 2)

    def test_what_runs_when_the_time_is_over_is_stopped(self) -> None:
        until = time.time() - runner.TO_END_S + 1
        with unittest.mock.patch.dict("os.environ", {"OVERLACE_CI_UNTIL": str(until)}):
            done = runner.run(["sleep", "60"])
        self.assertTrue(done.timed_out)
        self.assertLess(done.seconds, 30)

    def test_what_runs_under_tsan_is_there(self) -> None:
        for name in sanitizers.UNDER_TSAN:
            kind, _, stem = name.partition("_")
            tests = support.ROOT / "tests" / kind
            self.assertTrue((tests / stem).is_dir() if kind == "unit" else (tests / f"{stem}_test.cc").exists(), name)
        self.assertLessEqual({n for n in sanitizers.UNDER_TSAN if n.startswith("unit_")}, {*sanitizers.THREADED_UNITS})

    def test_the_longest_programs_begin_first(self) -> None:
        self.write("p.py", "import sys\nprint(sys.argv[1], file=open(sys.argv[2], 'a'))\n")
        begun = self.root / "begun"
        names = ("ranks_abort", runner.LONGEST[1], "ranks_put", runner.LONGEST[0])
        found = [
            runner.Program(name, (sys.executable, str(self.root / "p.py"), name, str(begun)), (), 30, self.root)
            for name in names
        ]
        cases = runner.run_programs(found, self.root / "out", 1)
        self.assertEqual([c.name for c in cases], list(names))
        self.assertEqual(begun.read_text().split(), [*runner.LONGEST[:2], "ranks_abort", "ranks_put"])

    def test_the_longest_programs_are_there(self) -> None:
        tests = runner.ROOT / "tests"
        for name in runner.LONGEST:
            kind, _, stem = name.partition("_")
            self.assertTrue((tests / "unit" / stem).is_dir() or (tests / kind / f"{stem}_test.cc").exists(), name)

    def test_what_sanitizers_leave_out_is_there(self) -> None:
        """A name that no test has would leave nothing out."""
        text = "".join(p.read_text() for p in sorted((support.ROOT / "tests").rglob("*_test.cc")))
        there = {f"{m[1]}.{m[2]}" for m in re.finditer(r"TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", text)}
        patterns = [re.sub(r"^\w+/|/\*$", "", name) for name in sanitizers.SWEEPS]
        self.assertEqual([p for p in patterns if not fnmatch.filter(there, p)], [])
        whole = [p for p in (*sanitizers.SWEEPS, *sanitizers.LARGE_TEAMS) if p.endswith(".*") or len(p) < 10]
        self.assertEqual(whole, [], "a whole suite, or letters of a name")
        for name in sanitizers.NOT_SANITIZED:
            folder, _, stem = name.partition("_")
            self.assertTrue((support.ROOT / f"tests/{folder}/{stem}_test.cc").exists(), name)

    def test_rank_tests_get_their_seeds(self) -> None:
        text = "import os, sys\nprint(sys.argv[1], os.environ['OVERLACE_TEST_SEEDS'])\nsys.exit(1)\n"
        self.write("p.py", text)
        names = ("ranks_litmus", "ranks_signal", "ranks_model", "unit_base")
        found = [
            runner.Program(name, (sys.executable, str(self.root / "p.py"), name), (label,), 30, self.root)
            for name, label in zip(names, ("ranks", "ranks", "ranks", "unit"), strict=True)
        ]
        with unittest.mock.patch.object(jobs, "programs", lambda preset: found):
            commit = runner.run_programs(jobs.seeded("cpu", jobs.COMMIT_SEEDS, {}), self.root / "out", 1)
            weekly = list(jobs.rank_tests("cpu", jobs.WEEKLY_SEEDS, {}, first=1, timeout_s=30))
        shown = [c.detail.splitlines()[-1] for c in commit]
        self.assertEqual(shown, ["ranks_litmus 20", "ranks_signal 5", "ranks_model 1"])
        shown = [c.detail.splitlines()[-1] for c in weekly]
        self.assertEqual(shown, ["ranks_litmus 1000@1", "ranks_signal 250@1", "ranks_model 50@1"])


def object_with(images: list[tuple[int, int]]) -> bytes:
    """An ELF with a section .nv_fatbin of one fatbin with these images: (kind, architecture)."""
    body = b"".join(struct.pack("<HHIQQIIQ", kind, 257, 64, 8, 0, 0, sm, 0).ljust(64 + 8, b"\0") for kind, sm in images)
    fatbin = struct.pack("<IHHQ", device_units.FATBIN, 1, 16, len(body)) + body
    names = b"\0.nv_fatbin\0.shstrtab\0"
    at, size = 64, 64
    table = [(0, 0, 0), (1, at, len(fatbin)), (12, at + len(fatbin), len(names))]
    sections = b"".join(struct.pack("<IIQQQQ", name, 1, 0, 0, *place).ljust(size, b"\0") for name, *place in table)
    header = bytearray(64)
    struct.pack_into("<Q", header, 40, at + len(fatbin) + len(names))
    struct.pack_into("<HHH", header, 58, size, len(table), 2)
    return bytes(header) + fatbin + names + sections


class DeviceUnitsTest(unittest.TestCase):
    def test_spills_and_ignored_registers(self) -> None:
        title = "ptxas info    : Function properties for _Z1k\n"
        good = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        self.assertEqual(device_units.complaints(title + good), [])
        for stack, stores, loads in ((8, 0, 0), (0, 4, 0), (0, 0, 16)):
            line = f"    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
            found = device_units.complaints(title + line)
            self.assertEqual(len(found), 1)
            self.assertIn("_Z1k", found[0])
        ignored = (
            "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum requirements"
        )
        self.assertEqual(len(device_units.complaints(ignored)), 1)

    def test_instances_have_their_registers_and_no_serialised_products(self) -> None:
        good = "ptxas info    : Used 168 registers, used 9 barriers\n"
        self.assertEqual(device_units.instance_complaints(good), [])
        other = device_units.instance_complaints(good.replace("168", "255"))
        self.assertEqual(other, ["Used 255 registers; wanted: Used 168 registers, once"])
        line = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
        self.assertEqual(device_units.instance_complaints(good + line), [line])

    def test_sass_of_instances(self) -> None:
        name = "instances/plain_bf16_k_128x160_c21_s5.cu"
        good = "  HGMMA.64x160x16.F32.BF16 R24, ...\n" * 4 + "  USETMAXREG 0x38 ;\n  USETMAXREG 0xe0 ;\n"
        self.assertEqual(device_units.sass_complaints(name, good), [])
        for bad in (
            good.replace("64x160", "64x128"),
            good.replace("HGMMA", "HMMA"),
            good + "  STL [R1], R2 ;\n",
            good.replace("USETMAXREG 0x38", "NOP"),
        ):
            self.assertEqual(len(device_units.sass_complaints(name, bad)), 1, bad)

    def test_flags(self) -> None:
        good = ["nvcc", "--generate-code=arch=compute_90a,code=[sm_90a]", "-std=c++20"]
        self.assertEqual(device_units.flag_complaints(good), [])
        self.assertEqual(len(device_units.flag_complaints(["nvcc", "-arch=sm_90a", "-std=c++20"])), 1)
        self.assertEqual(len(device_units.flag_complaints(["nvcc", "-std=c++20", "-rdc=true"])), 1)
        self.assertEqual(len(device_units.flag_complaints(["nvcc"])), 1)

    def test_units_have_code_for_the_gpus_that_they_are_for(self) -> None:
        def words(*code: str) -> list[str]:
            return ["nvcc", *(f"--generate-code=arch=compute_{c.split('_')[1]},code=[{c}]" for c in code)]

        flag = "-DOVERLACE_HOPPER_UNIT=1"
        everywhere = [(1, 80), (2, 80), (2, 90), (1, 100), (2, 100)]
        asked = words("compute_80,sm_80", "sm_90a", "compute_100,sm_100")
        generic, hopper = "src/ops/reduce/launch.cu", "src/ops/fused/fused.cu"
        wanted = {"compute_80", "sm_80", "sm_90", "compute_100", "sm_100"}
        self.assertEqual(device_units.images(object_with(everywhere)), wanted)
        self.assertEqual(device_units.code_complaints(generic, asked, object_with(everywhere)), [])
        for unit in (hopper, "instances/plain_a.cu", "src/runtime/backend/cuda_peer/hopper/bulk_pushes.cu"):
            self.assertEqual(device_units.code_complaints(unit, [*words("sm_90a"), flag], object_with([(2, 90)])), [])
        missing = device_units.code_complaints(generic, asked, object_with(everywhere[:-1]))
        self.assertEqual(len(missing), 1)
        self.assertIn("the object has ['compute_100', 'compute_80', 'sm_80', 'sm_90']", missing[0])
        self.assertEqual(len(device_units.code_complaints(hopper, [*asked, flag], object_with(everywhere))), 2)
        plain = device_units.code_complaints(hopper, [*words("sm_90"), flag], object_with([(2, 90)]))
        self.assertEqual(plain, ["nvcc is asked for ['sm_90']; wanted: ['sm_90a']"])
        unknown = device_units.code_complaints(hopper, words("sm_90a"), object_with([(2, 90)]))
        self.assertEqual(unknown, [f"{flag} is missing; wanted: for Hopper's units alone"])
        known = device_units.code_complaints(generic, [*asked, flag], object_with(everywhere))
        self.assertEqual(known, [f"{flag} is there; wanted: for Hopper's units alone"])

    def test_each_unit_gets_what_its_compilation_printed(self) -> None:
        report = "ptxas info    : 0 bytes gmem\nptxas info    : Function properties for _Z1k\n"
        frame = "    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        command = ["nvcc", "-std=c++20", device_units.VERBOSE]
        log = {
            "good": "[1/5] Building CUDA object x/good.cu.o\n" + report,
            "spills": "[2/5] Building CUDA object x/spills.cu.o\n" + report + frame,
            "other": "[3/5] Building CXX object x/b.cc.o\n[4/5] Linking CXX executable e\n" + frame,
            "broken": "FAILED: x/broken.cu.o\nnvcc -c ...\na.cu(1): error: expected a ;\n",
        }
        printed = device_units.outputs("".join(log.values()))

        def found(name: str) -> list[str]:
            unit = device_units.Unit(f"src/{name}.cu", f"x/{name}.cu.o", command)
            return device_units.complaints_of(unit, printed.get(unit.output, ""))

        self.assertEqual(found("good"), [])
        self.assertEqual(found("spills"), ["_Z1k: 8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"])
        self.assertIn("expected a ;", found("broken")[0])
        self.assertIn("did not report", found("absent")[0])

    def test_units_are_compiled_anew(self) -> None:
        """One that lies there from before was looked at before, or not at all."""
        words = f"nvcc -std=c++20 {device_units.VERBOSE} -c a.cu -o a.cu.o"
        source = device_units.ROOT / "src/a.cu"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "compile_commands.json").write_text(json.dumps([{"file": str(source), "command": words}]))
            (Path(folder) / "a.cu.o").touch()

            def build() -> runner.Done:
                self.assertFalse((Path(folder) / "a.cu.o").exists())
                return runner.Done(0, "[1/1] Building CUDA object a.cu.o\nptxas info    : 0 bytes gmem\n", 1)

            outcomes = [(c.name, c.outcome) for c in device_units.check(Path(folder), build)]
            self.assertEqual(outcomes, [("build cuda", PASSED), ("cubin src/a.cu", PASSED)])
            outcomes = [c.outcome for c in device_units.check(Path(folder), lambda: runner.Done(0, "", 1))]
            self.assertEqual(outcomes, [PASSED, FAILED])


class InstallTreeTest(unittest.TestCase):
    def test_exported_symbols(self) -> None:
        good = "0000 T overlace::Team::rank() const\n0000 V typeinfo for overlace::Error\n0000 T ovl_open\n"
        self.assertEqual(install_tree.symbol_complaints(good), [])
        bad = "0000 T overlace::base::format(int)\n0000 W std::vector<int>::push_back(int)\n0000 T main\n"
        self.assertEqual(len(install_tree.symbol_complaints(bad)), 3)

    def test_a_loop_with_its_sums_in_memory_fails(self) -> None:
        def listing(isa: str, register: str, products: int) -> str:
            head = f"0 <void overlace::multiply_tile_{isa}<float>(float const*)>:\n"
            return head + products * f"   0:\tvfmadd231ps %{register}0,%{register}1,%{register}2\n" + "\n1 <other>:\n"

        first, second = listing("avx512", "zmm", 12), listing("avx2", "ymm", 12)
        self.assertEqual(install_tree.tile_complaints(first + second), [])
        text = "multiply_tile_{}<float> has {} products of registers, wanted 12, and {} on the stack, wanted 0"
        said = install_tree.tile_complaints(first.replace("231ps", "231pd") + second)
        self.assertEqual(said, [text.format("avx512", 0, 0)])
        said = install_tree.tile_complaints(listing("avx512", "zmm", 3) + second)
        self.assertEqual(said, [text.format("avx512", 3, 0)])
        in_memory = second.replace("\n1 <other>", "   4:\tvmovups %ymm3,-0x40(%rsp)\n\n1 <other>")
        self.assertEqual(install_tree.tile_complaints(first + in_memory), [text.format("avx2", 12, 1)])

    def test_studies_inside(self) -> None:
        line = "0000000000001000 t overlace::study::full_mesh(int, overlace::study::LinkFigures)"
        self.assertEqual(install_tree.studies_inside(line + "\n0000 t overlace::sim::simulate(int)\n"), [line])

    def test_a_public_class_that_is_hidden_is_told(self) -> None:
        every = "".join(f"0000 T overlace::{name}(int)\n" for name in install_tree.WANTED)
        self.assertEqual(install_tree.missing_symbols(every), [])
        hidden = every.replace(" overlace::Runtime::open(", " overlace::Runtime::opened(")
        self.assertEqual(install_tree.missing_symbols(hidden), ["not exported: overlace::Runtime::open"])


class WheelTest(support.TreeTest):
    LIBRARY = "overlace/lib/liboverlace.so.0.1"

    def complaints(self, **files: bytes) -> list[str]:
        path = self.root / "overlace.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(self.LIBRARY, bytes(2 * wheel.LARGE))
            for name, data in files.items():
                archive.writestr(name, data)
        with contextlib.redirect_stdout(io.StringIO()):
            return wheel.content_complaints(path)

    def test_content(self) -> None:
        self.assertEqual(self.complaints(small=bytes(1000)), [])
        found = f"files above 1 MB are ['{self.LIBRARY}', 'copy'], wanted one: overlace/lib/liboverlace.so.N"
        self.assertEqual(self.complaints(copy=bytes(2 * wheel.LARGE)), [found])
        large = self.complaints(rest=bytes(wheel.MOST_BYTES))
        self.assertEqual(large[0], "27.0 MB unpacked, wanted at most 25 MB")
        self.assertEqual(self.complaints(lib=b"..debug_info."), ["debug information in ['lib'], wanted none"])

    def test_source_distribution(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            good = [Path("src/base/env.cc"), Path("bench/results.py")]
            self.assertEqual(wheel.source_complaints(good, wheel.MOST_SOURCE_BYTES), [])
            bad = [Path("bench/results/run.json"), Path("docs/results/hosts.md"), Path(".ci/run")]
            got = wheel.source_complaints(bad, wheel.MOST_SOURCE_BYTES + 1_000_000)
        wanted = ["bench/results/run.json: a record", "docs/results/hosts.md: a record"]
        self.assertEqual(got, [*wanted, ".ci/run: wanted no hidden file", "4.0 MB, wanted at most 3 MB"])

    def test_tag(self) -> None:
        name = "overlace-0.1.0-py3-none-{}.whl"
        self.assertEqual(wheel.tag_complaints(name.format("manylinux_2_35_x86_64"), "2.36"), [])
        newer = wheel.tag_complaints(name.format("manylinux_2_38_x86_64"), "2.36")
        self.assertEqual(newer, [name.format("manylinux_2_38_x86_64") + "; wanted at most glibc 2.36"])
        self.assertEqual(len(wheel.tag_complaints(name.format("linux_x86_64"), "2.36")), 1)


class ExamplesTest(support.TreeTest):
    def problem(self, table: str) -> str:
        self.write("README.md", table)
        return examples.tree_problem(self.root)

    def test_the_table_the_numbers_and_the_sizes(self) -> None:
        self.write("01_a/main.cc", "int main() {}\n")
        self.write("02_b/main.c", "int main(void) {}\n")
        right = "| [01_a](01_a/main.cc) | x |\n| [02_b](02_b/main.c) | y |\n"
        self.assertEqual(self.problem(right), "")
        self.assertIn("lists ['01_a']", self.problem("| [01_a](01_a/main.cc) | x |\n"))
        self.write("02_b/main.c", "\n" * 101)
        self.assertIn("more than 100 lines", self.problem(right))
        self.write("04_c/main.c", "int main(void) {}\n")
        self.assertIn("not numbered", self.problem(right + "| [04_c](04_c/main.c) | z |\n"))


class CompileFailTest(support.TreeTest):
    def complaint(self, text: str) -> str:
        self.write("a.c", text)
        return compile_fail.complaint(self.root / "a.c", self.root)

    def test_a_file_must_fail_for_its_reason_only(self) -> None:
        body = "int f(void) {\n#ifdef FIXED\n  return 1;\n#else\n  return y;\n#endif\n}\n"
        self.assertEqual(self.complaint("// wanted: undeclared\n" + body), "")
        self.assertIn("but not with /other/", self.complaint("// wanted: other\n" + body))
        self.assertEqual(self.complaint("// wanted: undeclared\nint x;\n"), "compiles")
        self.assertIn("with -DFIXED", self.complaint("// wanted: undeclared\nint f(void) { return y; }\n"))
        self.assertIn("first line", self.complaint(body))


class SeedsTest(unittest.TestCase):
    def test_programs_get_the_seeds_of_their_kind(self) -> None:
        counts = (1, 2, 3, 4)
        names = ("ranks_put", "ranks_signal", "ranks_random", "ranks_ag_gemm")
        self.assertEqual([jobs.seeds_of(name, counts) for name in names], [1, 2, 3, 4])


if __name__ == "__main__":
    unittest.main()
