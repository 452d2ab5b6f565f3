"""check_messages counts refusals that do not say what is wanted, and its list may only get shorter."""

import contextlib
import io
import unittest

import support
import check_messages

CC = r"""
// base::error(Errc::bad_schedule, "a comment is no message");
Status f() {
  if (a) return base::error(Errc::invalid_argument, "rows are {}, wanted {} (\"{}\")", rows, g(1, {2}), name);
  if (b) return base::error(Errc::bad_schedule, "task {}: it waits "
                                                "for itself", name);
  if (c) return base::invalid_argument("next() before start()");
  if (d) throw_error(Errc::not_supported, format("dtype {}; supported: {}", of("fp8"), list()));
  if (e) return base::error(Errc::io, "{} does not open", path);
  if (h) return base::error(Errc::invalid_argument, "{}: {}; rank {}", op, why, rank);
  if (i) return base::error(Errc::invalid_argument, why + "; it is unwanted");
  if (j) refuse("no message of the operators of PyTorch");
  return code == Errc::not_supported ? fallback("cpu") : Status();
}
"""
PYTHON = """
def f(rank, why):
    if rank > 3:
        raise InvalidArgument(f"rank is {rank}, wanted {'0 to'} {3}")
    if rank > 2:
        raise errors.Unsupported(f"peer {rank} is not reached")
    if rank > 1:
        raise InvalidArgument(f"{rank}: {why}")
    raise ValueError("rank is bad")
"""


class CheckMessagesTest(support.TreeTest):
    def run_tool(self, *words: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = check_messages.main(["--root", str(self.root), *words])
        return code, output.getvalue()

    def test_what_does_not_say_the_value_wanted_is_found_with_its_line(self) -> None:
        self.write("src/a.cc", CC)
        self.write("python/overlace/a.py", PYTHON)
        self.assertEqual(
            check_messages.silent(self.root),
            {
                "python/overlace/a.py": [(6, "peer  is not reached")],
                "src/a.cc": [
                    (5, "task {}: it waits for itself"),
                    (7, "next() before start()"),
                    (11, "; it is unwanted"),
                ],
            },
        )

    def test_refusals_of_the_operators_of_pytorch_count_and_folders_of_others_do_not(self) -> None:
        text = 'refuse("a is " + shape_of(a) + ", rows differ");\n'
        for path in ("python/csrc/a.cc", "src/a.cc", "tests/unit/a_test.cc", "bench/a.cc"):
            self.write(path, text)
        self.assertEqual(check_messages.silent(self.root), {"python/csrc/a.cc": [(1, "a is , rows differ")]})
        for wanted in (
            ", wanted 4",
            "; must be 4",
            ", at least 4",
            ", at most 4",
            "; known: 4",
            "; supported so far: 4",
        ):
            self.write("python/csrc/a.cc", text.replace("rows differ", "rows differ" + wanted))
            self.assertEqual(check_messages.silent(self.root), {}, wanted)

    def test_none_may_be_added_and_the_list_follows_what_goes(self) -> None:
        self.write("src/a.cc", CC)
        self.write("tools/messages.txt", "")
        self.write("cli/b.cc", 'f(Errc::bad_schedule, "it is bad");\n')
        code, output = self.run_tool()
        self.assertEqual(code, 1)
        self.assertIn("src/a.cc: 3 messages without the value wanted, tools/messages.txt has 0", output)
        self.assertEqual(self.run_tool("--write")[0], 0)
        self.assertEqual((self.root / "tools/messages.txt").read_text(), "1 cli/b.cc\n3 src/a.cc\n")
        self.write("src/new.cc", 'invalid_argument("it is bad");\n')
        code, output = self.run_tool("--list")
        self.assertEqual(code, 1)
        self.assertIn("src/new.cc:1: it is bad\n", output)
        (self.root / "src/new.cc").unlink()
        self.write("src/a.cc", CC.replace("before start()", "before start(), wanted: start() first"))
        code, output = self.run_tool()
        self.assertEqual(code, 1)
        self.assertIn("src/a.cc: 2 messages without the value wanted, tools/messages.txt still has 3: --write", output)
        self.assertNotIn("cli/b.cc", output)


if __name__ == "__main__":
    unittest.main()
