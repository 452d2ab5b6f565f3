"""check_names finds local names that the files of a folder would see of each other when they are compiled as one."""

import unittest

import support
import check_names

LOCAL = "namespace overlace::{space} {{\nnamespace {{\n{text}\n}}  // namespace\n{after}\n}}  // namespace overlace\n"


def unit(text: str, after: str = "", space: str = "spec") -> str:
    return LOCAL.format(text=text, after=after, space=space)


class CheckNamesTest(support.TreeTest):
    def problems(self) -> list[str]:
        return check_names.check(self.root)[0]

    def names(self, text: str) -> list[str]:
        return [d.name for d in check_names.declarations(unit(text)) if d.is_local]

    def test_what_declares(self) -> None:
        self.assertEqual(self.names("int f(int a, int b = g()) { int c; return h(a); }"), ["f"])
        self.assertEqual(self.names("template <class T, int N>\nstd::vector<T> f(std::array<T, N> a) {}"), ["f"])
        self.assertEqual(self.names("[[noreturn]] void f();"), ["f"])
        self.assertEqual(self.names("constexpr int kA = 1, kB = f(2), kC = 3;"), ["kA", "kB", "kC"])
        self.assertEqual(self.names("constexpr Arg kArgs[] = {{1, 2}, {3, 4}};"), ["kArgs"])
        self.assertEqual(self.names("std::map<int, std::string> known;"), ["known"])
        self.assertEqual(self.names("struct A final : B {\n  int member = 0;\n  void f() {}\n};\nclass C;"), ["A", "C"])
        self.assertEqual(
            self.names("enum Lane { kTrain, kDisk = 4 };\nenum class Kind { free };"),
            ["Lane", "kTrain", "kDisk", "Kind"],
        )
        self.assertEqual(self.names("using Key = std::tuple<int, int>;\nusing base::Json;"), ["Key"])
        self.assertEqual(self.names("bool A::f() const { return true; }\nbool operator<(A, A);"), [])
        self.assertEqual(
            self.names("INSTANTIATE_TEST_SUITE_P(All, A, testing::Values(1), [](auto& i) { return f(i); });"), []
        )
        static = check_names.declarations("static int f() { return 1; }\nint g() { return 2; }\n")
        self.assertEqual([(d.name, d.is_local) for d in static], [("f", True), ("g", False)])

    def test_a_local_name_belongs_to_one_file_of_a_folder(self) -> None:
        self.write("src/spec/a.cc", unit("int size_of(int a) { return a; }"))
        self.write("src/spec/b.cc", unit("\nint size_of(const char* a) { return 1; }"))
        self.write("src/spec/checks/c.cc", unit("int size_of(int a) { return a; }"))
        self.assertEqual(self.problems(), ["src/spec/b.cc:4: size_of is local to src/spec/a.cc, too"])
        self.write("src/spec/b.cc", unit("int length_of(const char* a) { return 1; }"))
        self.assertEqual(self.problems(), [])

    def test_an_alias_may_be_repeated_but_not_changed(self) -> None:
        self.write("src/spec/a.cc", unit("using Key = int;"))
        self.write("src/spec/b.cc", unit("using Key = int;"))
        self.assertEqual(self.problems(), [])
        self.write("src/spec/b.cc", unit("using Key = long;"))
        self.assert_problem(self.problems(), "src/spec/b.cc:3: Key is local to src/spec/a.cc, too")

    def test_a_local_name_hides_no_header_from_a_neighbour(self) -> None:
        """The neighbour would call another function of the same parameters, and the compiler would not say so."""
        self.write("src/spec/families.h", unit("", "std::vector<int> chunk_degrees(const OpSpec& op);"))
        self.write("src/spec/a.cc", unit("std::vector<int> chunk_degrees(const OpSpec&) { return {}; }"))
        self.write("src/spec/b.cc", unit("int f() { return g(x.chunk_degrees); }"))
        self.assertEqual(self.problems(), [])
        self.write("src/spec/b.cc", unit("int f() { return g(chunk_degrees); }"))
        wanted = "src/spec/a.cc:3: chunk_degrees hides that of src/spec/families.h from src/spec/b.cc"
        self.assertEqual(self.problems(), [wanted])
        self.write("src/spec/families.h", unit("", "int chunk_degrees();", space="sim"))
        self.assertEqual(self.problems(), [])
        self.write("src/spec/families.h", "namespace overlace {\nint chunk_degrees();\n}\n")
        self.assertEqual(self.problems(), [wanted])

    def test_tests_of_one_program_are_one_folder(self) -> None:
        """Which of their files are one unit depends on how many there are."""
        self.write("tests/unit/spec/a_test.cc", unit("TEST(A, Holds) { f(); }\nint size_of(int a) { return a; }"))
        self.write("tests/unit/spec/checks/b_test.cc", unit("TEST_F(B, Holds) {}\nint size_of(int a) { return a; }"))
        self.write("tests/unit/exec/c_test.cc", unit("int size_of(int a) { return a; }"))
        wanted = "tests/unit/spec/checks/b_test.cc:4: size_of is local to tests/unit/spec/a_test.cc, too"
        self.assertEqual(self.problems(), [wanted])
        self.write("tests/unit/spec/checks/b_test.cc", unit("TEST(B, Holds) { size_in(1); }"))
        self.assertEqual(self.problems(), [])
        self.write("tests/unit/spec/sizes.h", unit("", "int size_of(int a);"))
        self.assertEqual(self.problems(), [])
        self.write("tests/unit/spec/checks/b_test.cc", unit("TEST(B, Holds) { size_of(1); }"))
        wanted = "tests/unit/spec/a_test.cc:4: size_of hides that of tests/unit/spec/sizes.h"
        self.assertEqual(self.problems(), [f"{wanted} from tests/unit/spec/checks/b_test.cc"])

    def test_what_is_compiled_alone(self) -> None:
        for folder in ("src/exec/cuda", "src/exec/onednn", "src/runtime/backend/cuda_peer", "tests/ranks"):
            for name in ("a", "b"):
                self.write(f"{folder}/{name}.cc", unit("int size_of(int a) { return a; }"))
        self.assertEqual(self.problems(), [])


if __name__ == "__main__":
    unittest.main()
