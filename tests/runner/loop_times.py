"""Where the minutes of building and testing go, as tables in tests/README.md.

Run after a build without a compiler cache (CCACHE_DISABLE=1) and a run of the tests:

    python3 tests/runner/loop_times.py build/cpu [build/tsan build/asan] [--headers 40] [--write]

The first folder gives compile and link times and tests; for each of the others that is there, what a process costs to
start. --headers compiles so many files, drawn by a fixed seed, with clang's -ftime-trace; 0 leaves that table out.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import shlex
import statistics
import subprocess
import tempfile
import time
import xml.etree.ElementTree as xml

from suites import SOURCE, suites_of

PAGE = SOURCE / "tests" / "README.md"
BEGIN, END = "<!-- begin: written by tests/runner/loop_times.py -->", "<!-- end -->"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def builds(build):
    """Seconds of one core for each folder, from what ninja has logged."""
    groups = collections.defaultdict(list)
    for line in (build / ".ninja_log").read_text().splitlines()[1:]:
        begin, end, _, output, _ = line.split("\t")
        parts = output.split("/")
        if output.endswith(".gch"):
            group = "precompiled headers"
        elif "verify_interface_header_sets" in output:
            group = "public headers, each alone"
        elif output.endswith(".o"):
            group = "/".join(parts[:2]) if parts[0] == "tests" else parts[0]
        elif "/" in output and parts[0] in ("bin", "lib"):
            group = "links and archives"
        else:
            group = "other steps"
        groups[group].append((int(end) - int(begin)) / 1000)
    order = sorted(groups.items(), key=lambda item: -sum(item[1]))
    rows = [(g, len(t), f"{sum(t):.0f}", f"{statistics.mean(t):.1f}", f"{max(t):.1f}") for g, t in order]
    total = [seconds for times in groups.values() for seconds in times]
    rows.append(("all", len(total), f"{sum(total):.0f}", f"{statistics.mean(total):.1f}", f"{max(total):.1f}"))
    return table(("folder", "steps", "seconds of a core", "mean", "longest"), rows)


def headers(build, count):
    """What clang spends in each header, over files drawn by a fixed seed, without precompiled headers."""
    commands = json.loads((build / "compile_commands.json").read_text())
    commands = [c for c in commands if c["file"].endswith(".cc") and "cmake_pch" not in c["file"]]
    seconds, files = collections.Counter(), collections.Counter()
    phases, compiled = collections.Counter(), 0
    for entry in random.Random(1).sample(commands, min(count, len(commands))):
        words = shlex.split(entry["command"])
        words = words[next(i for i, word in enumerate(words) if word.endswith("c++")) + 1 :]
        if "-include" in words:
            place = words.index("-include")
            del words[place : place + 2]
        with tempfile.TemporaryDirectory() as folder:
            words[words.index("-o") + 1] = f"{folder}/out.o"
            drop = ("-Werror", "-Wno-restrict", "-fpch-preprocess", "-Winvalid-pch")
            words = [word for word in words if word not in drop]
            done = subprocess.run(
                ["clang++", "-ftime-trace", "-w", *words], cwd=entry["directory"], capture_output=True
            )
            if done.returncode != 0:
                continue
            events = json.loads(pathlib.Path(folder, "out.json").read_text())["traceEvents"]
        compiled += 1
        for event in events:
            if event["name"] == "Source":
                name = event["args"]["detail"]
                seconds[name] += event["dur"] / 1e6
                files[name] += 1
            elif event["name"] in ("Total Frontend", "Total Backend"):
                phases[event["name"]] += event["dur"] / 1e6
    total = sum(phases.values())
    rows = []
    for name, spent in seconds.most_common(15):
        short = re.sub(r".*/include/(c\+\+/\d+/)?", "", os.path.normpath(name)).removeprefix(f"{SOURCE}/")
        rows.append((f"`{short}`", files[name], f"{spent / files[name]:.2f}", f"{100 * spent / total:.0f} %"))
    front = 100 * phases["Total Frontend"] / total
    note = (
        f"A sample of {compiled} source files, compiled by clang: {front:.0f} % of {total:.0f} s in the front end, "
        "the rest in optimisation and code."
    )
    return note + "\n\n" + table(("header, with what it includes", "files", "seconds each", "of all time"), rows)


def tests(build):
    rows, totals = [], [0, 0.0, 0.0]
    for suite in xml.parse(build / "tests" / "junit.xml").getroot():
        cases = suite.findall("testcase")
        wall = sum(float(case.get("time")) for case in cases)
        processor = sum(float(case.find("properties/property").get("value")) for case in cases)
        waiting = f"{100 * (1 - processor / wall):.0f} %" if processor < wall else "0 %"
        rows.append((wall, (suite.get("name"), len(cases), f"{wall:.1f}", f"{processor:.1f}", waiting)))
        totals = [totals[0] + len(cases), totals[1] + wall, totals[2] + processor]
    lines = [row for _, row in sorted(rows, reverse=True)]
    lines.append(
        ("all", totals[0], f"{totals[1]:.1f}", f"{totals[2]:.1f}", f"{100 * (1 - totals[2] / totals[1]):.0f} %")
    )
    return table(("suite", "tests", "seconds", "of a processor", "waiting"), lines)


def starts(builds):
    """Seconds from the start of a test program to its end when it runs no test; medians of five."""
    rows = []
    for build in builds:
        for suite in suites_of(build):
            if suite.kind != "gtest" or not os.path.exists(suite.command[0]):
                continue
            times = []
            for _ in range(5):
                begin = time.monotonic()
                environment = {**os.environ, **suite.environment}
                command = [*suite.command, "--gtest_filter=-*"]
                subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
                times.append(time.monotonic() - begin)
            rows.append((build.name, suite.name, f"{1000 * statistics.median(times):.0f}"))
    return table(("preset", "program", "milliseconds"), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", type=pathlib.Path)
    parser.add_argument("--headers", type=int, default=40)
    parser.add_argument("--write", action="store_true", help="replace the tables of tests/README.md")
    options = parser.parse_args()
    first = options.builds[0]
    parts = [
        f"Build (`{first.name}`, two cores, no compiler cache)",
        builds(first),
        "Tests",
        tests(first),
        "Start of a test program",
        starts([build for build in options.builds if (build / "tests.json").exists()]),
    ]
    if options.headers:
        parts[2:2] = ["Headers", headers(first, options.headers)]
    text = "\n\n".join(f"### {part}" if "\n" not in part else part for part in parts)
    if options.write:
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    else:
        print(text)


if __name__ == "__main__":
    main()
