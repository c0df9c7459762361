"""All tables and figures, by name."""

from headwise.mistakes import Mistake
from headwise.studies.reproducing import distance_aware, guiding, relative_positions
from headwise.studies.reproducing.declared import Declared, Pictured

STUDIES: dict[str, Declared] = distance_aware.STUDIES | relative_positions.STUDIES | guiding.STUDIES
PICTURES: dict[str, Pictured] = distance_aware.PICTURES | guiding.PICTURES


def study(name: str) -> Declared:
    """A study by name.

    Raises:
        Mistake: there is none, or it is a picture.
    """
    if name in PICTURES:
        raise Mistake(f"{name}: a picture of a trained model's heads; {PICTURES[name].command} draws it")
    if name not in STUDIES:
        raise Mistake(f"no table or figure {name!r}; headwise reproduce --list names them")
    return STUDIES[name]
