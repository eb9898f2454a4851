"""The launcher on one machine, with stubs for the programs of a job."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest
from unittest import mock

from support import LAUNCHER, LONG_WORKER, PATIENCE, LauncherTest

from paceline_launch import UsageError, bootstrap, options
from paceline_launch.job import _is_json_object


class Environment(LauncherTest):
    def environments(self, *arguments):
        """Runs two workers and one server, and returns the environment of each process by its name."""
        self.environment["STUB_SERVER_DOES"] = 'env -0 >"$STUB_DIR/env-$DMLC_ROLE-$DMLC_TASK_ID"'
        worker = self.worker('env -0 >"$STUB_DIR/env-$DMLC_ROLE-$DMLC_TASK_ID"')
        code, _, err = self.launch("-n", 2, "-s", 1, *arguments, worker, "--kvstore", "dist_sync")
        self.assertEqual(code, 0, err)
        found = {}
        for path in self.stub_dir.glob("env-*"):
            entries = path.read_bytes().decode().split("\0")[:-1]
            found[path.name[4:]] = dict(entry.split("=", 1) for entry in entries)
        self.assertEqual(set(found), {"scheduler-0", "server-0", "worker-0", "worker-1"})
        return found

    def test_contract(self):
        found = self.environments()
        for name, variables in found.items():
            role, task = name.split("-")
            self.assertEqual(variables["DMLC_ROLE"], role)
            self.assertEqual(variables["DMLC_TASK_ID"], task)
            self.assertEqual(variables["DMLC_PS_ROOT_URI"], "127.0.0.1")
            self.assertEqual(variables["DMLC_PS_ROOT_PORT"], "0" if role == "scheduler" else "4242")
            self.assertEqual(variables["DMLC_NUM_WORKER"], "2")
            self.assertEqual(variables["DMLC_NUM_SERVER"], "1")
            self.assertEqual(variables["DMLC_NODE_HOST"], "127.0.0.1")
            self.assertEqual(variables["DMLC_JOB_CLUSTER"], "local")
            self.assertEqual(variables["PACELINE_ON_WORKER_LOSS"], "continue")
            self.assertEqual(variables["OMP_WAIT_POLICY"], "PASSIVE")
            for name in ("PACELINE_PORT_FILE", "PACELINE_ENDED_FILE", "PACELINE_LOST_FILE"):
                self.assertEqual(name in variables, role == "scheduler")
        self.assertEqual(len({variables["PACELINE_JOB_ID"] for variables in found.values()}), 1)
        cores = len(os.sched_getaffinity(0))
        self.assertEqual(found["worker-0"]["PACELINE_NUM_THREADS"], str(max(1, cores // 2)))
        self.assertEqual(found["server-0"]["PACELINE_NUM_THREADS"], str(cores))

    def test_job_ids_differ(self):
        first = self.environments()["worker-0"]["PACELINE_JOB_ID"]
        for path in self.stub_dir.glob("*"):
            path.unlink()
        self.assertNotEqual(first, self.environments()["worker-0"]["PACELINE_JOB_ID"])

    def test_values_survive(self):
        values = {
            "BLANKS": "  a  b ",
            "QUOTES": 'it\'s "quoted" `x` $HOME \\ ;',
            "LINES": "first\nsecond\n",
            "COLON": "host:80=x",
            "EMPTY": "",
            "OTHER": "é\t*",
        }
        arguments = [word for name, value in values.items() for word in ("--env", f"{name}={value}")]
        for name, variables in self.environments(*arguments).items():
            for key, value in values.items():
                self.assertEqual(variables[key], value, f"{key} of {name}")

    def test_names_of_the_script_are_free(self):
        names = ("mark", "tag", "grace", "silence", "sharers", "reaped", "setsid", "cores", "folder", "program", "job")
        chosen, inherited = names[::2], names[1::2]
        arguments = [word for name in chosen for word in ("--env", f"{name}=my {name}")]
        self.environment.update({name: f"my {name}" for name in inherited})
        for variables in self.environments(*arguments).values():
            self.assertEqual({name: variables.get(name) for name in names}, {name: f"my {name}" for name in names})
            self.assertTrue(variables["PACELINE_PROCESS_ID"].startswith(variables["PACELINE_JOB_ID"]))

    def test_roles_have_their_own(self):
        self.environment.update(
            TAKEN="from here", OMP_WAIT_POLICY="ACTIVE", DMLC_ROLE="stale", DMLC_RANK="7", PORT="80"
        )
        found = self.environments(
            "--env", "TAKEN", "--env-server", "A:1=x", "--env-worker", "A=2:y", "--env-worker", "PACELINE_NUM_THREADS=3"
        )
        self.assertEqual([found[name]["A"] for name in ("scheduler-0", "server-0", "worker-1")], ["1=x", "1=x", "2:y"])
        self.assertEqual(found["worker-0"]["PACELINE_NUM_THREADS"], "3")
        self.assertEqual(found["worker-0"]["OMP_WAIT_POLICY"], "ACTIVE")
        self.assertEqual(found["worker-0"]["TAKEN"], "from here")
        self.assertNotIn("DMLC_RANK", found["worker-0"])
        self.assertNotIn("PORT", found["server-0"])

    def test_environment_is_not_shown(self):
        self.environment["SECRET"] = "opensesame"
        worker = self.worker('touch "$STUB_DIR/up"; until [ -e "$STUB_DIR/go" ]; do sleep 0.05; done')
        launcher = self.start("-n", 1, "--env", "SECRET", worker)
        self.wait_for_files("up")
        for pid in self.survivors():
            self.assertNotIn(b"opensesame", b" ".join(self.command_of(pid)))
        (self.stub_dir / "go").touch()
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertNotIn("opensesame", out + err + self.log("launch") + self.log("worker-0"))


class Key(LauncherTest):
    """The job's key reaches each process by a pipe, and shows nowhere."""

    # The file is whole as soon as it has its name.
    READ = (
        'key=$(eval "cat <&$PACELINE_KEY_FD"); echo "${#key} $key" >"$STUB_DIR/$$"; '
        'mv "$STUB_DIR/$$" "$STUB_DIR/key-$DMLC_ROLE-$DMLC_TASK_ID"'
    )

    def keys(self):
        return {path.name[4:]: path.read_text().split() for path in self.stub_dir.glob("key-*")}

    def test_each_process_gets_it_and_nothing_shows_it(self):
        self.environment["STUB_SERVER_DOES"] = self.READ
        wait = '\ntouch "$STUB_DIR/up"; until [ -e "$STUB_DIR/go" ]; do sleep 0.05; done'
        launcher = self.start("-n", 1, "-s", 1, self.worker(self.READ + wait))
        names = {"scheduler-0", "server-0", "worker-0"}
        self.wait_for_files("up", *(f"key-{name}" for name in names))
        keys = self.keys()
        self.assertEqual(set(keys), names)
        self.assertEqual(len({tuple(words) for words in keys.values()}), 1)
        length, key = keys["worker-0"]
        self.assertEqual(length, "64")
        seen = 0
        for pid in {*self.survivors(), launcher.pid}:
            environment = self.environment_of(pid)
            self.assertNotIn(key.encode(), b" ".join(self.command_of(pid)))
            self.assertNotIn(key.encode(), environment)
            seen += bool(environment)
        self.assertGreaterEqual(seen, 2, "launcher and worker are there")
        (self.stub_dir / "go").touch()
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        logs = "".join(path.read_text() for path in self.folder.glob("logs/*/*"))
        self.assertNotIn(key, out + err + logs)

    def test_each_job_has_its_own(self):
        found = set()
        for _ in range(2):
            self.forget_what_stubs_did()
            code, _, err = self.launch("-n", 1, self.worker(self.READ))
            self.assertEqual(code, 0, err)
            found.add(self.keys()["worker-0"][1])
        self.assertEqual(len(found), 2)

    def test_a_file_gives_it(self):
        path = self.folder / "job.key"
        path.write_text("0123456789abcdef" * 4 + "\n")
        path.chmod(0o600)
        self.environment["PACELINE_KEY_FILE"] = str(path)
        code, _, err = self.launch("-n", 1, self.worker(self.READ + '\n[ -z "${PACELINE_KEY_FILE-}" ]'))
        self.assertEqual(code, 0, err)
        self.assertEqual(self.keys()["worker-0"], ["64", "0123456789abcdef" * 4])
        for change, sentence in (
            (lambda: path.chmod(0o644), "is open to other users; run `chmod 600"),
            (lambda: (path.chmod(0o600), path.write_text("0123")), "does not hold a key"),
            (path.unlink, "cannot be read: No such file"),
        ):
            change()
            code, _, err = self.launch("-n", 1, self.worker(":"))
            self.assertEqual(code, 2, err)
            self.assertIn(sentence, err)

    def test_insecure_is_loud(self):
        worker = self.worker('[ "$PACELINE_INSECURE" = 1 ]; [ -z "${PACELINE_KEY_FD-}" ]; [ ! -e /proc/self/fd/5 ]')
        code, _, err = self.launch("-n", 1, "--insecure", worker)
        self.assertEqual(code, 0, err)
        self.assertIn("[launch] --insecure: nothing is encrypted", err)
        self.environment["PACELINE_INSECURE"] = "1"
        self.forget_what_stubs_did()
        code, _, err = self.launch("-n", 1, worker)
        self.assertEqual(code, 0, err)
        self.assertIn("[launch] --insecure: nothing is encrypted", err)

    def test_a_job_of_one_process_needs_none(self):
        worker = self.worker('[ -z "${PACELINE_KEY_FD-}" ]; [ ! -e /proc/self/fd/5 ]')
        code, _, err = self.launch("-n", 1, worker, "local")
        self.assertEqual(code, 0, err)


