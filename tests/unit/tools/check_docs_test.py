"""check_docs finds dead links, anchors, paths, variables and left-overs."""

import unittest

import support
import check_docs


class CheckDocsTest(support.TreeTest):
    def problems(self, text: str) -> list[str]:
        self.write("docs/guides/a.md", text)
        return check_docs.check(self.root)[0]

    def setUp(self) -> None:
        super().setUp()
        self.write("src/base/env.cc", 'auto a = read("OVERLACE_TIMEOUT_S");\n')
        self.write("docs/README.md", "[a](guides/a.md) [b](b.md)\n")
        self.write("docs/b.md", "# A title, with `code`\n\ntext\n")

    def test_what_exists_passes(self) -> None:
        text = (
            "See [b](../b.md), [part](../b.md#a-title-with-code), [web](https://example.org/x).\n[here](#own)\n# Own\n"
        )
        self.assertEqual(self.problems(text + "`src/base/env.cc` reads OVERLACE_TIMEOUT_S; `src/<dir>/x.cc`.\n"), [])

    def test_dead_links(self) -> None:
        self.assert_problem(self.problems("[b](b.md)\n"), "docs/guides/a.md:1: dead link b.md")
        self.assert_problem(self.problems("[b](../b.md#other)\n"), "no heading for #other in docs/b.md")
        self.assert_problem(self.problems("[b](../../../outside.md)\n"), "dead link")

    def test_dead_names(self) -> None:
        self.assert_problem(
            self.problems("x\n`src/base/gone.cc`\n"), "docs/guides/a.md:2: no such path: src/base/gone.cc"
        )
        self.assert_problem(self.problems("Set OVERLACE_GONE.\n"), "no such option or variable: OVERLACE_GONE")

    def test_each_page_is_in_the_index(self) -> None:
        self.write("docs/lost.md", "# Lost\n")
        self.assert_problem(self.problems("fine\n"), "docs/README.md: does not link docs/lost.md")

    def test_sentences_of_headers_and_guides_say_what_they_are_about(self) -> None:
        good = '/// Returns the rows of a rank, the same on all.\nint Offset();  // "Often"\n'
        self.write("include/overlace/a.h", good)
        self.assertEqual(self.problems("fine\n"), [])
        bad = "/// Rows. Of a rank.\nint x;  // All. The same there.\n/// Each. The\n/// same bits.\n"
        self.write("include/overlace/a.h", good + bad)
        found = [p.partition(": say")[0] for p in self.problems("fine\n") if " sentence " in p]
        want = [(3, "Of"), (4, "The same"), (5, "The same")]
        self.assertEqual(found, [f"include/overlace/a.h:{n}: a sentence begins with '{w}'" for n, w in want])

    def test_sentences_of_other_files_and_code_of_guides_are_free(self) -> None:
        self.write("src/a.h", "/// Rows. The same there.\n")
        self.write("docs/design/a.md", "Of a rank.\n")
        self.write("docs/guides/b.md", "Print `Of` and:\n\n```text\nOf 3\n```\n\nOf these,\nnone. The\nsame.\n")
        found = [p.partition(": say")[0] for p in self.problems("fine\n") if " sentence " in p]
        want = [(7, "Of"), (8, "The same")]
        self.assertEqual(found, [f"docs/guides/b.md:{n}: a sentence begins with '{w}'" for n, w in want])

    def test_comments_of_public_headers_can_be_read_alone(self) -> None:
        good = "/// Returns the rows of a rank.\nint rows();  // as given\n/// Assembles it.\n"
        self.write("include/overlace/a.h", good)
        self.assertEqual(self.problems("fine\n"), [])
        bad = "/// The same of columns.\n  /* Of a rank. */\n/// As rows().\n/// Whether it runs.\nint n;  // of rows\n"
        self.write("include/overlace/a.h", good + bad + "/// Rows, a number\n/// of them.\n")
        found = [p.partition(" a comment")[0] for p in self.problems("fine\n") if " a comment" in p]
        self.assertEqual(found, [f"include/overlace/a.h:{n}:" for n in (4, 5, 6, 7, 8)])

    def test_comments_of_all_code_say_what_a_thing_is(self) -> None:
        good = '/// Rows of a rank.\nint n;  // of rows\n/// Adds as run() does.\n// Often, as f().\nauto s = "Of";\n'
        bad = "/// Of a rank.\n  // Of two ranks.\n/// As run(Args).\n/// The same of columns.\n/// Rows. Of one.\n"
        names = ("src/a.cc", "src/a.cuh", "cli/a.h", "bench/a.cu", "tests/a.c", "examples/a.cc")
        for name in names:
            self.write(name, good + bad)
        self.write("python/a.py", 'def f():\n    """Of a rank."""\n    # Of all ranks.\n    return "Of"\n')
        self.write("machine/a.py", "# Of a rank.\n")
        found = [p.partition(": say")[0] for p in self.problems("fine\n") if " of a comment " in p]
        begins = [(6, "Of"), (7, "Of"), (8, "As run(Args)"), (9, "The same of"), (10, "Of")]
        want = [f"{name}:{n}: a sentence of a comment begins with '{w}'" for name in names for n, w in begins]
        want += [f"python/a.py:{n}: a sentence of a comment begins with 'Of'" for n in (2, 3)]
        self.assertEqual(sorted(found), sorted(want))

    def test_paths_that_headers_name_exist(self) -> None:
        self.write("include/overlace/a.h", "/// See docs/b.md, include/overlace and src/gone/b.h.\n")
        found = [p for p in self.problems("fine\n") if "a.h" in p]
        self.assertEqual(found, ["include/overlace/a.h:1: no such path: src/gone/b.h"])

    def test_words(self) -> None:
        self.assert_problem(self.problems("TODO later\n"), "unfinished: TODO")
        self.assert_problem(self.problems("cd /home/me/overlace\n"), "somebody's own machine")
        self.write("src/base/b.cc", "// FIXME\n")
        self.assert_problem(self.problems("fine\n"), "src/base/b.cc:1: unfinished")

    def test_help_says_what_a_value_is(self) -> None:
        self.write("docs/README.md", "[a](guides/a.md) [b](b.md) [c](reference/cli.md)\n")
        good = "  --seed UINT=0               Seed of weights\n  -n,--ranks INT              Ranks\n  As usual\n"
        bad = (
            "  --tokens INT=4096           Of a rank\n  --ms FLOAT REQUIRED The same in ms\n  op TEXT ...  Their name\n"
        )
        self.write("docs/reference/cli.md", good + bad)
        found = [p.partition(": help")[0] for p in self.problems("fine\n") if " help begins" in p]
        self.assertEqual(found, [f"docs/reference/cli.md:{n}" for n in (4, 5, 6)])

    def test_documents_and_headers_use_the_words_of_the_field(self) -> None:
        self.write("include/overlace/a.h", "/// Tiles of the own shard.\nint interwoven;\n")
        self.write("CHANGELOG.md", "Tiles are woven.\n")
        found = [p for p in self.problems("`woven` is code.\n\nTiles, Woven in.\n") if ": say " in p]
        want = ["docs/guides/a.md:3: 'Woven': say interleaved", "include/overlace/a.h:1: 'own shard': say local shard"]
        self.assertEqual(sorted(found), want)

    def test_numbers_of_the_readme_come_from_records(self) -> None:
        fine = "Debian 12, 4x H200, M 8192, `x 5 us`\n```\n7 us\n```\n<!-- generated: a -->\n9 us\n<!-- end of a -->\n"
        self.write("README.md", fine)
        self.assertEqual(self.problems("fine, 3 us\n"), [])
        for number in ("82 us", "1.5x", "3 %", "1.08 times", "43 cases", "6.5 ms"):
            self.write("README.md", fine + f"gives {number} more\n")
            self.assert_problem(self.problems("fine\n"), f"README.md:8: {number}: a number that no generated block has")
        self.write("README.md", fine + "| a | 8 | 1.53 |\n")
        self.assert_problem(self.problems("fine\n"), "README.md:8: 1.53: a number")


if __name__ == "__main__":
    unittest.main()
