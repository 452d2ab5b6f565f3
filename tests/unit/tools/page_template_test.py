"""The template of pages: its script makes elements of the data, and nothing in the data becomes markup."""

import json
import re
import shutil
import subprocess
import unittest

from support import ROOT

TEMPLATE = (ROOT / "cli" / "report" / "page.html").read_text()
EVIL = "</script><b onclick=x>"

# As much of a document as the script uses; what it built is printed as nested lists: tag, attributes, children.
DOM = """
class Node {
  constructor(tag) { this.tag = tag; this.attributes = {}; this.children = []; this.namespaceURI = "svg"; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(child) { this.children.push(child); }
  toJSON() { return [this.tag, this.attributes, this.children]; }
}
const main = new Node("main");
const document = {
  getElementById: () => ({textContent: process.argv[1]}),
  querySelector: (tag) => (tag === "main" ? main : new Node(tag)),
  createElement: (tag) => new Node(tag), createElementNS: (_, tag) => new Node(tag),
  importNode: (node) => node,
};
class DOMParser { parseFromString(text, type) { return {documentElement: new Node(type + " " + text.length)}; } }
"""
RUN = {
    "title": "Overlapped",
    "total": "6.00 us",
    "exposed": "0.50 us",
    "difference": {"begin": 6000, "end": 8000, "kind": "saved", "text": "2.00 us saved (25 %)"},
    "ranks": [
        {
            "rank": rank,
            "exposed": "0",
            "lanes": [
                {
                    "name": "cpu 0",
                    "spans": [{"begin": 0, "end": 3030, "kind": "gemm", "name": EVIL, "title": "tip"}],
                },
                {"name": "ce 0", "spans": [{"begin": 4040, "end": 4060, "kind": "copy", "name": "c", "title": "t"}]},
            ],
            "exposed_spans": [{"begin": 808, "end": 1616, "title": "exposed"}],
        }
        for rank in (0, 1)
    ],
    "arrows": [
        {"from": "0 ce 0", "to": "1 cpu 0", "begin": 808, "end": 2020, "title": "signal"},
        {"from": "0 ce 0", "to": "7 cpu 0", "begin": 808, "end": 2020, "title": "to a lane that is not shown"},
    ],
}
BARS = {"bars": [{"at": 75, "kind": "auto"}], "marks": [{"at": 50, "kind": "limit"}], "whisker": [70, 80]}
DATA = {
    "title": "t",
    "heading": EVIL,
    "badges": [{"badge": "emulated", "kind": "emulated"}],
    "note": "n",
    "footer": ["by ", {"style": "code", "text": "x"}],
    "blocks": [
        {"block": "tiles", "tiles": [{"name": "Serial", "value": "8.00 us", "note": ""}]},
        {
            "block": "section",
            "id": "c0",
            "title": "Sites",
            "parts": [
                {
                    "part": "table",
                    "columns": [
                        {"title": "a", "kind": ""},
                        {"title": "us", "kind": "number"},
                        {"title": "", "kind": "bars"},
                    ],
                    "rows": [
                        {"name": [{"link": "c0", "text": "row"}], "cells": ["12.5", BARS]},
                        {"name": "gone", "note": "absent"},
                    ],
                    "foot": {"name": "all", "cells": ["", ""]},
                },
                {"part": "timelines", "length": 8080, "runs": [RUN], "legend": [{"kind": "signal", "text": "signal"}]},
                {"part": "picture", "svg": "<svg/>"},
                {"part": "pre", "text": "a\nb", "summary": "more"},
                {"part": "list", "items": ["one"]},
                {"part": "note", "text": [{"key": "limit", "text": "k"}]},
            ],
        },
        {"block": "columns", "sections": [{"title": "Run", "parts": [{"part": "pairs", "pairs": [["cores", "2"]]}]}]},
    ],
}


def script() -> str:
    return re.search(r"<script>\n(.*?)</script>", TEMPLATE, re.DOTALL)[1]


def nodes(node: list, tag: str) -> list[list]:
    found = [node] if node[0] == tag else []
    return found + [n for child in node[2] if isinstance(child, list) for n in nodes(child, tag)]


def text(node: list) -> str:
    return "".join(text(child) if isinstance(child, list) else str(child) for child in node[2])


