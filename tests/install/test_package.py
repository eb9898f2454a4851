"""Uses the package as the README says: installs it, then builds and runs the README's project of another program."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).with_name("train.cc")
README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
PATIENCE = 280  # seconds


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="package-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.prefix, cls.build = cls.folder / "prefix", cls.folder / "build"
        shutil.copy(PROGRAM, cls.folder)
        shown = re.search(r"```cmake\n(.*?)```", README.read_text(), re.DOTALL).group(1)
        (cls.folder / "CMakeLists.txt").write_text(shown)
        cmake = os.environ["PACELINE_CMAKE"]
        cls.run_command(cmake, "--install", os.environ["PACELINE_BUILD"], "--prefix", cls.prefix)
        cls.run_command(
            cmake,
            *("-S", cls.folder, "-B", cls.build, "-G", os.environ["PACELINE_GENERATOR"]),
            f"-DCMAKE_PREFIX_PATH={cls.prefix}",
            f"-DCMAKE_CXX_COMPILER={os.environ['PACELINE_COMPILER']}",
        )
        cls.run_command(cmake, "--build", cls.build)

    @staticmethod
    def run_command(*words):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def test_program(self):
        self.run_command(self.build / "train")

    def test_job(self):
        launcher = self.prefix / "bin" / "launch.py"
        self.run_command(
            launcher, "-n", 2, "-s", 1, "--log-dir", self.folder / "logs", self.build / "train", "dist_sync"
        )
