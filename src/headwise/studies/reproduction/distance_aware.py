"""Studies of the DA-Transformer paper: tables 3 to 5, figures 3 to 5. Figures 1, 2, 6, 7 and 8 show heads."""

from headwise.studies.reproduction import InspectionFigure, Overrides, StudySpec

#: The paper's schemes, and the control without positions.
SCHEMES: dict[str, Overrides] = {
    name: {"model": name} for name in ("none", "plain", "rpr", "transformer-xl", "tener", "distance-aware")
}
MAPPINGS = ("clip", "linear", "exponent", "sigmoid")
ADJUSTMENTS = ("early-add", "late-multiply", "late-add")


def distance_variants(best: str, option: str, others: tuple[str, ...]) -> dict[str, Overrides]:
    """Return the distance-aware scheme with the paper's best value of an option, the control, and other values."""
    variants: dict[str, Overrides] = {
        other: {"model": "distance-aware", "scheme_options": (f"{option}={other}",)} for other in others
    }
    return {best: {"model": "distance-aware"}, "none": {"model": "none"}, **variants}


VECTORS = "The paper uses GloVe vectors of width 300: --vectors glove.840B.300d.txt or glove.6B.300d.txt."
SEEDS = "The paper reports 5 runs per method. It has no control without positions (none); this study adds one."
SNLI = "The paper's SNLI has 55k pairs and 2 classes; this study uses the published dataset, which has 3 classes."

STUDIES: dict[str, StudySpec] = {
    "da-table3": StudySpec(
        question="which position scheme is best on AG's News and Amazon Electronics?",
        tasks={"ag-news": {}, "amazon-electronics": {}},
        methods=SCHEMES,
        baseline="none",
        notes=(VECTORS, SEEDS),
    ),
    "da-table4": StudySpec(
        question="which position scheme is best on SST-2 and SNLI?",
        tasks={"sst2": {}, "snli": {}},
        methods=SCHEMES,
        baseline="none",
        notes=(VECTORS, SEEDS, SNLI),
    ),
    "da-table5": StudySpec(
        question="which position scheme is best for news recommendation?",
        tasks={"mind": {}},
        methods=SCHEMES,
        baseline="none",
        notes=(VECTORS, SEEDS),
    ),
    "da-figure3": StudySpec(
        question="which position scheme is best at predicting ratings?",
        tasks={"amazon-electronics-rating": {}},
        methods=SCHEMES,
        baseline="none",
        notes=(VECTORS, SEEDS),
    ),
    "da-figure4": StudySpec(
        question="which mapping function of weighted distances is best?",
        tasks={"ag-news": {}, "amazon-electronics": {}, "mind": {}},
        methods=distance_variants("learnable-sigmoid", "mapping", MAPPINGS),
        baseline="learnable-sigmoid",
        notes=(VECTORS, SEEDS, "The paper does not state the threshold of clip; this study uses 10."),
    ),
    "da-figure5": StudySpec(
        question="which way of adjusting attention by distance is best?",
        tasks={"ag-news": {}, "amazon-electronics": {}, "mind": {}},
        methods=distance_variants("early-multiply", "adjust", ADJUSTMENTS),
        baseline="early-multiply",
        notes=(VECTORS, SEEDS),
    ),
}

INSPECTION_FIGURES: dict[str, InspectionFigure] = {
    "da-figure1": InspectionFigure("learnable sigmoid for several v", "headwise inspect RUN --out FOLDER"),
    "da-figure2": InspectionFigure("coefficients for several w and v", "headwise inspect RUN --out FOLDER"),
    "da-figure6": InspectionFigure("w and v of all heads, AG's News", "headwise inspect RUN --out FOLDER"),
    "da-figure7": InspectionFigure("w and v of all heads, MIND", "headwise inspect RUN --out FOLDER"),
    "da-figure8": InspectionFigure(
        "attention maps of plain and distance-aware", 'headwise inspect PLAIN-RUN DA-RUN --text "…" --out FOLDER'
    ),
}
