"""The launcher over ssh, on two loopback addresses with an sshd each."""

import os
import pathlib
import shutil
import signal
import socket
import tempfile
import unittest

from ssh_hosts import NotPossible, SshHosts
from support import LONG_WORKER, LauncherTest


class SshTest(LauncherTest):
    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.mkdtemp(prefix="launch-ssh-")
        cls.addClassCleanup(shutil.rmtree, cls.keys, ignore_errors=True)
        try:
            cls.hosts = SshHosts(cls.keys)
        except NotPossible as reason:
            raise unittest.SkipTest(str(reason)) from reason
        cls.addClassCleanup(cls.hosts.stop)

    def setUp(self):
        super().setUp()
        (self.folder / "hosts").write_text("host-a slots=2\nhost-b # the other one\n")

    def arguments(self, *arguments):
        forwarded = [word for name in ("PATH", "STUB_DIR", "LAUNCH_TEST") for word in ("--env", name)]
        return ["-H", "hosts", "--ssh-config", self.hosts.config, *forwarded, *arguments]

    def launch_on_hosts(self, *arguments):
        return self.launch(*self.arguments(*arguments))

    def assert_nothing_survives(self):
        super().assert_nothing_survives()
        self.wait_until(lambda: not self.hosts.sessions(), "a host still runs something")

    def ssh_client_of(self, role, task):
        """The local ssh process whose session runs a given process; found by the order of their start."""

        def began(pid):  # in ticks since the start of the machine; numbers of processes begin anew when they run out
            return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])

        clients = [pid for pid in self.survivors() if self.command_of(pid)[:1] == [b"ssh"]]
        servers = len(list(self.stub_dir.glob("server-*-runs")))
        return sorted(clients, key=lambda pid: (began(pid), pid))[task if role == "server" else servers + task]


class Start(SshTest):
    def test_round_robin_and_environment(self):
        worker = self.worker("""
            env -0 >"$STUB_DIR/env-$DMLC_TASK_ID"
            echo "$SSH_CONNECTION" | cut -d" " -f3 >"$STUB_DIR/address-$DMLC_TASK_ID"
        """)
        self.environment["STUB_VALUE"] = ' it\'s\n"two" lines $HOME '
        self.environment["PACELINE_FORWARDED"] = "unasked"
        code, _, err = self.launch_on_hosts("-n", 3, "-s", 1, "--env", "STUB_VALUE", worker, "--kvstore", "dist_sync")
        self.assertEqual(code, 0, err)
        for task, address in ((0, "127.0.0.3"), (1, "127.0.0.2"), (2, "127.0.0.3")):
            entries = (self.stub_dir / f"env-{task}").read_bytes().decode().split("\0")[:-1]
            variables = dict(entry.split("=", 1) for entry in entries)
            self.assertEqual((self.stub_dir / f"address-{task}").read_text().strip(), address)
            self.assertEqual(variables["DMLC_NODE_HOST"], address)
            self.assertEqual(variables["DMLC_PS_ROOT_URI"], "127.0.0.1")
            self.assertEqual(variables["DMLC_PS_ROOT_PORT"], "4242")
            self.assertEqual(variables["DMLC_JOB_CLUSTER"], "ssh")
            self.assertEqual(variables["STUB_VALUE"], self.environment["STUB_VALUE"])
            self.assertEqual(variables["PACELINE_FORWARDED"], "unasked")
        self.assert_nothing_survives()

    def test_host_ip(self):
        worker = self.worker('echo "$DMLC_PS_ROOT_URI"')
        code, out, err = self.launch_on_hosts("-n", 1, "--host-ip", "127.0.0.9", worker)
        self.assertEqual((code, out), (0, "[worker 0] 127.0.0.9\n"), err)

    def test_secrets_are_not_shown(self):
        self.environment["SECRET"] = "opensesame"
        worker = self.worker('[ "$SECRET" = opensesame ]; touch "$STUB_DIR/up"; sleep 1000')
        launcher = self.start(*self.arguments("-n", 1, "--env", "SECRET", worker))
        self.wait_for_files("up")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            self.assertNotIn(b"opensesame", b" ".join(self.command_of(pid)))
        launcher.send_signal(signal.SIGINT)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 130)
        self.assertNotIn("opensesame", out + err + self.log("launch"))
        self.assert_nothing_survives()

    def test_many_on_one_host(self):
        (self.folder / "hosts").write_text("host-a\n")
        code, _, err = self.launch_on_hosts("-n", 14, "-s", 2, self.worker(":"))
        self.assertEqual(code, 0, err)

    def test_copied_folder(self):
        target = self.folder / "other host" / "it's here"
        self.program("src/train me", '#!/bin/sh\npwd; cat "src/a file"; touch "$STUB_DIR/done-0"\n')
        (self.folder / "src/a file").write_text("copied\n")
        code, out, err = self.launch_on_hosts("-n", 1, "--sync-dst-dir", target, "src/train me")
        self.assertEqual((code, out), (0, f"[worker 0] {target}\n[worker 0] copied\n"), err)

    def test_copy_fails(self):
        code, _, err = self.launch_on_hosts("-n", 1, "--sync-dst-dir", "/proc/nowhere", self.worker(":"))
        self.assertNotEqual(code, 0)
        self.assertRegex(err, "this folder could not be copied to host-[ab]")
        self.assert_nothing_survives()