class Command(LauncherTest):
    def test_words_are_kept(self):
        code, out, err = self.launch("-n", 1, self.worker('printf "<%s>\\n" "$@"'), "a  b", "it's", "$HOME", "-n", "")
        self.assertEqual(code, 0, err)
        self.assertEqual([line for line in out.splitlines() if line.startswith("[worker")],
                         [f"[worker 0] <{word}>" for word in ("a  b", "it's", "$HOME", "-n", "")])  # fmt: skip

    def test_one_word_with_blanks_is_for_the_shell(self):
        code, out, _ = self.launch("-n", 1, 'echo one; echo two && touch "$STUB_DIR/done-0"')
        self.assertEqual((code, out), (0, "[worker 0] one\n[worker 0] two\n"))

    def test_server_beside_the_program(self):
        os.rename(self.folder / "bin", self.folder / "elsewhere")
        worker = self.worker(":")
        os.rename(worker, self.folder / "elsewhere" / "train")
        code, _, err = self.launch("-n", 1, "elsewhere/train")
        self.assertEqual(code, 0, err)

    def test_server_command(self):
        server = self.program("other", '#!/bin/sh\n[ "$*" = "--a b" ] && exec paceline_server\n')
        code, _, err = self.launch("-n", 1, "--server-command", f"{server} --a b", self.worker(":"))
        self.assertEqual(code, 0, err)
        code, _, err = self.launch("-n", 1, "--server-command", "true 'a b'", self.worker(":"))
        self.assertEqual(code, 1, err)
        self.assertIn("the scheduler ended before it listened: does 'true 'a b'' serve a job?", err)

    def test_every_role_runs_the_command(self):
        worker = self.worker(': > "$STUB_DIR/$DMLC_ROLE"; [ "$DMLC_ROLE" = worker ] || exec paceline_server')
        code, _, err = self.launch("-n", 1, "--every-role", worker)
        self.assertEqual(code, 0, err)
        for role in ("scheduler", "server", "worker"):
            self.assertTrue((self.stub_dir / role).exists(), role)

    def test_local_mode_is_one_process(self):
        code, out, err = self.launch("-n", 1, self.worker('echo "$DMLC_NUM_SERVER"'), "--kvstore=local")
        self.assertEqual((code, out), (0, "[worker 0] 0\n"), err)
        self.assertFalse((self.stub_dir / "scheduler-0-runs").exists())

    def test_a_job_without_servers_may_be_asked_for_where_the_program_names_the_mode(self):
        code, out, err = self.launch("-n", 1, "-s", 0, self.worker('echo "$DMLC_NUM_SERVER"'))
        self.assertEqual((code, out), (0, "[worker 0] 0\n"), err)
        self.assertTrue((self.stub_dir / "scheduler-0-runs").exists())
        self.assertFalse((self.stub_dir / "server-0-runs").exists())

    def test_given_port_is_used(self):
        self.environment["STUB_PORT"] = "5151"
        code, out, err = self.launch("-n", 1, "--port", 5151, self.worker('echo "$DMLC_PS_ROOT_PORT"'))
        self.assertEqual((code, out), (0, "[worker 0] 5151\n"), err)


