"""What commands print in the end."""

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from headwise import tasks
from headwise.training.run import Finished


def told(run: Finished) -> None:
    """The figures of a finished run, and what to do next."""
    metrics = run.metrics
    for split, figures in metrics["figures"].items():
        print(line(split, figures, metrics["primary"], metrics["standard_error"][split]))
    print(f"The model, its card and predictions are in {run.folder}")
    print(f"  headwise predict {run.folder} FILE --out LABELLED")


def judged(found: dict[str, Any]) -> None:
    """The figures of an evaluation."""
    print(f"{found['on']} ({found['rows']:,} rows)")
    print(line("figures", found["figures"], found["primary"], found["standard_error"]))


def line(name: str, figures: dict[str, float], primary: str, error: float) -> str:
    """The primary figure with its error bar first.

    >>> line("test", {"macro_f1": 0.8, "accuracy": 0.9}, "accuracy", 0.01)
    'test: accuracy 0.9000 ± 0.0100, macro_f1 0.8000'
    """
    rest = [f"{other} {value:.4f}" for other, value in figures.items() if other != primary]
    return f"{name}: {', '.join([f'{primary} {figures[primary]:.4f} ± {error:.4f}', *rest])}"


def tasks_told() -> None:
    """The named tasks: what each asks, which paper has it, where its data comes from."""
    console = Console()
    for task in tasks.listed():
        console.print(f"[bold]{task.name}[/] ({task.primary})", highlight=False)
        for what, text in (("", task.about), ("paper: ", task.paper), ("data: ", task.source)):
            if text:
                console.print(Padding(Text(f"{what}{text}"), (0, 0, 0, 2), expand=False))