class Failure(SshTest):
    def test_exit_code_and_host(self):
        worker = self.worker('[ "$DMLC_TASK_ID" = 1 ] && echo "the reason" >&2 && exit 3; sleep 1000')
        code, _, err = self.launch_on_hosts("-n", 2, "--on-worker-loss", "stop", worker)
        self.assertEqual(code, 3)
        # The shell's startup files of whoever runs the test may print before it.
        ended = r"\[launch\] worker 1 on host-b ended with exit code 3, [^\n]*last lines:\n"
        self.assertRegex(err, ended + r"(    [^\n]*\n)*    the reason")
        self.assert_nothing_survives()

    def test_killed_worker_survived(self):
        worker = self.worker("""
            if [ "$DMLC_TASK_ID" = 1 ]; then touch "$STUB_DIR/done-1"; kill -KILL $$; fi
            sleep 0.3
        """)
        code, _, err = self.launch_on_hosts("-n", 2, worker, "--kvstore", "dist_async")
        self.assertEqual(code, 0, err)
        self.assertIn("worker 1 on host-b was ended by signal 9 (SIGKILL); the job goes on", err)

    def test_program_or_folder_missing_there(self):
        code, _, err = self.launch_on_hosts("-n", 1, "/nowhere/train")
        self.assertEqual(code, 127)
        self.assertRegex(
            err, "worker 0 on host-b could not be started.*\n    the program /nowhere/train does not exist"
        )

    def test_unknown_host_key(self):
        code, _, err = self.launch_on_hosts("-n", 1, "--ssh-option", "UserKnownHostsFile=none", self.worker(":"))
        self.assertEqual(code, 255)
        self.assertRegex(err, "on host-[ab] could not be started")
        self.assertIn("Host key verification failed", err)

    def test_host_that_refuses(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.4", 0))  # and does not listen
            (self.folder / "hosts").write_text(f"host-a\n127.0.0.4:{closed.getsockname()[1]}\n")
            code, _, err = self.launch_on_hosts("-n", 2, "-s", 1, self.worker("sleep 1000"), "--kvstore", "dist_async")
        self.assertEqual(code, 255)
        self.assertRegex(err, r"worker 0 on 127\.0\.0\.4 could not be started.*\n    ssh: .*Connection refused")
        self.assert_nothing_survives()

    def test_host_that_never_answers(self):
        with socket.socket() as mute:
            mute.bind(("127.0.0.4", 0))
            mute.listen()
            (self.folder / "hosts").write_text(f"host-a\n127.0.0.4:{mute.getsockname()[1]}\n")
            patience = ("--start-timeout", 15, "--ssh-option", "ConnectTimeout=60")
            code, _, err = self.launch_on_hosts("-n", 2, "-s", 1, *patience, self.worker("sleep 1000"))
        self.assertEqual(code, 124)
        self.assertRegex(err, r"\[launch\] not started within 15 s \(--start-timeout\): .*worker 0 on 127\.0\.0\.4\b")
        self.assert_nothing_survives()


class Stopping(SshTest):
    def running(self, *arguments):
        worker = self.worker(LONG_WORKER)
        launcher = self.start(*self.arguments("-n", 2, "--grace", 30, *arguments, worker, "--kvstore", "dist_async"))
        self.wait_for_files("up-0", "up-1", "server-0-runs", "server-1-runs")
        return launcher

    def test_interrupt(self):
        launcher = self.running()
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 130, err)
        self.assertTrue((self.stub_dir / "asked-0").exists() and (self.stub_dir / "asked-1").exists())
        self.assert_nothing_survives()

    def test_killed_launcher(self):
        launcher = self.running()
        self.assertTrue(self.hosts.sessions())
        launcher.kill()
        self.finish(launcher)
        self.assert_nothing_survives()
        self.assertTrue((self.stub_dir / "asked-0").exists() and (self.stub_dir / "asked-1").exists())

    def test_lost_connection_to_a_worker(self):
        launcher = self.running()
        os.kill(self.ssh_client_of("worker", 1), signal.SIGKILL)
        self.wait_for_files("asked-1")
        message = "worker 1 on host-b lost its connection to the launcher; the job goes on without it"
        self.wait_until(lambda: message in self.log("launch"), f"no message '{message}'")
        self.assertFalse((self.stub_dir / "asked-0").exists())
        launcher.send_signal(signal.SIGINT)
        self.finish(launcher)
        self.assert_nothing_survives()

    def test_lost_connection_to_a_server(self):
        launcher = self.running()
        os.kill(self.ssh_client_of("server", 0), signal.SIGKILL)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 255)
        self.assertIn("server 0 on host-a lost its connection to the launcher, which the job cannot survive", err)
        self.assert_nothing_survives()

    def test_host_that_hears_nothing_ends_its_processes(self):
        launcher = self.running("--host-timeout", 20)
        silent = self.ssh_client_of("worker", 0)
        os.kill(silent, signal.SIGSTOP)
        try:
            self.wait_for_files("asked-0")
            self.assertFalse((self.stub_dir / "asked-1").exists())
        finally:
            os.kill(silent, signal.SIGCONT)
        launcher.send_signal(signal.SIGINT)
        self.finish(launcher)
        self.assert_nothing_survives()


if __name__ == "__main__":
    unittest.main()
