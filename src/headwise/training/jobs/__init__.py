"""Jobs: work on data of any size, divided into parts that run in this process, in local processes or on a Ray cluster.

A part that fails is repeated. The results of finished parts are stored, so that a job that was killed can be resumed.
"""

from headwise.training.jobs.job import PART_ROWS, JobOptions, PartTask, Progress, Result, RowRange, open_job, run_job
from headwise.training.jobs.job_dir import JobDir

__all__ = ["PART_ROWS", "JobDir", "JobOptions", "PartTask", "Progress", "Result", "RowRange", "open_job", "run_job"]