class Output(LauncherTest):
    def test_prefixes_streams_and_logs(self):
        worker = self.worker('echo "out $DMLC_TASK_ID"; echo "err $DMLC_TASK_ID" >&2; printf "no end of line"')
        code, out, err = self.launch("-n", 2, "-s", 1, worker)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), sorted(
            f"[worker {i}] {text}" for i in (0, 1) for text in (f"out {i}", "no end of line")))  # fmt: skip
        self.assertIn("[worker 1] err 1\n", err)
        self.assertEqual(sorted(self.log("worker-1").splitlines()), ["err 1", "no end of line", "out 1"])
        self.assertIn("kept in logs/", self.log("launch"))

    def test_chosen_log_folder(self):
        code, _, err = self.launch("-n", 1, "--log-dir", "a/b", self.worker("echo x"))
        self.assertEqual(code, 0, err)
        self.assertEqual((self.folder / "a/b/worker-0.log").read_text(), "x\n")
        self.assertEqual((self.folder / "a/b/server-0.log").read_text(), "")

    def test_disk_full(self):
        (self.folder / "full").mkdir()
        (self.folder / "full/worker-0.log").symlink_to("/dev/full")
        code, out, err = self.launch("-n", 1, "--log-dir", "full", self.worker("seq 9999"))
        self.assertEqual((code, len(out.splitlines())), (0, 9999), err)
        self.assertEqual(err.count("worker-0.log cannot be written (No space left on device)"), 1)

    def test_standard_output_full(self):
        for arguments in (("-n", "1", self.worker("seq 9999"), "local"), ("--help",)):
            with self.subTest(arguments), open("/dev/full", "w", encoding="utf-8") as full:
                ended = subprocess.run(
                    (sys.executable, LAUNCHER, *arguments),
                    cwd=self.folder, env=self.environment, stdout=full, stderr=subprocess.PIPE, check=False,
                )  # fmt: skip
                self.assertEqual(ended.returncode, 1)
                self.assertEqual(ended.stderr.count(b"cannot write to standard output: No space left on device"), 1)

    def test_a_folder_is_of_one_job(self):
        first = self.start("-n", 1, "--log-dir", "logs/a", self.worker(LONG_WORKER), "local")
        self.wait_for_files("up-0")
        code, _, err = self.launch("-n", 1, "--log-dir", "logs/a", self.worker(":"), "local")
        refusal = "launch.py: another job writes to the folder logs/a; choose another with --log-dir\n"
        self.assertEqual((code, err), (2, refusal))
        first.send_signal(signal.SIGTERM)
        self.finish(first)
        code, _, err = self.launch("-n", 1, "--log-dir", "logs/a", self.worker(":"), "local")
        self.assertEqual(code, 0, err)

    def test_words_that_the_locale_does_not_have(self):
        self.environment |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
        launcher = self.start("-n", 1, self.worker("printf 'loss \\342\\206\\222 0.5\\n'; exit 3"), "local")
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 3, err)
        self.assertIn("\n    loss \u2192 0.5\n", err)

    def test_a_last_line_that_is_no_result(self):
        self.assertFalse(_is_json_object(b"[" * 200000))
        self.assertTrue(_is_json_object(b'{"a": 1}'))

    def test_result_comes_last(self):
        worker = self.worker("""
            touch "$STUB_DIR/done-$DMLC_TASK_ID"
            [ "$DMLC_TASK_ID" = 1 ] && echo '{"accuracy": 0.9}' && exit
            sleep 0.3
            echo later
        """)  # fmt: skip
        code, out, err = self.launch("-n", 2, worker)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out.splitlines()[-1]), {"accuracy": 0.9})
        self.assertEqual(sorted(out.splitlines()[:-1]), ["[worker 0] later", '[worker 1] {"accuracy": 0.9}'])

    def test_reader_that_goes_away(self):
        worker = self.worker("for i in $(seq 2000); do echo line $i; done")
        launcher = self.start("-n", 1, worker)
        launcher.stdout.readline()
        launcher.stdout.close()
        launcher.stdout = None
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.log("worker-0").splitlines()), 2000)

    def test_long_lines_and_any_bytes(self):
        code, out, err = self.launch(
            "-n", 1, self.worker("head -c 300000 /dev/zero | tr '\\0' x; echo; printf '\\303('")
        )
        self.assertEqual(code, 0, err)
        self.assertIn("[worker 0] " + "x" * 300000 + "\n", out)


