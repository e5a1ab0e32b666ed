"""check.py tells results that agree from those that do not."""

import unittest

from check import Step, alike, compared, results_of

STEP = Step("s", ["true"], results=("loss",))


def ran(output, code=0):
    return {"code": code, "seconds": 1.0, "output": output}


class Comparison(unittest.TestCase):
    def test_numbers_may_differ_in_their_last_digits(self):
        self.assertTrue(alike("tensor([1.0001, -2.5e3], device='cuda:0')", "tensor([1.0002, -2500.0], device='cuda:0')"))
        self.assertTrue(alike("nan", "nan"))
        self.assertFalse(alike("1.0", "1.1"))
        self.assertFalse(alike("nan", "1.0"))

    def test_words_may_not_differ(self):
        self.assertFalse(alike("True", "False"))
        self.assertFalse(alike("[1, 2]", "[1, 2, 3]"))
        self.assertFalse(alike("x", None))

    def test_results_are_steps_and_the_figures_that_are_named(self):
        output = "noise\nOK\tadd\t2.0\nOK\tmem_get_info\t(1, 2)\nloss 0.5\nsteps_per_s 3\n"
        self.assertEqual(results_of(STEP, output), {"add": "2.0", "mem_get_info": "", "loss": "0.5"})

    def test_what_agrees_passes(self):
        outcome = compared(STEP, ran("OK\tadd\t2.0\nloss 0.5\n"), ran("OK\tadd\t2.0\nloss 0.501\n"))
        self.assertEqual((outcome["outcome"], outcome["results"]), ("passed", 2))

    def test_another_result_a_missing_step_and_a_missing_figure_are_named(self):
        outcome = compared(STEP, ran("OK\tadd\t2.0\nOK\tsort\t1\n"), ran("OK\tadd\t3.0\n"))
        self.assertEqual(outcome["outcome"], "failed")
        self.assertEqual(outcome["differences"], ["loss: no such figure", "add: '2.0' natively, '3.0' leased",
                                                  "sort: '1' natively, None leased"])

    def test_a_program_that_fails_under_a_lease_has_failed(self):
        self.assertEqual(compared(STEP, ran("loss 1\n"), ran("loss 1\n", 1))["outcome"], "failed")

    def test_without_a_native_result_nothing_was_compared(self):
        self.assertEqual(compared(STEP, ran("", "timeout"), ran("loss 1\n"))["outcome"], "unmatched")


if __name__ == "__main__":
    unittest.main()
