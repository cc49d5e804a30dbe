"""Is this server fit to keep state? One finding for each question, with what to do.

Nothing is written. A question that the user may not ask is answered with *unknown*.
"""

from __future__ import annotations

from redis_state.doctor.examination import SAMPLE, examine
from redis_state.doctor.finding import ExamineProgress, Finding, Verdict

__all__ = ["SAMPLE", "ExamineProgress", "Finding", "Verdict", "examine"]
