"""Click logs in the layout of MIND, Microsoft's news data set. They are parsed once and memory-mapped."""

from headwise.tasks.mind.behaviors import Impressions, Split
from headwise.tasks.mind.log import MIND, Log, SplitRule, oracle, read
from headwise.tasks.mind.news import News

__all__ = ["MIND", "Impressions", "Log", "News", "Split", "SplitRule", "oracle", "read"]
