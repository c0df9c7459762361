"""What commands print in the end."""

from shlex import quote
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from headwise import tasks
from headwise.tasks.mind import MIND
from headwise.training.run import RunResult

#: What `headwise predict` takes, where it is not a file of rows.
USE = {"clicks": "FOLDER --out prediction.zip"}


def print_result(run: RunResult) -> None:
    """The figures of a finished run, and what to do next."""
    metrics = run.metrics
    for split, figures in metrics["metrics"].items():
        print(line(split, figures, metrics["primary_metric"], metrics["standard_error"][split]))
        beside(metrics.get("baselines", {}).get(split, {}), metrics["primary_metric"])
    print(f"The model, its card and predictions are in {run.folder}")
    print(f"  headwise predict {quote(str(run.folder))} {USE.get(metrics['label_type'], 'FILE --out LABELLED')}")


def print_evaluation(found: dict[str, Any]) -> None:
    """The figures of an evaluation."""
    print(f"{found['dataset']} ({found['rows']:,} rows)")
    print(line("figures", found["metrics"], found["primary_metric"], found["standard_error"]))
    beside(found.get("baselines", {}), found["primary_metric"])


def beside(others: dict[str, dict[str, float]], primary: str) -> None:
    """The figures of what a model is compared with."""
    for name, figures in others.items():
        print(f"  beside {line(name, figures, primary)}")


def line(name: str, figures: dict[str, float], primary: str, error: float | None = None) -> str:
    """The primary figure with its error bar, where it has one, first.

    >>> line("test", {"macro_f1": 0.8, "accuracy": 0.9}, "accuracy", 0.01)
    'test: accuracy 0.9000 ± 0.0100, macro_f1 0.8000'
    >>> line("test", {"mrr": 0.5, "queries": 1300.0}, "mrr")
    'test: mrr 0.5000, queries 1,300'
    """
    rest = [f"{other} {number(value)}" for other, value in figures.items() if other != primary]
    first = f"{primary} {figures[primary]:.4f}" + ("" if error is None else f" ± {error:.4f}")
    return f"{name}: {', '.join([first, *rest])}"


def number(value: float) -> str:
    """A figure, or, without a fraction, a count."""
    return f"{value:,.0f}" if value > 1 and float(value).is_integer() else f"{value:.4f}"


def print_tasks() -> None:
    """The named tasks: what each asks, which paper has it, where its data comes from."""
    console = Console()
    for task in (*tasks.list_tasks(), MIND):
        console.print(f"[bold]{task.name}[/] ({task.primary})", highlight=False)
        for what, text in (("", task.about), ("paper: ", task.paper), ("data: ", task.source)):
            if text:
                console.print(Padding(Text(f"{what}{text}"), (0, 0, 0, 2), expand=False))
