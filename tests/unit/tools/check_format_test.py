"""check_format finds each kind of bad text, badly formatted C++, broken shell and Python."""

import shutil
import unittest

import support
import check_format


class CheckFormatTest(support.TreeTest):
    def test_text(self) -> None:
        bad = {
            b"int a;\r\n": "CR",
            b"int a;": "no newline at the end",
            b"int a;\n\n": "empty lines at the end",
            b"int a;  \n": "space at the end",
            b"\tint a;\n": "tab",
            "// caf\u00e9\n".encode(): "not ASCII",
            b"// " + b"x" * 118 + b"\n": "121 characters",
            b"": "is empty",
        }
        for data, part in bad.items():
            with self.subTest(part=part):
                self.assert_problem(check_format.text_problems("src/a.cc", data), part)
        self.assertEqual(check_format.text_problems("src/a.cc", b"int a;\n"), [])
        self.assertEqual(check_format.text_problems("Makefile", b"run:\n\techo\n"), [])

    @unittest.skipUnless(shutil.which("clang-format-14"), "clang-format-14 was not found")
    def test_clang_format(self) -> None:
        shutil.copy(support.ROOT / ".clang-format", self.root)
        self.write("src/a.cc", "int f() { return 0; }\n")
        self.assertEqual(check_format.clang_format_problems(self.root, ["src/a.cc"]), [])
        self.write("src/a.cc", "int f( ){return 0;}\n")
        self.assert_problem(check_format.clang_format_problems(self.root, ["src/a.cc"]), "src/a.cc:1:")

    def test_python_and_shell(self) -> None:
        self.assert_problem(check_format.python_problems("a.py", "def f(:\n"), "a.py:1")
        self.write("a.sh", "#!/bin/bash\nif true; then\n")
        self.assert_problem(check_format.shell_problems(self.root, ["a.sh"]), "a.sh: bash")


if __name__ == "__main__":
    unittest.main()
