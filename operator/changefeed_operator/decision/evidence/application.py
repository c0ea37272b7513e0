"""How an attempt ended whose driver has no pod, from what its SparkApplication says. Pure."""

from __future__ import annotations

from changefeed.spec.reasons import Reason

from changefeed_operator.decision.attempt.ledger import AttemptOutcome
from changefeed_operator.decision.evidence.driver_pod import End, end_in_text, end_of, is_over, lost
from changefeed_operator.decision.evidence.spark_words import AGAINST_REFUSAL, cause_in, refusal_in
from changefeed_operator.spark_operator.contract import ApplicationState

#: The error class of an attempt when the API server rejects one of its pods.
REFUSED = str(Reason.REFUSED)


def not_submitted(said: str) -> End:
    """The driver's pod could not be created."""
    if refusal := refusal_in(said):
        text = f"The API server rejects the driver's pod: {refusal}. {AGAINST_REFUSAL}"
        return End(AttemptOutcome.FAILED, REFUSED, text, Reason.SUBMISSION)
    why = cause_in(said) or "no cause given"
    text = f"The Spark operator could not submit the SparkApplication: {why}. Check the Spark operator's log."
    return End(AttemptOutcome.FAILED, "Submission", text, Reason.SUBMISSION)


def end_without_pod(state: ApplicationState) -> End:
    """The driver is over, and its pod is gone."""
    pod = {"status": state.driver_status}
    if is_over(pod):
        return end_of(pod)
    why = cause_in(state.said) or "no cause given"
    return end_in_text(state.said) or lost(f"Its driver pod is gone: {why}.")
