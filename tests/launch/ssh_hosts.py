"""Two hosts for the ssh tests: loopback addresses with an sshd each on a free port, and throw-away keys."""

import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import time

ADDRESSES = {"host-a": "127.0.0.2", "host-b": "127.0.0.3"}


class NotPossible(Exception):
    """Why this machine cannot play two hosts."""


def _free_port(address):
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class SshHosts:
    """Made in `folder`; `config` is the ssh configuration that knows the two by their names."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.config = self.folder / "ssh_config"
        self.daemons = {}
        self.ports = {}
        programs = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") for name in
                    ("sshd", "ssh", "ssh-keygen", "rsync", "setsid")}  # fmt: skip
        missing = [name for name, path in programs.items() if not path]
        if missing:
            raise NotPossible(f"not installed: {' '.join(missing)} (tools/install_dependencies.sh --tests)")
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd insists on it
        for name in ("client", "server"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        try:
            for name, address in ADDRESSES.items():
                self._start(programs["sshd"], name, address)
            self._write_client_config()
            self._try_login()
        except BaseException:
            self.stop()
            raise

    def _start(self, sshd, name, address):
        try:
            port = _free_port(address)
        except OSError as error:
            raise NotPossible(f"{address} is not an address of this machine: {error}") from error
        config = self.folder / f"{name}.sshd"
        config.write_text(
            f"ListenAddress {address}:{port}\n"
            f"HostKey {self.folder / 'server'}\n"
            f"AuthorizedKeysFile {self.folder / 'client.pub'}\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\n"
        )
        with open(self.folder / f"{name}.log", "wb") as log:
            self.daemons[name] = subprocess.Popen(
                [sshd, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stderr=log
            )
        self.ports[name] = port

    def _write_client_config(self):
        key = (self.folder / "server.pub").read_text()
        known = "".join(f"[{ADDRESSES[name]}]:{port} {key}" for name, port in self.ports.items())
        (self.folder / "known_hosts").write_text(known)
        common = (
            f"User {getpass.getuser()}\nIdentityFile {self.folder / 'client'}\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.folder / 'known_hosts'}\nGlobalKnownHostsFile none\nStrictHostKeyChecking yes\n"
            "LogLevel ERROR\n"
        )
        hosts = "".join(
            f"Host {name}\n  HostName {ADDRESSES[name]}\n  Port {port}\n" for name, port in self.ports.items()
        )
        self.config.write_text(f"{common}{hosts}")

    def _try_login(self):
        for name in ADDRESSES:
            for attempt in range(50):
                command = ["ssh", "-F", self.config, "-o", "BatchMode=yes", name, "true"]
                login = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
                if login.returncode == 0:
                    break
                if self.daemons[name].poll() is not None or attempt == 49:
                    log = (self.folder / f"{name}.log").read_text(errors="replace")
                    raise NotPossible(f"an sshd of our own cannot be used here: {login.stderr}{log}")
                time.sleep(0.1)

    def sessions(self):
        """The processes that a login has started and that still live: what sshd forked, and below."""
        parents = {}
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(path.parent.name)] = int(fields[1])
        roots = {daemon.pid for daemon in self.daemons.values()}

        def below(pid):
            while pid in parents and parents[pid] not in roots:
                pid = parents[pid]
            return pid in parents

        return [pid for pid in parents if pid not in roots and below(pid)]

    def stop(self):
        for daemon in self.daemons.values():
            daemon.terminate()
            daemon.wait()
