"""Asks whether the tests notice small faults (mutants): a condition, a constant or a bound that is changed.

    python3 tests/runner/mutants.py engine nn/autograd --number 50 --seed 1

draws 50 mutants from the sources of each folder and compiles them all into one build, in a copy of the tree. The
variable TEST_MUTANT turns one of them on. Each mutant runs the tests of its module up to the first failure, for at
most --seconds. The table says which test killed it, that the tests did not end, or that the mutant survived. The first
line is a run without a mutant: it must pass within half of --seconds (30 by default). Build the preset `cpu` first.

With --choice changed each mutant runs what tools/test.sh --changed would run for its file, with --tests the tests of
that name: do random programs find ten faults of the tape, the views and the capture? --isolate gives each test a
process of its own.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

from suites import SOURCE

sys.path.insert(0, str(SOURCE / "tools"))

from lint_names import blanked  # noqa: E402  after the path is set

COPY = SOURCE / "build" / "mutants"
BUILD = COPY / "build" / "cpu"
SWITCH = "paceline_mutant"
DECLARATION = f'extern "C" int {SWITCH};'
DEFINITION = """
#include <cstdlib>
extern "C" {{
int {0} = [] {{
  const char* text = std::getenv("TEST_MUTANT");
  return text ? std::atoi(text) : 0;
}}();
}}
"""
OPPOSITES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
OPPOSITES |= {"+": "-", "-": "+", "std::min": "std::max", "std::max": "std::min"}
# Operators have spaces around them, unlike the brackets of templates: clang-format sees to it.
OPERATOR = re.compile(r"(?<= )(<=|>=|==|!=|&&|\|\||<|>|\+|-)(?= )|std::(?:min|max)(?=[(<])|(?<![\w.'])\d+(?![\w.'])")


@dataclasses.dataclass
class Mutant:
    file: str
    line: int  # of the first character of the expression
    begin: int  # of the expression in the file's text
    end: int
    was: str  # the expression, on one line
    becomes: str
    number: int = 0

    def describe(self):
        """The changed word in its surroundings."""
        first = next(i for i, (a, b) in enumerate(zip(self.was + "\0", self.becomes + "\1", strict=False)) if a != b)
        begin = max(0, first - 30)
        return f"{self.file}:{self.line}: `{self.was[begin : first + 30]}` -> `{self.becomes[begin : first + 30]}`"


def masked(text):
    """The text with comments, literals and preprocessor conditionals blanked out, character for character."""
    conditional = re.compile(r"^#if.*?^#endif[^\n]*", flags=re.S | re.M)
    return blanked(conditional.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text))


def closing(text, begin):
    """The place of the bracket that closes the one at `begin`."""
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place
    return len(text)


def expressions(text):
    """Begin and end of each expression that may be evaluated in one of two ways, and whether it is a condition."""
    for match in re.finditer(r"\b(if|while|for) \(", text):
        begin, end = match.end(), closing(text, match.end() - 1)
        if match[1] == "for":
            parts = text[begin:end].split(";")
            if len(parts) != 3:
                continue
            begin += len(parts[0]) + 1
            end = begin + len(parts[1])
        if not re.search(r"(?<![=!<>])=(?!=)|;", text[begin:end]):
            yield begin, end, match[1] == "if"
    for match in re.finditer(r"(?:\breturn|[\w\])] [-+*/]?=) ([^;{}]+);", text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start() + 1]
        if not re.search(r"\b(constexpr|static|using|template|enum|operator)\b", before):
            yield *match.span(1), False


def candidates(path):
    raw = (SOURCE / path).read_text()
    text = masked(raw)
    for begin, end, condition in expressions(text):
        expression = text[begin:end]
        if re.search(r"[{}]|\[[&=\]]|\bthis\]|\bco_|\bassert\b", expression) or not expression.strip():
            continue
        was = re.sub(r"\s*\n\s*", " ", raw[begin:end])
        line = raw.count("\n", 0, begin) + 1
        if condition:
            yield Mutant(path, line, begin, end, was, f"!({was})")
        if "\n" in expression:
            continue
        for match in OPERATOR.finditer(expression):
            word = match.group()
            other = OPPOSITES.get(word) or str(int(word) + 1)
            becomes = raw[begin : begin + match.start()] + other + raw[begin + match.end() : end]
            yield Mutant(path, line, begin, end, was, becomes)


def within(file, folders):
    return any(file == folder or file.startswith(f"{folder}/") for folder in folders)


def compiled_files(build, folders):
    """The sources and headers of the folders that the preset `cpu` compiles, without tests."""
    sources = {os.path.relpath(c["file"], SOURCE) for c in json.loads((build / "compile_commands.json").read_text())}
    done = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True)
    headers = {
        os.path.relpath(os.path.normpath(build / line.strip()), SOURCE)
        for line in done.stdout.splitlines()
        if line.strip().endswith(".h")
    }
    return sorted(
        name
        for name in sources | headers
        if within(name, folders) and not name.endswith(("_test.cc", "_benchmark.cc")) and "/tests/" not in name
    )


def draw(files, number, generator, taken):
    """`number` mutants, no two in one expression and none of `taken`."""
    pool = [mutant for path in files for mutant in candidates(path)]
    generator.shuffle(pool)
    drawn = []
    for mutant in pool:
        place = mutant.file, mutant.begin
        overlaps = any(m.file == mutant.file and m.begin < mutant.end and mutant.begin < m.end for m in drawn)
        if len(drawn) < number and place not in taken and not overlaps:
            drawn.append(mutant)
            taken.add(place)
    return drawn


def write_copy(mutants):
    """The tree of the working copy with all mutants in it. Files that would not change keep their times."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=SOURCE, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    by_file = collections.defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    for name in names:
        source, target = SOURCE / name, COPY / name
        if not source.is_file():
            continue
        content = source.read_bytes()
        if name in by_file:
            content = mutated(content.decode(), by_file[name]).encode()
        if name == "base/device.cc":
            content += DEFINITION.format(SWITCH).encode()
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(source, target)


