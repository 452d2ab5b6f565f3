"""check_budgets finds long files, functions and pages, copies, slow units; waivers need a reason and a date."""

import json
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import support
import check_budgets
import measure


def body(n: int, tag: str = "x") -> str:
    return "".join(f"  const int {tag}_value_{i} = compute({i});\n" for i in range(n))


class CheckBudgetsTest(support.TreeTest):
    def problems(self) -> list[str]:
        return check_budgets.check(self.root)[0]

    def test_small_files_pass(self) -> None:
        self.write("src/base/a.cc", "namespace overlace {\nint f() {\n" + body(70) + "  return 0;\n}\n}\n")
        self.write("src/README.md", "# Title\n" * 80)
        self.assertEqual(self.problems(), [])

    def test_lines_of_files(self) -> None:
        self.write("src/base/a.cc", "int a;\n" * 601)
        self.write("include/overlace/a.h", "#pragma once\n" * 401)
        self.write("src/README.md", "# Title\n" * 81)
        found = self.problems()
        self.assert_problem(found, "src/base/a.cc: 601 lines; at most 600")
        self.assert_problem(found, "include/overlace/a.h: 401 lines; at most 400")
        self.assert_problem(found, "src/README.md: 81 lines")

    def test_functions(self) -> None:
        text = "struct A {\n  int f() const {\n" + body(79) + "  }\n};\n"
        found = check_budgets.cpp_functions(text)
        self.assertEqual([(81, "f")], [(length, name) for _, length, name in found])
        self.write("src/base/a.cc", text)
        self.assert_problem(self.problems(), "src/base/a.cc:2: f has 81 lines; at most 80")
        self.write("tools/a.py", "def g():\n" + "    pass\n" * 81)
        self.assert_problem(self.problems(), "g has 82 lines")

    def test_function_heuristic(self) -> None:
        text = (
            'namespace a {\nconst char* s = "}{";  // }\nstd::vector<int> v = {f(1),\n  2};\n'
            "class B : public C<D()> {\n"
            " public:\n  B(int x) : x_{x} {\n    auto l = [&](int y) {\n      return y;\n    };\n  }\n};\n"
            "template <class T>\nint g(T t) {\n  if (t) {\n  }\n}\n}\n"
        )
        names = {name: length for _, length, name in check_budgets.cpp_functions(text)}
        self.assertEqual(names.get("g"), 5)  # with its template line
        self.assertNotIn("C", names)

    def test_template_parameters(self) -> None:
        text = "template <" + ", ".join(f"int N{i}" for i in range(9)) + ">\nstruct A {};\n"
        self.assert_problem(check_budgets.template_problems("src/a.h", text), "9 template parameters")

    def test_divisions_that_are_rounded_up_by_hand(self) -> None:
        for text in ("(n + d - 1) / d", "((e - b) + o.size() - 1)/o.size()", "(a[0] + p->most - 1) / p->most * 4"):
            self.write("src/base/a.cc", f"// (n + d - 1) / d\nint f() {{ return {text}; }}\n")
            self.assert_problem(self.problems(), "src/base/a.cc:2: a division rounded up by hand")
        for text in (
            "(n + d - 1) / e",
            "(n + d - 1) / d.most",
            "(n + d - 1) / dd",
            "2 * (n - 1) / n",
            "(n + d - 1) % d",
        ):
            self.write("bench/a/a.cc", f"int f() {{ return {text}; }}\n" + "int a;\n" * 50)
            (self.root / "src/base/a.cc").unlink(missing_ok=True)
            self.assertEqual(self.problems(), [], text)
        self.write("tests/unit/a_test.cc", "int f() { return (n + d - 1) / d; }\n")
        self.write("src/base/ceil_div_pod.h", "int f() { return (n + d - 1) / d; }\n")
        self.assertEqual(self.problems(), [])

    def test_copies(self) -> None:
        self.write("src/base/a.cc", "int f() {\n" + body(60) + "}\n")
        self.write("src/base/b.cc", "int g() {\n" + body(40) + body(20, "other") + "}\n")
        self.assert_problem(self.problems(), "shares 67% of its lines with src/base/a.cc")
        self.write("src/base/b.cc", "int g() {\n" + body(10) + body(50, "other") + "}\n")
        self.assertEqual(self.problems(), [])

    def test_fragments(self) -> None:
        """A header counts with its source; tables and contracts may be short; the list of old ones only shrinks."""
        self.write("src/base/a.cc", "int a;\n" * 30)
        self.write("src/base/b_pod.h", "int b;\n")
        self.write("cli/x/options.cc", "int o;\n")
        self.write("include/overlace/c.h", "int c;\n")
        self.assert_problem(self.problems(), "src/base/a: 30 lines with its header; below 50 it joins its neighbour")
        self.write(check_budgets.SMALL_FILES, "# today's\nsrc/base/a\n")
        self.assertEqual(self.problems(), [])
        self.write("src/base/a.h", "int a;\n" * 20)
        self.assert_problem(self.problems(), "src/base/a is no small file any more: its line goes")
        self.write(check_budgets.SMALL_FILES, "")
        self.assertEqual(self.problems(), [])
        self.write("src/base/d.h", "int d;\n")
        self.write(check_budgets.WAIVERS, "small: src/base/d -- one word that two layers share, 2026-01-31\n")
        self.assertEqual(self.problems(), [])

    def test_waivers(self) -> None:
        self.write("src/base/a.cc", "int a;\n" * 601)
        self.write(check_budgets.WAIVERS, "lines: src/base/a.cc -- one table, generated by hand, 2026-01-31\n")
        self.assertEqual(self.problems(), [])
        self.write(check_budgets.WAIVERS, "lines: src/base/a.cc\n")
        self.assert_problem(self.problems(), "needs ` -- reason, YYYY-MM-DD`")

    def test_ninja_log(self) -> None:
        entries = [(0, 5900, "quick.o"), (0, 6100, "slow.o"), (10, 9000, "once.o"), (0, 10, "once.o")]
        entries += [(0, 5900, "src/device.cu.o"), (0, 4700, "src/quick.cu.o")]
        entries += [(0, 9000, "no_unit")]
        log = "# ninja log v5\n" + "".join(f"{start}\t{end}\t1\t{output}\tabc\n" for start, end, output in entries)
        budgets = {output: check_budgets.seconds_of(output) for _, _, output in entries if output != "no_unit"}
        self.assertEqual(check_budgets.slow_outputs(log, budgets), ["src/device.cu.o", "slow.o"])

    def joined(self, *sources: str) -> Path:
        """What CMake writes for a target whose sources it joins."""
        path = "build/cpu/CMakeFiles/overlace_base.dir/Unity/unity_src_base_cxx.cxx"
        lines = "".join(f'#include "{self.root}/{source}"\n\n' for source in sources)
        self.write(path, "/* generated by CMake */\n\n" + lines)
        return self.root / path

    def test_names_of_units(self) -> None:
        of_target = self.root / "build/cpu/CMakeFiles/overlace.dir/Unity/unity_0_cxx.cxx"
        self.assertEqual(check_budgets.name_of(of_target, self.root), "target overlace")
        self.assertEqual(check_budgets.name_of(self.root / "src/a.cc", self.root), "src/a.cc")
        of_folder = self.joined("src/base/a.cc", "src/base/b.cc")
        self.assertEqual(check_budgets.name_of(of_folder, self.root), "folder src/base")
        self.assertEqual(check_budgets.name_of(self.joined("a/a.cc", "b/b.cc"), self.root), "target overlace_base")

    def test_the_budget_of_a_folder_grows_with_its_files(self) -> None:
        limit = unittest.mock.patch.multiple(check_budgets, UNIT_SECONDS=0.2, FURTHER_SECONDS=0.1)
        limit.start()
        self.addCleanup(limit.stop)
        burn = "import time; [0 for _ in iter(lambda: time.process_time() < 0.5, False)]"
        for files, wanted in ((1, 1), (2, 1), (9, 0)):
            unit = self.joined(*(f"src/base/{i}.cc" for i in range(files)))
            self.assertAlmostEqual(check_budgets.budget_of(unit), 0.2 + 0.1 * (files - 1))
            self.write("build/cpu/.ninja_log", "# ninja log v5\n0\t9000\t1\ta.o\tabc\n")
            command = f"{sys.executable} -c '{burn}' -o a.o"
            entry = {"directory": str(self.root), "command": command, "file": str(unit)}
            self.write("build/cpu/compile_commands.json", json.dumps([entry]))
            with unittest.mock.patch.object(check_budgets, "slowness", return_value=1.0):
                found = check_budgets.time_problems(self.root, self.root / "build/cpu", {})
            self.assertEqual(len(found), wanted, found)
            self.assertEqual([p.startswith("folder src/base: 0.") for p in found], [True] * wanted)

    def test_no_cache_answers(self) -> None:
        words = ["g++", "-c", "a.cc"]
        for launcher in ([], ["/usr/bin/ccache"], ["/usr/bin/cmake", "-E", "env", "A=b,c", "D=e", "/usr/bin/ccache"]):
            self.assertEqual(check_budgets.without_launchers([*launcher, *words]), words)

    def test_slow_unit_is_measured_alone(self) -> None:
        """A compiler that burns processor time is found; one that only waited, or is on a slower machine, is not."""
        build = self.root / "build"
        limit = unittest.mock.patch.object(check_budgets, "UNIT_SECONDS", 0.4)
        limit.start()
        self.addCleanup(limit.stop)
        burn = "[0 for _ in iter(lambda: time.process_time() < 0.6, False)]"
        for work, slowness, wanted in ((burn, 1.0, 1), (burn, 3.0, 0), ("time.sleep(0.01)", 1.0, 0)):
            factor = unittest.mock.patch.object(check_budgets, "slowness", return_value=slowness)
            factor.start()
            self.addCleanup(factor.stop)
            self.write("src/a.cc", "int a;\n")
            self.write("build/.ninja_log", "# ninja log v5\n0\t9000\t1\ta.o\tabc\n")
            command = f"{sys.executable} -c 'import time; {work}' -o a.o -c src/a.cc"
            unit = {"directory": str(self.root), "command": command, "file": str(self.root / "src/a.cc")}
            self.write("build/compile_commands.json", json.dumps([unit]))
            found = check_budgets.time_problems(self.root, Path(build), {})
            self.assertEqual(len(found), wanted, found)

    def test_device_units_of_the_library_count_and_no_precompiled_headers(self) -> None:
        command = f"{sys.executable} -c 'import sys; sys.exit(3)' -o OUT"
        for path, wanted in (("src/a.cu", 1), ("build/instances/a.cu", 1), ("bench/a.cu", 0), ("cmake_pch.hxx.cxx", 0)):
            self.write("build/.ninja_log", f"# ninja log v5\n0\t9000\t1\t{path}.o\tabc\n")
            words = command.replace("OUT", f"{path}.o")
            unit = {"directory": str(self.root), "command": words, "file": str(self.root / path)}
            self.write("build/compile_commands.json", json.dumps([unit]))
            found = check_budgets.time_problems(self.root, self.root / "build", {})
            self.assertEqual(len(found), wanted, found)

    def test_the_budget_of_a_device_unit_is_for_each_architecture(self) -> None:
        limit = unittest.mock.patch.object(check_budgets, "DEVICE_SECONDS", 0.3)
        limit.start()
        self.addCleanup(limit.stop)
        burn = "import time; [0 for _ in iter(lambda: time.process_time() < 0.6, False)]"
        one = "--generate-code=arch=compute_90a,code=[sm_90a]"
        three = f"--generate-code=arch=compute_80,code=[compute_80,sm_80] {one} --generate-code=arch=a,code=[sm_100]"
        for code, number, wanted in ((one, 1, 1), (three, 3, 0)):
            self.assertEqual(check_budgets.architectures_of(f"nvcc {code} -c a.cu"), number)
            self.write("build/.ninja_log", "# ninja log v5\n0\t9000\t1\ta.cu.o\tabc\n")
            command = f"{sys.executable} -c '{burn}' {code} -o a.cu.o"
            unit = {"directory": str(self.root), "command": command, "file": str(self.root / "src/a.cu")}
            self.write("build/compile_commands.json", json.dumps([unit]))
            with unittest.mock.patch.object(check_budgets, "slowness", return_value=1.0):
                found = check_budgets.time_problems(self.root, self.root / "build", {})
            self.assertEqual(len(found), wanted, found)
        self.assertEqual(check_budgets.architectures_of("g++ -c a.cc"), 1)

    def test_a_yardstick_is_compiled(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertGreaterEqual(measure.slowness(Path(folder)), 1.0)


if __name__ == "__main__":
    unittest.main()
