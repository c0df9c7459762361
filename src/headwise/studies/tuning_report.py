"""What a study reports on its tuning: tables of the chosen settings and of all trials, and warnings."""

import csv
import io
import math

from headwise.csv_cells import quote_formula
from headwise.studies.plan import Result
from headwise.studies.study import Study
from headwise.studies.tables import TextTable
from headwise.studies.trial_design import default_learning_rate
from headwise.studies.tuning import (
    TunedMethod,
    choose_candidates,
    dev_mean,
    dev_metric,
    get_tuned_methods,
    group_results,
)
from headwise.training.core.run_dir import atomic_write

#: The file with the dev metrics of all trials.
TRIALS_FILE = "trials.csv"

#: What a report states if its methods were not tuned.
NOT_TUNED = (
    "The methods were not tuned: all have the default settings or those of the command line, which can suit one method "
    "better than another. --tune gives every method the same number of dev trials."
)


def build_choice_tables(study: Study) -> list[TextTable]:
    """Return a table of the chosen settings for each task."""
    choices = choose_candidates(study)
    tables = []
    for task in dict.fromkeys(choice.tuned.task for choice in choices):
        task_choices = [choice for choice in choices if choice.tuned.task == task]
        metric = dev_metric(task_choices[0].results[0])
        rows = [
            (
                choice.tuned.method,
                choice.values,
                f"{choice.dev_value:.{metric.digits}f}",
                f"{choice.num_finished} of {choice.tuned.num_trials}",
            )
            for choice in task_choices
        ]
        header = ("method", "chosen", f"dev {metric.name}", "trials")
        tables.append(
            TextTable(f"{task}: settings chosen on dev, with seeds that the study does not use", header, tuple(rows))
        )
    return tables


def describe_tuning(study: Study) -> list[str]:
    """Return what a reader has to know: that methods were not tuned, or chosen learning rates at the end of a range."""
    if not get_tuned_methods(study):
        return [NOT_TUNED]
    configs = {(x.run.task, x.run.method): x.run.config for x in study.trials.statuses()}
    rates = {key: config.learning_rate or default_learning_rate(config) for key, config in configs.items()}
    lines = []
    for choice in choose_candidates(study):
        tuned = choice.tuned
        if not tuned.second:  # few trials, or the values of the user
            continue
        tried = [rates[tuned.task, name] for name in tuned.candidates if (tuned.task, name) in rates]
        chosen = rates[tuned.task, choice.results[0].method]
        for end, other, extreme in (("highest", "higher", max(tried)), ("lowest", "lower", min(tried))):
            if chosen == extreme and min(tried) < max(tried):
                lines.append(
                    f"{tuned.task}, {tuned.method}: the chosen learning rate {chosen:g} is the {end} that was tried. "
                    f"A {other} one may be better: --learning-rate {chosen:g} moves the range."
                )
    return lines


def build_trial_tables(study: Study) -> list[TextTable]:
    """Return a table of all trials for each task."""
    rows_by_task: dict[str, list[tuple[str, ...]]] = {}
    for tuned, name, trials in list_trials(study):
        cells = ("", "") if not trials else (f"{dev_mean(trials):.{dev_metric(trials[0]).digits}f}", str(len(trials)))
        rows_by_task.setdefault(tuned.task, []).append((tuned.method, tuned.settings(name), *cells))
    header = ("method", "settings", "dev metric", "seeds")
    return [TextTable(f"{task}: all trials", header, tuple(rows)) for task, rows in rows_by_task.items()]


def list_trials(study: Study) -> list[tuple[TunedMethod, str, list[Result]]]:
    """Return, for each candidate that is or will be tried, its method, its name and its finished trials."""
    results = group_results(study)
    tried = {(status.run.task, status.run.method) for status in study.trials.statuses()}
    return [
        (x, name, results.get((x.task, name), []))
        for x in get_tuned_methods(study)
        for name in x.candidates
        if (x.task, name) in tried
    ]


def write_trials(study: Study) -> None:
    """Write the dev metrics of all trials to `trials.csv`, if the study has any."""
    if get_tuned_methods(study):
        atomic_write(study.study_dir.path / TRIALS_FILE, trials_csv(study))


def trials_csv(study: Study) -> str:
    """Return the dev metrics of all trials as CSV, as means over seeds."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["task", "method", "settings", "dev_metric", "dev_value", "seeds"])
    for tuned, name, trials in list_trials(study):
        cells = (tuned.task, tuned.method, tuned.settings(name), dev_metric(trials[0]).name if trials else "")
        rows.writerow([*map(quote_formula, cells), dev_mean(trials) if trials else math.nan, len(trials)])
    return text.getvalue()