def mutated(text, mutants):
    """Lines keep their numbers, so that a compiler's message leads to its mutant."""
    for m in sorted(mutants, key=lambda mutant: -mutant.begin):
        lines = "\n" * text.count("\n", m.begin, m.end)
        text = f"{text[: m.begin]}({SWITCH} == {m.number} ? ({m.becomes}) : ({m.was})){lines}{text[m.end :]}"
    return f"{DECLARATION} {text}" if not text.startswith("#") else f"{DECLARATION}\n#line 1\n{text}"


def build(mutants, targets):
    """Builds the copy; returns the mutants that do not compile."""
    if not (BUILD / "build.ninja").exists():
        subprocess.run(["cmake", "--preset", "cpu"], cwd=COPY, check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(["ninja", "-k", "0", "-C", BUILD, *targets], capture_output=True, text=True)
    if done.returncode == 0:
        return []
    places = {
        (os.path.relpath(os.path.normpath(BUILD / path), COPY), int(line))
        for path, line in re.findall(r"^(?:In file included from )?([^\s:]+):(\d+)", done.stdout, flags=re.M)
    }
    bad = [m for m in mutants if any((m.file, m.line + i) in places for i in range(len(m.was) // 80 + 2))]
    if not bad:
        errors = re.findall(r"^.*(?:error|undefined).*$", done.stdout, flags=re.M)
        sys.exit("mutants.py: the copy does not compile:\n" + "\n".join(errors[:20]))
    return bad


def tests_of(mutant, choice, names):
    """Arguments for the runner."""
    if names:
        return names
    if choice == "all":
        return []
    if choice == "module":
        return [mutant.file.split("/")[0]]
    prefix = BUILD / "chosen"
    command = [sys.executable, COPY / "tests/runner/changes.py", BUILD, "--write", prefix, "--files", mutant.file]
    subprocess.run(command, check=True, capture_output=True, cwd=COPY)
    return ["--from-file", f"{prefix}.tests", *pathlib.Path(f"{prefix}.names").read_text().splitlines()]


def try_one(mutant, options):
    """What became of a mutant: killed, endless or survived; and the test that killed it."""
    command = [sys.executable, COPY / "tests/runner", BUILD, "--stop", *tests_of(mutant, options.choice, options.tests)]
    if options.isolate:
        command.append("--isolate")
    environment = {**os.environ, "TEST_MUTANT": str(mutant.number)}
    process = subprocess.Popen(
        command, cwd=COPY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=options.seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # the runner ends its tests' processes
        process.communicate()
        return "endless", f"the tests did not end within {options.seconds:.0f} s"
    if process.returncode == 0:
        return "survived", "SURVIVED"
    failed = re.search(r"^failed: (.*?): ", printed, flags=re.M)
    if failed:
        return "killed", failed[1]
    if "cannot list the tests" in printed:  # a program that ends before its first test
        return "killed", printed.strip().splitlines()[-1][:80]
    sys.exit(f"mutants.py: the runner failed:\n{printed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="modules, or folders and files of them, to draw from")
    parser.add_argument("--number", type=int, default=50, help="mutants of each folder")
    parser.add_argument("--together", action="store_true", help="draw --number from all folders as one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--choice", choices=("module", "changed", "all"), default="module", help="tests to run")
    parser.add_argument("--tests", nargs="+", metavar="NAME", help="run the tests of these names instead")
    parser.add_argument("--isolate", action="store_true", help="a process for each test")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="try these mutants of the draw again")
    options = parser.parse_args()

    cpu = SOURCE / "build" / "cpu"
    if not (cpu / "compile_commands.json").exists():
        sys.exit("mutants.py: build the preset `cpu` first")
    generator, taken, mutants = random.Random(options.seed), set(), []
    groups = [options.folders] if options.together else [[folder] for folder in options.folders]
    for group in groups:  # some more than asked for, because not all compile
        files = compiled_files(cpu, group)
        if not files:
            sys.exit(f"mutants.py: the preset `cpu` compiles no file of {' or '.join(group)}; name folders of the tree")
        mutants += draw(files, options.number * 4 // 3, generator, taken)
    for number, mutant in enumerate(mutants, 1):
        mutant.number = number
    targets = [f"{folder.split('/')[0]}_tests" for folder in options.folders]
    if options.choice != "module" or options.tests:
        targets = ["all"]
    write_copy(mutants)
    while bad := build(mutants, targets):
        mutants = [mutant for mutant in mutants if mutant not in bad]
        write_copy(mutants)
    mutants = [m for group in groups for m in [m for m in mutants if within(m.file, group)][: options.number]]
    print(f"seed {options.seed}: {len(mutants)} mutants")
    results = collections.Counter()
    for file in sorted({m.file.split("/")[0] if options.choice == "module" else "" for m in mutants}):
        begin = time.monotonic()
        outcome, why = try_one(Mutant(file or mutants[0].file, 0, 0, 0, "", ""), options)
        seconds = time.monotonic() - begin
        print(
            f"  0 {seconds:5.1f} s  {file or 'all'} without a mutant: {outcome} {why if outcome != 'survived' else ''}"
        )
        if outcome != "survived" or seconds > options.seconds / 2:
            sys.exit("mutants.py: without a mutant the tests must pass, in half of --seconds")
    for mutant in mutants:
        if options.only and mutant.number not in options.only:
            continue
        begin = time.monotonic()
        outcome, why = try_one(mutant, options)
        results[outcome] += 1
        print(f"{mutant.number:3} {time.monotonic() - begin:5.1f} s  {mutant.describe()}: {why}", flush=True)
    print(f"{results['killed']} killed, {results['endless']} endless, {results['survived']} survived")


if __name__ == "__main__":
    main()
