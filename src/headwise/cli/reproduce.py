"""Repeat the experiments of a table or figure of the papers, on the published data or on your own, and show the paper's
results next to yours. Training options apply to all methods and override those of the paper. Values that the papers
chose by a search are chosen on dev.

examples:
  headwise reproduce --list
  headwise reproduce da-table4 --task sst2=data/sst2 --task snli=data/snli --vectors glove.6B.300d.txt --out study
  headwise reproduce da-figure3 --data data/amazon --vectors glove.6B.300d.txt --seeds 5 --jobs 4 --out study
  headwise reproduce guiding-table2 --task rte=data/rte --model MODEL --methods AG "[Next]" --out study
  headwise reproduce --resume --out study
"""

from argparse import Namespace
from typing import TYPE_CHECKING

from headwise.cli.arguments import Parser
from headwise.cli.interrupts import raise_caught_interrupts
from headwise.cli.run_options import add_run_options, option_names, run_values
from headwise.cli.study_options import (
    add_margin_option,
    add_study_options,
    add_tune_option,
    check_resume,
    require_out,
    resources,
    resume_hint,
)
from headwise.errors import UserError

if TYPE_CHECKING:
    from headwise.studies.reproduction.planning import ReproduceOptions


def add_arguments(parser: Parser) -> None:
    add_run_options(parser, add_own_arguments, exclude=["model", "tune"])


def add_own_arguments(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the table or figure, see --list")
    parser.add_argument("--list", action="store_true", help="list all tables and figures")
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="NAME[=PATH]",
        help="task to use instead of the paper's, and the path of its data; can be repeated",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=(),
        metavar="METHOD",
        help="run only these methods of the table or figure, and their control",
    )
    parser.add_argument(
        "--model",
        nargs="+",
        default=(),
        metavar="NAME",
        dest="models",
        help="Hugging Face encoders (names or directories), or sizes of translation models, to use instead of the "
        "paper's; guiding-table1, guiding-table4 and rpr-table1 take several",
    )
    parser.add_argument(
        "--baseline", metavar="METHOD", help="method to compare all others with (default: the study's controls)"
    )
    add_tune_option(parser, "default: tuned where the paper tuned, with 8 to 19 trials")
    parser.add_argument(
        "--over",
        action="append",
        nargs="+",
        default=[],
        metavar=("OPTION", "VALUE"),
        help="a training option and the values to try, instead of those of --tune; every method, baseline included, "
        "uses the one that is best on dev; can be repeated",
    )
    add_margin_option(parser)
    parser.add_argument(
        "--keep-models", action="store_true", help="keep the models of all seeds, not only of the first"
    )
    add_study_options(parser)


def run(arguments: Namespace) -> int:
    if arguments.list:
        from headwise.studies.reproduction.listing import print_reproductions

        print_reproductions()
        return 0
    if arguments.name is None and not arguments.resume:
        raise UserError("the name of a table or figure is required; headwise reproduce --list shows them")
    with raise_caught_interrupts():
        from headwise.studies.reproduction import reproduce
        from headwise.studies.reproduction.direct import write_direct_output
        from headwise.studies.reproduction.registry import DIRECT_OUTPUTS

    check_resume(arguments)
    out, machine = require_out(arguments), resources(arguments)
    if arguments.name in DIRECT_OUTPUTS and not arguments.resume:
        write_direct_output(arguments.name, direct_data(arguments), out)
        return 0
    if arguments.resume:
        study = reproduce.resume_reproduction(
            out, arguments.name, storage=arguments.storage, storage_path=arguments.storage_path, seeds=arguments.seeds
        )
    else:
        study = reproduce.create_reproduction(
            arguments.name,
            reproduce_options(arguments),
            out,
            seeds=arguments.seeds,
            storage=arguments.storage,
            storage_path=arguments.storage_path,
            keep_models=arguments.keep_models,
            margin=arguments.margin,
            load_data=True,
        )
    with resume_hint("reproduce", out, arguments.cluster):
        return 0 if reproduce.run_reproduction(study, machine) else 1


def direct_data(arguments: Namespace) -> dict[str, str | None]:
    """Return the tasks of a table that needs no training, with the paths of their data.

    Raises:
        UserError: training options were given, which have no effect.
    """
    from headwise.studies.reproduction.registry import DIRECT_OUTPUTS

    given = [name for name in vars(arguments) if name in option_names() and name != "data"]
    others = (
        arguments.methods,
        arguments.models,
        arguments.over,
        arguments.trials,
        arguments.baseline,
        arguments.margin,
    )
    if given or any(others):
        raise UserError(f"{arguments.name} needs no training; its options are --task NAME=PATH, --data and --out")
    tasks = parse_tasks(arguments)
    if (tasks or "data" in arguments) and not DIRECT_OUTPUTS[arguments.name].tasks:
        raise UserError(f"{arguments.name} needs no data; leave out --task and --data")
    if "data" in arguments:
        names = list(tasks) or list(DIRECT_OUTPUTS[arguments.name].tasks)
        if len(names) != 1 or len(arguments.data) != 1:
            raise UserError("--data is for one task; with several, use --task NAME=PATH")
        tasks = {names[0]: arguments.data[0]}
    return tasks


def parse_tasks(arguments: Namespace) -> dict[str, str | None]:
    """Return the values of --task, with the paths of their data."""
    return {name: path or None for name, _, path in (text.partition("=") for text in arguments.task)}


def reproduce_options(arguments: Namespace) -> "ReproduceOptions":
    """Return what the user changes of the study: its tasks, methods and options of training."""
    from headwise.studies.reproduction.planning import ReproduceOptions
    from headwise.studies.reproduction.registry import get_study

    study_tasks = get_study(arguments.name).tasks
    tasks = parse_tasks(arguments)
    types = {study_tasks.get(task, {}).get("task", task) for task in tasks or study_tasks}
    if "data" in arguments and len(types) > 1:
        raise UserError(
            f"--data is for one task; this study has several: {' '.join(f'--task {x}=PATH' for x in study_tasks)}"
        )
    first = next(iter(tasks or study_tasks))
    values = run_values(arguments, study_tasks.get(first, {}).get("task", first))
    return ReproduceOptions(
        tasks,
        tuple(arguments.methods),
        values,
        models=tuple(arguments.models),
        baseline=arguments.baseline,
        over=tuple(map(tuple, arguments.over)),
        trials=arguments.trials,
    )
