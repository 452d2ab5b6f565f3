"""Which rows are fitted, where it starts, what is said of other teams."""

import json
import math
import unittest

from support import ROOT

import fit_machine


def row(ranks: int, measured: float, predicted: float, **more) -> dict:
    out = {"op": "ag_gemm", "m": 1024, "n": 8, "k": 8, "activation": "none", "family": "library", "degree": 1}
    out |= {"ranks": ranks, "replayed": False, "tile_cols": 0} | {
        "measured_us": measured,
        "predicted_us": predicted,
        "held_out": False,
        "host_bound": False,
    }
    return out | more


class FitMachine(unittest.TestCase):
    def test_a_team_is_fitted_whole_and_alone(self) -> None:
        rows = [row(2, 10, 10), row(2, 10, 10, held_out=True), row(4, 10, 10), row(4, 10, 10, held_out=True)]
        plain, team = fit_machine.Loss("", [], {}), fit_machine.Loss("", [], {}, team=2)
        self.assertEqual([plain.is_fitted(r) for r in rows], [True, False, True, False])
        self.assertEqual([team.is_fitted(r) for r in rows], [True, True, False, False])

    def test_the_loss_is_what_choices_lose_and_how_far_predictions_are_off(self) -> None:
        def loss(*predicted: float) -> float:
            rows = [row(4, us, p, family=str(us)) for us, p in zip((100, 120), predicted, strict=True)]
            return fit_machine.loss_of(rows, "predicted_us")

        self.assertLess(loss(100, 120), 0.001)
        off = (math.log(1.2) + math.log(1.2) / 1.2**2) / (1 + 1 / 1.2**2)  # the faster one counts more
        self.assertAlmostEqual(loss(120, 100), 0.2 + off, places=3)
        self.assertAlmostEqual(loss(100, 100), 0.1 + math.log(1.2) / 1.2**2 / (1 + 1 / 1.2**2))
        self.assertLess(loss(101, 120), loss(110, 120))
        parts = [row(4, 100, 110, family="limit"), row(4, 100, 110, family="compute")]
        self.assertAlmostEqual(fit_machine.loss_of(parts, "predicted_us"), math.log(1.1))
        alone = [row(4, 100, 110)]
        self.assertAlmostEqual(fit_machine.loss_of(alone, "predicted_us"), math.log(1.1))

    def test_calls_of_graphs_are_not_chosen_among_with_others(self) -> None:
        rows = [row(4, 100, 100), row(4, 20, 20, replayed=True), row(4, 80, 80, activation="swiglu")]
        self.assertAlmostEqual(fit_machine.loss_of(rows, "predicted_us"), 0)
        wrong = [r | {"predicted_us": 100} for r in rows]  # taken for one shape, a choice among them would lose
        off = sum(min(0.4, math.log(100 / r["measured_us"])) for r in rows) / 3
        self.assertAlmostEqual(fit_machine.loss_of(wrong, "predicted_us"), off)

    def test_a_fitted_file_is_where_the_next_fit_starts(self) -> None:
        for name in ("h200x4", "h200x2"):
            machine = json.loads((ROOT / "machine" / f"{name}.json").read_text())
            values = fit_machine.starts(machine)
            self.assertEqual("latency/host_lanes_us" in values, name == "h200x2")
            again = fit_machine.with_values(machine, values)
            self.assertEqual(fit_machine.text_of(again), fit_machine.text_of(machine))

    def test_starts_in_the_middle_of_what_may_be(self) -> None:
        self.assertEqual(fit_machine.middle("scale/all_gather_us", 0.7, 1.6), 1.0)
        self.assertEqual(fit_machine.middle("contention/reduce/ce_in", 1.0, 2.0), 1.05)
        self.assertAlmostEqual(fit_machine.middle("latency/call_us", 0.5, 8.0), 2.0)
        for path, least, most in fit_machine.PARAMETERS:
            self.assertTrue(least <= fit_machine.middle(path, least, most) <= most, path)

    def test_says_how_far_other_teams_are_beside_doing_nothing(self) -> None:
        rows = [
            row(2, 100, 101),
            row(2, 150, 150, activation="swiglu"),
            row(4, 200, 220),
            row(4, 50, 25, m=16, host_bound=True),
        ]
        guessed = [r | {"predicted_us": r["measured_us"] * 1.5} for r in rows]
        lines = fit_machine.other_teams(rows, guessed, 2).splitlines()
        found = {line[:36].strip(): line[36:].split() for line in lines[1:]}
        self.assertEqual(found["all"][0], "2")
        self.assertEqual(found["all"][1::2], ["50.0", "50.0", "50.0"])
        self.assertEqual(found["ag_gemm library"][0], "2")
        device = [line for line in lines if "limited by the device" in line]
        self.assertEqual(device[0][36:].split()[:2], ["1", "10.0"])
        nothing = [line for line in lines if "the same, as on 2" in line]
        self.assertEqual(nothing[0][36:].split()[:2], ["1", "50.0"])
        self.assertEqual(next(line for line in lines if "not fitted" in line)[36:].split()[1], "50.0")

    def test_errors_of_families_need_four_shapes(self) -> None:
        rows = [row(4, 100, 100 + i, held_out=True) for i in (1, 2, 3, 9)]
        few = [row(4, 100, 150, held_out=True, family="serial")]
        fitted = [row(4, 100, 300)]
        self.assertEqual(
            fit_machine.held_out_errors(rows + few + fitted, "predicted_us"), {"ag_gemm": {"library": [0.03, 0.09]}}
        )

    def test_a_machine_with_other_numbers_keeps_the_rest(self) -> None:
        machine = {"gemm": {"start_us": [1.0, "prior"]}, "latency": {"call_us": [1.0, "prior"]}, "contention": []}
        out = fit_machine.with_values(machine, {"latency/call_us": 2.34567, "contention/reduce/ce_in": 1.25})
        self.assertEqual(out["latency"]["call_us"], [2.346, "measured"])
        self.assertEqual(out["gemm"], machine["gemm"])
        self.assertEqual(out["contention"], [{"slowed": "reduce", "by": "ce_in", "factor": [1.25, "measured"]}])
        self.assertEqual(machine["latency"]["call_us"][0], 1.0)
        self.assertTrue(math.isclose(fit_machine.start_of("contention/reduce/ce_in", out), 1.25))

    def test_the_shipped_machine_has_all_that_is_fitted(self) -> None:
        machine = json.loads((ROOT / "machine" / "h200x4.json").read_text())
        starts = fit_machine.starts(machine)
        self.assertEqual(len(starts), len(fit_machine.PARAMETERS) - 1, "host_lanes_us is not there")
        for path, least, most in fit_machine.PARAMETERS:
            self.assertTrue(path not in starts or least <= starts[path] <= most, path)


if __name__ == "__main__":
    unittest.main()
