"""Registry of the tables and figures that can be reproduced."""

import difflib

from headwise.errors import UserError
from headwise.studies.reproduction import DirectOutput, StudySpec, distance_aware, guiding, relative_positions

STUDIES: dict[str, StudySpec] = distance_aware.STUDIES | relative_positions.STUDIES | guiding.STUDIES

#: Tables and figures that need no training.
DIRECT_OUTPUTS: dict[str, DirectOutput] = distance_aware.DIRECT_OUTPUTS


def get_study(name: str) -> StudySpec:
    """Return a study by name.

    Raises:
        UserError: there is no such study.
    """
    if name not in STUDIES:
        nearest = difflib.get_close_matches(name, [*STUDIES, *DIRECT_OUTPUTS], n=1)
        question = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UserError(f"no table or figure {name!r}{question}; headwise reproduce --list lists all names")
    return STUDIES[name]
