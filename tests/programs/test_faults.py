"""Processes that are killed in the middle of a job, or never come: who goes on, who is named, how soon all end."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import time
import unittest

from support import LAUNCHER, ProgramTest, data_folder, program, tensors_of

# Where a test waits for it: long enough for a busy machine, short enough for a test.
SILENCE = 12
DEADLINES = {"PACELINE_SILENCE_DEADLINE": SILENCE, "PACELINE_HEARTBEAT": 0.5}
PROMPT = 30  # seconds within which a job must end once its deadline has passed, however busy the machine


class Faults(ProgramTest):
    def start_long_job(self, mode, *arguments, epochs=4, silence=60, **options):
        """A job that is in the middle of an epoch when it prints a line of progress."""
        deadlines = {**DEADLINES, "PACELINE_SILENCE_DEADLINE": silence}
        return self.start_job(mode, "--log_every", 10, *arguments, epochs=epochs, environment=deadlines, **options)

    def wait_for_middle(self, job, epoch=2, worker=r"\d"):
        return self.wait_for_line(job, rf"\[worker {worker}\] epoch {epoch}  step \d+")

    def job_frozen_in_the_middle(self, mode, rank, *arguments, workers=2, **options):
        """A job whose workers are stopped while `rank` has a good part of an epoch before it; and they, by rank.

        A worker that is killed at the end of an epoch has nothing left that others could take over. A job that came to
        its end before it was stopped is started anew.
        """
        while True:
            shutil.rmtree(self.folder / "ck", ignore_errors=True)
            job = self.start_long_job(mode, "--checkpoint", "ck", *arguments, workers=workers, **options)
            pids = self.freeze_in_the_middle(job, rank, workers)
            if pids:
                return job, pids
            self.assertEqual(self.finish(job).code, 0)

    def freeze_in_the_middle(self, job, rank, workers, epochs=4):
        steps = -(-6000 // (64 * workers))
        self.wait_for_line(job, rf"\[worker {rank}\] epoch 1  step")
        pids = [self.process_of("worker", i) for i in range(workers)]
        epoch = 2
        while epoch <= epochs and None not in pids:
            self.wait_for_middle(job, epoch, rank)
            self.signal(pids, signal.SIGSTOP)
            seen, printed = None, self.output(job)
            while seen != printed:  # what the launcher still passes on
                time.sleep(1)
                seen, printed = printed, self.output(job)
            last_epoch, step = re.findall(rf"\[worker {rank}\] epoch (\d+)  step (\d+)", printed)[-1]
            if int(step) - (int(last_epoch) - 1) * steps <= 0.75 * steps:
                return pids
            self.signal(pids, signal.SIGCONT)
            epoch = int(last_epoch) + 1
        return None

    @staticmethod
    def signal(pids, number):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class WorkerKilled(Faults):
    def lose_worker(self, mode, killed, threshold, *arguments, **options):
        rate = "0.1" if mode in ("dist_sync", "ring") else "0.05"
        # While all are frozen, nobody is lost by silence; the launcher reports the loss at once.
        job, pids = self.job_frozen_in_the_middle(mode, killed, "--lr", rate, *arguments, **options)
        os.kill(pids[killed], signal.SIGKILL)
        self.signal(pids, signal.SIGCONT)
        ended = self.finish(job)
        self.assertEqual(ended.code, 0, ended)
        self.assertRegex(
            ended.err, rf"\[scheduler 0\].* worker {killed} at 127\.0\.0\.1 was lost: it was ended by signal 9"
        )
        again = r"\d+ positions of epoch \d+ that it had not committed go to the others"
        self.assertRegex(ended.err, rf"worker {killed} at 127\.0\.0\.1 was lost; {again}")
        self.assertRegex(ended.err, r"\d+ positions were taken over from lost workers")
        self.assertRegex(ended.err, rf"\[launch\] .*worker {killed}.*SIGKILL.*; the job goes on without it")
        self.assertEqual(ended.result["epochs"], 4)
        self.assertGreaterEqual(ended.result["test_accuracy"], threshold, ended)
        self.assertEqual(self.evaluate(ended.result["checkpoint"]), ended.result["test_accuracy"])
        # Every record once per epoch, save the last batches that the lost worker pushed and could not commit.
        _, metadata = tensors_of(self.folder / ended.result["checkpoint"])
        for examples in metadata["examples"]:
            self.assertGreaterEqual(examples, 4 * 6000, metadata)
            self.assertLessEqual(examples, 4 * 6000 + 4 * 64, metadata)
        self.assert_nothing_survives()
        return ended

    def test_async(self):
        self.lose_worker("dist_async", 1, 0.85)

    def test_sync(self):
        self.lose_worker("dist_sync", 1, 0.82)

    def test_a_dynamic_balance(self):
        self.lose_worker("dist_async", 1, 0.85, "--balance", "dynamic")

    def test_ring(self):
        """The survivors agree on the interrupted round and go on over a ring of two."""
        ended = self.lose_worker("ring", 1, 0.7, workers=3, servers=0)
        self.assertRegex(ended.err, r"\[worker 0\].* the ring goes on over the workers 0, 2")
        self.assertRegex(ended.err, r"\[worker 2\].* the ring goes on over the workers 0, 2")

    def test_bound(self):
        self.lose_worker("dist_async:bound=2", 1, 0.85)

    def test_rank_0(self):
        """The lowest live rank evaluates, writes and prints."""
        ended = self.lose_worker("dist_async", 0, 0.85)
        self.assertIn("[worker 1] epoch 4 of 4: test accuracy", ended.err)

    def test_every_worker(self):
        job = self.start_long_job("dist_async", epochs=50)
        self.wait_for_middle(job)
        self.kill("worker", 0)
        self.kill("worker", 1)
        ended = self.finish(job, PROMPT)
        self.assertEqual(ended.code, 128 + signal.SIGKILL, ended)
        self.assertRegex(ended.err, r"\[launch\] .*worker [01].*SIGKILL\), and no worker is left")
        self.assert_nothing_survives()

    def test_an_end_without_leaving(self):
        """What ends with 0 is a shell here, whose child was the worker. Nobody waits for the worker's silence."""
        shell = self.folder / "train"
        shell.write_text(
            f"""#!/bin/sh
            [ "$DMLC_TASK_ID" = 1 ] || exec {program("mnist")} "$@"
            {program("mnist")} "$@" &
            until [ -e end ]; do sleep 0.05; done
            kill -KILL $!
            """
        )
        shell.chmod(0o755)
        data = data_folder()
        job = self.start(
            *LAUNCHER, "-n", 2, "-s", 1, "--server-command", program("paceline_server"), shell,
            "--kvstore", "dist_sync", "--train", data / "train.manifest", "--test", data / "test.manifest",
            "--epochs", 8, "--log_every", 10, PACELINE_SILENCE_DEADLINE=10 * PROMPT,
        )  # fmt: skip
        self.wait_for_line(job, r"\[worker 1\] epoch 1  step 10 ")
        (self.folder / "end").touch()
        ended = self.finish(job)
        self.assertEqual(ended.code, 1, ended)
        how = "ended with exit code 0 without leaving the job"
        self.assertRegex(ended.err, rf"\[scheduler 0\].* worker 1 at 127\.0\.0\.1 was lost: it {how}")
        self.assertRegex(ended.err, rf"\[launch\] the job ended without worker 1 on this machine {how}: exit code 1")
        self.assert_nothing_survives()

    def test_loss_may_stop_the_job(self):
        job = self.start_long_job("dist_sync", launch=("--on-worker-loss", "stop"), epochs=50)
        self.wait_for_middle(job)
        self.kill("worker", 1)
        ended = self.finish(job, PROMPT)
        self.assertEqual(ended.code, 128 + signal.SIGKILL, ended)
        self.assertRegex(ended.err, r"\[launch\] .*worker 1.*SIGKILL\), which the job cannot survive")
        self.assert_nothing_survives()


