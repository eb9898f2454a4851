"""Tables that scripts write and the tree keeps: what each test costs, which tests need special treatment."""

import fnmatch
import pathlib
import sys
import tomllib

TESTS = pathlib.Path(__file__).resolve().parents[1]
DURATIONS = TESTS / "recorded"
EXCEPTIONS = TESTS / "exceptions.toml"


def durations(preset):
    """Test id -> (wall, processor seconds), as last recorded for the preset, else for `cpu`."""
    return _recorded("cpu") | _recorded(preset)


def _recorded(preset):
    path = DURATIONS / f"{preset}.tsv"
    if not path.exists():
        return {}
    rows = (line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#"))
    return {name: (float(wall), float(processor)) for name, wall, processor in rows}


def write_durations(preset, outcomes):
    """Replaces the rows of the tests that ran."""
    path = DURATIONS / f"{preset}.tsv"
    known = _recorded(preset)
    known.update((o.name, (o.wall, o.processor)) for o in outcomes if o.result != "failed")
    lines = [f"# Written by tools/test.sh --record: test, seconds, seconds of processor time (preset {preset})"]
    lines += [f"{name}\t{wall:.3f}\t{processor:.3f}" for name, (wall, processor) in sorted(known.items())]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


class Exceptions:
    """tests/exceptions.toml: patterns of test ids, each with its reason."""

    def __init__(self, preset, path=EXCEPTIONS):
        tables = tomllib.loads(path.read_text())
        unknown = tables.keys() - {"own_process", "quarantine", "not_under"}
        if unknown:
            sys.exit(f"{path}: unknown tables {sorted(unknown)}")
        self.own_process = tables.get("own_process", {})
        self.quarantine = tables.get("quarantine", {})
        self.not_here = tables.get("not_under", {}).get(preset, {})

    @staticmethod
    def match(patterns, test_id):
        """The reason of the first pattern that fits, or None."""
        return next((why for pattern, why in patterns.items() if fnmatch.fnmatchcase(test_id, pattern)), None)
