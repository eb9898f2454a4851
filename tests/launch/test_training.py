"""The real programs under the launcher: a small job on this machine, and the same one on two hosts."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from ssh_hosts import NotPossible, SshHosts
from support import LauncherTest

PROGRAMS = os.environ.get("PACELINE_PROGRAMS", "")


@unittest.skipUnless(PROGRAMS, "PACELINE_PROGRAMS does not name the folder of the built programs")
class Training(LauncherTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="launch-training-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared, ignore_errors=True)
        cls.run_tool("draw_digits", "--out", cls.shared, "--train", 4000, "--test", 500)
        for part, shards in (("train", 4), ("t10k", 1)):
            cls.run_tool("im2rec", "--shards", shards, cls.shared / part, cls.shared / f"{part}-images-idx3-ubyte.gz")
        cls.hosts = None
        try:
            cls.hosts = SshHosts(cls.shared)
            cls.addClassCleanup(cls.hosts.stop)
        except NotPossible as reason:
            cls.no_hosts = str(reason)

    @staticmethod
    def run_tool(name, *arguments):
        command = [os.path.join(PROGRAMS, name), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def train(self, place, *arguments):
        """Starts two workers and two servers, on this machine or on two hosts."""
        options = ["-n", 2, "-s", 2, "--env", "LAUNCH_TEST", "--env", "PACELINE_NUM_THREADS=1", "--log-dir", place]
        if place == "hosts":
            if not self.hosts:
                self.skipTest(self.no_hosts)
            (self.folder / "host-file").write_text("host-a\nhost-b\n")
            options += ["-H", "host-file", "--ssh-config", self.hosts.config]
        data = ("--train", self.shared / "train.manifest", "--test", self.shared / "t10k.manifest")
        return self.start(*options, os.path.join(PROGRAMS, "mnist"), *data, "--network", "mlp", *arguments)

    def result(self, launcher):
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, f"{out}\n{err}")
        self.assert_nothing_survives()
        return json.loads(out.splitlines()[-1])

    def losses(self, place):
        return [re.findall(r"step .* loss \S+", (self.folder / place / f"worker-{i}.log").read_text()) for i in (0, 1)]

    def assert_nothing_survives(self):
        super().assert_nothing_survives()
        if self.hosts:
            self.wait_until(lambda: not self.hosts.sessions(), "a host still runs something")

    def training_for_long(self, place):
        launcher = self.train(place, "--kvstore", "dist_async", "--epochs", 100000, "--log_every", 5)
        logs = [self.folder / place / f"worker-{i}.log" for i in (0, 1)]
        self.wait_until(lambda: all(log.exists() and "loss" in log.read_text() for log in logs), "no progress")
        return launcher

    def test_two_hosts_train_as_one_machine(self):
        arguments = ("--kvstore", "dist_sync", "--epochs", 2, "--log_every", 5)
        here = self.result(self.train("here", *arguments))
        self.assertGreater(here["test_accuracy"], 0.6)
        on_hosts = self.result(self.train("hosts", *arguments))
        self.assertEqual(on_hosts["test_accuracy"], here["test_accuracy"])
        self.assertGreater(len(self.losses("here")[1]), 5)
        self.assertEqual(self.losses("hosts"), self.losses("here"))

    def test_killed_launcher_leaves_nothing(self):
        launcher = self.training_for_long("hosts")
        self.assertTrue(self.hosts.sessions())
        launcher.kill()
        self.finish(launcher)
        self.assert_nothing_survives()

    def test_killed_server_ends_the_job(self):
        launcher = self.training_for_long("hosts")
        os.kill(self.process("server", 1), signal.SIGKILL)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 137)
        self.assertIn("[launch] server 1 on host-b was ended by signal 9 (SIGKILL), which the job cannot survive", err)
        self.assert_nothing_survives()

    def test_killed_worker_is_survived(self):
        for place, mode in (("here", "dist_sync"), ("hosts", "dist_async")):
            with self.subTest(place=place, mode=mode):
                # A worker that is killed between two epochs leaves nothing to take over.
                self.assertTrue(any(self.kill_worker_once(place, mode) for _ in range(4)), "nothing was taken over")

    def kill_worker_once(self, place, mode):
        """Whether the killed worker left positions that the other took over."""
        shutil.rmtree(self.folder / place, ignore_errors=True)
        launcher = self.train(place, "--kvstore", mode, "--epochs", 20, "--log_every", 5)
        log = self.folder / place / "worker-1.log"
        self.wait_until(lambda: log.exists() and "loss" in log.read_text(), "no progress")
        try:
            os.kill(self.process("worker", 1), signal.SIGKILL)
        except (ProcessLookupError, ValueError):  # the job was faster
            self.result(launcher)
            return None
        result = self.result(launcher)
        self.assertGreater(result["test_accuracy"], 0.6)
        logs = {name: (self.folder / place / f"{name}.log").read_text() for name in ("launch", "scheduler-0")}
        self.assertRegex(logs["launch"], r"worker 1 on .* was ended by signal 9 \(SIGKILL\); the job goes on")
        if not re.search(r"worker 1 at .* was lost", logs["scheduler-0"]):  # it had left already
            return None
        return re.search(r"\d+ positions were taken over from lost workers", logs["scheduler-0"])

    def test_port_in_use(self):
        launcher = self.training_for_long("here")
        port = (self.folder / "here" / "scheduler.port").read_text().split()[1]
        code, _, err = self.launch("-n", 1, "--port", port, os.path.join(PROGRAMS, "mnist"), "--kvstore", "dist_sync")
        self.assertNotEqual(code, 0)
        self.assertRegex(err, rf"\[launch\] scheduler 0 on this machine ended with exit code .*\n    .*{port}.* use")
        self.assertIsNone(launcher.poll())
        launcher.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(launcher)[0], 130)
        self.assert_nothing_survives()

    def process(self, role, task):
        """The one process of the job that leads the given role and number; its children carry the same tag."""
        tag = f"PACELINE_PROCESS_ID=[0-9a-f]+.{role}.{task}[.]\0".encode()
        return min(pid for pid in self.survivors() if re.search(tag, self.environment_of(pid)))


if __name__ == "__main__":
    unittest.main()
