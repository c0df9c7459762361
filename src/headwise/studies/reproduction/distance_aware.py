"""Studies of the DA-Transformer paper: tables 1 to 5, figures 1 to 8 and footnote 7."""

from headwise.studies.reproduction import DirectOutput, Overrides, StudySpec
from headwise.studies.reproduction.data_statistics import build_mind_table, build_text_table
from headwise.studies.reproduction.formula_figures import draw_coefficient_matrices, draw_learnable_sigmoids
from headwise.studies.reproduction.head_figures import build_sign_table, draw_attention, draw_learned_weights

#: The paper's schemes, and the control without positions.
SCHEMES: dict[str, Overrides] = {
    name: {"model": name} for name in ("none", "plain", "rpr", "transformer-xl", "tener", "distance-aware")
}
DISTANCE_AWARE: dict[str, Overrides] = {"distance-aware": {"model": "distance-aware"}}
MAPPINGS = ("clip", "linear", "exponent", "sigmoid")
ADJUSTMENTS = ("early-add", "late-multiply", "late-add")


def distance_variants(best: str, option: str, others: tuple[str, ...]) -> dict[str, Overrides]:
    """Return the distance-aware scheme with the paper's best value of an option, the control, and other values."""
    variants: dict[str, Overrides] = {
        other: {"model": "distance-aware", "scheme_options": (f"{option}={other}",)} for other in others
    }
    return {best: {"model": "distance-aware"}, "none": {"model": "none"}, **variants}


#: As in the paper, dev is the last day of train; the labels of the paper's test are not published, so test is dev.
MIND_OPTIONS: Overrides = {"splits": "last-day"}

#: The paper does not state how sinusoids are scaled against words. 0.0625 corresponds to words multiplied with √256, as
#: in Vaswani et al. (2017).
GRIDS = {"plain": {"position_scale": (1.0, 0.5, 0.25, 0.0625)}}
SCALE = "The scale of the sinusoids of plain is chosen on dev (--position-scale), because the paper does not state it."

VECTORS = "The paper uses GloVe vectors of width 300: --vectors glove.840B.300d.txt or glove.6B.300d.txt."
SEEDS = "The paper reports 5 runs per method. It has no control without positions (none); this study adds one."
SNLI = "The paper's SNLI has 55k pairs and 2 classes; this study uses the published dataset, which has 3 classes."

STUDIES: dict[str, StudySpec] = {
    "da-table3": StudySpec(
        question="which position scheme is best on AG's News and Amazon Electronics?",
        tasks={"ag-news": {}, "amazon-electronics": {}},
        methods=SCHEMES,
        baseline="none",
        grids=GRIDS,
        tests_best=True,
        notes=(VECTORS, SEEDS, SCALE),
    ),
    "da-table4": StudySpec(
        question="which position scheme is best on SST-2 and SNLI?",
        tasks={"sst2": {}, "snli": {}},
        methods=SCHEMES,
        baseline="none",
        grids=GRIDS,
        tests_best=True,
        notes=(VECTORS, SEEDS, SCALE, SNLI),
    ),
    "da-table5": StudySpec(
        question="which position scheme is best for news recommendation?",
        tasks={"mind": MIND_OPTIONS},
        methods=SCHEMES,
        baseline="none",
        grids=GRIDS,
        tests_best=True,
        notes=(VECTORS, SEEDS, SCALE),
    ),
    "da-figure3": StudySpec(
        question="which position scheme is best at predicting ratings?",
        tasks={"amazon-electronics-rating": {}},
        methods=SCHEMES,
        baseline="none",
        grids=GRIDS,
        tests_best=True,
        notes=(VECTORS, SEEDS, SCALE),
    ),
    "da-figure4": StudySpec(
        question="which mapping function of weighted distances is best?",
        tasks={"ag-news": {}, "amazon-electronics": {}, "mind": MIND_OPTIONS},
        methods=distance_variants("learnable-sigmoid", "mapping", MAPPINGS),
        baseline="learnable-sigmoid",
        tests_best=True,
        notes=(VECTORS, SEEDS, "The paper does not state the threshold of clip; this study uses 10."),
    ),
    "da-figure5": StudySpec(
        question="which way of adjusting attention by distance is best?",
        tasks={"ag-news": {}, "amazon-electronics": {}, "mind": MIND_OPTIONS},
        methods=distance_variants("early-multiply", "adjust", ADJUSTMENTS),
        baseline="early-multiply",
        tests_best=True,
        notes=(VECTORS, SEEDS),
    ),
    "da-figure6": StudySpec(
        question="which distances do the heads prefer on AG's News?",
        tasks={"ag-news": {}},
        methods=DISTANCE_AWARE,
        baseline="distance-aware",
        seeds=5,
        draw=draw_learned_weights,
        keeps_models=True,
        notes=(VECTORS,),
    ),
    "da-figure7": StudySpec(
        question="which distances do the heads prefer on MIND, in titles and between clicked news?",
        tasks={"mind": MIND_OPTIONS},
        methods=DISTANCE_AWARE,
        baseline="distance-aware",
        seeds=5,
        draw=draw_learned_weights,
        keeps_models=True,
        notes=(VECTORS,),
    ),
    "da-figure8": StudySpec(
        question="do the attention maps of plain and distance-aware heads differ?",
        tasks={"ag-news": {}},
        methods={name: {"model": name} for name in ("plain", "distance-aware")},
        baseline="plain",
        grids=GRIDS,
        seeds=1,
        draw=draw_attention,
        notes=(VECTORS, SCALE),
    ),
    "da-footnote7": StudySpec(
        question="do the signs of w depend on the length of texts?",
        tasks={"ag-news": {}, "amazon-electronics": {}, "sst2": {}, "snli": {}},
        methods=DISTANCE_AWARE,
        baseline="distance-aware",
        seeds=5,
        build_tables=lambda results: [build_sign_table(results)],
        keeps_models=True,
        notes=(VECTORS, SNLI),
    ),
}

DIRECT_OUTPUTS: dict[str, DirectOutput] = {
    "da-table1": DirectOutput(
        "how large are the data sets?",
        build_table=build_text_table,
        tasks=("ag-news", "amazon-electronics", "sst2", "snli"),
    ),
    "da-table2": DirectOutput("how large is MIND?", build_table=build_mind_table, tasks=("mind",)),
    "da-figure1": DirectOutput("how does the learnable sigmoid depend on v?", draw=draw_learnable_sigmoids),
    "da-figure2": DirectOutput("how do the coefficients depend on w and v?", draw=draw_coefficient_matrices),
}
