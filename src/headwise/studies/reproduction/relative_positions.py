"""Studies of the relative position representations paper: tables 1 to 3."""

from headwise.studies.reproduction import StudySpec

LANGUAGE_PAIRS, SIZES = ("en-de", "en-fr"), ("base", "big")
POSITIONS = {"none": "none", "absolute": "plain", "relative": "rpr"}
TASKS = {"translation": {"source": "en", "target": "de"}}
DATA = "The paper uses WMT 2014 (4.5 and 36 million pairs) and newstest2014; --data takes line-aligned files."

STUDIES: dict[str, StudySpec] = {
    "rpr-table1": StudySpec(
        question="are relative positions better than absolute positions for translation?",
        tasks=TASKS,
        methods={
            f"{pair} {size} {name}": {"source": pair[:2], "target": pair[3:], "model": size, "scheme": scheme}
            for pair in LANGUAGE_PAIRS
            for size in SIZES
            for name, scheme in POSITIONS.items()
        },
        baseline="en-de base absolute",
        controls={
            f"{pair} {size} {name}": f"{pair} {size} absolute"
            for pair in LANGUAGE_PAIRS
            for size in SIZES
            for name in ("none", "relative")
        },
        seeds=3,
        notes=(DATA, "The paper reports one run per method. It has no control without positions; this study adds one."),
    ),
    "rpr-table2": StudySpec(
        question="which clipping distance is sufficient?",
        tasks=TASKS,
        methods={f"k={k}": {"scheme": "rpr", "k": k} for k in (0, 1, 2, 4, 16, 64, 256)},
        baseline="k=0",
        seeds=3,
        notes=(DATA, "k = 0 has one vector for all positions, so it has no position information and is the control."),
    ),
    "rpr-table3": StudySpec(
        question="are relative positions needed for keys, for values, or for both?",
        tasks=TASKS,
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