class WorkerReturns(Faults):
    """A worker that was killed is started again, as it was, while the others go on."""

    def key_file(self):
        path = self.folder / "job.key"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text("5e" * 32)
        return path

    def return_worker(self, mode, rank, threshold):
        rate = "0.1" if mode == "dist_sync" else "0.05"
        self.environment["PACELINE_KEY_FILE"] = str(self.key_file())  # the launcher takes the key from there, too
        # The others are frozen for as long as a process takes to start.
        job, pids = self.job_frozen_in_the_middle(mode, rank, "--lr", rate)
        pid = pids[rank]
        environment = self.survivors()[pid]
        del environment["PACELINE_PROCESS_ID"]  # by which the launcher ends what the worker left
        del environment["PACELINE_KEY_FD"]  # a pipe of the process that was lost
        environment["PACELINE_KEY_FILE"] = self.key_file()
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
        os.kill(pid, signal.SIGKILL)
        returned = self.start(*command, **environment)
        # The others wait, so that the job is not over before the worker is back.
        self.wait_for_line(job, rf"worker {rank} at 127\.0\.0\.1 takes the place")
        self.signal(pids, signal.SIGCONT)
        first, again = self.finish(job), self.finish(returned)
        self.assertEqual((first.code, again.code), (0, 0), f"{first}\n{again}")
        self.assertRegex(first.err, rf"worker {rank} at 127\.0\.0\.1 takes the place of the one that was lost")
        self.assertRegex(again.err, rf"worker {rank}@.* joining a running job in epoch [1-9]")
        # The lowest rank that is there prints.
        result = (again if rank == 0 else first).result
        self.assertEqual(result["epochs"], 4)
        self.assertGreaterEqual(result["test_accuracy"], threshold, f"{first}\n{again}")
        self.assertEqual(self.evaluate(result["checkpoint"]), result["test_accuracy"])
        # Every record once per epoch, save what the lost worker pushed and could not commit.
        _, metadata = tensors_of(self.folder / result["checkpoint"])
        for examples in metadata["examples"]:
            self.assertGreaterEqual(examples, 4 * 6000, metadata)
            self.assertLessEqual(examples, 4 * 6000 + 4 * 64, metadata)
        self.assert_nothing_survives()

    def test_async(self):
        self.return_worker("dist_async", 1, 0.85)

    def test_sync(self):
        self.return_worker("dist_sync", 1, 0.82)

    def test_bound(self):
        self.return_worker("dist_async:bound=2", 1, 0.85)

    def test_rank_0(self):
        self.return_worker("dist_sync", 0, 0.82)


