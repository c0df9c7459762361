"""Search guide weights, or values of any option of training. The best candidate is chosen on dev and reported on test
once. The unchanged model is always among the candidates.

examples:
  headwise sweep --data reviews.csv --model bert-base-uncased --guides mdg pdg --out sweep
  headwise sweep --task sst2 --model rpr --over learning_rate 1e-3 3e-4 1e-4 --over layers 1 2 --seeds 3 --out sweep
  headwise sweep --data reviews.csv --model bert-base-uncased --guides mdg pdg --sampler tpe --trials 40 --out sweep
  headwise sweep --resume --out sweep
"""

from argparse import Namespace

from headwise.cli.arguments import Parser
from headwise.cli.run_options import add_run_options
from headwise.cli.study_options import add_study_options, base_config, require_out, resources, resume_hint


def add_arguments(parser: Parser) -> None:
    add_run_options(parser, add_own_arguments)


def add_own_arguments(parser: Parser) -> None:
    parser.add_argument("--task", metavar="NAME", help="a task by name (headwise tasks lists them); default: own data")
    parser.add_argument(
        "--over",
        action="append",
        nargs="+",
        default=[],
        metavar=("NAME", "VALUE"),
        help="an option or a guide, and the values to try; repeatable. Guides without a weight are tried with 0.1, "
        "0.01, 0.001 and 0.0001, as in their paper",
    )
    parser.add_argument(
        "--sampler",
        choices=["grid", "tpe", "random"],
        default="grid",
        help="all combinations, or values drawn by Optuna between the smallest and the largest, where poor trials are "
        "stopped early (default: grid)",
    )
    parser.add_argument("--trials", type=int, metavar="N", help="number of draws of tpe and random")
    add_study_options(parser)


def run(arguments: Namespace) -> int:
    from headwise.studies import sweep
    from headwise.studies.search_space import parse_search_space
    from headwise.studies.study import Study

    out, machine = require_out(arguments), resources(arguments)
    if arguments.resume:
        study = Study.resume(out, storage=arguments.storage, seeds=arguments.seeds, kinds=["sweep", "search"])
    else:
        config = base_config(arguments, arguments.task)
        study = sweep.create_sweep(
            config,
            parse_search_space(config, tuple(map(tuple, arguments.over))),
            out,
            sampler=arguments.sampler,
            trials=arguments.trials,
            seeds=1 if arguments.seeds is None else arguments.seeds,
            storage=arguments.storage,
        )
    with resume_hint("sweep", out):
        return 0 if sweep.run_sweep(study, machine) else 1
