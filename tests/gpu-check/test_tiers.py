"""Rows of the measurement of tiers, and how the check reads them."""

import json
import unittest

from tiers_rows import error_row, quantile, text_of
from tiers_steps import entries_of, rows_in


class Rows(unittest.TestCase):
    def test_a_quantile_is_a_value_that_was_measured(self):
        values = [float(value) for value in range(1, 101)]
        self.assertEqual([quantile(values, part) for part in (0.0, 0.5, 0.99, 1.0)], [1.0, 50.0, 99.0, 100.0])
        self.assertEqual(quantile([7.0], 0.99), 7.0)

    def test_an_error_is_judged_by_its_99th_percentile(self):
        few, many = [0.1] * 99 + [9.0], [0.1] * 98 + [9.0] * 2
        self.assertTrue(error_row("a", few, "b")["met"])
        self.assertFalse(error_row("a", many, "b")["met"])

    def test_a_missed_goal_is_missed_in_the_check(self):
        rows = [error_row("a", [3.0], "b"), {**error_row("c", [1.0], "d"), "met": None}]
        read = rows_in(f"noise\n{json.dumps(rows)}\n")
        self.assertEqual([entry["outcome"] for entry in entries_of("tiers: shares", read)], ["missed", "passed"])
        self.assertIn("MISSED", text_of(rows))

    def test_output_without_rows_has_none(self):
        self.assertIsNone(rows_in("Traceback"))
        self.assertIsNone(rows_in('[{"what": "cut'))


if __name__ == "__main__":
    unittest.main()