class Network(Faults):
    def test_loss_duplicates_and_disorder(self):
        """Every push is applied once, whatever becomes of the messages between real processes."""
        faults = {"PACELINE_FAULTS": "drop 0.2; duplicate 0.2; reorder 0.2", "PACELINE_HEARTBEAT": 0.2}
        for mode in ("dist_async", "dist_sync"):
            with self.subTest(mode):
                ended = self.finish(self.start_job(mode, "--checkpoint", mode, "--batch_size", 500, network="mlp",
                                                   epochs=1, environment=faults))  # fmt: skip
                self.assertEqual(ended.code, 0, ended)
                _, metadata = tensors_of(self.folder / ended.result["checkpoint"])
                self.assertEqual(set(metadata["examples"]), {6000})


class Planned(Faults):
    """Faults that a plan brings about, at the steps that it names."""

    def run_plan(
        self, plan, mode="dist_sync", name="planned", epochs=2, silence=15, launch=(), progress=600, **options
    ):
        (self.folder / "plan").write_text(plan, encoding="utf-8")
        # One thread for each process, so that the weights of dist_sync do not depend on the machine's load.
        deadlines = {**DEADLINES, "PACELINE_SILENCE_DEADLINE": silence, "PACELINE_PROGRESS_DEADLINE": progress,
                     "PACELINE_NUM_THREADS": 1}  # fmt: skip
        return self.finish(self.start_job(mode, "--checkpoint", name, "--batch_size", 50,
                                          launch=("--faults", "plan", *launch), network="mlp", epochs=epochs,
                                          environment=deadlines, **options))  # fmt: skip

    def examples_of(self, ended, code=0):
        self.assertEqual(ended.code, code, ended)
        _, metadata = tensors_of(self.folder / ended.result["checkpoint"])
        return set(metadata["examples"])

    def assert_all_trained(self, ended, code=0):
        """Each record of two epochs; those of a lost worker's last steps may have been delivered twice."""
        examples = self.examples_of(ended, code)
        self.assertTrue(all(12000 <= count <= 12000 + 4 * 50 for count in examples), examples)

    def test_what_passes_changes_nothing(self):
        """Cuts, freezes, loss and delay: the weights of dist_sync are those of an undisturbed run, bit for bit."""
        quiet = self.run_plan("", name="quiet")
        plan = (
            "seed 3\ncut worker1,server0 at step 30 for 2s\nfreeze server1 at step 60 for 1s\n"
            "freeze worker0 at step 90 for 1s\ndrop 0.02; duplicate 0.02; reorder 0.02; delay 1ms worker0->*\n"
        )
        disturbed = self.run_plan(plan)
        for words in ("cut worker1,server0 .*: begins", "freeze server1 .*: strikes server1", "strikes worker0",
                      r"FAULT PLAN \(seed 3\): delay 1ms"):  # fmt: skip
            self.assertRegex(disturbed.err, words)
        self.assertEqual((self.examples_of(quiet), self.examples_of(disturbed)), ({12000}, {12000}))
        one, other = (tensors_of(self.folder / ended.result["checkpoint"])[0] for ended in (quiet, disturbed))
        self.assertEqual(one, other)
        self.assert_nothing_survives()

    def test_worker_killed_at_a_step(self):
        for mode in ("dist_sync", "dist_async", "ring"):
            with self.subTest(mode):
                servers = 0 if mode == "ring" else 2
                ended = self.run_plan("kill worker1 at step 70", mode, workers=3, servers=servers, name=mode)
                self.assertRegex(ended.err, r"fault plan: kill worker1 at step 70: strikes worker1")
                self.assertRegex(ended.err, r"worker 1 at 127\.0\.0\.1 was lost: it was ended by signal 9")
                self.assert_all_trained(ended)
        self.assert_nothing_survives()

    def test_server_killed_before_it_answers(self):
        ended = self.run_plan("kill server1 at step 30 before sending reply", silence=300)
        self.assertEqual(ended.code, 128 + signal.SIGKILL, ended)
        self.assertRegex(ended.err, r"before sending reply: strikes server1")
        self.assertRegex(ended.err, r"\[launch\] .*server 1.*SIGKILL")
        self.assertLess(ended.seconds, 120, "it waited for the silence")
        self.assert_nothing_survives()

    def test_a_worker_that_cannot_reach_a_server_gives_up(self):
        """The scheduler hears of both, so nobody else would end the wait."""
        ended = self.run_plan("cut worker0,server0 at step 30", silence=SILENCE, progress=15)
        self.assertRegex(ended.err, r"worker 0.*server 0 cannot be reached from here")
        self.assert_all_trained(ended, code=1)
        self.assert_nothing_survives()

    def test_a_lost_worker_that_still_runs_is_killed(self):
        ended = self.run_plan("freeze worker1 at step 30 for 1000s", silence=SILENCE, launch=("--grace", 1))
        self.assertRegex(ended.err, r"\[launch\] worker 1 .*is lost to the job and still runs; killing it")
        self.assert_all_trained(ended)
        self.assert_nothing_survives()

    def test_a_wrong_plan_starts_nothing(self):
        for plan, words in (
            ("drop 0.1\nkil worker0 at step 3\n", "'kil worker0 at step 3': no fault is called 'kil'"),
            ("kill worker7 at step 3", "'kill worker7 at step 3': there is no worker7; the job has 2 workers"),
        ):
            with self.subTest(plan):
                ended = self.run_plan(plan)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(words, ended.err)
                self.assertNotIn("[scheduler", ended.err)


