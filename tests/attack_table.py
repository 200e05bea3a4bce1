"""Every attack at every level: its verdict, and by hand the table of how each was contained.

python -m tests.attack_table [namespaces docker process]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import cast

from judges import task as tasks
from judges.evaluate import Evaluator
from judges.grader import Grader
from judges.sandbox import AnySandbox, JudgeDied, Level, made
from judges.verdict import Verdict
from tests.attacks import ATTACKS, SECRET, Attack

LEVELS: tuple[Level, ...] = ("namespaces", "docker", "process")
ERDOS = tasks.load("erdos_min_overlap")
QUICK, PATIENT = ERDOS.limited(1.0, 1, 1.0), ERDOS.limited(10.0, 1, 1.0)
SIDE_BY_SIDE = 3


def outcomes(sandbox: AnySandbox, grader: Grader, secret: str) -> Mapping[str, Verdict]:
    """Every attack's verdict; several attack at once.  `secret`: path of a file that no program may read."""
    judges = {quick: Evaluator(QUICK if quick else PATIENT, sandbox, grader) for quick in (True, False)}

    def judged(attack: Attack) -> Verdict:
        return judges[attack.quick].grade(attack.program.replace(SECRET, secret))

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return dict(zip(ATTACKS, pool.map(judged, ATTACKS.values()), strict=True))


def how(attack: Attack, verdict: Verdict) -> str:
    """How it ended, in a few words."""
    if not attack.contained(verdict):
        return f"**NOT CONTAINED**: {verdict.reason} {verdict.detail[:60]} {verdict.output[-60:]!r}"
    if not verdict.valid:
        return f"{verdict.reason}: {verdict.detail[:70]}"
    tried = [line.partition(": ")[2] for line in verdict.output.splitlines() if "Error" in line]
    return "; ".join(dict.fromkeys(line[:45] for line in tried)) or "paid for its numbers only"


def main(levels: Sequence[Level]) -> None:
    columns: dict[Level, Mapping[str, Verdict]] = {}
    with ExitStack() as stack:
        grader = stack.enter_context(Grader())
        for level in levels:
            sandbox = made(level)
            try:
                sandbox.start()
            except JudgeDied as error:
                print(f"no {level}: {error}")
                continue
            stack.callback(sandbox.close)
            assert sandbox.level == level, sandbox.missing
            print(f"{level}: not contained: {'; '.join(sandbox.missing) or 'nothing'}")
            columns[level] = outcomes(sandbox, grader, __file__)
    print("\n| attack | " + " | ".join(columns) + " |\n| --- |" + " --- |" * len(columns))
    for name, attack in ATTACKS.items():
        cells = [how(attack, verdicts[name]).replace("|", "/").replace("\n", " ") for verdicts in columns.values()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    kept = [sum(attack.contained(verdicts[name]) for name, attack in ATTACKS.items()) for verdicts in columns.values()]
    print("\ncontained: " + ", ".join(f"{level} {k} of {len(ATTACKS)}" for level, k in zip(columns, kept, strict=True)))


if __name__ == "__main__":
    main(cast("Sequence[Level]", sys.argv[1:]) or LEVELS)
