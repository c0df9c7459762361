"""Search the best weights of guides, or the best values of any training option. The best candidate on dev is chosen and
then evaluated on test. The unchanged model is always one of the candidates.

examples:
  headwise sweep --data reviews.csv --model bert-base-uncased --guides mdg pdg --out sweep
  headwise sweep --task sst2 --model rpr --over learning_rate 1e-3 3e-4 1e-4 --over layers 1 2 --seeds 3 --out sweep
  headwise sweep --data reviews.csv --model bert-base-uncased --guides mdg pdg --sampler tpe --trials 40 --out sweep
  headwise sweep --resume --out sweep
"""

from argparse import Namespace

from headwise.cli.arguments import Parser
from headwise.cli.run_options import add_run_options
from headwise.cli.study_options import (
    add_study_options,
    base_config,
    check_resume,
    require_out,
    resources,
    resume_hint,
    resume_study,
)


def add_arguments(parser: Parser) -> None:
    add_run_options(parser, add_own_arguments)


def add_own_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--task",
        metavar="NAME[=PATH]",
        help="built-in task, see headwise tasks, and the path of its data (default: your own data)",
    )
    parser.add_argument(
        "--over",
        action="append",
        nargs="+",
        default=[],
        metavar=("NAME", "VALUE"),
        help="an option or a guide, and the values to try; can be repeated. Guides that --guides lists without a "
        "weight are tried with 0.1, 0.01, 0.001 and 0.0001, as in the attention-guiding paper",
    )
    parser.add_argument(
        "--sampler",
        choices=["grid", "tpe", "random"],
        default="grid",
        help="grid: try all combinations. tpe, random: Optuna samples values between the smallest and the largest and "
        "stops poor trials early (default: grid)",
    )
    parser.add_argument("--trials", type=int, metavar="N", help="number of trials of tpe and random")
    add_study_options(parser)


def run(arguments: Namespace) -> int:
    from headwise.studies import sweep
    from headwise.studies.ray_tasks import check_search_database
    from headwise.studies.search_space import parse_search_space

    check_resume(arguments)
    out, machine = require_out(arguments), resources(arguments)
    if arguments.resume:
        study = resume_study(arguments, out, kinds=["sweep", "search"])
    else:
        if arguments.cluster is not None and arguments.sampler != "grid":
            check_search_database(arguments.storage)
        config = base_config(arguments, arguments.task)
        study = sweep.create_sweep(
            config,
            parse_search_space(config, tuple(map(tuple, arguments.over))),
            out,
            sampler=arguments.sampler,
            trials=arguments.trials,
            seeds=1 if arguments.seeds is None else arguments.seeds,
            storage=arguments.storage,
            storage_path=arguments.storage_path,
        )
    with resume_hint("sweep", out, arguments.cluster):
        return 0 if sweep.run_sweep(study, machine) else 1
