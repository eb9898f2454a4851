"""What mutants are made of: the expressions that are found in a source, and what is written in their place."""

import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runner"))

import mutants  # noqa: E402  after the path is set

TEXT = """\
#include <vector>
// if (comment < 1)
#if defined(NEVER)
int never() { return 1; }
#endif
constexpr int kSize = 4;
int f(int a, const char* s) {
  if (a < 3 && s == "x > 1") return a + 1;
  for (int i = 0; i <= a; ++i) g(i);
  if (const int b = h(a)) return b;
  auto lambda = [&] { return 2; };
  return std::min(a,
                  h(a));
}
"""


class Mutants(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "f.cc"
        self.path.write_text(TEXT)
        patch = mock.patch.object(mutants, "SOURCE", self.path.parent)
        patch.start()
        self.addCleanup(patch.stop)
        self.found = list(mutants.candidates("f.cc"))

    def test_conditions_constants_and_bounds_are_changed(self):
        becomes = {mutant.becomes for mutant in self.found}
        self.assertLessEqual(
            {
                '!(a < 3 && s == "x > 1")',
                'a <= 3 && s == "x > 1"',
                'a < 4 && s == "x > 1"',
                'a < 3 || s == "x > 1"',
                "a - 1",
                "a + 2",
                " i < a",
                "3",
            },
            becomes,
        )

    def test_comments_texts_declarations_and_constants_of_the_compiler_are_left(self):
        for mutant in self.found:
            self.assertNotIn("comment", mutant.was)
            self.assertNotIn("h(a)", mutant.was)
            self.assertNotEqual(mutant.was, "4")
            self.assertNotIn("x >= 1", mutant.becomes)
        self.assertNotIn(4, [mutant.line for mutant in self.found])

    def test_lines_keep_their_numbers(self):
        chosen = [self.found[0], next(mutant for mutant in self.found if mutant.line == 9)]
        for number, mutant in enumerate(chosen, 1):
            mutant.number = number
        text = mutants.mutated(TEXT, chosen)
        self.assertIn("for (int i = 0;(paceline_mutant == 2 ? (", text)
        self.assertEqual(text.split("#line 1\n")[1].count("\n"), TEXT.count("\n"))

    def test_a_draw_is_repeatable_and_does_not_overlap(self):
        first = mutants.draw(["f.cc"], 4, mutants.random.Random(3), set())
        again = mutants.draw(["f.cc"], 4, mutants.random.Random(3), set())
        self.assertEqual(first, again)
        self.assertEqual(len({mutant.begin for mutant in first}), len(first))


if __name__ == "__main__":
    unittest.main()
