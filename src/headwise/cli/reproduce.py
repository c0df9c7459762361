"""Repeat the experiments of a table or figure of the papers, on the published data or on your own, and show the paper's
results next to yours. Training options apply to all methods and override those of the paper.

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
from headwise.cli.run_options import add_run_options, config_class_of, run_values
from headwise.cli.study_options import add_study_options, require_out, resources, resume_hint, resume_study
from headwise.errors import UserError

if TYPE_CHECKING:
    from headwise.studies.reproduction.reproduce import ReproduceOptions


def add_arguments(parser: Parser) -> None:
    add_run_options(parser, add_own_arguments)


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
    from headwise.studies.reproduction import reproduce

    out, machine = require_out(arguments), resources(arguments)
    if arguments.resume:
        study = resume_study(arguments, out)
    else:
        study = reproduce.create_reproduction(
            arguments.name,
            reproduce_options(arguments),
            out,
            seeds=arguments.seeds,
            storage=arguments.storage,
            storage_path=arguments.storage_path,
            keep_models=arguments.keep_models,
        )
    with resume_hint("reproduce", out):
        return 0 if reproduce.run_reproduction(study, machine) else 1


def reproduce_options(arguments: Namespace) -> "ReproduceOptions":
    """Return what the user changes of the study: its tasks, methods and options of training."""
    from headwise.studies.reproduction.registry import get_study
    from headwise.studies.reproduction.reproduce import ReproduceOptions

    study_tasks = get_study(arguments.name).tasks
    tasks = {name: path or None for name, _, path in (text.partition("=") for text in arguments.task)}
    if "data" in arguments and len(tasks or study_tasks) > 1:
        raise UserError(
            f"--data is for one task; this study has several: {' '.join(f'--task {x}=PATH' for x in study_tasks)}"
        )
    task = next(iter(tasks or study_tasks))
    defaults = config_class_of(task)
    values = run_values(arguments, task)
    changed = {name: value for name, value in values.items() if value != defaults.default_value(name)}
    return ReproduceOptions(tasks, tuple(arguments.methods), changed)
