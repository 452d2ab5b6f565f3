"""The mutate job: which conditions are changed how, what is left alone, and what becomes of each mutant."""

import subprocess
import unittest
import unittest.mock
from pathlib import Path

import support
import mutants
import mutate
from results import FAILED, PASSED
from runner import Done, Program


def of(text: str) -> list[tuple[str, str]]:
    """(what is changed, the condition then)"""
    return [(m.what, mutants.one_line(m.changed)) for m in mutants.mutants_of("src/base/a.cc", text)]


class MutantsTest(unittest.TestCase):
    def test_each_operator_negation_and_guard_is_one(self) -> None:
        text = "if (a <= b && !is_open(c) || d != 0) return x;\n"
        self.assertEqual(
            of(text),
            [
                ("<= becomes < (operator 1)", "a < b && !is_open(c) || d != 0"),
                ("&& becomes || (operator 2)", "a <= b || !is_open(c) || d != 0"),
                ("|| becomes && (operator 3)", "a <= b && !is_open(c) && d != 0"),
                ("!= becomes == (operator 4)", "a <= b && !is_open(c) || d == 0"),
                ("! is left out (negation 1)", "a <= b && is_open(c) || d != 0"),
                ("the guard is never taken", "false"),
            ],
        )

    def test_guards_are_those_that_leave(self) -> None:
        for leaves in ("return;", "{ throw X(); }", "{\n  continue;\n}", "break;"):
            self.assertIn(("the guard is never taken", "false"), of(f"if (x) {leaves}"), leaves)
        for stays in ("f();", "{ f(); return; }", "{ returned(); }"):
            self.assertEqual(of(f"if (x) {stays}"), [], stays)
        self.assertEqual(of("while (x) break;"), [])

    def test_loops_and_returned_truths(self) -> None:
        self.assertEqual([c for _, c in of("for (int i = 0; i < n; ++i) f();")], ["i <= n"])
        self.assertEqual([c for _, c in of("while (p >= q) f();")], ["p > q"])
        self.assertEqual([c for _, c in of("if (int r = f(); r > 0) g();")], ["r >= 0"])
        self.assertEqual([c for _, c in of("return a == b;")], ["a != b"])
        for other in ("return f(a == b);", "return a < b ? c : d;", "return out << (a < b);", "return {a == b};"):
            self.assertEqual(of(other), [], other)

    def test_what_is_no_condition_of_run_time_is_left_alone(self) -> None:
        for text in (
            "if constexpr (a < b) f();",
            "static_assert(a < b);",
            "if (const auto* p = f(a < b)) g();",
            "for (auto& x : all) f(x);",
            "// if (a < b) f();",
            "/* if (a < b) */ f();",
            "#define X \\\n  if (a < b) return 1;",
            'f("if (a < b) return");',
            'f(R"(if (a < b) return)");',
            "if (a /* why */ < b) f();",
            "std::map<int, int> m; f<int>(m);",
        ):
            self.assertEqual(of(text), [], text)
        self.assertEqual(next(c for _, c in of("if (n == 1'000 && c != '\"') f();")), "n != 1'000 && c != '\"'")

    def test_only_the_innermost_of_nested_conditions(self) -> None:
        text = "if (all(v, [](int x) { return x > 0; }) == true) f();"
        self.assertEqual([c for _, c in of(text)], ["x >= 0"])

    def test_a_line_is_where_the_condition_begins(self) -> None:
        found = mutants.mutants_of("src/base/a.cc", "int x;\nif (\n    a <\n    b) f();\n")
        self.assertEqual([(m.line, m.condition) for m in found], [(3, "a < b")])

    def test_the_draw_is_that_of_its_seed(self) -> None:
        found = mutants.mutants_of("src/base/a.cc", "".join(f"if (a{i} < b) f();\n" for i in range(50)))
        self.assertEqual(mutants.draw(found, 7, 3), mutants.draw(found, 7, 3))
        self.assertNotEqual(mutants.draw(found, 7, 3), mutants.draw(found, 7, 4))
        self.assertEqual(len(mutants.draw(found, 99, 1)), 50)


PROGRAM = """#include <cstdio>
#include <cstdlib>
int sign(int a) {
  if (a < 0) return -1;
  return a != 0;
}
int main(int, char** words) {
  std::printf("%d\\n", sign(std::atoi(words[1])));
  for (int i = 0;
       i < 2; ++i) std::printf("%d", i);
}
"""


class RewrittenTest(support.TreeTest):
    """Compiles a program with all its mutants and asks each what it does."""

    def test_each_number_is_one_change_and_0_is_none(self) -> None:
        found = mutants.mutants_of("main.cc", PROGRAM)
        self.assertEqual(len(found), 4)
        text = mutants.rewritten(PROGRAM, enumerate(found, 1))
        self.assertEqual(text.count("\n"), PROGRAM.count("\n") + 2)
        self.write(mutants.HEADER, mutants.HEADER_TEXT)
        self.write(mutants.SOURCE, mutants.SOURCE_TEXT)
        self.write("main.cc", text)
        words = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I.", "main.cc", mutants.SOURCE, "-o", "main"]
        subprocess.run(words, cwd=self.root, check=True)
        seen = self.root / "seen"

        def output(number: int, given: int) -> str:
            seen.write_bytes(bytes(5))
            env = {"MUTANT": str(number), "MUTANTS_SEEN": str(seen)}
            done = subprocess.run([str(self.root / "main"), str(given)], env=env, capture_output=True, check=True)
            return done.stdout.decode().replace("\n", " ")

        self.assertEqual([output(0, n) for n in (-7, 0, 7)], ["-1 01", "0 01", "1 01"])
        self.assertEqual(found[0].what, "< becomes <= (operator 1)")
        self.assertEqual(output(1, 0), "-1 01")
        self.assertEqual(output(2, -7), "1 01")
        self.assertEqual(output(3, 0), "1 01")
        self.assertEqual(output(4, 0), "0 012")
        output(0, -7)
        self.assertEqual(seen.read_bytes(), bytes([0, 1, 1, 0, 1]))  # the other return was not reached


