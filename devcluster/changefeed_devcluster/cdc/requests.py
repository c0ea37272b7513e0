"""Whether a message of a change data stream is what the protocol means it to be. Anything else ends the stream."""

from __future__ import annotations

from changefeed.wire import cdcpb_pb2 as cdcpb


def wrong_argument(request: cdcpb.ChangeDataRequest) -> str | None:
    """Return what is wrong with the message, beginning with the argument's name; None: nothing."""
    which = request.WhichOneof("request")
    if which == "notify_txn_status":
        return "notify_txn_status is no request of this service's clients"
    if not request.request_id:
        return "request_id must be set: it tells a client's requests apart"
    if request.start_key and request.end_key and request.start_key > request.end_key:
        return f"start_key {request.start_key.hex()} is above end_key {request.end_key.hex()}"
    return None
