"""debian_graph: a package list becomes arrays; where there is none, a skip with its reason."""

import contextlib
import io
import struct
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench/gnn_ooc"))

import debian_graph

LIST = """Package: zeta
Section: libs
Depends: alpha (>= 1.2), beta:any | gamma, missing, alpha
Description: a shared Library, a shared one

Package: alpha
Section: contrib/libs
Description: words

Package: beta
Section: net
Depends: beta, alpha

Package: alpha
Section: other
"""


def values(path: Path, code: str) -> list[int]:
    data = path.read_bytes()
    start = 10 + struct.unpack_from("<H", data, 8)[0]
    return [v for (v,) in struct.iter_unpack("<" + code, data[start:])]


class DebianGraphTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_main(self, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = debian_graph.main([str(self.folder / "out"), "--lists", str(self.folder), *arguments])
        return code, out.getvalue(), err.getvalue()

    def test_packages_dependencies_and_sections(self) -> None:
        (self.folder / "main_Packages").write_text(LIST)
        code, out, _ = self.run_main("--dim", "8")
        self.assertEqual((code, out), (0, "3 packages 3 dependencies 2 sections\n"))
        # alpha 0, beta 1, zeta 2; beta -> alpha, zeta -> alpha, zeta -> beta
        self.assertEqual(values(self.folder / "out/edge_index.npy", "q"), [1, 2, 2, 0, 0, 1])
        self.assertEqual(values(self.folder / "out/y.npy", "q"), [0, 1, 0])
        rows = values(self.folder / "out/x.npy", "f")
        self.assertEqual(len(rows), 24)
        self.assertAlmostEqual(sum(v * v for v in rows[:8]), 1, places=5)
        self.assertEqual(rows[8:16], [0.0] * 8)  # beta has no description
        ids = [i for split in debian_graph.SPLITS for i in values(self.folder / f"out/{split}.npy", "q")]
        self.assertEqual(sorted(ids), [0, 1, 2])

    def test_no_list_is_a_skip(self) -> None:
        code, _, err = self.run_main()
        self.assertEqual(code, debian_graph.SKIPPED)
        self.assertIn("no package list in", err)
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main()
