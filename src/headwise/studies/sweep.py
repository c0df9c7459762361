"""`headwise sweep`: settings are chosen on dev, and what was chosen is reported on test, once."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headwise.errors import UserError
from headwise.studies.compare import told_missing
from headwise.studies.methods import Method
from headwise.studies.plan import name_of, runs
from headwise.studies.result import Result
from headwise.studies.search import CONTROL, Scope
from headwise.studies.search_space import Axis, check, grid, without
from headwise.studies.study import Study, higher_is_better
from headwise.studies.worker_pool import Resources
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import atomic_write


def create_sweep(
    base: RunConfig,
    axes: Sequence[Axis],
    out: Path,
    *,
    sampler: str = "grid",
    trials: int | None = None,
    seeds: int = 1,
    storage: str | None = None,
) -> Study:
    """A sweep, whose runs wait.

    Args:
        base: the settings that all candidates share.
        axes: what is varied, see `headwise.studies.search_space.axes_of`.
        out: the study's folder.
        sampler: grid for all combinations; tpe or random draw between the least and greatest values.
        trials: how often a sampler draws.
        seeds: how many for each candidate of a grid.
        storage: the database's address; by default a file in the folder.

    Raises:
        UserError: what does not go together.
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    if (sampler == "grid") != (trials is None):
        said = "--trials N is missing: how often shall it draw?" if trials is None else "--trials is for a sampler"
        raise UserError(f"--sampler {sampler}: {said}")
    higher = higher_is_better([base])
    if sampler == "grid":
        tried, controls = grid(axes, base)
        everything = runs([base], [*controls, *tried], range(base.seed, base.seed + seeds))
        names = [method.name for method in controls]
        return Study.begin(out, "sweep", everything, storage=storage, maximise=higher, judged_on="dev", controls=names)
    if seeds > 1:
        raise UserError(
            f"--seeds {seeds}: a sampler tries each setting once; take --sampler grid, or compare in the end"
        )
    if trials is not None and trials < 1:
        raise UserError(f"--trials must be at least 1, got {trials}")
    check(axes)
    control = runs([base], [Method(CONTROL, without(base))], [base.seed])
    scope = Scope(name_of(base), base.resolve_paths().to_yaml(), tuple(axes), trials or 0, sampler)
    return Study.begin(
        out,
        "search",
        control,
        storage=storage,
        maximise=higher,
        judged_on="dev",
        controls=[CONTROL],
        search=scope.written(),
    )


@dataclass(frozen=True)
class Candidate:
    """One setting, and its dev figures."""

    name: str
    dev: list[float]
    results: list[Result]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.dev)

    @property
    def spread(self) -> float:
        return statistics.stdev(self.dev) if len(self.dev) > 1 else 0.0


def candidates(study: Study) -> list[Candidate]:
    """All that finished every seed, the best on dev first.

    Raises:
        UserError: there is no dev split to choose by.
    """
    found: dict[str, list[Result]] = {}
    for result in study.results():
        found.setdefault(result.method, []).append(result)
    most = max((len(results) for results in found.values()), default=0)
    made = []
    for name, results in found.items():
        if len(results) == most:
            if "dev" not in results[0].metrics["metrics"]:
                raise UserError(f"{results[0].task}: has no dev split, and a sweep chooses on dev")
            dev = [result.metrics["metrics"]["dev"][result.metrics["primary_metric"]] for result in results]
            made.append(Candidate(name, dev, results))
    higher = study.ledger.study.direction.name == "MAXIMIZE"
    return sorted(made, key=lambda one: one.mean, reverse=higher)


def run_sweep(study: Study, machine: Resources) -> bool:
    """Do what waits in a sweep, and tell what was chosen; False if some of it failed.

    Raises:
        KeyboardInterrupt: stopped; the study can be resumed.
    """
    study.conduct(machine)
    found = candidates(study)
    controls = study.about["controls"]
    best = found[0] if found else None
    control = next((one for one in found if one.name in controls), None)
    if best is not None:
        tell(found, controls)
        write(found, study.folder.path)
        conclude(best, control)
    missing = study.missing()
    told_missing(missing, "sweep", study.folder.path)
    return not missing


def tell(found: Sequence[Candidate], controls: Sequence[str]) -> None:
    primary = found[0].results[0].metrics["primary_metric"]
    table = Table("setting", f"dev {primary}", "seeds", title="Chosen on dev: the first one")
    for one in found:
        mark = " (control)" if one.name in controls else ""
        spread = f" ± {one.spread:.4f}" if len(one.dev) > 1 else ""
        table.add_row(f"{one.name}{mark}", f"{one.mean:.4f}{spread}", str(len(one.dev)))
    Console(soft_wrap=True).print(table)


def conclude(best: Candidate, control: Candidate | None) -> None:
    """What was chosen, on test: the only time that anybody looks."""
    if control is None:
        print(f"Chosen: {best.name}. The unchanged model did not finish, so nobody knows whether that helps.")
    elif best is control:
        print(f"Chosen: {best.name}: nothing that was tried beats it on dev.")
    else:
        print(f"Chosen: {best.name}.")
    if len(best.dev) > 1 and control is not None and best is not control:
        from headwise.studies.analysis import analyze  # which takes seconds

        analyze([*best.results, *control.results], control.name).tell()
        return
    for one in [best] if control is None or best is control else [best, control]:
        metrics = one.results[0].metrics
        split = "test" if "test" in metrics["metrics"] else "dev"
        figures = [result.metrics["metrics"][split][metrics["primary_metric"]] for result in one.results]
        print(f"{one.name}: {split} {metrics['primary_metric']} {statistics.fmean(figures):.4f} ({len(figures)} seeds)")
    print("What was chosen out of many looks better than it is; headwise compare, with new seeds, tells by how much.")


def write(found: Sequence[Candidate], folder: Path) -> None:
    """All candidates' dev figures as `sweep.csv`."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["setting", "dev", "std", "seeds"])
    rows.writerows([one.name, one.mean, one.spread, len(one.dev)] for one in found)
    atomic_write(folder / "sweep.csv", text.getvalue())
