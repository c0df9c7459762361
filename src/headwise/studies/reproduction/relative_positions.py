"""Relative position representations: tables 1 to 3."""

from headwise.studies.reproduction.study_spec import StudySpec

PAIRS, SIZES = ("en-de", "en-fr"), ("base", "big")
POSITIONS = {"none": "none", "absolute": "plain", "relative": "rpr"}
GERMAN = {"translation": {"source": "en", "target": "de"}}
DATA = "The paper has WMT 2014 (4.5 and 36 million pairs) and newstest2014; --data names line-aligned files."

STUDIES: dict[str, StudySpec] = {
    "rpr-table1": StudySpec(
        asks="do relative positions translate better than absolute ones?",
        tasks=GERMAN,
        methods={
            f"{pair} {size} {name}": {"source": pair[:2], "target": pair[3:], "model": size, "scheme": scheme}
            for pair in PAIRS
            for size in SIZES
            for name, scheme in POSITIONS.items()
        },
        baseline="en-de base absolute",
        controls={
            f"{pair} {size} {name}": f"{pair} {size} absolute"
            for pair in PAIRS
            for size in SIZES
            for name in ("none", "relative")
        },
        seeds=3,
        notes=(DATA, "The paper has one run of each, and no control without positions, which is added here."),
    ),
    "rpr-table2": StudySpec(
        asks="how far must relative positions reach?",
        tasks=GERMAN,
        methods={f"k={k}": {"scheme": "rpr", "k": k} for k in (0, 1, 2, 4, 16, 64, 256)},
        baseline="k=0",
        seeds=3,
        notes=(DATA, "k = 0 has one vector for all positions: it knows none, and is the control."),
    ),
    "rpr-table3": StudySpec(
        asks="do keys or values need relative positions?",
        tasks=GERMAN,
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
