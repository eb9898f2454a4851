"""The body of tools/bench.sh, whose --help says what it does."""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import subjects
import tables
from subjects import BENCH, SUBJECTS
from tables import Compared, number
from turns import ProgramFailed, geometric_mean_of_ratios, lower_bound, turned

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests/benchmarks/README.md"
MINUTES, TURNS_AGAINST = 15, 10


def refuse(message, code=2):
    print(f"bench.sh: {message}", file=sys.stderr)
    sys.exit(code)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        refuse(f"{message}; --help lists the options")


def above_zero(kind):
    def read(text):
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not value > 0:
            raise argparse.ArgumentTypeError(f"expected a number above 0, not '{text}'")
        return value

    return read


def parse(words):
    parser = Parser(prog="bench.sh", allow_abbrev=False, add_help=False)
    parser.add_argument("subjects", nargs="*")
    parser.add_argument("--minutes", type=above_zero(float))
    parser.add_argument("--turns", type=above_zero(int))
    parser.add_argument("--seconds", type=above_zero(float), default=0.3)
    parser.add_argument("--bin")
    parser.add_argument("--python")
    parser.add_argument("--taskflow")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--against")
    arguments = parser.parse_args(words)
    for name in arguments.subjects:
        if name not in SUBJECTS:
            refuse(f"unknown subject '{name}'; known: {' '.join(SUBJECTS)}")
    arguments.subjects = [name for name in SUBJECTS if name in arguments.subjects or not arguments.subjects]
    if arguments.write and (arguments.against or arguments.bin):
        refuse("--write records this tree beside its peers; leave out --against and --bin")
    if arguments.turns is None and arguments.against:
        arguments.turns = TURNS_AGAINST
    if arguments.minutes is None and arguments.turns is None:
        arguments.minutes = MINUTES
    return arguments


def git(*words):
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def this_commit():
    """With a + where tracked files have changed since."""
    return (git("rev-parse", "--short=7", "HEAD") or "unknown") + ("+" if git("status", "--porcelain", "-uno") else "")


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    name = re.sub(r"\(R\)|\(TM\)|\bCPU\b|\bProcessor\b|\d+-Core|@.*", "", model[1] if model else "unknown")
    return f"{' '.join(name.split())}, {len(os.sched_getaffinity(0))} cores"


def build(source, programs):
    """Builds the programs that the tree knows with its preset cpu; their folder."""
    log = BENCH / "build.log"
    print(f"building {' '.join(programs)} in {source}", file=sys.stderr)
    with open(log, "w") as file:

        def run(*command):
            if subprocess.run(command, cwd=source, stdout=file, stderr=subprocess.STDOUT).returncode != 0:
                refuse(f"'{' '.join(command)}' failed in {source}, see {log}", 1)

        known = programs
        if source == ROOT:
            run("cmake", "--preset", "cpu")
        else:
            run("cmake", "--preset", "cpu", "-DPACELINE_TESTS=OFF")
            known = [
                program
                for program in programs
                if subprocess.run(["ninja", "-C", "build/cpu", "-t", "query", program], cwd=source,
                                  capture_output=True).returncode == 0
            ]  # fmt: skip
        run("cmake", "--build", "--preset", "cpu", "--target", *known)
    return str(source / "build/cpu/bin")


def other_build(word, programs):
    """The folder of programs that --against names, and what to call it. A commit is built in build/bench/COMMIT."""
    if os.path.isdir(word):
        for folder in (word, f"{word}/bin"):
            if any(os.path.exists(f"{folder}/{program}") for program in programs):
                return folder, word
        refuse(f"--against: {word} holds none of {' '.join(programs)}")
    commit = git("rev-parse", "--verify", "--quiet", "--short=7", word + "^{commit}")
    if not commit:
        refuse(f"--against: '{word}' is neither a folder nor a commit")
    source = BENCH / commit
    if not (source / "CMakeLists.txt").exists():
        unpacking = BENCH / f"{commit}.new"
        unpacking.mkdir(parents=True, exist_ok=True)
        with subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE) as archive:
            done = subprocess.run(["tar", "x", "-C", str(unpacking)], stdin=archive.stdout)
        if done.returncode != 0 or archive.returncode != 0:
            refuse(f"the sources of {commit} cannot be unpacked into {unpacking}", 1)
        unpacking.rename(source)
    return build(source, programs), commit


