"""The coverage job: what it reads out of gcov's reports, and when it fails."""

import json
import unittest
import unittest.mock

import support
import coverage
from results import FAILED, PASSED


def report(files: dict[str, dict[int, int]]) -> dict:
    listed = [
        {"file": name, "lines": [{"line_number": n, "count": count} for n, count in lines.items()]}
        for name, lines in files.items()
    ]
    return {"current_working_directory": str(support.ROOT / "build" / "x"), "files": listed}


class CoverageTest(unittest.TestCase):
    def test_lines_of_several_objects_are_joined(self) -> None:
        reports = [
            report({"../../src/base/a.h": {1: 0, 2: 5}, "../../src/base/a.cc": {1: 1}}),
            report({"../../src/base/a.h": {1: 3, 2: 0, 7: 0}}),
        ]
        self.assertEqual(coverage.read(reports), {"src/base/a.h": {1: 3, 2: 5, 7: 0}, "src/base/a.cc": {1: 1}})

    def test_documents_follow_each_other_without_a_line_end(self) -> None:
        one, two = report({"a": {1: 1}}), report({"b": {}})
        text = f"x.gcda:cannot open data file\n{json.dumps(one)}{json.dumps(two)}\nb.gcda:not found\n"
        self.assertEqual(list(coverage.documents(text)), [one, two])
        self.assertEqual(list(coverage.documents("")), [])

    def test_other_code_does_not_count(self) -> None:
        names = (
            "/usr/include/c++/12/vector",
            "../../tests/ranks/a.cc",
            "../../overlace/device/put.cuh",
            "../../src/exec/cuda/executor.cc",
            "../../src/runtime/backend/cuda_peer/heap.cc",
            "../../cli/main.cc",
        )
        self.assertEqual(coverage.read([report({name: {1: 1} for name in names})]), {})

    def test_below_the_limit_it_fails_and_says_where(self) -> None:
        lines = {n: int(n > 4) for n in range(1, 11)}
        case, below = coverage.verdict({"src/a.cc": lines, "src/b.cc": dict.fromkeys(range(10), 1)})
        self.assertEqual((case.outcome, case.name), (FAILED, "line coverage of src/ is 80.0 % of 20 lines"))
        self.assertEqual(below, [" 60.0 %  src/a.cc: 1-4"])
        self.assertIn(below[0], case.detail)

    def test_from_the_limit_on_it_passes(self) -> None:
        case, below = coverage.verdict({"src/a.cc": {n: int(n != 1) for n in range(10)}})
        self.assertEqual((case.outcome, below), (PASSED, []))
        self.assertEqual(coverage.verdict({})[0].outcome, FAILED, "nothing was measured")

    def test_ranges(self) -> None:
        self.assertEqual(coverage.ranges([3, 7, 8, 9, 11]), "3 7-9 11")


if __name__ == "__main__":
    unittest.main()
