"""Studies of the relative position representations paper: tables 1 to 3."""

from collections.abc import Mapping

from headwise.studies.reproduction import Overrides, StudySpec

SIZES: dict[str, Overrides] = {"base": {"model": "base"}, "big": {"model": "big"}}
POSITIONS: dict[str, Overrides] = {
    "none": {"scheme": "none"},
    "absolute": {"scheme": "plain"},
    "relative": {"scheme": "rpr"},
    "relative and absolute": {"scheme": "rpr", "positions": "sinusoidal"},
}
TASKS: dict[str, Overrides] = {
    f"{source}-{target}": {"task": "translation", "source": source, "target": target}
    for source, target in (("en", "de"), ("en", "fr"))
}
EN_DE = {"en-de": TASKS["en-de"]}
DATA = (
    "The paper uses WMT 2014 (4.5 and 36 million pairs) and newstest2014; --data takes line-aligned files of all "
    "languages of the study, and --task en-de=PATH those of one pair."
)


def compare_positions(sizes: Mapping[str, Overrides]) -> StudySpec:
    """Return Table 1 for models of these sizes."""
    return StudySpec(
        question="are relative positions better than absolute positions for translation?",
        tasks=TASKS,
        methods={
            f"{size} {name}": {**overrides, **positions}
            for size, overrides in sizes.items()
            for name, positions in POSITIONS.items()
        },
        baseline=f"{next(iter(sizes))} absolute",
        with_models=compare_positions,
        controls={f"{size} {name}": f"{size} absolute" for size in sizes for name in POSITIONS if name != "absolute"},
        seeds=3,
        notes=(
            DATA,
            "The paper reports one run per method. It has no control without positions; this study adds one. It states "
            "without numbers that relative and absolute positions together are not better than relative ones (section "
            "4.2).",
        ),
    )


STUDIES: dict[str, StudySpec] = {
    "rpr-table1": compare_positions(SIZES),
    "rpr-table2": StudySpec(
        question="which clipping distance is sufficient?",
        tasks=EN_DE,
        methods={f"k={k}": {"scheme": "rpr", "k": k} for k in (0, 1, 2, 4, 16, 64, 256)},
        baseline="k=0",
        seeds=3,
        notes=(DATA, "k = 0 has one vector for all positions, so it has no position information and is the control."),
    ),
    "rpr-table3": StudySpec(
        question="are relative positions needed for keys, for values, or for both?",
        tasks=EN_DE,
        methods={
            "none": {"scheme": "none"},
            "keys and values": {"scheme": "rpr", "relative": "both"},
            "keys": {"scheme": "rpr", "relative": "keys"},
            "values": {"scheme": "rpr", "relative": "values"},
        },
        baseline="none",
        seeds=3,
        notes=(DATA,),
    ),
}
