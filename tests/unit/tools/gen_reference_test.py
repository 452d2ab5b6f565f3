"""gen_reference replaces marked parts only, and reads keys and words from the sources."""

import unittest

import support
import gen_reference

READER = """
Loop loop_of(const Place& place) {
  place.array(3, 3, "[variable, begin, end]");
}
Task task_of(const Place& place) {
  place.object({"id", "kind",
                "queue"}, {"id"});
}
root.object({"op", "overlace_schedule", "tasks"}, {"op"});
"""
NAMES = "".join(
    f'constexpr std::array<std::string_view, 1> {name} = {{"{name.lower()}"}};\n'
    for name in ("kSpaceNames", "kScopeNames", "kKindNames", "kEngineNames", "kCombineNames", "kWaitByNames")
)
PAGE = "# T\n<!-- generated: schedule -->\nold\n<!-- end -->\ntail\n"


PROGRAM = """
import argparse
import beside
def parser():
    p = argparse.ArgumentParser(prog="it")
    p.add_argument("word", nargs="*", help="that --list shows")
    p.add_argument("--list", action="store_true", help="show words")
    p.add_argument("-n", "--ranks", type=int, default=3, help="ranks (default %(default)s)")
    p.add_argument("--share", type=float, help="100%% at most; " + "long " * 25 + "text")
    p.add_argument("--own", help=argparse.SUPPRESS)
    return p
"""


class GenReferenceTest(support.TreeTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("cli/python/table.cc", "")
        for path in gen_reference.PYTHON_PROGRAMS.values():
            self.write(path, PROGRAM)
            self.write(path.rpartition("/")[0] + "/beside.py", "")
        self.write("src/spec/read_json.cc", READER)
        self.write("src/spec/names.h", NAMES)
        self.write("docs/reference/schedule-json.md", PAGE)

    def run_tool(self, *words: str) -> int:
        return gen_reference.main(["--root", str(self.root), *words])

    def test_check_fails_until_written(self) -> None:
        self.assertEqual(self.run_tool("--check"), 1)
        self.assertEqual((self.root / "docs/reference/schedule-json.md").read_text(), PAGE)
        self.assertEqual(self.run_tool(), 0)
        self.assertEqual(self.run_tool("--check"), 0)

    def test_the_part_and_nothing_else_is_replaced(self) -> None:
        self.run_tool()
        text = (self.root / "docs/reference/schedule-json.md").read_text()
        self.assertTrue(text.startswith("# T\n<!-- generated: schedule -->\n| value | form |\n"))
        self.assertTrue(text.endswith("\n<!-- end -->\ntail\n"))
        self.assertIn("| a task | an object with `id` (needed), `kind`, `queue` |\n", text)
        self.assertIn("| the schedule | an object with `op` (needed), `overlace_schedule`, `tasks` |\n", text)
        self.assertIn("| a loop | `[variable, begin, end]` |\n", text)
        self.assertIn("| `kind` | `kkindnames` |\n", text)

    def test_help_of_each_subcommand(self) -> None:
        script = (
            '#!/bin/sh\ncase "$*" in\n--help) printf \'Usage: %s\\n\\nSubcommands:\\n  run   text\\n\' "$0";;\n'
            "'run --help') echo of run;;\n*) exit 3;;\nesac\n"
        )
        self.write("program", script)
        (self.root / "program").chmod(0o755)
        part = gen_reference.cli_part(gen_reference.helps(self.root / "program"))
        self.assertIn("$ overlace --help\nUsage: overlace\n", part)
        self.assertIn("$ overlace run --help\nof run\n", part)

    def test_a_manual_page_of_help_texts(self) -> None:
        page = "## Exit status\n\n| status | meaning |\n|---|---|\n| 0 | ran, see [errors](errors.md) |\n\n## Next\n"
        first = "overlace: hides\nUsage: overlace [OPTIONS] SUBCOMMAND\n\nSubcommands:\n  run       Runs\n"
        run = "Runs\nUsage: overlace run [OPTIONS]\n\nOptions:\n  -n,--ranks INT=2   Ranks\n  --much-too-long TEXT\n"
        text = gen_reference.manual(page, [([], first), (["run"], run + "                     .wide\n")])
        self.assertIn("overlace \\- hides\n", text)
        self.assertIn(".SS overlace run\nRuns\n.PP\n.B overlace run [OPTIONS]\n", text)
        self.assertIn(".TP\n.B \\-n,\\-\\-ranks INT=2\nRanks\n", text)
        self.assertIn(".TP\n.B \\-\\-much\\-too\\-long TEXT\n\\&.wide\n", text)
        self.assertIn(".SH EXIT STATUS\n.TP\n.B 0\nran, see errors\n", text)

    def test_options_of_programs_in_python(self) -> None:
        self.run_tool()
        text = (self.root / "cli/python/table.cc").read_text()
        begin = text.index("\nbench:\n")
        self.assertEqual(
            text[begin : text.index("gnn train:\n")],
            "\nbench:\n  word TEXT... That --list shows\n  --list flag Show words\n"
            "  -n,--ranks INT Ranks (default 3)\n"
            "  --share FLOAT 100% at most; " + " ".join(["long"] * 16) + "\n    " + " ".join(["long"] * 9) + " text\n",
        )
        self.write("bench/driver/__main__.py", PROGRAM.replace(', help="show words"', ""))
        with self.assertRaisesRegex(ValueError, "it: --list has no help"):
            self.run_tool()

    def test_a_page_without_the_part_is_told(self) -> None:
        with self.assertRaisesRegex(ValueError, "no part schedule"):
            gen_reference.with_parts("text", {"schedule": "x"})


if __name__ == "__main__":
    unittest.main()
