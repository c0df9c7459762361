"""Registry of the tables and figures that can be reproduced."""

from headwise.errors import UserError
from headwise.studies.reproduction import InspectionFigure, StudySpec, distance_aware, guiding, relative_positions

STUDIES: dict[str, StudySpec] = distance_aware.STUDIES | relative_positions.STUDIES | guiding.STUDIES
INSPECTION_FIGURES: dict[str, InspectionFigure] = distance_aware.INSPECTION_FIGURES | guiding.INSPECTION_FIGURES


def get_study(name: str) -> StudySpec:
    """Return a study by name.

    Raises:
        UserError: there is no such study, or it is a figure of attention heads.
    """
    if name in INSPECTION_FIGURES:
        raise UserError(f"{name} shows the heads of a trained model; draw it with {INSPECTION_FIGURES[name].command}")
    if name not in STUDIES:
        raise UserError(f"no table or figure {name!r}; headwise reproduce --list lists all names")
    return STUDIES[name]
