"""Every operator on drawn shapes, axes, strides and types against PyTorch, where there is one.

PACELINE_TORCH names a Python that has PyTorch (this one, otherwise), PACELINE_SEED and PACELINE_DRAWN choose the draws.
"""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
OPS = HERE.parent.parent / "ops"
PYTHON = os.environ.get("PACELINE_TORCH", sys.executable)

# The function of ours that belongs to a name of draws.py, where it is not the name itself.
OTHER_NAMES = {
    "squared": "squared_loss", "absolute": "absolute_loss", "huber": "huber_loss", "hinge": "hinge_loss",
    "cross_entropy": "softmax_cross_entropy", "weighted_cross_entropy": "softmax_cross_entropy",
    "masked_softmax": "softmax", "masked_log_softmax": "log_softmax", "norm1": "norm", "to": "cast",
    "dense_relu": "dense", "dense_gelu_tanh": "dense",
}  # fmt: skip
# What is not drawn, and where its test is.
ELSEWHERE = {
    "dropout": "PyTorch draws another mask: golden_test.cc",
    "prelu": "golden_test.cc",
    "channels_last": "an order in memory: tests/nn/channels_last_test.cc",
    "top1_count": "PyTorch has none: ops/argmax",
    "global_max_pool": "adaptive_max_pool to one place",
    "global_average_pool": "adaptive_average_pool to one place",
}


def functions_of_the_headers():
    found, declaration = set(), r"^(?:NDArray|std::vector<NDArray>|Sorted|RecurrentResult) (\w+)\("
    for header in OPS.glob("*/*.h"):
        found |= set(re.findall(declaration, header.read_text(), re.M))
    return {name for name in found if not name.endswith("_")}  # in place: golden_test.cc and ops/unary


def drawn(names):
    bases = {re.split(r"[/( ]", name)[0].removeprefix("1.5-") for name in names}
    return {OTHER_NAMES.get(base, base) for base in bases}


class Draws(unittest.TestCase):
    def test_agree_with_pytorch(self):
        if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
            self.skipTest(f"{PYTHON} has no PyTorch; PACELINE_TORCH names one that has")
        seed = int(os.environ.get("PACELINE_SEED", random.randrange(1_000_000)))
        number = os.environ.get("PACELINE_DRAWN", "2060")
        print(f"seed {seed}")
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "draws.safetensors"
            draw = [PYTHON, HERE / "draws.py", "--seed", str(seed), "--number", number, "--out", out]
            done = subprocess.run(draw, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            compare = [pathlib.Path(os.environ["PACELINE_PROGRAMS"]) / "golden_tests", "--gtest_filter=Draws.*"]
            done = subprocess.run(
                compare, env={**os.environ, "PACELINE_DRAWS": str(out)}, capture_output=True, text=True
            )
            self.assertEqual(done.returncode, 0, f"seed {seed}:\n{done.stdout[:20000]}")
            self.assertIn(f"{number} draws", done.stdout)

    def test_every_function_of_the_headers_is_drawn(self):
        text = (HERE / "draws.py").read_text()
        names = re.findall(r'"([^"\n]+)"', text[text.index("# How the inputs are drawn") :])
        missing = functions_of_the_headers() - drawn(names) - ELSEWHERE.keys()
        self.assertEqual(missing, set(), "draw them in draws.py and call them in draws_test.cc")


if __name__ == "__main__":
    unittest.main()
