"""The check tells results that agree from those that do not, and which side is at fault."""

import unittest

from check import evidence
from compare import alike, closing_of, compared, figures_of, parts_of, results_of, took_along, unended
from goals import goal, interval, of_calls
from plan import Step

STEP = Step("s", ["true"], results=("loss",))
PARTS = Step("p", ["true"], parts=True)
CLOSING = "sluice: 1.7 s, 91 kernels, 1.1 s of GPU time, 2 MiB of memory at most, 10.3 KiB in, 2.9 KiB out\n"


def ran(output, code=0):
    return {"code": code, "seconds": 1.0, "output": output}


def leased(output, code=0):
    return ran(output + CLOSING, code)


class Comparison(unittest.TestCase):
    def test_numbers_may_differ_in_their_last_digits(self):
        self.assertTrue(alike("tensor([1.00001, -2.5e3], device='cuda:0')", "tensor([1.00002, -2500.0], device='cuda:0')"))
        self.assertTrue(alike("nan", "nan"))
        self.assertFalse(alike("0.001", "0.009"))
        self.assertFalse(alike("1.0", "1.001"))
        self.assertFalse(alike("nan", "1.0"))

    def test_words_may_not_differ(self):
        self.assertFalse(alike("True", "False"))
        self.assertFalse(alike("[1, 2]", "[1, 2, 3]"))
        self.assertFalse(alike("x", None))

    def test_lines_that_are_no_figures_are_passed_over(self):
        self.assertEqual(figures_of("compiling ...\ndone -\nacc e\nloss 0.5\n"), {"loss": 0.5})

    def test_results_are_steps_and_the_figures_that_are_named(self):
        output = "noise\nOK\tadd\t2.0\nOK\tmem_get_info\t(1, 2)\nloss 0.5\nsteps_per_s 3\n"
        self.assertEqual(results_of(STEP, output), {"add": "2.0", "mem_get_info": "", "loss": "0.5"})

    def test_what_agrees_passes(self):
        outcome = compared(STEP, ran("OK\tadd\t2.0\nloss 0.5\n"), leased("OK\tadd\t2.0\nloss 0.501\n"))
        self.assertEqual((outcome["outcome"], outcome["results"], outcome["identical"]), ("passed", 2, 1))

    def test_another_result_a_missing_step_and_a_missing_figure_are_named(self):
        outcome = compared(STEP, ran("OK\tadd\t2.0\nOK\tsort\t1\n"), leased("OK\tadd\t3.0\n"))
        self.assertEqual((outcome["outcome"], outcome["native only"]), ("failed", ["sort"]))
        self.assertEqual(outcome["differences"], ["loss: no such figure", "add: '2.0' natively, '3.0' leased"])

    def test_a_program_that_fails_under_a_lease_has_failed(self):
        self.assertEqual(compared(STEP, ran("loss 1\n"), leased("loss 1\n", 1))["outcome"], "failed")

    def test_without_a_native_result_nothing_was_compared(self):
        self.assertEqual(compared(STEP, ran("", "timeout"), leased("loss 1\n"))["outcome"], "failed")  # a figure is missing
        self.assertEqual(compared(PARTS, ran("", "timeout"), leased(""))["outcome"], "unmatched")

    def test_one_native_failure_does_not_hide_a_wrong_result(self):
        outcome = compared(PARTS, ran("OK\ta\t1\nFAILED\tb\tError\n", 1), leased("OK\ta\t999\nOK\tb\t2\n"))
        self.assertEqual((outcome["outcome"], outcome["leased only"]), ("failed", ["b"]))

    def test_what_fails_on_both_sides_is_not_held_against_the_lease(self):
        outcome = compared(PARTS, ran("ok   a\nFAIL b\nFAIL: b\n", 1), leased("ok   a\nFAIL b\nFAIL: b\n", 1))
        self.assertEqual((outcome["outcome"], outcome["neither"]), ("unmatched", ["b"]))

    def test_a_leased_program_that_launches_nothing_has_found_another_driver(self):
        outcome = compared(PARTS, ran("ok   a\n"), ran("ok   a\n" + CLOSING.replace("91 kernels", "0 kernels")))
        self.assertEqual(outcome["outcome"], "failed")
        self.assertIn("another driver", outcome["why"])
        self.assertEqual(closing_of(CLOSING)["kernels"], 91)


class Parts(unittest.TestCase):
    def test_a_part_that_began_and_did_not_end_has_failed(self):
        output = "begin a\nok   a\nbegin b\n"
        self.assertEqual(parts_of(output), {"a": True, "b": False})
        self.assertEqual((unended(output), unended("begin a\nok   a\n")), ("b", None))

    def test_parts_of_all_programs_are_seen(self):
        output = "OK\tadd\t1\nFAILED\tsort\tError\nok graph\nFAILED loader: Error: x\nFAIL: sort\nok   lines of nvcc\n"
        self.assertEqual(parts_of(output), {"add": True, "sort": False, "graph": True, "loader": False, "lines of nvcc": True})

    def test_the_part_whose_error_stays_is_the_one_before_the_others_fail(self):
        output = "ok   a\n" + "".join(f"begin {name}\nFAIL {name}\n" for name in "bcde")
        self.assertEqual(took_along(output), "b")
        self.assertIsNone(took_along("ok   a\nFAIL b\nok   c\n"))


class Goals(unittest.TestCase):
    def test_a_goal_is_met_or_missed(self):
        self.assertEqual([goal("x", value, 2)["outcome"] for value in (1.9, 2.1)], ["met", "missed"])
        self.assertEqual([goal("x", value, 2, most=False)["outcome"] for value in (1.9, 2.1)], ["missed", "met"])

    def test_calls_are_judged_against_the_same_run(self):
        figures = {"queued_launch_cpu_us": 0.3, "queued_launch_done_wall_us": 2.0, "waiting_call_us": 20, "waiting_ping_us": 15,
                   "bulk_in_gib_s": 2, "bulk_in_plain_gib_s": 2, "bulk_out_gib_s": 1, "bulk_out_plain_gib_s": 2}
        self.assertEqual([entry["outcome"] for entry in of_calls(figures)], ["met", "missed", "met", "met", "missed"])

    def test_the_interval_holds_the_mean(self):
        ratio, low, high = interval([1.0, 1.01, 1.02, 1.01, 1.0])
        self.assertTrue(low < ratio < high)
        self.assertAlmostEqual(ratio, 1.008, 3)


class Evidence(unittest.TestCase):
    def test_evidence_says_on_what_it_was_made(self):
        lines = evidence("nvidia", ("580.65.06", "NVIDIA H200"), ["cuInit", "cuMemAlloc_v2"]).splitlines()
        self.assertEqual(lines[:3], ["# gpus: nvidia", "# driver: 580.65.06", "# card: NVIDIA H200"])
        self.assertRegex(lines[3], r"^# date: \d{4}-\d\d-\d\d$")
        self.assertEqual(lines[4:], ["cuInit", "cuMemAlloc_v2"])
        self.assertIn("# driver: \n", evidence("library:/there", None, []))


if __name__ == "__main__":
    unittest.main()
