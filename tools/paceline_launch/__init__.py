"""The parts of tools/launch.py; see tools/README.md."""


class UsageError(Exception):
    """A mistake of the caller, found before anything was started. The text is one clear sentence."""
