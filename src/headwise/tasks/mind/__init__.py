"""Click logs in the layout of MIND, Microsoft's news data set: parsed once, then mapped into memory."""

from headwise.tasks.mind.behaviors import Impressions, Split
from headwise.tasks.mind.log import Log, read
from headwise.tasks.mind.news import News
from headwise.tasks.mind.oracle import oracle
from headwise.tasks.mind.task import MIND

__all__ = ["MIND", "Impressions", "Log", "News", "Split", "oracle", "read"]
