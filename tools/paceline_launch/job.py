"""A job from its first process to its last."""

import collections
import contextlib
import errno
import json
import math
import os
import queue
import resource
import secrets
import shlex
import signal
import threading
import time

from . import UsageError, bootstrap
from .environment import forwarded
from .hosts import ssh_command
from .process import Console, Process, describe_status

TIMED_OUT = 124
_CONNECTING_PER_HOST = 5  # sshd refuses some of ten or more connections that are not yet logged in
_MOMENT = 1  # second in which workers that fail together fail
_JOB_FAILED = 1  # exit code of paceline_server
_LAST_WORDS = 5  # seconds for a reader of standard error to take them, after a job that did not come to its end
_LAST_RESORT = 10  # seconds after SIGKILL until a process that still does not end is left to its host


class Job:
    def __init__(self, options):
        self.options = options
        self.id = secrets.token_hex(8)
        self.events = (
            queue.SimpleQueue()
        )  # (what, whom): a "signal" with its number, a process that "started" or "ended"
        self.console = Console(_make_log_dir(options.log_dir, self.id))
        self.exit_code = None  # set when the job has ended, well or not
        self.waiting = collections.deque()  # processes still to be started
        self.stopping = False
        self.deadlines = {}  # name -> (time, what happens)
        self.lost = []  # workers that failed, in order
        self.went_to_its_end = False
        self.says_failed = False  # a scheduler or server says that the job has failed, after all workers had ended
        self.unsaid = []  # of them, for a moment: others may fail of the same
        self.port = options.port
        self.listening = False  # the scheduler
        self.port_file = os.path.abspath(os.path.join(self.console.log_dir, "scheduler.port"))
        self.ended_file = os.path.abspath(os.path.join(self.console.log_dir, "scheduler.ended"))
        self.lost_file = os.path.abspath(os.path.join(self.console.log_dir, "scheduler.lost"))

        def make(role, count, hosts=()):
            return [Process(role, i, hosts[i] if hosts else None, self.console, self.events) for i in range(count)]

        hosts = options.hosts
        placed = [hosts[i % len(hosts)] for i in range(options.servers + options.workers)] if hosts else []
        unique = list(dict.fromkeys(hosts)) if options.sync_dst_dir else []
        self.copies = make("copy", len(unique))
        self.copy_targets = unique
        self.scheduler = make("scheduler", 1 if options.server_command else 0)
        self.servers = make("server", options.servers, placed)
        self.workers = make("worker", options.workers, placed[options.servers :])
        self.processes = [*self.copies, *self.scheduler, *self.servers, *self.workers]

    # ---- the course of events

    def run(self):
        """Returns the exit code. Called in the main thread; takes over the signals."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda caught, frame: self.events.put(("signal", caught)))
        _raise_descriptor_limit()
        if self.options.hosts:
            threading.Thread(target=self._keep_in_touch, daemon=True).start()
        if self.options.timeout:
            self._deadline("job", self.options.timeout, self._job_timed_out)
        self._say_what_starts()
        self._start_copies()
        while self.exit_code is None or any(process.running for process in self.processes):
            self._handle(*self._next_event())
            self._look_at_the_clock()
        self._report()
        self.console.close(math.inf if self.went_to_its_end else _LAST_WORDS, self._is_interrupted)
        self._repeat_result()
        return self.exit_code or int(self.console.output_lost)

    def _is_interrupted(self):
        """A signal has come after the job's end."""
        with contextlib.suppress(queue.Empty):
            while True:
                if self.events.get_nowait()[0] == "signal":
                    return True
        return False

    def _next_event(self):
        """The next event, or a nameless one when it is time to look at the clock or at the scheduler's file."""
        soonest = min((when for when, _ in self.deadlines.values()), default=math.inf)
        pause = min(soonest - time.monotonic(), 3600)  # a queue waits for no longer than its clock can count
        if self._scheduler_is_starting():
            pause = min(pause, 0.02)
        elif any(worker.ended for worker in self.workers):
            pause = min(pause, _MOMENT)  # the scheduler may count one as lost that ended well
        try:
            return self.events.get(timeout=max(pause, 0))
        except queue.Empty:
            return "", None

    def _handle(self, what, whom):
        self._look_for_lost()
        if what == "signal":
            self._on_signal(whom)
        elif what == "ended":
            self._on_end(whom)
        if self._scheduler_is_starting():
            self._look_for_port()
        self._start_waiting()
        if not self.waiting and all(process.started or process.ended for process in self.servers + self.workers):
            self.deadlines.pop("start", None)

    def _look_at_the_clock(self):
        for name, (when, action) in list(self.deadlines.items()):
            if when <= time.monotonic() and name in self.deadlines:
                del self.deadlines[name]
                action()

    def _deadline(self, name, seconds, action):
        self.deadlines[name] = (time.monotonic() + seconds, action)

    # ---- starting

    def _start_copies(self):
        if not self.copies:
            self._start_scheduler()
        for process, host in zip(self.copies, self.copy_targets, strict=True):
            if self.stopping:  # one could not be started
                return
            # The part of the ssh command after the options, `-- login`, is what rsync adds itself.
            remote_shell = ssh_command(host, self.options.ssh_options, self.options.host_timeout)[:-2]
            target = f"[{host.name}]" if ":" in host.name else host.name
            login = f"{host.user}@{target}" if host.user else target
            command = [
                "rsync", "-az", "-s", "--mkpath", "--exclude=/logs",
                "-e", " ".join(_rsync_quote(word) for word in remote_shell),
                "./", f"{login}:{self.options.sync_dst_dir}/",
            ]  # fmt: skip
            self._start(process, command, {})

    def _start_scheduler(self):
        self._deadline("start", self.options.start_timeout, self._start_timed_out)
        if not self.scheduler:
            self._start_rest()
            return
        for path in (self.port_file, self.ended_file, self.lost_file):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of an earlier job with the same log folder
        environment = {
            **self._environment(self.scheduler[0]),
            "PACELINE_PORT_FILE": self.port_file,
            "PACELINE_ENDED_FILE": self.ended_file,
            "PACELINE_LOST_FILE": self.lost_file,
        }
        self._start(self.scheduler[0], self.options.server_command, environment)

    def _scheduler_is_starting(self):
        return not self.listening and bool(self.scheduler) and self.scheduler[0].running and not self.stopping

    def _look_for_port(self):
        try:
            with open(self.port_file, encoding="utf-8") as file:
                self.port = int(file.read().split()[1])
                self.listening = True
        except FileNotFoundError:
            return
        except (ValueError, IndexError, OSError):
            self._fail(1, f"the scheduler wrote something that is not `host port` to {self.port_file}")
            return
        self._start_rest()

    def _start_rest(self):
        self.waiting.extend(self.servers + self.workers)
        self._start_waiting()

    def _start_waiting(self):
        """Starts what waits, in order, without knocking at one host too often at a time."""
        connecting = collections.Counter(
            process.host for process in self.processes if process.running and process.host and not process.started
        )
        for process in list(self.waiting):
            if self.stopping:  # one could not be started
                return
            if connecting[process.host] < _CONNECTING_PER_HOST:
                connecting[process.host] += process.host is not None
                self.waiting.remove(process)
                command = self.options.command if process.role == "worker" else self.options.server_command
                self._start(process, command, self._environment(process))

    def _start(self, process, command, environment):
        options = self.options
        remote = process.host is not None
        script = bootstrap.script(
            mark=process.mark,
            tag=f"{self.id}.{process.role}.{process.task}.",  # ends so that none is the beginning of another
            command=command,
            folder=options.sync_dst_dir if remote and options.sync_dst_dir else os.getcwd(),
            environment=environment,
            sharers=sum(other.role == process.role and other.host == process.host for other in self.processes),
            grace=options.grace,
            silence=options.host_timeout if remote else 0,
            key="" if process.role == "copy" else options.key,
        )
        if remote:
            argv = [*ssh_command(process.host, options.ssh_options, options.host_timeout), "exec /bin/sh -s"]
        else:
            argv = ["/bin/sh", "-s"]
        try:
            process.start(argv, script)
        except (OSError, RuntimeError, UsageError) as error:
            scarce = isinstance(error, RuntimeError) or getattr(error, "errno", 0) in (
                errno.EMFILE,
                errno.ENFILE,
                errno.EAGAIN,
            )
            hint = "; see ulimit -n and ulimit -u" if scarce else ""
            self._fail(1, f"{process.place} could not be started: {error}{hint}")

    def _environment(self, process):
        options = self.options
        chosen = options.worker_environment if process.role == "worker" else options.server_environment
        return {
            **(forwarded() if process.host else {}),
            **chosen,
            "DMLC_ROLE": process.role,
            "DMLC_PS_ROOT_URI": options.scheduler_host,
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NUM_SERVER": str(options.servers),
            "DMLC_NUM_WORKER": str(options.workers),
            "DMLC_NODE_HOST": process.host.address if process.host else options.scheduler_host,
            "DMLC_TASK_ID": str(process.task),
            "DMLC_JOB_CLUSTER": "ssh" if options.hosts else "local",
            "PACELINE_JOB_ID": self.id,
            "PACELINE_ON_WORKER_LOSS": options.on_worker_loss,
            **({"PACELINE_INSECURE": "1"} if options.insecure else {}),
        }

    # ---- ends

    def _on_end(self, process):
        if self.stopping:
            return
        if process.role == "copy":
            self._on_copied(process)
        elif not process.started:
            self._fail_with(process, "could not be started")
        elif process.role == "worker":
            self._on_worker_end(process)
        elif process.status != 0 and not self._all_ended(self.workers):
            cause = self._worker_to_blame(process)
            self._fail_with(cause, f"{_how(cause)}, which the job cannot survive")
        elif process.role == "scheduler" and not self.listening:
            program = shlex.join(self.options.server_command)
            self._fail(1, f"the scheduler ended before it listened: does '{program}' serve a job?")
        else:
            self._on_server_end(process)
        if not self.stopping and self._all_ended(self.processes):
            self._end_well()

    def _on_server_end(self, process):
        """A server, or the scheduler, has ended well, or has ended after all workers."""
        every_worker_lost = len(self.lost) == len(self.workers)
        if process.status != 0 and not (every_worker_lost and process.status == _JOB_FAILED):
            self.console.say(f"{process.place} {_how(process)} after all workers had ended")
        if every_worker_lost and not self._outlives_its_workers():
            self._fail_without_workers()
        elif not self._all_ended(self.workers):
            if self._all_ended(self.scheduler + self.servers):
                self._deadline("ending", self.options.grace, self._workers_did_not_end)
        elif self.lost:  # the last worker may have been one that returned: the others have all of the grace from here
            self._deadline("ending", self.options.grace, self._servers_did_not_end)

    def _worker_to_blame(self, process):
        """The worker without which the job could not start, where a server or the scheduler says so at its end."""
        said = b"\n".join(process.last_lines)
        return next((lost for lost in self.lost if f"cannot start: {lost.name} ".encode() in said), process)

    def _on_copied(self, process):
        if process.status != 0:
            host = self.copy_targets[process.task].login
            self._fail_with(process, f"{_how(process)}: this folder could not be copied to {host}")
        elif self._all_ended(self.copies):
            self._start_scheduler()

    def _on_worker_end(self, process):
        if process.status != 0:
            self._lose(process)
        if not self.stopping:
            self._tell_scheduler(process)
        if all(worker.ended for worker in self.workers) and not self.stopping:
            self._deadline("ending", self.options.grace, self._servers_did_not_end)

    def _lose(self, process):
        self.lost.append(process)
        left = sum(not worker.ended for worker in self.workers)
        if self.options.on_worker_loss == "stop":
            self._fail_with(process, f"{_how(process)}, which the job cannot survive")
        elif len(self.lost) < len(self.workers):
            self._say_soon(f"{process.place} {_how(process)}; the job goes on without it ({left} still at work)")
        elif self._outlives_its_workers():
            self._say_soon(f"{process.place} {_how(process)}; no worker of the launcher is left, the scheduler decides")
        else:
            self._fail_without_workers()

    def _outlives_its_workers(self):
        """Whether the job may go on, or has ended well, after the loss of every worker that the launcher started.

        Lost workers may have been started again by hand. The scheduler alone knows them, and ends without workers.
        """
        failed = any(process.ended and process.status != 0 for process in self.scheduler + self.servers)
        if failed or not self.scheduler:
            return False
        # A worker that is lost here and not to the scheduler failed after it had left the job.
        return self.scheduler[0].running or {worker.name for worker in self.lost} <= self._names_of_lost()

    def _fail_without_workers(self):
        self.unsaid.clear()
        self._fail_with(self.lost[0], f"{_how(self.lost[0])}, and no worker is left")

    def _look_for_lost(self):
        """The scheduler alone knows whether a worker whose program ended well had left the job."""
        if self.stopping or not self.scheduler:
            return
        names = self._names_of_lost()
        for worker in self.workers:
            if worker.ended and worker.status == 0 and not worker.never_left and worker.name in names:
                worker.never_left = True
                self._lose(worker)

    def _names_of_lost(self):
        try:
            with open(self.lost_file, encoding="utf-8") as file:
                return {line.strip() for line in file if line.endswith("\n")}
        except OSError:
            return set()

    def _say_soon(self, text):
        self.unsaid.append(text)
        self._deadline("lost workers", _MOMENT, self._say_who_is_lost)

    def _say_who_is_lost(self):
        for text in self.unsaid:
            self.console.say(text)
        self.unsaid.clear()

    def _tell_scheduler(self, process):
        """It need not wait for the silence of a process that is known to have ended; one that has left is no news."""
        if not process.connection_lost:
            with contextlib.suppress(OSError), open(self.ended_file, "a", encoding="utf-8") as file:
                file.write(f"{process.name} {_how(process)}\n")

    def _end_well(self):
        """The workers that were not lost have ended; the exit code is that of the first whose loss counts."""
        self._look_for_lost()
        if self.stopping:
            return
        self.went_to_its_end = True
        counts = {"failed": lambda worker: worker.failed, "any": lambda _: True, "none": lambda _: False}
        counts_here = counts[self.options.lost_workers_count]
        lost = next((worker.status or 1 for worker in self.lost if counts_here(worker)), 0)
        says = [
            process.status
            for process in self.scheduler + self.servers
            if process.ended and (process.status == _JOB_FAILED or (process.status and process.role == "scheduler"))
        ]
        self.says_failed = not lost and bool(says)
        self._stop(lost or next(iter(says), 0))

    def _all_ended(self, processes):
        return not self.waiting and all(process.ended for process in processes)

    def _servers_did_not_end(self):
        names = _names(process for process in self.processes if process.running)
        late = f"still running {self.options.grace} s after the last worker ended: {names}"
        if self.lost and self.scheduler and all(process.running for process in self.scheduler + self.servers):
            self.console.say(f"{late}; waiting, because a lost worker may have returned")
            return
        self.console.say(f"{late}; ending them")
        self._end_well()

    def _workers_did_not_end(self):
        names = self._names_of_lost()
        lost = [worker for worker in self.workers if worker.running and worker.name in names]
        for worker in lost:
            self.console.say(f"{worker.place} is lost to the job and still runs; killing it")
            worker.tell("kill")
        if others := [worker for worker in self.workers if worker.running and worker not in lost]:
            self.console.say(
                f"still running {self.options.grace} s after scheduler and servers ended: {_names(others)}; waiting"
            )

    def _job_timed_out(self):
        names = _names(process for process in self.processes if not process.ended)
        self._fail(
            TIMED_OUT, f"the job did not end within {self.options.timeout:g} s (--timeout); still there: {names}"
        )

    def _start_timed_out(self):
        limit = f"within {self.options.start_timeout:g} s (--start-timeout)"
        if self._scheduler_is_starting():
            self._fail_with(self.scheduler[0], f"did not listen {limit}", TIMED_OUT)
        else:
            late = [process for process in self.servers + self.workers if not process.started]
            self._fail(TIMED_OUT, f"not started {limit}: {_names(late)}")

    def _on_signal(self, number):
        if self.stopping:
            # Other signals may come twice without meaning more, from an outer launcher for example.
            if number == signal.SIGINT:
                self.console.say("killing what is left")
                self._kill()
            return
        self.console.say(f"{signal.Signals(number).name}: ending every process")
        self._stop(128 + number)

    def _fail_with(self, process, what, exit_code=None):
        lines = [os.fsdecode(line) for line in list(process.last_lines)]
        text = f"{process.place} {what}" + (". Its last lines:" if lines else " and printed nothing")
        self._fail(exit_code or process.status or 1, "\n    ".join([text, *lines]))

    def _fail(self, exit_code, text):
        if not self.stopping:
            self.console.say(text)
            self._stop(exit_code)

    def _stop(self, exit_code):
        self._say_who_is_lost()
        self.stopping = True
        self.exit_code = exit_code
        self.waiting.clear()
        self.deadlines.clear()
        self._tell_all("term")
        for process in self.processes:
            if process.running and process.host and not process.started:
                process.disconnect()
        self._deadline("kill", self.options.grace, self._kill)

    def _kill(self):
        self._tell_all("kill")
        self._deadline("last resort", _LAST_RESORT, self._give_up)
        self.deadlines.pop("kill", None)

    def _give_up(self):
        for process in self.processes:
            if process.running:
                self.console.say(f"{process.place} does not answer; its host will end it when it finds us gone")
                process.disconnect()

    def _tell_all(self, word):
        for process in self.processes:
            if process.running:
                process.tell(word)

    def _keep_in_touch(self):
        """A thread of its own: the main thread may be held back by a terminal that nobody reads."""
        while True:
            time.sleep(self.options.host_timeout / 5)
            self._tell_all("")

    # ---- words

    def _say_what_starts(self):
        where = f"{_count(len(set(self.options.hosts)), 'host')}" if self.options.hosts else "this machine"
        self.console.say(
            f"job {self.id}: {_count(self.options.workers, 'worker')} and {_count(self.options.servers, 'server')} on "
            f"{where}; their output is kept in {self.console.log_dir}"
        )
        if self.options.insecure:
            self.console.say(
                "--insecure: nothing is encrypted and nobody is checked; who reaches the ports of this job can read "
                "and change its weights"
            )

    def _report(self):
        if not self.went_to_its_end:
            return
        if self.says_failed:
            self.console.say(f"the job has failed, as its scheduler or a server says: exit code {self.exit_code}")
        elif self.exit_code != 0:
            lost = ", ".join(f"{worker.place} {_how(worker)}" for worker in self.lost)
            self.console.say(f"the job ended without {lost}: exit code {self.exit_code} (see --lost-workers-count)")
        elif self.lost:
            self.console.say(f"the job ended well, but lost {_names(self.lost)}")

    def _repeat_result(self):
        if not self.went_to_its_end:
            return
        for worker in self.workers:
            if worker.status == 0 and _is_json_object(worker.last_output):
                self.console.write(1, worker.last_output)
                break


def _raise_descriptor_limit():
    """Each process of the job takes four descriptors here."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _make_log_dir(chosen, job_id):
    path = chosen or os.path.join("logs", f"{time.strftime('%Y%m%d-%H%M%S')}-{job_id[:6]}")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the log folder {path} cannot be made: {error.strerror}; choose one with --log-dir"
        ) from error
    return path


def _count(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _how(process):
    if process.connection_lost:
        return "lost its connection to the launcher"
    why = ": the memory of its control group was exhausted" if process.memory_exhausted else ""
    if process.status == 0:
        why = " without leaving the job"
    return describe_status(process.status) + why


def _names(processes):
    return ", ".join(process.place for process in processes) or "nothing"


def _is_json_object(line):
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _rsync_quote(word):
    return "'" + word.replace("'", "''") + "'" if set(word) & set(" '\"") else word
