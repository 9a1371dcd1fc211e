"""`report.html`: one page on how good a run's model is, where it errs, and what to label next."""

from mixmatch.report.conclude import conclude
from mixmatch.report.evaluation import Evaluation, evaluate
from mixmatch.report.gather import Report, gather
from mixmatch.report.page import render
from mixmatch.report.verdict import Verdict
from mixmatch.report.write import Written, label_next, write_report

__all__ = [
    "Evaluation",
    "Report",
    "Verdict",
    "Written",
    "conclude",
    "evaluate",
    "gather",
    "label_next",
    "render",
    "write_report",
]
