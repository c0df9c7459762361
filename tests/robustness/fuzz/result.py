"""Counts of a fuzzing run, and its table."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.robustness.fuzz.kinds import Kind
from tests.robustness.fuzz.worker import Outcome

#: Largest number of findings with the same cause whose inputs are saved.
MAX_SAVED = 3


@dataclass
class Result:
    """Counts of a fuzzing run.

    Args:
        counts: the number of inputs by kind and status.
        seconds: the computing time by kind.
        skipped: missing packages by kind.
        findings: findings by kind and cause, the first ones of each.
        num_findings: the number of findings by kind and cause.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    skipped: dict[str, str] = field(default_factory=dict)
    findings: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)
    num_findings: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> bool:
        """Count an outcome; return whether it is a finding that is to be saved."""
        self.counts[outcome.kind, outcome.status] += 1
        self.seconds[outcome.kind] += outcome.seconds
        if outcome.status != "finding":
            return False
        key = outcome.kind, outcome.cause
        self.num_findings[key] += 1
        examples = self.findings.setdefault(key, [])
        if len(examples) >= MAX_SAVED:
            return False
        examples.append(outcome)
        return True

    def merge(self, other: "Result") -> None:
        """Add the counts and findings of another result."""
        self.counts += other.counts
        self.num_findings += other.num_findings
        for kind, seconds in other.seconds.items():
            self.seconds[kind] += seconds
        for key, outcomes in other.findings.items():
            self.findings[key] = [*self.findings.get(key, []), *outcomes][:MAX_SAVED]

    def table(self, kinds: Sequence[Kind]) -> str:
        """Return a table with one line for each kind."""
        lines = [f"{'kind':<42}{'inputs':>9}{'accepted':>10}{'refused':>9}{'findings':>10}{'ms/input':>10}"]
        for kind in kinds:
            if kind.name in self.skipped:
                lines.append(f"{kind.name:<42}skipped: {self.skipped[kind.name]} is not installed")
            else:
                lines.append(self.format_row(kind.name, [kind.name]))
        return "\n".join([*lines, self.format_row("total", [kind.name for kind in kinds])])

    def format_row(self, title: str, names: Sequence[str]) -> str:
        """Return a line of the table, with the sums over some kinds."""
        accepted, refused, findings = (
            sum(self.counts[name, status] for name in names) for status in ("accepted", "refused", "finding")
        )
        inputs = accepted + refused + findings
        milliseconds = 1000 * sum(self.seconds[name] for name in names) / max(1, inputs)
        return f"{title:<42}{inputs:>9,}{accepted:>10,}{refused:>9,}{findings:>10,}{milliseconds:>10.1f}"