class WithoutLauncher(Faults):
    """The processes of a job alone, as a foreign launcher starts them: they must find out themselves."""

    def start_processes(self, mode="dist_async", workers=2, servers=2, **changes):
        port_file = self.folder / "port"
        data = data_folder()  # before the start deadlines run
        common = {
            "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_NUM_WORKER": workers, "DMLC_NUM_SERVER": servers,
            "DMLC_NODE_HOST": "127.0.0.1", "PACELINE_JOB_ID": self.token, **DEADLINES, **changes,
        }  # fmt: skip
        self.scheduler = self.start(program("paceline_server"), **common, DMLC_ROLE="scheduler", DMLC_PS_ROOT_PORT=0,
                                    PACELINE_PORT_FILE=port_file)  # fmt: skip
        self.wait_until(port_file.exists, "no port", self.scheduler)
        common["DMLC_PS_ROOT_PORT"] = port_file.read_text().split()[1]
        self.servers = [
            self.start(program("paceline_server"), **common, DMLC_ROLE="server", DMLC_TASK_ID=task)
            for task in range(servers)
        ]
        self.workers = [
            self.start(program("mnist"), "--kvstore", mode, "--train", data / "train.manifest", "--test",
                       data / "test.manifest", "--epochs", 50, "--log_every", 10,
                       **common, DMLC_ROLE="worker", DMLC_TASK_ID=task)
            for task in range(workers)
        ]  # fmt: skip
        return [self.scheduler, *self.servers, *self.workers]

    def finish_all(self, processes, *words):
        """All end within their deadline, each with a message that holds the words."""
        began = time.monotonic()
        for process in processes:
            self.assert_one_clear_sentence(self.finish(process, SILENCE + PROMPT), *words, code=1)
        return time.monotonic() - began

    def test_server_killed(self):
        processes = self.start_processes()
        self.wait_for_line(self.workers[0], "epoch 1  step 10 ")
        self.servers[1].kill()
        self.servers[1].wait()
        processes.remove(self.servers[1])
        self.finish_all(processes, "server 1 at 127.0.0.1 was lost")

    def test_scheduler_killed(self):
        processes = self.start_processes()
        self.wait_for_line(self.workers[0], "epoch 1  step 10 ")
        self.scheduler.kill()
        self.scheduler.wait()
        processes.remove(self.scheduler)
        self.finish_all(processes, "the scheduler at 127.0.0.1:", "was lost: nothing heard of it for")

    def test_one_never_comes(self):
        """Every process names who is missing, once the start deadline has passed."""
        processes = self.start_processes(workers=1, DMLC_NUM_WORKER=2, PACELINE_START_DEADLINE=15)
        self.finish_all(
            processes, "did not start within 15", "waiting for 1 of 2 workers (task 1); joined: ", "server at"
        )

    def test_no_scheduler(self):
        worker = self.start(
            program("mnist"), "--kvstore", "dist_sync", "--train", data_folder() / "train.manifest",
            DMLC_ROLE="worker", DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=1, DMLC_NUM_WORKER=1, DMLC_NUM_SERVER=1,
            PACELINE_START_DEADLINE=2,
        )  # fmt: skip
        self.finish_all([worker], "the scheduler at 127.0.0.1:1 did not answer within 2")


