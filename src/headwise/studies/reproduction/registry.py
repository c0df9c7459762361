"""All tables and figures, by name."""

from headwise.errors import UserError
from headwise.studies.reproduction import distance_aware, guiding, relative_positions
from headwise.studies.reproduction.study_spec import Pictured, StudySpec

STUDIES: dict[str, StudySpec] = distance_aware.STUDIES | relative_positions.STUDIES | guiding.STUDIES
PICTURES: dict[str, Pictured] = distance_aware.PICTURES | guiding.PICTURES


def get_study(name: str) -> StudySpec:
    """A study by name.

    Raises:
        UserError: there is none, or it is a picture.
    """
    if name in PICTURES:
        raise UserError(f"{name}: a picture of a trained model's heads; {PICTURES[name].command} draws it")
    if name not in STUDIES:
        raise UserError(f"no table or figure {name!r}; headwise reproduce --list names them")
    return STUDIES[name]
