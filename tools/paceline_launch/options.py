"""The command line: what may be asked for, and everything that can be refused before anything starts."""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

from . import UsageError
from .environment import Mode, find_mode, parse_assignments
from .hosts import read_host_file, resolve
from .key import key_of_job

# The folder tools of the source tree, bin of an installed package.
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_DESCRIPTION = """\
Starts a distributed job: one scheduler on this machine, then servers and workers, here or by ssh on other hosts.
Waits for the workers, passes on what they print, and leaves no process behind, however the job or the launcher ends.
"""

_EPILOG = """\
examples:
  two workers and two servers on this machine
    tools/launch.py -n 2 build/cpu/bin/mnist --kvstore dist_async --train train.manifest --test test.manifest
  the same on the hosts of a file, after copying this folder to /tmp/job on each of them
    tools/launch.py -n 4 -s 2 -H hosts --sync-dst-dir /tmp/job build/cpu/bin/mnist --kvstore dist_sync ...
  a secret for every process, a setting for the servers only
    tools/launch.py -n 2 --env AWS_SECRET_ACCESS_KEY --env-server PACELINE_NUM_THREADS=1 ./train ...

The command is run as it is, without a shell; a command of one single word that holds blanks is given to `sh -c`.
Options of the launcher stand before the command.

host file: one host per line, written host, host:port, user@host or `host slots=4` (the number is not used); what
follows # is a comment. Servers come first, then workers, going round the hosts in the order of the file.

output: a line of a process is printed as `[worker 0] line`, on the stream it came from, and kept in the log folder.
What the launcher itself has to say goes to standard error. When the job ends well and the last line that a worker
printed on standard output is a JSON object, that line is printed once more, alone, as the launcher's last line.

exit code: 0 when the job ended well, also without workers that were lost to SIGTERM, SIGKILL or with their host. A
worker that failed by itself (an exit code that is not 0, another signal, its memory exhausted) makes its exit code the
job's, after the others have ended; --lost-workers-count chooses. 2 for a mistake in the command line, 124 when a
--timeout or --start-timeout passed, 128 + the signal's number when the launcher was told to stop (130 for Ctrl-C),
else the exit code of the first process whose end the job could not survive (128 + the signal's number if a signal
ended it; 255: the host is lost).
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(message)

    def print_help(self, file=None):
        if sys.stdout is None:
            self.exit(1, f"{self.prog}: there is no standard output to write to\n")
        try:
            with open(sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, closefd=False) as out:
                out.write(self.format_help())
        except OSError as error:
            self.exit(1, f"{self.prog}: cannot write to standard output: {error.strerror}\n")


def _parser():
    parser = _Parser(
        prog="launch.py",
        usage="launch.py -n N [-s S] [-H FILE] [options] command...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--num-workers", type=int, required=True, metavar="N", help="number of workers")
    add(
        "-s",
        "--num-servers",
        type=int,
        metavar="S",
        help="number of servers (default: as many as workers; 0 in the modes that have none: local, device, ring, "
        "gossip)",
    )
    add("-H", "--hostfile", metavar="FILE", help="the hosts for --launcher ssh")
    add("--launcher", choices=("local", "ssh"), help="where to start (default: ssh with a host file, else local)")
    add(
        "--sync-dst-dir",
        metavar="DIR",
        help="ssh: first copy this folder to DIR on every host (rsync), and run there; default: the same path as here",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable for every process; without VALUE, the value it has here, which keeps it off the command "
        "line. Local processes see the whole environment anyway; other hosts get PACELINE_*, DMLC_INTERFACE, "
        "LD_LIBRARY_PATH, OMP_NUM_THREADS and OMP_WAIT_POLICY without being asked",
    )
    add(
        "--env-server",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the same for the servers and the scheduler only (NAME:VALUE is understood too)",
    )
    add("--env-worker", action="append", default=[], metavar="NAME=VALUE", help="the same for the workers only")
    add("--timeout", type=float, metavar="SECONDS", help="end the job after so long (default: never)")
    add(
        "--start-timeout",
        type=float,
        default=60,
        metavar="SECONDS",
        help="the scheduler must listen and every process must be started on its host within so long (default: 60)",
    )
    add(
        "--grace",
        type=int,
        default=20,
        metavar="SECONDS",
        help="how long servers have to end after the last worker, and any process after SIGTERM (default: 20)",
    )
    add(
        "--host-timeout",
        type=int,
        default=60,
        metavar="SECONDS",
        help="ssh: a connection silent for so long is lost; the host then ends its processes itself (default: 60)",
    )
    add(
        "--on-worker-loss",
        choices=("continue", "stop"),
        help="what to do when a worker fails (default: continue if the mode survives it, as all dist_* modes do; the "
        "mode is read from the command's --kvstore, from a word like dist_sync or a first argument like local, or from "
        "PACELINE_KVSTORE; unknown: stop). The loss of a server or of the scheduler always ends the job",
    )
    add(
        "--lost-workers-count",
        choices=("failed", "any", "none"),
        default="failed",
        help="if the job went on without lost workers, which of them make the launcher exit with an error: those whose "
        "program failed (failed, the default), all of them (any), or none",
    )
    add(
        "--faults",
        metavar="FILE",
        help="for tests: a plan of faults that the processes bring about, such as lost messages, cut links, frozen and "
        "killed processes; docs/faults.md describes it",
    )
    add("--log-dir", metavar="DIR", help="folder for the output of each process (default: logs/TIME-JOB)")
    add(
        "--server-command",
        metavar="COMMAND",
        help="what scheduler and servers run (default: paceline_server, beside the command's program, on PATH, or "
        "built by the preset cpu)",
    )
    add(
        "--every-role",
        action="store_true",
        help="scheduler and servers run the command of the workers, too: for programs that have modes, staleness "
        "policies or codecs of their own",
    )
    add(
        "--host-ip",
        "--scheduler-host",
        dest="host_ip",
        default="",
        metavar="ADDRESS",
        help="address of this machine for the scheduler (default: 127.0.0.1; ssh: the address the hosts see)",
    )
    add("--port", type=int, default=0, help="port of the scheduler (default: a free one, chosen by the scheduler)")
    add(
        "--insecure",
        action="store_true",
        help="neither encrypt nor authenticate what the processes say to each other (as PACELINE_INSECURE=1 does)",
    )
    add("--ssh-config", metavar="FILE", help="configuration file for ssh, as its -F")
    add("--ssh-option", action="append", default=[], metavar="OPTION", help="option for ssh, as its -o; repeatable")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


@dataclass
class JobOptions:
    """What was asked for, checked and completed."""

    workers: int
    servers: int
    command: list
    server_command: list
    mode: Mode
    on_worker_loss: str
    lost_workers_count: str
    start_timeout: float
    grace: int
    host_timeout: int
    scheduler_host: str
    port: int
    log_dir: str
    timeout: float = 0
    hosts: list = field(default_factory=list)  # empty: everything on this machine
    ssh_options: list = field(default_factory=list)
    key: str = field(default="", repr=False)  # of the job; empty: --insecure, or a job of one process
    insecure: bool = False
    sync_dst_dir: str = ""
    worker_environment: dict = field(default_factory=dict)
    server_environment: dict = field(default_factory=dict)


def _check(condition, sentence):
    if not condition:
        raise UsageError(sentence)


def _server_command(chosen, program):
    if chosen:
        try:
            words = shlex.split(chosen)
        except ValueError as error:
            raise UsageError(f"--server-command '{chosen}' cannot be split into words: {error}") from error
        _check(words, "--server-command is empty")
        return words
    beside = os.path.join(os.path.dirname(program), "paceline_server")
    if "/" in beside and os.access(beside, os.X_OK):
        return [beside]
    if shutil.which("paceline_server"):
        return ["paceline_server"]
    ours = [
        os.path.join(_HERE, "paceline_server"),
        os.path.join(os.path.dirname(_HERE), "build/cpu/bin/paceline_server"),
    ]
    found = [path for path in ours if os.access(path, os.X_OK)]
    _check(
        found,
        f"paceline_server is neither beside {program} nor on PATH nor at {' or '.join(ours)}; build it, or name it "
        "with --server-command",
    )
    return found[:1]


def _check_numbers(given):
    _check(given.num_workers >= 1, f"-n {given.num_workers}: at least one worker is needed")
    _check(given.num_servers is None or given.num_servers >= 0, f"-s {given.num_servers}: the number is negative")
    _check(given.timeout is None or given.timeout > 0, "--timeout must be more than 0 seconds")
    _check(given.start_timeout > 0, "--start-timeout must be more than 0 seconds")
    _check(given.grace >= 1, "--grace must be at least 1 second")
    _check(given.host_timeout >= 5, "--host-timeout must be at least 5 seconds")
    _check(0 <= given.port < 65536, f"--port {given.port}: a port lies between 0 and 65535")


def _number_of_servers(given, mode):
    if mode.without_servers:
        _check(not given.num_servers, f"the mode '{mode.text}' has no servers: leave out -s {given.num_servers}")
        _check(
            given.num_workers == 1 or not mode.one_process,
            f"the mode '{mode.text}' is one process: -n {given.num_workers} would train {given.num_workers} times "
            "independently; use -n 1 or a dist_* mode",
        )
        return 0
    if given.num_servers is None:
        return given.num_workers
    _check(
        given.num_servers > 0 or not mode.text,  # a program may name the mode itself
        f"-s 0: the mode {mode.text!r} needs servers; only the modes local, device, ring and gossip have none",
    )
    return given.num_servers


def _hosts(given):
    launcher = given.launcher or ("ssh" if given.hostfile else "local")
    if launcher == "local":
        _check(not given.hostfile, "--launcher local starts everything here: leave out --hostfile, or use ssh")
        for option, value in (("--sync-dst-dir", given.sync_dst_dir), ("--ssh-config", given.ssh_config),
                              ("--ssh-option", given.ssh_option)):  # fmt: skip
            _check(not value, f"{option} has a meaning only with --launcher ssh")
        return [], [], given.host_ip or "127.0.0.1"
    _check(given.hostfile, "--launcher ssh needs a host file (-H)")
    _check(shutil.which("ssh"), "the program ssh is not installed here")
    _check(
        not (given.sync_dst_dir or "").startswith("~"),
        "--sync-dst-dir: ~ is not expanded; a path without a / in front begins in the home folder of each host",
    )
    _check(not given.sync_dst_dir or shutil.which("rsync"), "--sync-dst-dir needs rsync, which is not installed here")
    hosts = read_host_file(given.hostfile)
    if given.ssh_config:
        _check(os.access(given.ssh_config, os.R_OK), f"the ssh configuration {given.ssh_config} cannot be read")
    ssh_options = ["-F", os.path.abspath(given.ssh_config)] if given.ssh_config else []
    for option in given.ssh_option:
        ssh_options += ["-o", option]
    hosts, own_address = resolve(hosts, ssh_options, given.host_ip)
    return hosts, ssh_options, own_address


def _read_faults(path):
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"the fault plan {path} cannot be read: {error.strerror}") from error
    _check(b"\0" not in content, f"the fault plan {path} is no text: it has bytes of 0")
    return os.fsdecode(content)  # an environment variable holds its bytes as they are


def _check_by(server, flag, text, workers, servers):
    """The programs know what may be said; a mistake would else be found when every process has started."""
    job = {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers)}
    try:
        said = subprocess.run(
            [server, f"--{flag}={text}"], env={**os.environ, **job}, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    sentence = said.stderr.decode(errors="replace").strip().partition(": ")[2]
    _check(said.returncode != 2, sentence)


def _check_local_program(program, what):
    _check(shutil.which(program), f"the {what} {program} does not exist here or is not executable")


def parse(arguments):
    given = _parser().parse_args(arguments)
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("this folder has been removed; start the job in another one") from None
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    _check(command and command[0].strip(), "no command was given: what shall the workers run?")
    _check_numbers(given)
    everyone = parse_assignments(given.env, "--env")
    if given.faults:
        _check("PACELINE_FAULTS" not in everyone, "--faults and --env PACELINE_FAULTS name two plans: leave one out")
        everyone["PACELINE_FAULTS"] = _read_faults(given.faults)
    worker_environment = {**everyone, **parse_assignments(given.env_worker, "--env-worker")}
    server_environment = {**everyone, **parse_assignments(given.env_server, "--env-server")}
    mode = find_mode(command, worker_environment)
    servers = _number_of_servers(given, mode)

    hosts, ssh_options, scheduler_host = _hosts(given)
    program = command[0]
    if len(command) == 1 and len(program.split()) > 1 and not os.path.exists(program):
        command = ["sh", "-c", program]
        program = program.split()[0]
    if not hosts:
        _check_local_program(command[0], "program")
    insecure = given.insecure or os.environ.get("PACELINE_INSECURE") == "1"
    server_command = []
    if not mode.one_process:
        _check(
            not (given.every_role and given.server_command),
            "--every-role makes the workers' command that of the servers: leave out --server-command",
        )
        server_command = command if given.every_role else _server_command(given.server_command, program)
        _check_local_program(server_command[0], "scheduler's program")
        if not given.server_command and not given.every_role:
            if mode.stated:
                _check_by(server_command[0], "check_mode", mode.text, given.num_workers, servers)
            if plan := everyone.get("PACELINE_FAULTS") or os.environ.get("PACELINE_FAULTS"):
                _check_by(server_command[0], "check_faults", plan, given.num_workers, servers)
    return JobOptions(
        workers=given.num_workers,
        servers=servers,
        command=command,
        server_command=server_command,
        mode=mode,
        on_worker_loss=given.on_worker_loss or ("continue" if mode.survives_worker_loss else "stop"),
        lost_workers_count=given.lost_workers_count,
        timeout=given.timeout or 0,
        start_timeout=given.start_timeout,
        grace=given.grace,
        host_timeout=given.host_timeout,
        scheduler_host=scheduler_host,
        port=given.port,
        log_dir=given.log_dir or "",
        hosts=hosts,
        ssh_options=ssh_options,
        key="" if insecure or mode.one_process else key_of_job(),
        insecure=insecure and not mode.one_process,
        sync_dst_dir=given.sync_dst_dir or "",
        worker_environment=worker_environment,
        server_environment=server_environment,
    )
