"""A record of the parts of a fuzzing run, so that a long run can be stopped and continued."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.robustness.commit import find_commit
from tests.robustness.fuzz.kinds import all_kinds
from tests.robustness.fuzz.result import Result
from tests.robustness.fuzz.worker import Outcome

#: Number of inputs of a part. If a run is stopped, the part in progress is lost.
PART_SIZE = 1000


class Record:
    """A file with one JSON line for each finished part, with its commit and date.

    Args:
        path: the file; None for no record.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.parts: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.parts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        self.commit = find_commit()

    def total(self) -> Result:
        """Return the sum of all parts of the record."""
        total = Result()
        for part in self.parts:
            total.merge(from_json(part))
        return total

    def table(self) -> str:
        """Return the results as a table in Markdown, with a line for each type of file or directory, and commits."""
        counts: Counter[tuple[str, str]] = Counter()
        commits: Counter[str] = Counter()
        total = self.total()
        for (kind, status), count in total.counts.items():
            counts[kind.partition(",")[0], status] += count
            counts["**total**", status] += count
        for part in self.parts:
            commits[part["commit"]] += part["stop"] - part["start"]
        names = dict.fromkeys([*(kind.name.partition(",")[0] for kind in all_kinds()), "**total**"])
        lines = ["| inputs of | inputs | accepted | refused | findings |", "|---|---:|---:|---:|---:|"]
        for name in names:
            numbers = [counts[name, status] for status in ("accepted", "refused", "finding")]
            lines.append(f"| {name} | {sum(numbers):,} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
        dates = sorted(part["date"][:10] for part in self.parts) or [""]
        inputs = ", ".join(f"{commit} ({count:,} inputs)" for commit, count in commits.items())
        seconds = f"{sum(total.seconds.values()):,.0f} seconds of computing time to read them"
        return "\n".join([*lines, "", f"{dates[0]} to {dates[-1]}; commits {inputs}; {seconds}."])

    def missing_parts(self, numbers: range) -> Iterator[range]:
        """Yield the parts of a range that are not in the record."""
        done = {(part["start"], part["stop"]) for part in self.parts}
        for start in range(numbers.start, numbers.stop, PART_SIZE):
            stop = min(start + PART_SIZE, numbers.stop)
            if (start, stop) not in done:
                yield range(start, stop)

    def add(self, numbers: range, result: Result) -> None:
        """Add a finished part."""
        if self.path is None:
            return
        date = datetime.now(UTC).isoformat(timespec="seconds")
        part = {"start": numbers.start, "stop": numbers.stop, "commit": self.commit, "date": date} | to_json(result)
        self.parts.append(part)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(part) + "\n")


def to_json(result: Result) -> dict[str, Any]:
    """Return a result as JSON values."""
    return {
        "counts": [[*key, count] for key, count in result.counts.items()],
        "seconds": dict(result.seconds),
        "num_findings": [[*key, count] for key, count in result.num_findings.items()],
        "findings": [asdict(outcome) for outcomes in result.findings.values() for outcome in outcomes],
    }


def from_json(part: dict[str, Any]) -> Result:
    """Return the result of a part."""
    result = Result()
    result.counts.update({(kind, status): count for kind, status, count in part["counts"]})
    result.seconds.update(part["seconds"])
    result.num_findings.update({(kind, cause): count for kind, cause, count in part["num_findings"]})
    for outcome in (Outcome(**values) for values in part["findings"]):
        result.findings.setdefault((outcome.kind, outcome.cause), []).append(outcome)
    return result