def mutant(path: str = "src/ops/a.cc", line: int = 7, what: str = "the guard is never taken") -> mutants.Mutant:
    return mutants.Mutant(path, line, 0, 5, "a\n< b", "false", what)


class VerdictTest(support.TreeTest):
    def given(self, **cases: tuple[float, set[int]]) -> list[mutate.Test]:
        """Cases named by program and number."""
        return [
            mutate.Test(Program(n.rpartition("_")[0], ("x",), (), 1, self.root), n, s, frozenset(seen))
            for n, (s, seen) in cases.items()
        ]

    def verdict(self, number: int, tests: list[mutate.Test], failing: set[str]) -> tuple[mutate.Verdict, list[str]]:
        ran: list[str] = []

        def run_case(program: Program, name: str, env: dict[str, str], timeout_s: float) -> tuple[int, float]:
            ran.append(name)
            self.assertEqual(env, {"MUTANT": str(number)})
            return int(name in failing), 40.0

        with unittest.mock.patch.object(mutate, "run_case", run_case):
            return mutate.verdict_of(number, mutant(), tests), ran

    def test_tests_that_come_past_it_run_until_one_fails(self) -> None:
        tests = self.given(ranks_a_1=(0.1, {1}), unit_spec_1=(0.1, {1, 2}), unit_ops_1=(9, {1}), unit_ops_2=(1, {2}))
        verdict, ran = self.verdict(1, tests, {"unit_spec_1", "ranks_a_1"})
        self.assertEqual((verdict.outcome, verdict.by), (mutate.KILLED, "unit_spec: unit_spec_1"))
        self.assertEqual(ran, ["unit_ops_1", "unit_spec_1"])

    def test_survivors_say_what_ran(self) -> None:
        tests = self.given(unit_ops_1=(1, {1}), unit_ops_2=(2, {1}), ranks_a_1=(1, {1}))
        verdict, _ = self.verdict(1, tests[:1], set())
        self.assertEqual((verdict.outcome, verdict.by), (mutate.SURVIVED, "all 1 tests"))
        verdict, _ = self.verdict(1, tests, set())
        self.assertEqual((verdict.outcome, verdict.by), (mutate.SURVIVED, "2 of 3 tests, then 60 s were over"))
        self.assertEqual(self.verdict(3, tests, set())[0].outcome, mutate.UNSEEN)

    def test_what_has_no_time_left_is_not_tried(self) -> None:
        verdicts = mutate.verdicts_of({1: mutant(line=3), 2: mutant(line=2)}, [], 2, 0.0)
        self.assertEqual([v.outcome for v in verdicts], [mutate.UNTRIED] * 2)
        self.assertEqual([v.mutant.line for v in verdicts], [2, 3])

    def test_the_summary_counts_what_was_tried(self) -> None:
        outcomes = [mutate.KILLED] * 8 + [mutate.SURVIVED, mutate.UNSEEN, mutate.UNTRIED]
        verdicts = [mutate.Verdict(mutant(line=i), o, "all 2 tests") for i, o in enumerate(outcomes)]
        case, lines = mutate.summary(verdicts, set())
        self.assertEqual(case.outcome, PASSED)
        self.assertEqual(case.name, "8 of 10 mutants are killed (80 %), 1 were not tried")
        self.assertEqual(lines[0], "src/ops/a.cc:8: `a < b`: the guard is never taken: survived, all 2 tests")
        self.assertEqual(mutate.summary(verdicts[1:], set())[0].outcome, FAILED)
        self.assertEqual(mutate.summary(verdicts, {mutant().key})[1], [])

    def test_equivalent_mutants_are_named_with_a_reason(self) -> None:
        known = [mutant(what="|| becomes && (operator 1)")]
        good = "src/ops/a.cc | a < b | || becomes && (operator 1) | both are the same"
        self.write(str(mutate.EQUIVALENT), f"# Why.\n{good}\n")
        self.assertEqual(mutate.equivalents(self.root, known), ({known[0].key}, []))
        for bad in (good.replace("a.cc", "b.cc"), good.rpartition("|")[0] + "|"):
            self.write(str(mutate.EQUIVALENT), f"{bad}\n")
            keys, problems = mutate.equivalents(self.root, known)
            self.assertEqual(keys, set())
            self.assert_problem(problems, "mutants_equivalent.txt:1: no such mutant, or no reason")

    def test_errors_of_the_compiler_name_mutants(self) -> None:
        numbered = {1: mutant(line=7), 2: mutant(line=9), 3: mutant("src/ops/b.cc")}
        output = "../src/ops/a.cc:8:3: error: no\nsrc/ops/b.cc:9:1: error: no\nsrc/ops/a.cc:9: warning: hm\n"
        self.assertEqual(mutate.broken_by(output, numbered), {1})

    def test_cases_are_those_that_the_program_lists(self) -> None:
        listed = (
            "Running main() from x.cc\nA.\n  One\n  DISABLED_Two\nB/C.  # TypeParam = int\n  D/0  # GetParam() = 4\n"
        )
        with unittest.mock.patch.object(mutate, "run", lambda *_, **__: Done(0, listed, 0.1)):
            names = mutate.case_names(Program("unit_x", ("x",), (), 1, Path()))
        self.assertEqual(names, ["A.One", "B/C.D/0"])


if __name__ == "__main__":
    unittest.main()
