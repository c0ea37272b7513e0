"""Messages to a store's change feed (EventFeedV2)."""

from __future__ import annotations

import re

from changefeed.model.tso import MAX_TS
from changefeed.upstream.tikv.client.requests.arguments import Arguments
from changefeed.wire import cdcpb_pb2, kvrpcpb_pb2, metapb_pb2

METHOD = "/cdcpb.ChangeData/EventFeedV2"
#: One stream for all registrations of a store: resolved-ts and deregistrations name their request.
METADATA = (("features", "stream-multiplexing"),)
#: Bare digits: with a version that TiKV can't parse it never sends a resolved-ts.
CLIENT_VERSION = "8.5.0"


def register(
    cluster_id: int,
    request_id: int,
    region_id: int,
    conf_ver: int,
    version: int,
    checkpoint_ts: int,
    start_key: bytes,
    end_key: bytes,
) -> cdcpb_pb2.ChangeDataRequest:
    """Send the changes after `checkpoint_ts` in the range of ENCODED keys [start_key, end_key), as far as the region
    has it. A store takes a key that it can't decode for the whole region."""
    arguments = Arguments("Register")
    arguments.numbers(request_id=request_id, region_id=region_id, conf_ver=conf_ver, version=version)
    arguments.between("checkpoint_ts", checkpoint_ts, 1, MAX_TS - 1)
    arguments.encoded("start_key", start_key)
    arguments.encoded("end_key", end_key)
    arguments.range(start_key, end_key, open_end=False)
    return cdcpb_pb2.ChangeDataRequest(
        header=_header(arguments, cluster_id),
        region_id=region_id,
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=conf_ver, version=version),
        checkpoint_ts=checkpoint_ts,
        start_key=start_key,
        end_key=end_key,
        request_id=request_id,
        extra_op=kvrpcpb_pb2.ReadOldValue,
        register=cdcpb_pb2.ChangeDataRequest.Register(),
    )


def deregister(cluster_id: int, request_id: int, region_id: int) -> cdcpb_pb2.ChangeDataRequest:
    """End one registration: region 0 would end all of the request's."""
    arguments = Arguments("Deregister")
    arguments.numbers(request_id=request_id, region_id=region_id)
    return cdcpb_pb2.ChangeDataRequest(
        header=_header(arguments, cluster_id),
        region_id=region_id,
        request_id=request_id,
        deregister=cdcpb_pb2.ChangeDataRequest.Deregister(),
    )


def _header(arguments: Arguments, cluster_id: int) -> cdcpb_pb2.Header:
    arguments.numbers(cluster_id=cluster_id)
    digits = re.fullmatch(r"\d+\.\d+\.\d+", CLIENT_VERSION) is not None
    arguments.need(digits, "ticdc_version", CLIENT_VERSION, "be three numbers with dots")
    return cdcpb_pb2.Header(cluster_id=cluster_id, ticdc_version=CLIENT_VERSION)
