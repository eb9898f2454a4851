#!/usr/bin/env python3
"""Starts a distributed job on this machine or, by ssh, on several; see --help and tools/README.md."""

import sys

from paceline_launch import UsageError
from paceline_launch.job import Job
from paceline_launch.options import parse


def main():
    try:
        return Job(parse(sys.argv[1:])).run()
    except UsageError as error:
        print(f"launch.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the job took over the signals
        return 130


if __name__ == "__main__":
    sys.exit(main())
