"""The environment of a job's processes, and what a command says about its mode."""

import os
import re
import shlex

from . import UsageError

# Contract with the programs; the first five and DMLC_NODE_HOST are MXNet's.
SET_BY_LAUNCHER = (
    "DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_SERVER", "DMLC_NUM_WORKER", "DMLC_NODE_HOST",
    "DMLC_TASK_ID", "DMLC_JOB_CLUSTER", "PACELINE_JOB_ID", "PACELINE_PROCESS_ID", "PACELINE_ON_WORKER_LOSS",
    "PACELINE_PORT_FILE", "PACELINE_ENDED_FILE", "PACELINE_LOST_FILE",
    "PACELINE_KEY_FD", "PACELINE_KEY_FILE", "PACELINE_INSECURE",
)  # fmt: skip

# Taken along to other hosts without being asked for; everything else needs --env.
_FORWARDED = ("DMLC_INTERFACE", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:([=:])(.*))?", re.DOTALL)

_MODE_WORD = re.compile(r"dist_[a-z]+(_[a-z]+)?(:[a-z]\S*)?")
_MODES_OF_ONE_PROCESS = ("local", "device", "nccl")
_MODES_OF_WORKERS = ("ring", "gossip")
_MODES_WITHOUT_SERVERS = (*_MODES_OF_ONE_PROCESS, *_MODES_OF_WORKERS)


def parse_assignments(texts, option):
    """NAME=VALUE, MXNet's NAME:VALUE, or NAME alone for the value that the launcher itself sees."""
    found = {}
    for text in texts:
        match = _ASSIGNMENT.fullmatch(text)
        if not match:
            raise UsageError(f"{option} '{text}' is neither NAME nor NAME=VALUE")
        name, separator, value = match.groups()
        if name in SET_BY_LAUNCHER:
            raise UsageError(f"{option} {name}: this variable is set by the launcher")
        if not separator and name not in os.environ:
            raise UsageError(f"{option} {name}: this variable is not set here; set it, or write {name}=VALUE")
        found[name] = value if separator else os.environ[name]
    return found


def forwarded():
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith("PACELINE_") or name in _FORWARDED)
        and name not in SET_BY_LAUNCHER
        and _ASSIGNMENT.fullmatch(name)
    }


class Mode:
    """What the mode string of the workers says; a command without one has the name ''."""

    def __init__(self, text, stated=True):
        self.text = text
        self.stated = stated and text != ""  # a mode and nothing else, right or wrong
        self.name = text.split(":")[0]
        self.one_process = self.name in _MODES_OF_ONE_PROCESS
        self.without_servers = self.name in _MODES_WITHOUT_SERVERS
        self.survives_worker_loss = self.name.startswith("dist_") or self.name in _MODES_OF_WORKERS


def find_mode(command, worker_environment):
    """`command` is the workers' command; its --kvstore, a word like dist_sync, or a first argument like local
    wins over PACELINE_KVSTORE."""
    words = list(command)
    if len(words) == 1:
        try:
            words = shlex.split(words[0])
        except ValueError:
            words = []
    for i, word in enumerate(words):
        flag, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and flag == "kvstore":
            return Mode(value if equals else "".join(words[i + 1 : i + 2]))
    for i, word in enumerate(words[1:]):
        if _MODE_WORD.fullmatch(word) or (i == 0 and word.split(":")[0] in _MODES_WITHOUT_SERVERS):
            return Mode(word, stated=":" in word)
    return Mode(worker_environment.get("PACELINE_KVSTORE", os.environ.get("PACELINE_KVSTORE", "")))
