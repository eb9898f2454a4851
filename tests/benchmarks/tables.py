"""The tables of tests/benchmarks/README.md that tools/bench.sh writes."""

import dataclasses
import re
import statistics

import turns

HEADER = ("figure", "ours", "peer", "ratio", "at least", "turns", "commit", "machine")
NONE = "–"
ENOUGH = 5  # turns for a bootstrap


def number(value):
    """Three significant digits, more where they are before the point."""
    if value is None:
        return NONE
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.4f}" if "e" in text else text


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


@dataclasses.dataclass(frozen=True)
class Compared:
    """One figure of two programs in the same turns. A ratio above 1 is better for the first."""

    figure: object
    mine: list
    theirs: list

    def pair(self):
        return (self.theirs, self.mine) if self.figure.less_is_better else (self.mine, self.theirs)

    def ratio(self):
        return turns.ratio(*self.pair())

    def at_least(self):
        """The bootstrap's bound; of few turns the least ratio of a turn; of one turn nothing."""
        if len(self.mine) >= ENOUGH:
            return turns.lower_bound([self.pair()])
        each = [mine / theirs for mine, theirs in zip(*self.pair(), strict=True)]
        return min(each) if len(each) > 1 else None


def values(runs, figure):
    """Of all runs, or None where one of them does not have the figure."""
    if not runs or any(figure.key not in run for run in runs):
        return None
    return [figure.scale * run[figure.key] for run in runs]


def rows_of(case, runs, commit, machine):
    """Rows of a case whose runs are {"ours": [...], "peer": [...]}, without the peer where it is missing."""
    rows, versions = [], [run["version"] for run in runs.get("peer", []) if "version" in run]
    for figure in case.figures:
        mine, theirs = values(runs["ours"], figure), values(runs.get("peer"), figure)
        if mine is None:
            continue
        cells = [NONE, NONE, NONE]
        if theirs is not None:
            both = Compared(figure, mine, theirs)
            cells = [number(statistics.median(theirs)), f"{both.ratio():.2f}"]
            cells.append(NONE if both.at_least() is None else f"{both.at_least():.2f}")
        where = f"{machine}; {versions[0]}" if theirs is not None and versions else machine
        rows.append((figure.name, number(statistics.median(mine)), *cells, str(len(mine)), commit, where))
    return rows


def parse(lines):
    """The rows of a table of Markdown, without its header."""
    rows = [
        tuple(cell.strip() for cell in line.strip().strip("|").split("|")) for line in lines if line.startswith("|")
    ]
    return rows[2:]


def merged(old, new, known):
    """The rows of a table after a run. Rows that were not measured stay, and so do those whose peer was missing now
    and not before. A row whose figure is not known any more goes."""
    by_name = {row[0]: row for row in old if row[0] in known}
    for row in new:
        before = by_name.get(row[0])
        if before is None or row[2] != NONE or before[2] == NONE:
            by_name[row[0]] = row
    return [by_name[name] for name in known if name in by_name]


def written(page, subject, rows, known):
    """The page with the rows in the subject's table, which stands between two marks."""
    begin, end = f"<!-- begin: {subject}, written by tools/bench.sh -->\n", f"<!-- end: {subject} -->"
    found = re.search(re.escape(begin) + "(.*?)" + re.escape(end), page, re.DOTALL)
    if not found:
        raise ValueError(f"the page has no marks '{begin.strip()}' and '{end}'")
    lines = table(HEADER, merged(parse(found[1].splitlines()), rows, known))
    return page[: found.start(1)] + "\n".join(lines) + "\n" + page[found.end(1) :]
