"""`headwise reproduce`: the papers' tables and figures, again."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from headwise.cli.study_options import StudyOptions, resumable
from headwise.errors import UserError
from headwise.training.registry import get_task_type


@dataclass(frozen=True, kw_only=True)
class Reproduce(StudyOptions):
    """Do a table or figure of the papers again, on the published data or on what you have, and tell the paper's figures
    beside yours. Settings of training hold for all methods, and win over the paper's.

    $ headwise reproduce --list
    $ headwise reproduce da-table4 --task sst2=data/sst2 --task snli=data/snli --vectors glove.6B.300d.txt --out study
    $ headwise reproduce da-figure3 --data data/amazon --vectors glove.6B.300d.txt --seeds 5 --jobs 4 --out study
    $ headwise reproduce guiding-table2 --task rte=data/rte --model MODEL --methods AG "[Next]" --out study
    $ headwise reproduce --resume --out study
    """

    name: Positional[Annotated[str | None, arg(metavar="NAME")]] = None
    """Which table or figure."""
    list: bool = False
    """Name all of them."""
    task: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME[=PATH]")] = ()
    """A task instead of the study's own, with its data's place; may be said again."""
    methods: Annotated[tuple[str, ...], arg(metavar="METHODS")] = ()
    """Some of the study's methods only; what they are compared with is added."""
    keep_models: bool = False
    """Keep all trained models; otherwise only those of the first seed."""

    def __post_init__(self) -> None:
        if not self.list:
            if self.name is None and not self.resume:
                raise UserError("which table or figure? headwise reproduce --list names them")
            super().__post_init__()

    def __call__(self, command: str) -> int:
        if self.list:
            from headwise.studies.reproduction.listing import print_reproductions

            print_reproductions()
            return 0
        from headwise.studies.reproduction import reproduce
        from headwise.studies.study import Study

        assert self.out is not None
        if self.resume:
            study = Study.resume(self.out, storage=self.storage, seeds=self.seeds)
        else:
            assert self.name is not None
            study = reproduce.create_reproduction(
                self.name, self.asked(), self.out, seeds=self.seeds, storage=self.storage, keep_models=self.keep_models
            )
        with resumable("reproduce", self.out):
            return 0 if reproduce.run_reproduction(study, self.machine()) else 1

    def asked(self) -> Any:
        """What the user wants otherwise than the paper."""
        from headwise.studies.reproduction.registry import get_study
        from headwise.studies.reproduction.reproduce import ReproduceOptions

        assert self.name is not None
        tasks = get_study(self.name).tasks
        named = {name: path or None for name, _, path in (one.partition("=") for one in self.task)}
        data: Sequence[str] = getattr(self, "data", ())
        if data and len(named or tasks) > 1:
            raise UserError(
                f"--data is of one task; here each has its own: {' '.join(f'--task {x}=PATH' for x in tasks)}"
            )
        made = get_task_type(next(iter(named or tasks))).config_class
        own = {field.name: getattr(self, field.name, field.default) for field in fields(made) if field.name != "task"}
        given = {name: value for name, value in own.items() if value != made.default_value(name)}
        return ReproduceOptions(named, self.methods, given)


def first_task(args: Sequence[str]) -> str | None:
    """The task whose settings the command asks for: the first that is named, or else the study's."""
    from headwise.cli.train import value_of
    from headwise.studies.reproduction.registry import STUDIES

    named = value_of("--task", args)
    study = next((arg for arg in args[1:] if arg in STUDIES), None)
    return named or (None if study is None else next(iter(STUDIES[study].tasks)))