class Measured:
    """The runs of a case: for each of its programs one in every turn."""

    def __init__(self, case, programs, must_run):
        self.case, self.programs, self.must_run = case, programs, must_run
        self.runs = {name: [] for name in programs}

    def take_turn(self, turn):
        """What each program gave. One that fails and need not run is left out from then on."""
        results = {}
        for name in turned(list(self.programs), turn):
            try:
                results[name] = self.programs[name]()
            except ProgramFailed as failure:
                if name == self.must_run:
                    raise
                first = self.case.figures[0].name
                print(f"skipped: {name} of '{first}' and what is measured with it: {failure}", file=sys.stderr)
                del self.programs[name], self.runs[name]
        return results


def measure(all_measured, most_turns, minutes):
    """Takes turns as long as the minutes allow, one at least; the number of complete ones."""
    deadline = time.monotonic() + 60 * minutes if minutes else None
    turn, longest = 0, 0
    try:
        while not most_turns or turn < most_turns:
            start = time.monotonic()
            if turn > 0 and deadline and start + longest > deadline:
                break
            results = [measured.take_turn(turn) for measured in all_measured]
            for measured, result in zip(all_measured, results, strict=True):
                for name in measured.runs:
                    measured.runs[name].append(result[name])
            turn, longest = turn + 1, max(longest, time.monotonic() - start)
            print(f"turn {turn}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; what follows is of the complete turns", file=sys.stderr)
    if turn == 0:
        refuse("no turn is complete", 1)
    if turn < tables.ENOUGH:
        print(f"turns: {turn}; how certain a ratio is shows from {tables.ENOUGH} on", file=sys.stderr)
    return turn


def beside_peers(cases, folder):
    """Name of the subject -> its cases as Measured."""
    found = {}
    for name, of_subject in cases.items():
        found[name] = []
        for case in of_subject:
            programs = {"ours": lambda case=case: case.ours(folder)}
            if case.peer:
                programs["peer"] = case.peer
            found[name].append(Measured(case, programs, "ours"))
    return found


def beside_build(cases, now, before):
    found = {}
    for name, of_subject in cases.items():
        found[name] = []
        for case in of_subject:
            programs = {
                "before": lambda case=case: case.ours(before),
                "now": lambda case=case: case.ours(now),
                "again": lambda case=case: case.ours(before),
            }
            found[name].append(Measured(case, programs, "now"))
    return found


def report_peers(found, commit, where, write):
    page, lines = PAGE.read_text() if write else "", []
    for name, all_measured in found.items():
        rows = [row for one in all_measured for row in tables.rows_of(one.case, one.runs, commit, where)]
        known = [figure.name for one in all_measured for figure in one.case.figures]
        peer = SUBJECTS[name].peer
        lines += [f"### {name}, beside {peer}" if peer else f"### {name}", "", *tables.table(tables.HEADER, rows), ""]
        if write:
            page = tables.written(page, name, rows, known)
    if write:
        PAGE.write_text(page)
        print(f"written to {PAGE}", file=sys.stderr)
    return lines


HEADER_AGAINST = ("figure", "before", "now", "now/before", "at least", "before/before", "at least")


