"""`headwise sweep`: which weights, or which setting?"""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import UseAppendAction, arg

from headwise.cli.study_options import StudyOptions, resumable


@dataclass(frozen=True, kw_only=True)
class Sweep(StudyOptions):
    """Try weights of guides, or values of any setting of training; choose on dev, report on test once. The unchanged
    model is always among the candidates.

    $ headwise sweep --data reviews.csv --model bert-base-uncased --guides mdg pdg --out sweep
    $ headwise sweep --task sst2 --model rpr --over learning_rate 1e-3 3e-4 1e-4 --over layers 1 2 --seeds 3 --out sweep
    $ headwise sweep --data reviews.csv --model bert-base-uncased --guides mdg pdg --sampler tpe --trials 40 --out sweep
    $ headwise sweep --resume --out sweep
    """

    over: Annotated[UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="NAME VALUE VALUE")] = ()
    """A setting, or a guide, and what to try; may be said again. Guides without a weight are tried with 0.1, 0.01,
    0.001 and 0.0001, as in their paper."""
    sampler: Literal["grid", "tpe", "random"] = "grid"
    """All combinations, or values between the least and the greatest, drawn by Optuna; what does worse than others had
    done by then is stopped early."""
    trials: int | None = None
    """How often a sampler draws."""

    def __call__(self, command: str) -> int:
        from headwise.studies import sweep
        from headwise.studies.search_space import parse_search_space
        from headwise.studies.study import Study

        assert self.out is not None
        machine = self.machine()
        if self.resume:
            study = Study.resume(self.out, storage=self.storage, seeds=self.seeds, kinds=["sweep", "search"])
        else:
            base = self.base(getattr(self, "task", None))
            study = sweep.create_sweep(
                base,
                parse_search_space(base, self.over),
                self.out,
                sampler=self.sampler,
                trials=self.trials,
                seeds=1 if self.seeds is None else self.seeds,
                storage=self.storage,
            )
        with resumable("sweep", self.out):
            return 0 if sweep.run_sweep(study, machine) else 1