class Static(unittest.TestCase):
    def test_it_has_one_place_for_data_and_loads_nothing(self) -> None:
        self.assertEqual(TEMPLATE.count("@DATA@"), 1)
        self.assertIsNone(re.search(r"https?:|\bsrc=|@import|url\((?!#)", TEMPLATE))

    def test_its_script_makes_no_markup_of_text(self) -> None:
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            self.assertNotIn(way, script())

    def test_style_and_script_agree_on_classes(self) -> None:
        style = TEMPLATE[TEMPLATE.index("<style>") : TEMPLATE.index("</style>")]
        used = set(re.findall(r'class: "([\w-]+)', script())) - {"s", "n", "picture", "wide"}
        self.assertGreater(len(used), 10)
        for name in sorted(used):
            self.assertTrue(name.endswith("-") or f".{name}" in style, f"no style of {name}")


@unittest.skipUnless(shutil.which("node"), "node was not found: the template's script does not run here")
class Drawn(unittest.TestCase):
    def setUp(self) -> None:
        program = DOM + script() + "\nconsole.log(JSON.stringify([document.title, main]));"
        words = ["node", "-e", program, "--", json.dumps(DATA)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.title, self.main = json.loads(done.stdout)

    def of_class(self, tag: str, kind: str) -> list[list]:
        return [n for n in nodes(self.main, tag) if n[1].get("class", "") == kind]

    def test_text_stays_text(self) -> None:
        self.assertEqual(self.title, "t")
        (heading,) = nodes(self.main, "h1")
        self.assertEqual(heading[2], [EVIL])
        self.assertEqual({text(n) for n in self.of_class("text", "n n-gemm")}, {EVIL})

    def test_tables_tiles_and_pairs(self) -> None:
        self.assertIn("8.00 us", text(self.of_class("div", "value")[0]))
        (link,) = nodes(self.main, "a")
        self.assertEqual((link[1]["href"], text(link)), ("#c0", "row"))
        self.assertEqual([text(n) for n in nodes(self.main, "td")][:3], ["12.5", "", "absent"])
        self.assertEqual([n[1].get("colspan") for n in nodes(self.main, "td")][:3], [None, None, "2"])
        self.assertEqual([text(n) for tag in ("dt", "dd") for n in nodes(self.main, tag)], ["cores", "2"])
        self.assertEqual([n[1]["id"] for n in nodes(self.main, "section") if "id" in n[1]], ["c0"])

    def test_bars_stand_at_their_shares(self) -> None:
        self.assertEqual([n[1]["width"] for n in self.of_class("rect", "bar-auto")], ["75.000%"])
        self.assertEqual([n[1]["x1"] for n in self.of_class("line", "mark-limit")], ["50.000%"])
        ends = [(n[1]["x1"], n[1]["x2"]) for n in self.of_class("line", "whisker")]
        self.assertEqual(ends, [("70.000%", "80.000%"), ("70.000%", "70.000%"), ("80.000%", "80.000%")])

    def test_timelines_stand_where_the_times_are(self) -> None:
        (area,) = self.of_class("rect", "area")
        self.assertEqual((area[1]["x"], area[1]["width"]), ("74.257%", "24.752%"))
        self.assertEqual(text(self.of_class("text", "difference")[0]), "2.00 us saved (25 %)")
        self.assertEqual([n[1]["x"] for n in self.of_class("rect", "exposed")], ["10.000%"] * 2)
        thin = self.of_class("rect", "thin copy")
        self.assertEqual([(n[1]["x"], n[1]["width"]) for n in thin], [("50.000%", "0.248%")] * 2)
        (arrow,) = [n for n in self.of_class("line", "arrow") if "%" in n[1]["x1"]]
        # From the lower border of rank 0's second lane to the upper border of rank 1's first.
        self.assertEqual(
            (arrow[1]["x1"], arrow[1]["y1"], arrow[1]["x2"], arrow[1]["y2"]), ("10.000%", "63", "25.000%", "114")
        )
        self.assertEqual([text(n) for n in self.of_class("text", "tick")][:3], ["0", "2 us", "4 us"])


if __name__ == "__main__":
    unittest.main()