class Failure(LauncherTest):
    def test_worker_loss_survived(self):
        worker = self.worker("""
            if [ "$DMLC_TASK_ID" = 1 ]; then touch "$STUB_DIR/done-1"; kill -KILL $$; fi
            sleep 0.3
        """)  # fmt: skip
        self.environment["STUB_SERVER_DOES"] = 'echo "$PACELINE_ENDED_FILE" >>"$STUB_DIR/ended-file"'
        code, _, err = self.launch("-n", 3, "-s", 1, worker, "--kvstore", "dist_async:bound=4")
        self.assertEqual(code, 0, err)
        told = pathlib.Path((self.stub_dir / "ended-file").read_text().strip()).read_text()
        self.assertIn("worker 1 was ended by signal 9 (SIGKILL)", told.splitlines())
        self.assertIn("worker 1 on this machine was ended by signal 9 (SIGKILL); the job goes on without it", err)
        self.assertIn("the job ended well, but lost worker 1 on this machine", err)

    def test_an_end_without_leaving_is_a_loss(self):
        """The scheduler hears of it at once, and alone knows that the worker was still in the job."""
        self.environment["STUB_SERVER_DOES"] = """
            if [ "$DMLC_ROLE" = scheduler ]; then
              until grep -sqx "worker 1 ended with exit code 0 without leaving the job" "$PACELINE_ENDED_FILE"; do
                sleep 0.05
              done
              echo "worker 1" >>"$PACELINE_LOST_FILE"
            fi
        """
        worker = self.worker('[ "$DMLC_TASK_ID" != 0 ] || until grep -sq goes "$STUB_DIR/said"; do sleep 0.05; done')
        for choice, expected in (("failed", 1), ("none", 0)):
            with self.subTest(choice):
                self.forget_what_stubs_did()
                log_dir = self.folder / choice
                launcher = self.start(
                    "-n", 2, "--lost-workers-count", choice, "--log-dir", log_dir, worker, "dist_sync"
                )
                how = "worker 1 on this machine ended with exit code 0 without leaving the job"
                said = f"{how}; the job goes on without it (1 still at work)"
                log = log_dir / "launch.log"
                self.wait_until(lambda log=log, said=said: log.exists() and said in log.read_text(), said)
                (self.stub_dir / "said").write_text("the job goes on")
                code, _, err = self.finish(launcher)
                self.assertEqual(code, expected, err)
                last = f"the job ended without {how}: exit code 1" if expected else "lost worker 1 on this machine"
                self.assertIn(last, err)

    def test_a_job_that_the_scheduler_calls_failed(self):
        """A worker that never joined ends with 0: the scheduler alone knows that the job did not start."""
        self.environment["STUB_SERVER_DOES"] = """
            if [ "$DMLC_ROLE" = scheduler ]; then
              until [ -s "$PACELINE_ENDED_FILE" ]; do sleep 0.05; done
              exit 1
            fi
        """
        code, _, err = self.launch("-n", 1, self.worker(":"), "dist_sync")
        self.assertEqual(code, 1, err)
        self.assertIn("the job has failed, as its scheduler or a server says: exit code 1", err)

    def test_no_descriptors(self):
        command = 'ulimit -n 40; exec "$@"'
        arguments = (sys.executable, LAUNCHER, "-n", "20", self.worker("sleep 1000"), "--kvstore", "ring")
        ended = subprocess.run(
            ("sh", "-c", command, "sh", *arguments),
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertEqual(ended.returncode, 1, ended)
        self.assertRegex(ended.stderr, r"worker \d+ on this machine could not be started: .*; see ulimit -n")
        self.assertNotIn("Traceback", ended.stderr)
        self.assert_nothing_survives()

    def test_the_only_worker_ends_without_leaving(self):
        self.environment["STUB_SERVER_DOES"] = """
            if [ "$DMLC_ROLE" = scheduler ]; then
              until [ -e "$PACELINE_ENDED_FILE" ]; do sleep 0.05; done
              echo "worker 0" >>"$PACELINE_LOST_FILE"
              exit 1
            fi
        """
        code, _, err = self.launch("-n", 1, self.worker("echo the reason"), "dist_sync")
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"worker 0 [^\n]* without leaving the job, and no worker is left[^\n]*\n    the reason")

    def test_mode_from_the_environment(self):
        worker = self.worker('[ "$DMLC_TASK_ID" = 0 ] || { touch "$STUB_DIR/done-1"; kill -KILL $$; }')
        code, _, err = self.launch("-n", 2, "--env", "PACELINE_KVSTORE=dist_sync", worker)
        self.assertEqual(code, 0, err)

    def test_a_worker_that_fails_makes_the_exit_code(self):
        for how, expected in (("exit 5", 5), ("kill -SEGV $$", 139), ("kill -ABRT $$", 134), ("kill -TERM $$", 0)):
            with self.subTest(how):
                self.forget_what_stubs_did()
                worker = self.worker(f'[ "$DMLC_TASK_ID" = 0 ] || {{ touch "$STUB_DIR/done-1"; {how}; }}; sleep 0.3')
                code, _, err = self.launch("-n", 2, worker, "--kvstore", "dist_sync")
                self.assertEqual(code, expected, err)
                self.assertEqual("the job ended without worker 1 on this machine" in err, expected != 0, err)

    def test_which_lost_workers_count(self):
        for choice, how, expected in (("none", "exit 5", 0), ("any", "kill -KILL $$", 137)):
            with self.subTest(choice):
                self.forget_what_stubs_did()
                worker = self.worker(f'[ "$DMLC_TASK_ID" = 0 ] || {{ touch "$STUB_DIR/done-1"; {how}; }}; sleep 0.3')
                code, _, err = self.launch("-n", 2, "--lost-workers-count", choice, worker, "--kvstore", "dist_sync")
                self.assertEqual(code, expected, err)

    def test_memory_that_is_exhausted_is_named(self):
        """The script reads the control group's events; here they are files of the test."""
        group = self.folder / "cgroup"
        (group / "memory").mkdir(parents=True)
        events = group / "memory.events"
        for kills, expected in ((1, "ended 137 memory"), (0, "ended 137 ")):
            with self.subTest(kills):
                events.write_text("oom 0\noom_kill 0\n")
                command = ["sh", "-c", f"printf 'oom 1\noom_kill {kills}\n' >{events}; kill -KILL $$"]
                text = bootstrap.script(
                    mark="MARK", tag="tag.", command=command, folder="/", environment={}, sharers=1, grace=1
                )
                script = text.replace(b"/sys/fs/cgroup", os.fsencode(group))
                with subprocess.Popen(["sh", "-s"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as shell:
                    shell.stdin.write(script)
                    shell.stdin.flush()  # and stays open: the launcher is there
                    self.assertIn(f"MARK {expected}\n", shell.stderr.read().decode())

    def test_all_workers_lost(self):
        worker = self.worker("""
            [ "$DMLC_TASK_ID" = 0 ] && exit 7
            until grep -sq "worker 0" "$(cat "$STUB_DIR/ended-file" 2>/dev/null)"; do sleep 0.05; done
            exit 8
        """)
        self.environment["STUB_SERVER_DOES"] = """
            if [ "$DMLC_ROLE" = scheduler ]; then
              echo "$PACELINE_ENDED_FILE" >"$STUB_DIR/ended-file"
              until grep -sq "worker 1" "$PACELINE_ENDED_FILE"; do sleep 0.05; done
              exit 1
            fi
        """
        self.launcher = self.program("patient.py", f"""\
            import sys

            sys.path.insert(0, {str(LAUNCHER.parent)!r})
            import launch
            from paceline_launch import job

            job._MOMENT = {PATIENCE}  # on a busy machine the second worker may need more than a second to end
            sys.exit(launch.main())
        """)  # fmt: skip
        code, _, err = self.launch("-n", 2, worker, "--kvstore", "dist_sync")
        self.assertEqual(code, 7, err)
        self.assertIn("no worker is left", err)
        self.assertNotIn("the job goes on", err)  # they ended within a moment
        self.assert_nothing_survives()

    # Scheduler and server of a job that goes on for $STUB_LASTS seconds after workers 0 and 1 have ended.
    OUTLIVES_LOSSES = """
        [ "$DMLC_ROLE" = scheduler ] || { until [ -e "$STUB_DIR/over" ]; do sleep 0.2; done; exit 0; }
        trap ': >"$STUB_DIR/asked"; exit 1' TERM
        until grep -sq "worker 0" "$PACELINE_ENDED_FILE" && grep -q "worker 1" "$PACELINE_ENDED_FILE"; do
          sleep 0.2
        done
        for lost in $STUB_LOST; do echo "worker $lost" >>"$PACELINE_LOST_FILE"; done
        sleep $STUB_LASTS
        : >"$STUB_DIR/over"
        exit $STUB_SCHEDULER_CODE
    """

    def test_a_worker_that_has_returned_outlives_the_others(self):
        """The launcher does not know of it. Its scheduler does, and ends when this worker does."""
        self.environment |= {"STUB_SERVER_DOES": self.OUTLIVES_LOSSES, "STUB_LOST": "0 1", "STUB_LASTS": "2"}
        for how, choice, scheduler_code, expected in (
            ("kill -KILL $$", "failed", 0, 0),
            ("kill -KILL $$", "any", 0, 137),
            ("exit 5", "none", 1, 5),
        ):
            with self.subTest(how=how, choice=choice, scheduler_code=scheduler_code):
                self.forget_what_stubs_did()
                self.environment["STUB_SCHEDULER_CODE"] = str(scheduler_code)
                worker = self.worker(how)
                code, _, err = self.launch("-n", 2, "-s", 1, "--lost-workers-count", choice, worker, "dist_sync")
                self.assertEqual(code, expected, err)
                self.assertTrue((self.stub_dir / "over").exists(), err)
                self.assertFalse((self.stub_dir / "asked").exists(), err)
                self.assertEqual("and no worker is left" in err, scheduler_code != 0, err)

    def test_a_worker_that_has_returned_outlives_one_that_ends_well(self):
        self.environment |= {"STUB_SERVER_DOES": self.OUTLIVES_LOSSES, "STUB_LOST": "1", "STUB_LASTS": "3"}
        self.environment["STUB_SCHEDULER_CODE"] = "0"
        worker = self.worker('[ "$DMLC_TASK_ID" = 0 ] || kill -KILL $$')
        code, _, err = self.launch("-n", 2, "-s", 1, "--grace", 1, worker, "dist_sync")
        self.assertEqual(code, 0, err)
        self.assertTrue((self.stub_dir / "over").exists(), err)
        self.assertFalse((self.stub_dir / "asked").exists(), err)
        self.assertRegex(err, "still running 1 s after the last worker ended: .*; waiting, because a lost worker may")
        self.assertIn("the job ended well, but lost worker 1 on this machine", err)

    def test_workers_that_fail_after_they_have_left(self):
        """The scheduler ends well, for the job is done to it. Nobody has returned."""
        self.environment |= {"STUB_SERVER_DOES": self.OUTLIVES_LOSSES, "STUB_LOST": "", "STUB_LASTS": "0"}
        self.environment["STUB_SCHEDULER_CODE"] = "0"
        worker = self.worker("echo the reason; exit 5")
        code, _, err = self.launch("-n", 2, "--lost-workers-count", "none", worker, "dist_sync")
        self.assertEqual(code, 5, err)
        self.assertRegex(err, r"worker [01] [^\n]* exit code 5, and no worker is left[^\n]*\n    the reason")

    def test_servers_that_do_not_end_after_the_scheduler(self):
        self.environment["STUB_SERVER_DOES"] = '[ "$DMLC_ROLE" = scheduler ] || sleep 1000'
        worker = self.worker('[ "$DMLC_TASK_ID" = 0 ] || { touch "$STUB_DIR/done-1"; kill -KILL $$; }')
        code, _, err = self.launch("-n", 2, "-s", 1, "--grace", 1, worker, "dist_sync")
        self.assertEqual(code, 0, err)
        self.assertIn("still running 1 s after the last worker ended: server 0 on this machine; ending them", err)
        self.assert_nothing_survives()

    def test_worker_loss_stops(self):
        worker = self.worker('[ "$DMLC_TASK_ID" = 1 ] && echo "the reason" >&2 && exit 3; sleep 1000')
        code, _, err = self.launch("-n", 2, "--on-worker-loss", "stop", worker, "--kvstore", "dist_async")
        self.assertEqual(code, 3)
        self.assertRegex(
            err, r"\[launch\] worker 1 on this machine ended with exit code 3, [^\n]*last lines:\n    the reason"
        )
        self.assert_nothing_survives()

    def test_stops_by_default_when_the_mode_is_unknown(self):
        code, _, _ = self.launch("-n", 2, self.worker('[ "$DMLC_TASK_ID" = 1 ] && kill -SEGV $$; sleep 1000'))
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assert_nothing_survives()

    def test_server_loss_ends_the_job(self):
        self.environment["STUB_SERVER_DOES"] = "[ $DMLC_ROLE-$DMLC_TASK_ID = server-1 ] && { sleep 0.3; kill -9 $$; }"
        code, _, err = self.launch("-n", 2, self.worker("sleep 1000"), "--kvstore", "dist_async")
        self.assertEqual(code, 137)
        self.assertIn("server 1 on this machine was ended by signal 9 (SIGKILL), which the job cannot survive", err)
        self.assert_nothing_survives()

    def test_a_worker_without_which_the_job_cannot_start_is_to_blame(self):
        self.environment["STUB_SERVER_DOES"] = """
            until grep -sq "worker 1 ended with exit code 2" "$PACELINE_ENDED_FILE"; do sleep 0.05; done
            echo "paceline_server: the job cannot start: worker 1 ended with exit code 2" >&2
            exit 1
        """
        worker = self.worker('[ "$DMLC_TASK_ID" = 1 ] && echo "the reason" >&2 && exit 2; sleep 1000')
        code, _, err = self.launch("-n", 2, "-s", 1, worker, "--kvstore", "dist_async")
        self.assertEqual(code, 2)
        self.assertRegex(
            err, r"\[launch\] worker 1 on this machine ended with exit code 2, [^\n]*last lines:\n    the reason"
        )
        self.assert_nothing_survives()

    def test_scheduler_fails(self):
        self.program("bin/paceline_server", "#!/bin/sh\necho the port is in use >&2\nexit 4\n")
        code, _, err = self.launch("-n", 1, "--port", 80, self.worker("sleep 1000"))
        self.assertEqual(code, 4)
        self.assertRegex(
            err, r"\[launch\] scheduler 0 on this machine ended with exit code 4[^\n]*\n    the port is in use"
        )
        self.assert_nothing_survives()

    def test_servers_that_do_not_end(self):
        self.environment["STUB_SERVER_DOES"] = "sleep 1000"
        code, _, err = self.launch("-n", 1, "--grace", 1, self.worker(":"))
        self.assertEqual(code, 0, err)
        self.assertIn("still running 1 s after the last worker ended: scheduler 0 on this machine, server 0", err)
        self.assert_nothing_survives()

    def test_a_worker_that_does_not_end_is_named(self):
        worker = self.worker("""
            touch "$STUB_DIR/done-$DMLC_TASK_ID"
            until [ "$DMLC_TASK_ID" != 1 ] || [ -e "$STUB_DIR/go" ]; do sleep 0.05; done
        """)
        launcher = self.start("-n", 2, "--grace", 1, worker)
        self.wait_for_files("done-0", "done-1")
        message = re.compile(
            "still running 1 s after scheduler and servers ended: [^;\n]*worker 1 on this machine; waiting"
        )
        self.wait_until(lambda: message.search(self.log("launch")), f"no message '{message.pattern}'")
        (self.stub_dir / "go").touch()
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 0, err)

    def test_children_of_a_worker_do_not_survive_it(self):
        code, _, err = self.launch("-n", 1, self.worker("sleep 1000 & setsid sleep 1000 & sleep 0.2"))
        self.assertEqual(code, 0, err)
        self.assert_nothing_survives()

    def test_the_end_of_worker_1_does_not_end_worker_10(self):
        code, _, err = self.launch("-n", 11, self.worker('[ "$DMLC_TASK_ID" != 10 ] || sleep 1'))
        self.assertEqual(code, 0, err)
        self.assertNotIn("lost", err)

    def test_program_missing_at_start(self):
        code, _, err = self.launch("-n", 1, "--env-worker", "PATH=/nowhere", "env", "--kvstore", "dist_sync")
        self.assertEqual(code, 127)
        self.assertIn("worker 0 on this machine could not be started", err)
        self.assertIn("    the program env does not exist on this host", err)
        self.assert_nothing_survives()


class Deadlines(LauncherTest):
    def test_whole_job(self):
        code, _, err = self.launch(
            "-n", 1, "--timeout", 0.5, "--grace", 1, self.worker("trap '' TERM; sleep 1000; sleep 1000")
        )
        self.assertEqual(code, 124)
        self.assertIn("--timeout", err)
        self.assertIn("worker 0 on this machine", err)
        self.assert_nothing_survives()

    def test_that_never_pass(self):
        code, _, err = self.launch("-n", 1, "--timeout", "inf", "--start-timeout", 1e20, self.worker(":"))
        self.assertEqual(code, 0, err)

    def test_scheduler_that_never_listens(self):
        self.program("bin/paceline_server", "#!/bin/sh\nsleep 1000\n")
        code, _, err = self.launch("-n", 1, "--start-timeout", 0.3, self.worker(":"))
        self.assertEqual(code, 124)
        self.assertIn("scheduler 0 on this machine did not listen within 0.3 s", err)
        self.assert_nothing_survives()


class Stopping(LauncherTest):
    def running(self, worker=LONG_WORKER, grace=30):
        launcher = self.start("-n", 2, "--grace", grace, self.worker(worker), "--kvstore", "dist_async")
        self.wait_for_files("up-0", "up-1", "server-0-runs", "server-1-runs")
        return launcher

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(signal=number.name):
                launcher = self.running()
                launcher.send_signal(number)
                code, _, err = self.finish(launcher)
                self.assertEqual(code, 128 + number)
                self.assertIn(f"{number.name}: ending every process", err)
                self.assertTrue((self.stub_dir / "asked-0").exists() and (self.stub_dir / "asked-1").exists())
                self.assert_nothing_survives()
                for path in self.stub_dir.glob("*"):
                    path.unlink()

    def test_second_interrupt_kills(self):
        worker = "trap '' TERM; touch \"$STUB_DIR/up-$DMLC_TASK_ID\"; sleep 1000; sleep 1000"
        launcher = self.running(worker, grace=60)
        launcher.send_signal(signal.SIGINT)
        self.wait_until(lambda: "ending" in self.log("launch"), "the first signal has no effect")
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 130)
        self.assertIn("killing what is left", err)
        self.assert_nothing_survives()

    def test_what_a_shell_has_started_gets_the_whole_grace(self):
        child = self.program("child", """\
            #!/bin/sh
            trap 'trap "" TERM; sleep 4; : >"$STUB_DIR/saved"; exit 0' TERM
            : >"$STUB_DIR/up-0"
            while :; do sleep 0.1; done
        """)  # fmt: skip
        launcher = self.start("-n", 1, "--grace", 50, self.worker(f"{child}; true"), "local")
        self.wait_for_files("up-0")
        launcher.send_signal(signal.SIGTERM)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 143, err)
        self.assertTrue((self.stub_dir / "saved").exists())
        self.assert_nothing_survives()

    def test_a_stuck_reader_of_standard_error(self):
        worker = self.worker("yes >&2")
        launcher = self.start("-n", 1, "--timeout", 1, "--grace", 1, worker, "local")
        self.assertEqual(launcher.wait(PATIENCE), 124)
        self.finish(launcher)
        self.assert_nothing_survives()

    def test_a_launcher_inside_of_a_job(self):
        worker = self.worker('trap "" TERM; : >"$STUB_DIR/up-0"; sleep 1000; sleep 1000')
        inner = (sys.executable, LAUNCHER, "-n", 1, "--grace", 5, worker, "--kvstore", "local")
        launcher = self.start("-n", 1, "--grace", 1, *inner)
        self.wait_for_files("up-0")
        launcher.send_signal(signal.SIGTERM)
        self.finish(launcher)
        self.assert_nothing_survives()

    def test_killed_launcher(self):
        launcher = self.running()
        launcher.kill()
        self.finish(launcher)
        self.assert_nothing_survives()
        self.assertTrue((self.stub_dir / "asked-0").exists())


