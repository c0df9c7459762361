"""DA-Transformer: tables 3 to 5, figures 3 to 5; figures 1, 2, 6, 7 and 8 are pictures of heads."""

from headwise.studies.reproduction.study_spec import Overrides, Pictured, StudySpec

NONE: dict[str, Overrides] = {"none": {"model": "none"}}
SCHEMES: dict[str, Overrides] = NONE | {
    name: {"model": name} for name in ("plain", "rpr", "transformer-xl", "tener", "distance-aware")
}
MAPPINGS = ("clip", "linear", "exponent", "sigmoid")
ADJUSTMENTS = ("early-add", "late-multiply", "late-add")


def variants(best: str, option: str, others: tuple[str, ...]) -> dict[str, Overrides]:
    """Distance-aware as the paper has it, and with another option."""
    made: dict[str, Overrides] = {
        other: {"model": "distance-aware", "scheme_options": (f"{option}={other}",)} for other in others
    }
    return {best: {"model": "distance-aware"}, **NONE, **made}


#: What the paper has, and does not come by itself; and what it leaves open.
VECTORS = "The paper starts from GloVe's vectors of width 300: --vectors glove.840B.300d.txt, or glove.6B.300d.txt."
SEEDS = "The paper has 5 runs of each method, and no control without positions (none), which is added here."
SNLI = "The paper's SNLI has 55k pairs and 2 classes, which is not the published set; here it is the published one."

STUDIES: dict[str, StudySpec] = {
    "da-table3": StudySpec(
        asks="which position scheme is best on AG's News and Amazon Electronics?",
        tasks={"ag-news": {}, "amazon-electronics": {}},
        methods=SCHEMES,
        baseline="none",
        notes=(VECTORS, SEEDS),
    ),
    "da-table4": StudySpec(
        asks="which position scheme is best on SST-2 and SNLI?",
        tasks={"sst2": {}, "snli": {}},
        methods=SCHEMES,
        baseline="none",
        notes=(VECTORS, SEEDS, SNLI),
    ),
    "da-table5": StudySpec(
        asks="which position scheme is best for recommending news?",
        tasks={"mind": {}},
        methods=SCHEMES,
        baseline="none",
        notes=(VECTORS, SEEDS),
    ),
    "da-figure3": StudySpec(
        asks="which position scheme is best at guessing ratings?",
        tasks={"amazon-electronics-rating": {}},
        methods=SCHEMES,
        baseline="none",
        notes=(VECTORS, SEEDS),
    ),
    "da-figure4": StudySpec(
        asks="which function should map a weighted distance?",
        tasks={"ag-news": {}, "amazon-electronics": {}, "mind": {}},
        methods=variants("learnable-sigmoid", "mapping", MAPPINGS),
        baseline="learnable-sigmoid",
        notes=(VECTORS, SEEDS, "The paper does not give the threshold of clip; here it is 10."),
    ),
    "da-figure5": StudySpec(
        asks="where should the mapped distance enter attention?",
        tasks={"ag-news": {}, "amazon-electronics": {}, "mind": {}},
        methods=variants("early-multiply", "adjust", ADJUSTMENTS),
        baseline="early-multiply",
        notes=(VECTORS, SEEDS),
    ),
}

PICTURES: dict[str, Pictured] = {
    "da-figure1": Pictured("the learnable sigmoid for several v", "headwise inspect RUN --out FOLDER"),
    "da-figure2": Pictured("coefficients for several w and v", "headwise inspect RUN --out FOLDER"),
    "da-figure6": Pictured("w and v of all heads, AG's News", "headwise inspect RUN --out FOLDER"),
    "da-figure7": Pictured("w and v of all heads, MIND", "headwise inspect RUN --out FOLDER"),
    "da-figure8": Pictured(
        "attention maps, plain and distance-aware", 'headwise inspect PLAIN-RUN DA-RUN --text "…" --out FOLDER'
    ),
}
