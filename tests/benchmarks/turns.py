"""Runs programs in turns and compares their figures. The scripts of this folder and tools/bench.sh share it."""

import json
import math
import os
import random
import statistics
import subprocess
import sys

DRAWS = 2000  # of a bootstrap


class ProgramFailed(SystemExit):
    """A program that is measured failed. A script that does not catch this ends with the message."""


PLAIN = {**os.environ, "PACELINE_INSECURE": "1"}  # as the peers run, which encrypt nothing


def output_of(command, environment=None):
    """What a program printed on standard output. Jobs that it starts encrypt nothing, unless `environment` says so."""
    environment = environment or PLAIN
    words = [str(word) for word in command]
    try:
        result = subprocess.run(words, capture_output=True, text=True, env=environment)
    except OSError as error:
        raise ProgramFailed(f"{words[0]} cannot be started: {error.strerror}") from None
    if result.returncode != 0:
        raise ProgramFailed(f"{' '.join(words)} failed:\n{result.stderr}")
    return result.stdout


def last_json(command, environment=None):
    """The JSON object that a program printed on its last line."""
    try:
        return json.loads(output_of(command, environment).strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise ProgramFailed(f"{' '.join(map(str, command))} printed no JSON object") from None


def turned(names, turn):
    """The order of a turn: each turn begins with another name, so that no program always runs first."""
    first = turn % len(names)
    return names[first:] + names[:first]


def in_turns(programs, turns, note):
    """Calls each of `programs` (name -> function) once in every turn; the results by name. note(result) is printed."""
    runs = {name: [] for name in programs}
    for turn in range(turns):
        for name in turned(list(programs), turn):
            runs[name].append(programs[name]())
            print(f"turn {turn + 1} {name}: {note(runs[name][-1])}", file=sys.stderr)
    return runs


def medians(runs, figures):
    return {figure: statistics.median(run[figure] for run in runs) for figure in figures}


def ratio(mine, theirs):
    """Of the medians."""
    return statistics.median(mine) / statistics.median(theirs)


def ratios(runs, base, figures):
    """Ratios of the medians of `runs` to those of `base`, figure by figure."""
    return {figure: ratio([run[figure] for run in runs], [run[figure] for run in base]) for figure in figures}


def geometric_mean_of_ratios(pairs):
    """`pairs` holds (mine, theirs) for each figure, each with one value for every turn."""
    return math.exp(statistics.fmean(math.log(ratio(mine, theirs)) for mine, theirs in pairs))


def lower_bound(pairs, seed=1):
    """The geometric mean of ratios is at least this with 95 % confidence: the 5 % quantile of a bootstrap over turns.

    What one turn measured stays together: another load on the machine moves all figures of a turn. With one turn there
    is nothing to draw from, and the bound is the mean itself.
    """
    draw, turns, found = random.Random(seed), len(pairs[0][0]), []
    for _ in range(DRAWS):
        chosen = draw.choices(range(turns), k=turns)
        found.append(geometric_mean_of_ratios(
            [([mine[turn] for turn in chosen], [theirs[turn] for turn in chosen]) for mine, theirs in pairs]
        ))  # fmt: skip
    return sorted(found)[DRAWS // 20]
