"""The key of a job: the bytes by which its processes know each other."""

import os
import re
import secrets
import stat

from . import UsageError

KEY_BYTES = 32  # written as hexadecimal digits


def key_of_job():
    """The key in the file that PACELINE_KEY_FILE names, for a job that others join too; else a new one."""
    path = os.environ.get("PACELINE_KEY_FILE")
    if not path:
        return secrets.token_hex(KEY_BYTES)
    try:
        with open(path, encoding="ascii") as file:
            status = os.fstat(file.fileno())
            text = file.read(1024).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"PACELINE_KEY_FILE={path} cannot be read: {reason}") from error
    if status.st_uid != os.geteuid():
        raise UsageError(f"PACELINE_KEY_FILE={path} belongs to another user; only its owner may use it")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"PACELINE_KEY_FILE={path} is open to other users; run `chmod 600 {path}`")
    if not re.fullmatch(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}", text):
        raise UsageError(
            f"PACELINE_KEY_FILE={path} does not hold a key; a key is {2 * KEY_BYTES} hexadecimal digits, such as "
            f"`openssl rand -hex {KEY_BYTES}` prints"
        )
    return text
