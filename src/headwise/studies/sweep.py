"""`headwise sweep`: hyperparameters are chosen on dev, and only the chosen ones are evaluated on test."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwise.csv_cells import quote_formula
from headwise.errors import UserError
from headwise.studies.compare import log_unfinished
from headwise.studies.method_checks import check_candidates, check_config
from headwise.studies.methods import Method
from headwise.studies.plan import Result, plan_runs, task_name
from headwise.studies.search import CONTROL, SearchSpec
from headwise.studies.search_space import Dimension, build_grid, check_sampled_values, treatment_off
from headwise.studies.study import Study, higher_is_better
from headwise.studies.worker_pool import Resources
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import atomic_write


def create_sweep(
    base: RunConfig,
    search_space: Sequence[Dimension],
    out_dir: Path,
    *,
    sampler: str = "grid",
    trials: int | None = None,
    seeds: int = 1,
    storage: str | None = None,
    storage_path: str | None = None,
) -> Study:
    """Create a sweep and enqueue its runs.

    Args:
        base: the configuration that all candidates share.
        search_space: see `headwise.studies.search_space.parse_search_space`.
        out_dir: the study's directory.
        sampler: grid for all combinations; tpe or random sample between the lowest and the highest values.
        trials: the number of trials of tpe and random.
        seeds: the number of seeds for each candidate of a grid.
        storage: the database's URL; by default a file in the directory.
        storage_path: the path or URL to which runs are copied; by default all machines share the directory.

    Raises:
        UserError: options are invalid or contradict each other.
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    if sampler == "grid" and trials is not None:
        raise UserError("--sampler grid: --trials is for the samplers tpe and random")
    if sampler != "grid" and trials is None:
        raise UserError(f"--sampler {sampler}: --trials N is required")
    check_config(base)
    maximize = higher_is_better([base])
    candidates, controls = build_grid(search_space, base)
    try:
        runs = plan_runs([base], [*controls, *candidates], range(base.seed, base.seed + seeds))
    except UserError as error:
        raise UserError(str(error).removeprefix("--methods ")) from None
    if trials is None:
        check_candidates(runs)
        return Study.create(
            out_dir,
            "sweep",
            runs,
            storage=storage,
            storage_path=storage_path,
            maximize=maximize,
            objective_split="dev",
            controls=[method.name for method in controls],
        )
    if seeds > 1:
        raise UserError(
            f"--seeds {seeds}: a sampler tries each candidate with one seed; use --sampler grid, or compare the chosen "
            "candidate afterwards"
        )
    if trials < 1:
        raise UserError(f"--trials must be at least 1, got {trials}")
    check_sampled_values(search_space)
    check_candidates(runs)  # the values of --over are the lowest and the highest that are sampled
    spec = SearchSpec(task_name(base), base.resolve_paths().to_yaml(), tuple(search_space), trials, sampler)
    return Study.create(
        out_dir,
        "search",
        plan_runs([base], [Method(CONTROL, treatment_off(base))], [base.seed]),
        storage=storage,
        storage_path=storage_path,
        maximize=maximize,
        objective_split="dev",
        controls=[CONTROL],
        search=spec.to_dict(),
    )


@dataclass(frozen=True)
class Candidate:
    """A candidate of a sweep and its dev metric for each seed."""

    name: str
    dev_values: list[float]
    results: list[Result]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.dev_values)

    @property
    def std(self) -> float:
        return statistics.stdev(self.dev_values) if len(self.dev_values) > 1 else 0.0


def rank_candidates(study: Study) -> list[Candidate]:
    """Return the candidates that finished all seeds, the best on dev first.

    Raises:
        UserError: there is no dev split.
    """
    results_by_method: dict[str, list[Result]] = {}
    for result in study.results():
        results_by_method.setdefault(result.method, []).append(result)
    num_seeds = max((len(results) for results in results_by_method.values()), default=0)
    candidates = []
    for name, results in results_by_method.items():
        if len(results) == num_seeds:
            if "dev" not in results[0].metrics["metrics"]:
                raise UserError(f"{results[0].task}: a sweep needs a dev split, and there is none")
            dev_values = [result.metrics["metrics"]["dev"][result.metrics["primary_metric"]] for result in results]
            candidates.append(Candidate(name, dev_values, results))
    return sorted(candidates, key=lambda candidate: candidate.mean, reverse=study.trials.maximize)


def run_sweep(study: Study, resources: Resources) -> bool:
    """Run a sweep and print the chosen candidate. Return whether all runs finished.

    Raises:
        KeyboardInterrupt: the study was stopped; it can be resumed.
    """
    study.run(resources)
    candidates = rank_candidates(study)
    controls = study.metadata["controls"]
    if candidates:
        print_candidates(candidates, controls)
        write_csv(candidates, study.study_dir.path)
        print_choice(candidates[0], next((x for x in candidates if x.name in controls), None))
    unfinished = study.unfinished()
    log_unfinished(unfinished, "sweep", study.study_dir.path)
    return not unfinished


def print_candidates(candidates: Sequence[Candidate], controls: Sequence[str]) -> None:
    """Print the candidates and their dev metrics."""
    primary_metric = candidates[0].results[0].metrics["primary_metric"]
    table = Table("candidate", f"dev {primary_metric}", "seeds", title="Candidates, best on dev first")
    for candidate in candidates:
        label = " (control)" if candidate.name in controls else ""
        std = f" ± {candidate.std:.4f}" if len(candidate.dev_values) > 1 else ""
        cells = (f"{candidate.name}{label}", f"{candidate.mean:.4f}{std}", str(len(candidate.dev_values)))
        table.add_row(*map(Text, cells))  # no markup: names can contain [x]
    Console(soft_wrap=True).print(table)


def print_choice(best: Candidate, control: Candidate | None) -> None:
    """Print the chosen candidate and its test metric, compared with the control."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if control is None:
        console.print(f"Best on dev: {best.name}. The control did not finish, so there is nothing to compare with.")
    elif best is control:
        console.print(f"Best on dev: {best.name}. No other candidate is better than this control.")
    else:
        console.print(f"Best on dev: {best.name}.")
    if len(best.dev_values) > 1 and control is not None and best is not control:
        from headwise.studies.analysis import analyze  # takes seconds to import
        from headwise.studies.report import print_analysis

        print_analysis(analyze([*best.results, *control.results], control.name))
    else:
        for candidate in [best] if control is None or best is control else [best, control]:
            print_test_metric(candidate, console)
    console.print(
        "The best of many candidates looks better than it is; run headwise compare with new seeds to estimate its gain."
    )


def print_test_metric(candidate: Candidate, console: Console) -> None:
    """Print the mean test metric of a candidate; without a test split, that on dev."""
    metrics = candidate.results[0].metrics
    split = "test" if "test" in metrics["metrics"] else "dev"
    values = [result.metrics["metrics"][split][metrics["primary_metric"]] for result in candidate.results]
    num_seeds = "1 seed" if len(values) == 1 else f"{len(values)} seeds"
    console.print(f"{candidate.name}: {split} {metrics['primary_metric']} {statistics.fmean(values):.4f} ({num_seeds})")


def write_csv(candidates: Sequence[Candidate], out_dir: Path) -> None:
    """Write the dev metrics of all candidates to `sweep.csv`."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["candidate", "dev_mean", "dev_std", "seeds"])
    rows.writerows([quote_formula(x.name), x.mean, x.std, len(x.dev_values)] for x in candidates)
    atomic_write(out_dir / "sweep.csv", text.getvalue())