class Refusals(LauncherTest):
    def refused(self, *arguments):
        code, out, err = self.launch(*arguments)
        self.assertEqual((code, out), (2, ""), err)
        self.assertRegex(err, r"\Alaunch\.py: [^\n]+\n\Z")
        self.assertFalse((self.folder / "logs").exists())
        return err

    def test_command_line(self):
        (self.folder / "hosts").write_text("localhost\n")
        (self.folder / "file").write_text("")
        for arguments, words in {
            (): "-n/--num-workers",
            ("-n", 2): "no command",
            ("-n", 0, "true"): "at least one worker",
            ("-n", "two", "true"): "invalid int",
            ("-n", 2, "-s", -1, "true"): "negative",
            ("-n", 2, "-s", 0, "true", "--kvstore", "dist_sync"): "'dist_sync' needs servers",
            ("-n", 2, "true", "--kvstore", "local"): "one process",
            ("-n", 1, "-s", 1, "true", "--kvstore", "local"): "has no servers",
            ("-n", 1, "--wrong", "true"): "--wrong",
            ("-n", 1, "nosuchprogram"): "nosuchprogram",
            ("-n", 1, "--server-command", "nosuchserver", "true"): "nosuchserver",
            ("-n", 1, "--server-command", "'", "true"): "--server-command",
            ("-n", 1, "--server-command", "true", "--every-role", "true"): "leave out --server-command",
            ("-n", 1, "--launcher", "mpi", "true"): "invalid choice: 'mpi' (choose from",
            ("-n", 1, "--launcher", "ssh", "true"): "host file",
            ("-n", 1, "--launcher", "local", "-H", "hosts", "true"): "--hostfile",
            ("-n", 1, "--sync-dst-dir", "/x", "true"): "--sync-dst-dir",
            ("-n", 1, "-H", "hosts", "--sync-dst-dir", "~/x", "true"): "~ is not expanded",
            ("-n", 1, "-H", "hosts", "--ssh-option", "Foo=bar", "true"): "ssh refuses",
            ("-n", 1, "-H", "nosuchfile", "true"): "nosuchfile",
            ("-n", 1, "-H", "file", "true"): "names no host",
            ("-n", 1, "-H", "hosts", "--ssh-config", "nosuchconfig", "true"): "nosuchconfig",
            ("-n", 1, "--env", "NOT_SET_HERE", "true"): "NOT_SET_HERE",
            ("-n", 1, "--env", "1A=x", "true"): "1A=x",
            ("-n", 1, "--env-server", "DMLC_ROLE:x", "true"): "DMLC_ROLE",
            ("-n", 1, "--port", 70000, "true"): "70000",
            ("-n", 1, "--timeout", 0, "true"): "--timeout",
            ("-n", 1, "--log-dir", "file/x", "true"): "file/x",
        }.items():
            with self.subTest(arguments=arguments):
                self.assertIn(words, self.refused(*arguments))

    def test_no_server_program(self):
        (self.folder / "bin/paceline_server").unlink()
        with (
            mock.patch.object(options, "_HERE", str(self.folder / "empty")),
            mock.patch.dict(os.environ, self.environment),
        ):
            with self.assertRaisesRegex(UsageError, "paceline_server is neither beside true nor on PATH nor at"):
                options.parse(["-n", "1", "true"])

    def test_help(self):
        code, out, _ = self.launch("--help")
        self.assertEqual(code, 0)
        for option in ("--num-workers", "--hostfile", "--sync-dst-dir", "--on-worker-loss", "examples:", "exit code:"):
            self.assertIn(option, out)


if __name__ == "__main__":
    unittest.main()
