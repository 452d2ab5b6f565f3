"""The fuzz job: what counts as changed, what a broken parser looks like in the report."""

import unittest
import unittest.mock
from pathlib import Path

import support
import fuzz
from results import FAILED, PASSED

PROGRAM = """#!/bin/bash
for word; do
  [[ $word == -artifact_prefix=* ]] && out=${word#*=}
done
"""


class FuzzTest(support.TreeTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("tests/fuzz/a_fuzz.cc", "// A.\n// Sources: src/a/ src/b\n")
        self.write("tests/fuzz/corpus/a/good", "x")
        patches = {"ROOT": self.root, "OUT": self.root / "out"}
        for name, value in patches.items():
            patch = unittest.mock.patch.object(fuzz, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def fuzz(self, body: str) -> fuzz.Case:
        self.write("fuzz_a", PROGRAM + body)
        (self.root / "fuzz_a").chmod(0o755)
        return fuzz.fuzz(self.root, fuzz.targets(self.root / "tests/fuzz")[0], [], 30)

    def test_a_target_names_its_sources(self) -> None:
        self.assertEqual(fuzz.targets(self.root / "tests/fuzz"), [fuzz.Target("a", ("src/a/", "src/b"))])
        self.write("tests/fuzz/b_fuzz.cc", "// B.\n")
        with self.assertRaisesRegex(RuntimeError, "b_fuzz.cc has no line"):
            fuzz.targets(self.root / "tests/fuzz")

    def test_changes_concern_the_target_they_belong_to(self) -> None:
        target = fuzz.Target("a", ("src/a/", "src/b"))
        for files in (["src/a/x.cc"], ["src/b.cc"], ["README.md", "src/b_pod.h"], ["tests/fuzz/a_fuzz.cc"], [""]):
            self.assertTrue(fuzz.is_changed(target, files), files)
        for files in ([], ["src/ab.cc"], ["tests/fuzz/b_fuzz.cc"], ["cli/src/b.cc"]):
            self.assertFalse(fuzz.is_changed(target, files), files)

    def test_a_good_run_is_counted(self) -> None:
        case = self.fuzz("echo stat::number_of_executed_units: 1234\n")
        self.assertEqual((case.outcome, case.name), (PASSED, "a (1234 runs)"))

    def test_a_broken_parser_shows_its_input_and_words(self) -> None:
        case = self.fuzz('[[ $word == *crash-1 ]] && echo deep trouble\necho y > "${out}crash-1"\nexit 77\n')
        self.assertEqual(case.outcome, FAILED)
        self.assertIn("input out/fuzz/a/crash-1", case.detail)
        self.assertIn("deep trouble", case.detail)

    def test_what_only_was_slow_broke_nothing(self) -> None:
        slow = 'echo y > "${out}slow-unit-0"\n'
        case = self.fuzz(slow + '[[ $word == *timeout-1 ]] && echo far too long\necho y > "${out}timeout-1"\nexit 70\n')
        self.assertIn("input out/fuzz/a/timeout-1", case.detail)
        self.assertIn("far too long", case.detail)

    def test_a_run_that_says_nothing_has_failed(self) -> None:
        self.assertEqual(self.fuzz("exit 0\n").outcome, FAILED)

    def test_a_parser_without_inputs_has_failed(self) -> None:
        (self.root / "tests/fuzz/corpus/a/good").unlink()
        self.assertIn("holds no inputs", self.fuzz("exit 0\n").detail)

    def test_every_committed_target_has_inputs_and_existing_sources(self) -> None:
        folder = support.ROOT / "tests" / "fuzz"
        for target in fuzz.targets(folder):
            self.assertTrue(list((folder / "corpus" / target.name).iterdir()), target.name)
            for source in target.sources:
                path = Path(support.ROOT / source)
                self.assertTrue(path.exists() or list(path.parent.glob(path.name + "*")), source)


if __name__ == "__main__":
    unittest.main()