class JobKilled(Faults):
    def lose(self, role, task):
        job = self.start_long_job("dist_async", epochs=50)
        self.wait_for_middle(job, epoch=1)
        self.kill(role, task)
        ended = self.finish(job, SILENCE + PROMPT)
        self.assertEqual(ended.code, 128 + signal.SIGKILL, ended)
        self.assertRegex(ended.err, rf"\[launch\] {role} {task}.*SIGKILL\), which the job cannot survive")
        self.assert_nothing_survives()

    def test_server(self):
        self.lose("server", 1)

    def test_scheduler(self):
        self.lose("scheduler", 0)

    def test_launcher(self):
        job = self.start_long_job("dist_async", epochs=50)
        self.wait_for_middle(job, epoch=1)
        job.kill()
        job.wait()
        self.assert_nothing_survives()

    def test_job_goes_on_from_its_checkpoint(self):
        job = self.start_long_job("dist_async", "--checkpoint", "ck", epochs=3)
        self.wait_for_line(job, "epoch 1 of 3: test accuracy")
        self.wait_for_middle(job, epoch=2)
        job.kill()
        job.wait()
        self.assert_nothing_survives()
        ended = self.finish(self.start_long_job("dist_async", "--checkpoint", "ck", epochs=3))
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("resuming from ck/checkpoint.safetensors after epoch ", ended.err)
        _, metadata = tensors_of(self.folder / "ck" / "checkpoint.safetensors")
        self.assertEqual(set(metadata["examples"]), {3 * 6000})
        self.assertGreaterEqual(ended.result["test_accuracy"], 0.85)

    def test_interrupt(self):
        job = self.start_long_job("dist_sync", epochs=50)
        self.wait_for_middle(job, epoch=1)
        job.send_signal(signal.SIGINT)
        ended = self.finish(job, PROMPT)
        self.assertEqual(ended.code, 130, ended)
        self.assert_nothing_survives()

    def test_worker_that_does_not_start(self):
        """The command of the workers is no worker: the servers wait for it, and the start deadline ends the job."""
        job = self.start(*LAUNCHER, "-n", 1, "-s", 1, "--server-command", program("paceline_server"), "sleep", "60",
                         **DEADLINES, PACELINE_START_DEADLINE=8)  # fmt: skip
        ended = self.finish(job, PROMPT)
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("did not start within 8", ended.err)
        self.assertRegex(ended.err, "waiting for (1 of 1 servers and )?1 of 1 workers")
        self.assert_nothing_survives()

    def test_stopped_worker_is_lost(self):
        """A worker that is frozen, not dead, is lost too; when it wakes it ends by itself and disturbs nobody."""
        job = self.start_long_job("dist_async", epochs=6, silence=SILENCE)
        self.wait_for_middle(job, epoch=1, worker=1)
        frozen = self.process_of("worker", 1)
        os.kill(frozen, signal.SIGSTOP)
        self.wait_for_line(job, r"worker 1 at 127\.0\.0\.1 was lost")
        os.kill(frozen, signal.SIGCONT)
        ended = self.finish(job)
        self.assertEqual(ended.code, 1, ended)  # its own: it ended with an error, after the others had gone on
        self.assertIn("the job ended without worker 1 on this machine ended with exit code 1", ended.err)
        self.assertRegex(ended.err, r"\[worker 1\] mnist: .*declared (this process )?lost")
        self.assertGreaterEqual(ended.result["test_accuracy"], 0.85)


if __name__ == "__main__":
    unittest.main()
