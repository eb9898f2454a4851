"""Jobs under fault plans that are drawn by seed: every mode must come to its end with every record counted.

    python3 tests/programs/fault_campaign.py --number 100 --seed 1 [--fatal]

A plan mixes loss, delay, repetition, reordering, throttles, cuts and freezes below the silence deadline, and kills of
workers. Exit code 0, every example of every epoch and, in dist_sync without a lost worker, the weights of an
undisturbed run, bit for bit, are asked for. After the loss of a worker, others may train again what it had not
committed, which is bounded. With --fatal, plans kill a server or the scheduler: the job must end with
another exit code than 0, name who was lost, and leave no process behind. The seed of each plan is printed; --seed S
--number 1 repeats it.
"""

import argparse
import math
import pathlib
import random
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from support import ProgramTest, tensors_of  # noqa: E402

MODES = ("dist_sync", "dist_async", "dist_async:bound=2", "dist_sync:backup=1", "dist_local", "ring", "gossip")
WORKERS, SERVERS, EPOCHS, BATCH, RECORDS = 3, 2, 2, 50, 6000
SILENCE = 12
PATIENCE_WITH_LOSS = 400  # seconds
STEPS = EPOCHS * RECORDS // (BATCH * WORKERS)


def draw(rng, mode, fatal):
    """The plan, and the workers that it kills."""
    servers = [] if mode in ("ring", "gossip") else [f"server{i}" for i in range(SERVERS)]
    workers = [f"worker{i}" for i in range(WORKERS)]
    everybody = ["scheduler", *servers, *workers]

    def link():
        one, other = rng.sample(everybody, 2)
        return rng.choice(("", f"{one}->{other}", f"{one},{other}", f"{one}->*"))

    def step(last=STEPS - 5):
        return f"at step {rng.randrange(1, last)}"

    draws = {
        "drop": lambda: f"drop {rng.uniform(0.01, 0.2):.3f} {link()}",
        "duplicate": lambda: f"duplicate {rng.uniform(0.01, 0.2):.3f} {link()}",
        "reorder": lambda: f"reorder {rng.uniform(0.01, 0.2):.3f} {link()}",
        "delay": lambda: f"delay {rng.uniform(0.1, 3):.1f}ms {link()}",
        "throttle": lambda: f"throttle {rng.uniform(5, 50):.1f}MB/s {rng.choice(everybody)}",
        "cut": lambda: f"cut {','.join(rng.sample(everybody, 2))} {step()} for {rng.uniform(0.2, 4):.1f}s",
        "freeze": lambda: f"freeze {rng.choice(everybody)} {step()} for {rng.uniform(0.2, 4):.1f}s",
    }
    lines = [draws[kind]() for kind in rng.sample(list(draws), k=rng.randrange(1, 5))]
    killed = []
    if fatal:
        killed = [rng.choice(["scheduler", *servers])]
    elif mode != "gossip" and rng.random() < 0.4:
        killed = [rng.choice(workers)]
    for victim in killed:
        points = ("", "before sending data_commit", "after sending data_commit") if victim in workers else ("",)
        # The scheduler hears of steps by heartbeats, so it must be killed long before the end.
        lines.append(f"kill {victim} {step(STEPS // 2)} {rng.choice(points)}".strip())
    return "\n".join([f"seed {rng.randrange(1000)}", *(line.strip() for line in lines), ""]), killed


class Campaign(ProgramTest):
    def runTest(self):
        pass

    def job(self, mode, plan):
        (self.folder / "plan").write_text(plan, encoding="utf-8")
        environment = {"PACELINE_SILENCE_DEADLINE": SILENCE, "PACELINE_HEARTBEAT": 0.5, "PACELINE_NUM_THREADS": 1}
        servers = 0 if mode in ("ring", "gossip") else SERVERS
        return self.finish(self.start_job(mode, "--checkpoint", "ck", "--batch_size", BATCH, workers=WORKERS,
                                          servers=servers, launch=("--faults", "plan"), network="mlp", epochs=EPOCHS,
                                          environment=environment), PATIENCE_WITH_LOSS)  # fmt: skip

    def saved(self, ended):
        self.assertEqual(ended.code, 0, ended)
        return tensors_of(self.folder / ended.result["checkpoint"])

    def without_faults(self):
        """The tensors of an undisturbed job, and the most batches that a lost worker has trained without a commit."""
        ended = self.job("dist_sync", "")
        seconds_per_step = float(ended.result["train_seconds"]) / STEPS
        # A worker goes on while the oldest of its open commits is younger than 100 ms, and while fewer than three are
        # open. One more batch has no commit yet.
        return self.saved(ended)[0], 4 + math.ceil(0.1 / seconds_per_step)

    def check(self, mode, plan, killed, fatal, undisturbed, most_again):
        ended = self.job(mode, plan)
        for victim in killed:
            self.assertIn(f"strikes {victim}", ended.err)
        if fatal:
            self.assertNotEqual(ended.code, 0, ended)
            role, rank = re.fullmatch(r"([a-z]+)(\d*)", killed[0]).groups()
            self.assertRegex(ended.err, rf"{role} ?{rank}.*(SIGKILL|lost)")
        else:
            tensors, metadata = self.saved(ended)
            most = EPOCHS * RECORDS + (BATCH * most_again if killed else 0)
            if mode != "dist_sync:backup=1":  # which leaves out gradients that come too late
                for examples in metadata["examples"]:
                    self.assertTrue(EPOCHS * RECORDS <= examples <= most, f"{examples} examples\n{ended}")
            if mode == "dist_sync" and not killed:
                self.assertEqual(tensors, undisturbed, "other weights than undisturbed")
        self.assert_nothing_survives()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=100, help="plans to run (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first plan (default: 1)")
    parser.add_argument("--fatal", action="store_true", help="kill a server or the scheduler")
    parser.add_argument("--minutes", type=float, default=60, help="end after so many minutes (default: 60)")
    given = parser.parse_args()
    begin, failures, done = time.monotonic(), 0, 0
    quiet = Campaign()  # in a folder of its own, so that no plan goes on from its checkpoint
    quiet.setUp()
    undisturbed, most_again = quiet.without_faults()
    quiet.doCleanups()
    print(f"a lost worker may have trained {most_again} batches that others train again", flush=True)
    for seed in range(given.seed, given.seed + given.number):
        if time.monotonic() - begin > 60 * given.minutes:
            print(f"stopped after {given.minutes:g} minutes")
            break
        campaign = Campaign()
        campaign.setUp()
        try:
            rng = random.Random(seed)
            # A server of dist_local counts rounds of several steps.
            without = ("ring", "gossip", "dist_local") if given.fatal else ()
            modes = [mode for mode in MODES if mode not in without]
            mode = modes[seed % len(modes)]
            plan, killed = draw(rng, mode, given.fatal)
            print(f"seed {seed}: {mode}: {'; '.join(plan.splitlines())}", flush=True)
            campaign.check(mode, plan, killed, given.fatal, undisturbed, most_again)
        except AssertionError as failure:
            failures += 1
            print(f"FAILED: seed {seed}: {failure}", flush=True)
        finally:
            campaign.doCleanups()
        done += 1
    print(f"{done} plans from seed {given.seed}, {failures} failures, {time.monotonic() - begin:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