def report_build(found, what, turns):
    """The table beside another build and the sentences under it; and whether nothing is slower."""
    rows, speeds, controls, slower = [], [], [], []
    for name, all_measured in found.items():
        for one in all_measured:
            for figure in one.case.figures:
                now, before, again = (tables.values(one.runs.get(who), figure) for who in ("now", "before", "again"))
                if now is None or before is None or again is None:
                    continue
                new, control = Compared(figure, now, before), Compared(figure, again, before)
                cells = [number(statistics.median(before)), number(statistics.median(now))]
                for each in (new, control):
                    bound = each.at_least()
                    cells += [f"{each.ratio():.3f}", tables.NONE if bound is None else f"{bound:.3f}"]
                rows.append((f"{name}: {figure.name}", *cells))
                if not figure.is_speed:
                    continue
                speeds.append(new.pair())
                controls.append(control.pair())
                if new.ratio() < min(1, control.at_least() or 0):
                    slower.append(f"{name}: {figure.name} ({new.ratio():.3f})")
    if not speeds:
        refuse("the two builds have no figure in common", 1)
    mean, bound = geometric_mean_of_ratios(speeds), lower_bound(speeds)
    control, control_bound = geometric_mean_of_ratios(controls), lower_bound(controls)
    fine = mean >= min(1, control_bound)
    lines = [
        f"{what}, {turns} turns. A ratio above 1 is better now.", "",
        *tables.table(HEADER_AGAINST, rows), "",
        f"Geometric mean of {len(speeds)} figures: now/before {mean:.3f}, at least {bound:.3f} with 95 % confidence; "
        f"before/before {control:.3f}, at least {control_bound:.3f}.",
    ]  # fmt: skip
    if turns < tables.ENOUGH:
        return [*lines, f"{turns} turns are too few to say whether it is slower; {tables.ENOUGH} are wanted."], False
    verdict = ("Nothing is slower", "not below") if fine else ("It is slower", "below")
    lines.append(
        f"{verdict[0]} on the whole: {mean:.3f} is {verdict[1]} {min(1, control_bound):.3f}. "
        f"A loss of {max(0, 1 - bound):.1%} cannot be excluded."
    )
    if slower:
        lines.append("Each below the bound of its own before/before, one in twenty by chance: " + "; ".join(slower))
    return lines, fine


def main(words):
    arguments = parse(words)
    BENCH.mkdir(parents=True, exist_ok=True)
    programs = sorted({program for name in arguments.subjects for program in SUBJECTS[name].programs})
    now, commit = arguments.bin, arguments.bin
    if now:
        missing = [program for program in programs if not os.path.exists(f"{now}/{program}")]
        if missing:
            refuse(f"--bin: {now} holds no {' '.join(missing)}")
    else:
        now, commit = build(ROOT, programs), this_commit()
    before, named = other_build(arguments.against, programs) if arguments.against else (None, None)

    python = taskflow = None
    if not arguments.against:
        if {"training", "allreduce"} & set(arguments.subjects):
            python, why = subjects.find_pytorch(arguments.python)
            if not python:
                print(f"skipped: PyTorch and gloo: {why}", file=sys.stderr)
        if "engine" in arguments.subjects:
            taskflow, why = subjects.find_taskflow(arguments.taskflow)
            if not taskflow:
                print(f"skipped: Taskflow: {why}", file=sys.stderr)
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"other work loads this machine ({busy:.1f}); figures taken beside it mislead", file=sys.stderr)

    setup = subjects.Setup(arguments.seconds, python, taskflow, now)
    cases = {name: SUBJECTS[name].cases(setup) for name in arguments.subjects}
    found = beside_build(cases, now, before) if before else beside_peers(cases, now)
    turns = measure(
        [one for all_measured in found.values() for one in all_measured], arguments.turns, arguments.minutes
    )
    fine = True
    if before:
        lines, fine = report_build(found, f"{commit} beside {named}, {machine()}", turns)
    else:
        lines = report_peers(found, commit, machine(), arguments.write and turns >= tables.ENOUGH)
    print("\n".join(lines))
    (BENCH / "results.md").write_text("\n".join(lines) + "\n")
    runs = {name: [one.runs for one in all_measured] for name, all_measured in found.items()}
    (BENCH / "results.json").write_text(json.dumps({"commit": commit, "against": named, "runs": runs}))
    if arguments.write and turns < tables.ENOUGH:
        refuse(
            f"the page is not written: {turns} turns are too few, {tables.ENOUGH} are wanted; give more --minutes", 1
        )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
