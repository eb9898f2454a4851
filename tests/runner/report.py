"""Prints what becomes of the tests, and writes it down as JUnit's XML."""

import collections
import pathlib
import re
import sys
import time
import xml.etree.ElementTree as xml

SHOWN = 200  # lines of a failed test's output
SLOWEST = 10
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


class Report:
    def __init__(self, preset, total, quarantine_reason):
        self.preset, self.total = preset, total
        self.quarantine_reason = quarantine_reason
        self.outcomes = []
        self.begin = time.monotonic()
        self.terminal = sys.stdout.isatty()
        sys.stdout.reconfigure(errors="backslashreplace")  # tests print what the terminal may not know
        self.said = 0

    def add(self, outcome):
        self.outcomes.append(outcome)
        if outcome.result == "failed":
            self._clear()
            why = self.quarantine_reason(outcome.name)
            word = "FAILED" if why is None else f"failed in quarantine ({why})"
            print(f"{word}: {outcome.name}: {outcome.reason or 'see its output'}")
            lines = outcome.output.rstrip().splitlines()
            if len(lines) > SHOWN:
                lines = [f"... {len(lines) - SHOWN} lines before", *lines[-SHOWN:]]
            for line in lines:
                print(f"    {line}")
            print(f"  again: {outcome.command}", flush=True)
        self._progress()

    def _progress(self):
        line = f"{self.preset}: {len(self.outcomes)} of {self.total} tests, {time.monotonic() - self.begin:.0f} s"
        if self.terminal:
            print(f"\r{line}\033[K", end="", flush=True)
        elif len(self.outcomes) * 10 // max(self.total, 1) > self.said:
            self.said = len(self.outcomes) * 10 // max(self.total, 1)
            print(line, flush=True)

    def _clear(self):
        if self.terminal:
            print("\r\033[K", end="")

    def failures(self):
        """Outcomes that decide: what failed and is not in quarantine."""
        return [o for o in self.outcomes if o.result == "failed" and self.quarantine_reason(o.name) is None]

    def summary(self, left_out, not_started=0, interrupted=False):
        """The closing lines; the last one is `PRESET: N passed, N failed, N skipped`."""
        self._clear()
        slowest = sorted(self.outcomes, key=lambda outcome: -outcome.wall)[:SLOWEST]
        print("the slowest tests:")
        for outcome in slowest:
            print(f"  {outcome.wall:6.1f} s ({outcome.processor:.1f} s of processor)  {outcome.name}")
        skipped = collections.Counter(o.reason for o in self.outcomes if o.result == "skipped")
        for reason, count in skipped.most_common():
            print(f"skipped: {count}: {reason}")
        for reason, count in collections.Counter(left_out).most_common():
            print(f"not run with {self.preset}: {count}: {reason}")
        failures = self.failures()
        for outcome in failures:
            print(f"failed: {outcome.name}: {outcome.reason or 'see its output above'}")
        quarantined = [o for o in self.outcomes if self.quarantine_reason(o.name) is not None]
        decided = [o for o in self.outcomes if self.quarantine_reason(o.name) is None]
        counts = collections.Counter(outcome.result for outcome in decided)
        seconds = time.monotonic() - self.begin
        busy = sum(outcome.processor for outcome in self.outcomes)
        print(f"{self.preset}: {len(self.outcomes)} tests in {seconds:.0f} s, {busy:.0f} s of processor time in tests")
        line = f"{self.preset}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
        if quarantined:
            bad = sum(outcome.result == "failed" for outcome in quarantined)
            line += f", {len(quarantined)} in quarantine of which {bad} failed"
        if not_started:
            line += f", {not_started} not started"
        if interrupted:
            line += "; interrupted before the end"
        print(line, flush=True)

    def write_junit(self, path):
        suites = xml.Element("testsuites")
        groups = collections.defaultdict(list)
        for outcome in self.outcomes:
            groups[outcome.name.split(".")[0]].append(outcome)
        for name, outcomes in sorted(groups.items()):
            counts = collections.Counter(outcome.result for outcome in outcomes)
            suite = xml.SubElement(suites, "testsuite", name=name, tests=str(len(outcomes)))
            suite.set("failures", str(counts["failed"]))
            suite.set("skipped", str(counts["skipped"]))
            suite.set("time", f"{sum(outcome.wall for outcome in outcomes):.3f}")
            for outcome in outcomes:
                group, _, test = outcome.name.rpartition(".")
                case = xml.SubElement(suite, "testcase", classname=group, name=test, time=f"{outcome.wall:.3f}")
                properties = xml.SubElement(case, "properties")
                xml.SubElement(properties, "property", name="processor_seconds", value=f"{outcome.processor:.3f}")
                if outcome.result == "skipped":
                    xml.SubElement(case, "skipped", message=NOT_IN_XML.sub("?", outcome.reason))
                if outcome.result == "failed":
                    failure = xml.SubElement(case, "failure", message=NOT_IN_XML.sub("?", outcome.reason))
                    failure.text = NOT_IN_XML.sub("?", outcome.output)
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        xml.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)
