"""`headwise compare`: which method is better, and can one believe it?"""

import re
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro import cli
from tyro.conf import DisallowNone, FlagCreatePairsOff, UseAppendAction, arg

from headwise.cli.errors import in_one_line
from headwise.cli.study_options import StudyOptions, resumable
from headwise.errors import UserError
from headwise.training.core.config import RunConfig

if TYPE_CHECKING:
    from headwise.studies.methods import Method


@dataclass(frozen=True, kw_only=True)
class Compare(StudyOptions):
    """Compare methods on your own texts or on named tasks: the same splits, batches and initial values for all of
    them, many seeds, and an answer with its uncertainty. Settings of training hold for all methods.

    $ headwise compare --data reviews.csv --methods plain rpr distance-aware --vectors glove.6B.300d.txt --out study
    $ headwise compare --data reviews.csv --methods bert-base-uncased+mdg+pdg --seeds 10 --out study
    $ headwise compare --task sst2=data/sst2 --task ag-news=data/ag_news --methods plain tener --jobs 8 --out study
    $ headwise compare --data reviews.csv --methods wide="--model rpr --heads 32" narrow="--model rpr" --out study
    $ headwise compare --resume --seeds 20 --out study
    """

    task: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME[=PATH]")] = ()
    """A task by name, with its data's place where there are several tasks; may be said again. `headwise tasks` lists
    them. Without one, the data is your own."""
    methods: Annotated[tuple[str, ...], arg(metavar="METHODS")] = ()
    """What to compare: none, plain, rpr, …, MODEL, MODEL+mdg+pdg, MODEL+retrofit:distance-aware, or
    NAME="--model … --guides …" with any option of training. Controls are added."""
    baseline: str | None = None
    """The method that the others are compared to; by default the control."""
    keep_models: bool = False
    """Keep all trained models; otherwise only those of the first seed."""

    def __call__(self, command: str) -> int:
        from headwise.studies import compare
        from headwise.studies.study import Study

        assert self.out is not None
        machine = self.machine()
        if self.resume:
            study = Study.resume(self.out, storage=self.storage, seeds=self.seeds, kinds=["compare"])
        else:
            bases = self.bases()
            study = compare.create_comparison(
                bases,
                [as_method(text, bases[0]) for text in self.methods],
                10 if self.seeds is None else self.seeds,
                self.out,
                baseline=self.baseline,
                storage=self.storage,
                keep_models=self.keep_models,
            )
        with resumable("compare", self.out):
            return 0 if compare.run_comparison(study, machine) else 1

    def bases(self) -> list[RunConfig]:
        """Of each task the settings that all methods share."""
        if not self.methods:
            raise UserError("--methods is missing: what shall be compared? --methods plain rpr distance-aware")
        if not self.task:
            return [self.base(None)]
        if len(self.task) > 1 and getattr(self, "data", None):
            raise UserError("--data is of one task; of several, each has its own: --task sst2=PATH --task ag-news=PATH")
        named = [one.partition("=") for one in self.task]
        return [self.base(name, path or None) for name, _, path in named]


def as_method(text: str, base: RunConfig) -> "Method":
    """A method in short, or with a name and options of training."""
    from headwise.studies.methods import Method, parse_method

    named = re.fullmatch(r"([^=\s]+)=\s*((?:--.*)?)", text, re.DOTALL)
    if named is None:
        return parse_method(text)
    name, options = named.groups()
    made: Any = type(base)
    try:
        with in_one_line():
            asked = cli(made, args=shlex.split(options), default=base, config=(FlagCreatePairsOff, DisallowNone))
    except UserError as mistake:
        raise UserError(f"--methods {name}: {mistake}") from None
    before = asdict(base)
    return Method(name, {setting: value for setting, value in asdict(asked).items() if value != before[setting]})
