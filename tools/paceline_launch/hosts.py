"""Host files, and the addresses under which the hosts of a job reach each other."""

import ipaddress
import re
import socket
import subprocess
from dataclasses import dataclass

from . import UsageError

_HOST_LINE = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][^@\s]*)@)?"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)"
    r"(?::(?P<port>[0-9]+))?"
    r"(?:\s+(?:max[-_])?slots\s*=\s*[0-9]+)*"
)


@dataclass(frozen=True)
class Host:
    name: str  # as in the host file
    user: str = ""
    port: int = 0  # 0: what ssh's configuration says
    address: str = ""  # under which the other hosts reach it

    @property
    def login(self):
        return f"{self.user}@{self.name}" if self.user else self.name


def parse_host(line):
    match = _HOST_LINE.fullmatch(line)
    if not match or not 0 <= int(match["port"] or 0) < 65536:
        raise ValueError(f"'{line}' is none of: host, user@host, host:port, host slots=4")
    return Host(match["name"].strip("[]"), match["user"] or "", int(match["port"] or 0))


def read_host_file(path):
    """Returns the hosts in the order of the file; a host that occurs twice gets twice the share."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.split("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"the host file {path} cannot be read: {reason}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            hosts.append(parse_host(line))
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
    if not hosts:
        raise UsageError(f"the host file {path} names no host; write one host per line")
    return hosts


def ssh_command(host, ssh_options, lost_after):
    """The ssh command line up to the remote command. What the user chose comes first, because ssh takes the first."""
    return [
        "ssh", "-T", "-a", "-x", *ssh_options,
        *(["-p", str(host.port)] if host.port else []),
        "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
        "-o", f"ServerAliveInterval={max(1, lost_after // 4)}", "-o", "ServerAliveCountMax=3",
        "-o", "ControlMaster=no", "-o", "ControlPath=none",
        "--", host.login,
    ]  # fmt: skip


def _configured_name(host, ssh_options):
    """What ssh makes of the name: its configuration may know it under an alias."""
    query = ["ssh", "-G", *ssh_options, "--", host.login]
    answer = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise UsageError(f"ssh refuses what it was given for {host.login}: {answer.stderr.strip()}")
    for line in answer.stdout.splitlines():
        if line.startswith("hostname "):
            return line.split(" ", 1)[1]
    return host.name


def _numeric(name):
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0][4][0]


def _is_loopback(address):
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _own_address_towards(address):
    """The address of this machine that `address` sees; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return ""
        return probe.getsockname()[0]


def resolve(hosts, ssh_options, own_address=""):
    """Returns the hosts with numeric addresses, and the address of this machine for them.

    Names are resolved here once, because hosts often know themselves by a loopback address. A name that only ssh can
    reach (through a jump host) stays a name.
    """
    names = {host.login: _configured_name(host, ssh_options) for host in hosts}
    numeric = {name: _numeric(name) for name in set(names.values())}
    others = [address for address in map(numeric.get, names.values()) if address and not _is_loopback(address)]
    if not own_address:
        candidates = others or [address for address in numeric.values() if address]
        own_address = _own_address_towards(candidates[0]) if candidates else ""
        if not own_address:
            raise UsageError(
                f"the address of this machine as seen from {hosts[0].name} is unknown "
                "(is the name right?); give it with --host-ip"
            )

    own_address = _numeric(own_address) or own_address

    def with_address(host):
        address = numeric[names[host.login]] or names[host.login]
        if others and _is_loopback(address):
            address = own_address  # this machine, which knows itself by a loopback address
        return Host(host.name, host.user, host.port, address)

    return [with_address(host) for host in hosts], own_address
