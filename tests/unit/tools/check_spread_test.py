"""check_spread counts names of operators outside of their tables, and its list may only get shorter."""

import unittest

import support
import check_spread

TABLE = """
constexpr FamilyDef kFamilies[] = {
    whole("library", library), cut("woven_1d", 1), with_defaults(whole("one_kernel", 2)),
};
constinit const OperatorDef kSum = {.name = "gemm_sum",
"""


class CheckSpreadTest(support.TreeTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("src/spec/families/gemm_sum.cc", TABLE)
        self.write("cli/plan.cc", 'if (op == "gemm_sum" || family == "library") f("woven_1d");  // "one_kernel"\n')
        self.write("python/overlace/fake.py", "x = 'gemm_sum'\n")
        self.write("tools/spread.txt", "")
        self.write("tests/unit/a_test.cc", 'run("gemm_sum");\n')

    def run_tool(self, *words: str) -> int:
        return check_spread.main(["--root", str(self.root), *words])

    def test_names_are_those_of_the_tables(self) -> None:
        self.assertEqual(check_spread.names(self.root), {"gemm_sum", "woven_1d", "one_kernel"})
        self.assertEqual(check_spread.counted(self.root), {"cli/plan.cc": 2, "python/overlace/fake.py": 1})

    def test_none_may_be_added_and_the_list_follows_what_goes(self) -> None:
        self.assertEqual(self.run_tool(), 1)
        self.assertEqual(self.run_tool("--write"), 0)
        self.assertEqual((self.root / "tools/spread.txt").read_text(), "2 cli/plan.cc\n1 python/overlace/fake.py\n")
        self.write("cli/new.cc", 'f("one_kernel");\n')
        self.assertEqual(self.run_tool(), 1)
        (self.root / "cli/new.cc").unlink()
        self.assertEqual(self.run_tool(), 0)
        self.write("cli/plan.cc", 'f("woven_1d");\n')
        self.assertEqual(self.run_tool(), 1)
        found = check_spread.problems(self.root, check_spread.counted(self.root))
        self.assertEqual(len(found), 1)
        self.assertIn("still has 2", found[0])


if __name__ == "__main__":
    unittest.main()
