"""Pictures are of committed runs, and a report shows the numbers of its run."""

import json
import unittest
import unittest.mock

from support import ROOT, TreeTest

import gen_images

HTML = '<div class="value">14.7 ms</div><b>13.1 ms</b><i>1.12x</i><div class="aside">1.22x is attainable</div>'
RUN = {"total": {"serial_us": 14747.7, "overlapped_us": 13114.4, "limit_us": 12073.5}}


class Images(TreeTest):
    def setUp(self) -> None:
        super().setUp()
        pictures = {"a.png": gen_images.Picture("a", 100)}
        patch = unittest.mock.patch.object(gen_images, "PICTURES", pictures)
        patch.start()
        self.addCleanup(patch.stop)
        self.write("bench/results/run/a.html", HTML)
        self.write("bench/results/run/a.json", json.dumps(RUN))
        self.write("docs/images/a.png", b"\x89PNG")
        self.write(gen_images.SOURCES, json.dumps(gen_images.sources(self.root)))

    def test_what_belongs_together_passes(self) -> None:
        self.assertEqual(gen_images.check(self.root), [])

    def test_another_report_or_picture_is_seen(self) -> None:
        self.write("bench/results/run/a.html", HTML + "<p>new</p>")
        self.assert_problem(gen_images.check(self.root), "another report or picture: a.png")
        self.write("bench/results/run/a.html", HTML)
        self.write("docs/images/a.png", b"drawn by hand")
        self.assert_problem(gen_images.check(self.root), "another report or picture: a.png")

    def test_a_picture_of_no_run(self) -> None:
        self.write("docs/images/b.png", b"\x89PNG")
        self.assert_problem(gen_images.check(self.root), "docs/images/b.png: no picture of")

    def test_a_report_of_another_run(self) -> None:
        self.write("bench/results/run/a.json", json.dumps({"total": {**RUN["total"], "overlapped_us": 10000}}))
        problems = gen_images.check(self.root)
        self.assert_problem(problems, "overlapped_us 10.0 ms is not in its report")
        self.assert_problem(problems, "speed-up 1.47x is not in its report")

    def test_limits_of_sites_are_not_called_attainable(self) -> None:
        text = gen_images.relabelled(HTML)
        self.assertIn(">sites at their own limits: 1.22x<", text)
        self.assertNotIn("attainable", text)

    def test_a_measured_limit_is_looked_for(self) -> None:
        run = {"total": {**RUN["total"], "stack_limit_us": 12500}}
        self.assertEqual(gen_images.disagreements(HTML, run), ["limit 1.18x is not in its report"])

    def test_durations_as_the_report_writes_them(self) -> None:
        for us, text in ((8, "8.00 us"), (31.24, "31.2 us"), (107600, "108 ms"), (999.6, "1.00 ms"), (2.5e6, "2.50 s")):
            self.assertEqual(gen_images.duration(us), text)


class Committed(unittest.TestCase):
    def test_pictures_are_current(self) -> None:
        self.assertEqual(gen_images.check(ROOT), [])


if __name__ == "__main__":
    unittest.main()
