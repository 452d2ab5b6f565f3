"""check_spread counts names of operators outside of their tables, and its list may only get shorter."""

import unittest
import unittest.mock

import support
import check_spread

TABLE = """
constexpr FamilyDef kFamilies[] = {
    whole("library", library), whole("pyramid", hosts), cut("woven_1d", 1), with_defaults(whole("one_kernel", 2)),
};
const Region kAll = whole("C");
constinit const OperatorDef kSum = {.name = "gemm_sum",
"""


class CheckSpreadTest(support.TreeTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("src/spec/families/gemm_sum.cc", TABLE)
        self.write("cli/plan.cc", 'if (op == "gemm_sum") f("woven_1d");  // "one_kernel"\n')
        self.write("python/overlace/fake.py", "x = 'gemm_sum'\n")
        self.write("tools/spread.txt", "")
        self.write("tests/unit/a_test.cc", 'run("gemm_sum");\n')

    def run_tool(self, *words: str) -> int:
        return check_spread.main(["--root", str(self.root), *words])

    def test_names_are_those_of_the_tables(self) -> None:
        self.assertEqual(check_spread.names(self.root), {"gemm_sum", "woven_1d", "one_kernel", "pyramid"})
        self.assertEqual(check_spread.counted(self.root), {"cli/plan.cc": 2, "python/overlace/fake.py": 1})

    def test_an_operators_binding_and_a_name_that_means_something_else_do_not_count(self) -> None:
        before = check_spread.counted(self.root)
        self.write("python/csrc/ag_gemm.cc", 'm.impl("gemm_sum");\n')
        with unittest.mock.patch.object(check_spread, "OTHERWISE", ("src/study/network/ pyramid",)):
            self.write("src/study/network/a.cc", 'if (algorithm == "pyramid") run("woven_1d");\n')
            self.assertEqual(check_spread.counted(self.root), {**before, "src/study/network/a.cc": 1})
        self.write("python/csrc/group.cc", 'f("gemm_sum");\n')
        self.assertEqual(check_spread.counted(self.root)["python/csrc/group.cc"], 1)

    def test_a_common_word_counts_where_it_is_compared(self) -> None:
        def count(path: str, text: str) -> int:
            self.write(path, text)
            found = check_spread.counted(self.root).get(path, 0)
            (self.root / path).unlink()
            return found

        for text in ('f == "library"', '"serial" != f', 'f.starts_with("compute")', 'f.compare("comm") == 0'):
            self.assertEqual(count("cli/a.cc", f"return {text};\n"), 1, text)
            self.assertEqual(count("src/ops/a.cc", f"return {text};\n"), 1, text)
            self.assertEqual(count("tests/unit/a_test.cc", f"return {text};\n"), 0, text)
        for text in ("f == 'library'", "f not in ('auto', 'serial')", "f.removeprefix('x').startswith('comm')"):
            self.assertEqual(count("bench/a.py", f"x = {text}\n"), 1, text)
            self.assertEqual(count("python/overlace/ops/a.py", f"x = {text}\n"), 1, text)
        for text in ('measure("library");', 'f.starts_with("comm_");', 'f == "library_of_all";', '// f == "library"'):
            self.assertEqual(count("cli/a.cc", f"{text}\n"), 0, text)
        for text in ("[x[n] for n in ('library', 'comm')]", "{'limit': 1}", "x == 'commons'"):
            self.assertEqual(count("bench/a.py", f"x = {text}\n"), 0, text)

    def test_operators_of_tests_are_named_in_tests_alone(self) -> None:
        self.write("tests/toy/operator.cc", 'constinit const OperatorDef kToy = {.name = "toy_sum",\n')
        self.write("tests/unit/b_test.cc", 'run("toy_sum");\n')
        self.write("docs/guide.md", "about a toy_summary\n")
        self.assertEqual(check_spread.toys(self.root), [])
        self.write("docs/guide.md", "text\nwith toy_sum\n")
        self.write("examples/a.cc", "ToySum toy_sum_of;\n")
        found = check_spread.toys(self.root)
        self.assertEqual([line.split(" ")[0] for line in found], ["docs/guide.md:2:", "examples/a.cc:1:"])
        self.assertEqual(check_spread.problems(self.root, check_spread.counted(self.root))[-2:], found)

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
        for path in ("cli/plan.cc", "python/overlace/fake.py"):
            (self.root / path).unlink()
        self.assertEqual(self.run_tool("--write"), 0)
        self.assertFalse((self.root / "tools/spread.txt").exists())
        self.assertEqual(self.run_tool(), 0)


if __name__ == "__main__":
    unittest.main()
