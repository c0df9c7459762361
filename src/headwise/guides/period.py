"""[Period]: every token looks at the full stops. Wang et al. 2022, section 3.5"""

from headwise.guides.delimiter import Delimiter


class Period(Delimiter):
    """Push heads towards full stops.

    Args:
        weight: see `Guide`.
        tokens: the full stop's ids, such as `[tokenizer.convert_tokens_to_ids(".")]`.
        share, layers, heads, schedule, name: see `Guide`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Period(1.0, tokens=[1012], heads=[4])
        Period(weight=1, schedule='constant')
    """
