"""run_docs runs what a guide marks, sees what fails, and compares shown code with its source."""

import os
import unittest

import support
import run_docs

GUIDE = "docs/guides/a.md"


def fenced(info: str, text: str) -> str:
    return f"```{info}\n{text}\n```\n"


class RunDocsTest(support.TreeTest):
    def static(self, text: str) -> list[str]:
        return run_docs.static_problems(self.root, GUIDE, text)

    def run_guide(self, text: str) -> tuple[list[str], int]:
        return run_docs.run_guide(GUIDE, text, self.root, {**os.environ, "PREFIX": "/p"})

    def test_blocks_know_their_line_and_word(self) -> None:
        found = run_docs.blocks("text\n" + fenced("cpp from=src/a.cc", "int a;") + fenced("", "plain"))
        self.assertEqual(found[0], run_docs.Block(2, "cpp", "from", "src/a.cc", "int a;"))
        self.assertEqual((found[1].line, found[1].word), (5, ""))

    def test_shown_code_is_in_its_file(self) -> None:
        self.write("src/a.cc", "void f() {\n  one();\n  two();\n}\n")
        self.assertEqual(self.static(fenced("cpp from=src/a.cc", "one();\ntwo();")), [])
        self.assert_problem(self.static(fenced("cpp from=src/a.cc", "two();\none();")), "not in src/a.cc")
        self.assert_problem(self.static(fenced("cpp from=src/b.cc", "x")), "no such file: src/b.cc")

    def test_unknown_words_and_languages(self) -> None:
        self.assert_problem(self.static(fenced("sh runs", "true")), "`runs` is unknown")
        self.assert_problem(self.static(fenced("text run", "true")), "`run` belongs to a block of sh")
        self.assert_problem(self.static(fenced("bash", "true")), "unknown language bash")
        self.assert_problem(self.static(fenced("c file=../x.c", "x")), "is unknown")
        self.assertEqual(self.static(fenced("sh", "make run") + fenced("", "anything")), [])

    def test_commands_run_in_order_in_one_folder(self) -> None:
        text = fenced("c file=sub/x.txt", "hello") + fenced("sh run", "cat sub/x.txt; echo $PREFIX > y")
        text += fenced("text shows", "hel...") + fenced("sh run", "cat y") + fenced("text shows", "/p")
        self.assertEqual(self.run_guide(text), ([], 2))

    def test_failures_are_told_with_their_line_and_output(self) -> None:
        problems, count = self.run_guide(fenced("sh", "exit 9") + fenced("sh run", "echo why; false; true"))
        self.assertEqual(count, 1)
        self.assert_problem(problems, f"{GUIDE}:4: ended with 1:\nwhy")
        problems, _ = self.run_guide(fenced("sh run", "echo b; echo a") + fenced("text shows", "a\nb"))
        self.assert_problem(problems, "'b' is not in what was printed")


if __name__ == "__main__":
    unittest.main()
