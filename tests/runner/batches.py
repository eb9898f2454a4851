"""Which tests share a process, and which processes run at the same time.

A test that waits for timers needs little of a processor. Tests are therefore grouped by how busy they are. Processes
are started as long as their recorded loads fit on the cores: many waiting ones beside a few busy ones.
"""

import dataclasses
import itertools

from records import Exceptions

LENGTH = 8.0  # seconds that a batch should take
UNKNOWN = (0.2, 0.2)  # wall and processor seconds of a test that was never recorded
BUSY = 0.5  # cores; a test that needs less is a waiting one


@dataclasses.dataclass
class Batch:
    tests: list
    wall: float
    processor: float

    @property
    def suite(self):
        return self.tests[0].suite

    @property
    def load(self):
        return min(max(self.processor / max(self.wall, 0.01), 0.05), 2.0)


def batches_of(tests, costs, own_process, length=LENGTH):
    """Divides the tests into batches of about equal time."""

    def cost(test):
        return costs.get(test.id, UNKNOWN)

    def kind(test):
        wall, processor = cost(test)
        return test.suite.name, processor >= BUSY * wall

    batches, shared = [], []
    for test in tests:
        if test.suite.kind == "command" or Exceptions.match(own_process, test.id):
            batches.append(Batch([test], *cost(test)))
        else:
            shared.append(test)
    order = {test.id: place for place, test in enumerate(tests)}
    shared.sort(key=lambda test: (kind(test), order[test.id]))
    for _, group in itertools.groupby(shared, kind):
        batches += _divided(list(group), cost, order, length)
    return sorted(batches, key=lambda batch: -batch.wall)


def _divided(tests, cost, order, length):
    """Longest units first, each into the emptiest batch. A unit is a test, or a class of unittest."""
    units = [list(unit) for _, unit in itertools.groupby(tests, _unit)]
    units.sort(key=lambda unit: -sum(cost(test)[0] for test in unit))
    total = sum(cost(test)[0] for test in tests)
    batches = [Batch([], 0, 0) for _ in range(max(1, round(total / length)))]
    for unit in units:
        emptiest = min(batches, key=lambda batch: batch.wall)
        for test in unit:
            emptiest.tests.append(test)
            emptiest.wall += cost(test)[0]
            emptiest.processor += cost(test)[1]
    for batch in batches:
        batch.tests.sort(key=lambda test: order[test.id])
    return [batch for batch in batches if batch.tests]


def _unit(test):
    return test.name.rpartition(".")[0] if test.suite.kind == "unittest" else test.id


def next_batch(waiting, running, cores, most):
    """Takes the first batch of `waiting` that fits beside those that run; None where none does."""
    if len(running) >= most:
        return None
    load = sum(batch.load for batch in running)
    for place, batch in enumerate(waiting):
        if not running or load + batch.load <= cores:
            return waiting.pop(place)
    return None
