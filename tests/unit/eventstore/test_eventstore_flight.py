"""Memory of a puller that tasks of other machines fetch: the segment's own bytes, or MemoryGone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from changefeed.eventstore import flight as flight_module
from changefeed.eventstore.arena import SharedArena, can_share_memory
from changefeed.eventstore.buffer import SpanRows
from changefeed.eventstore.flight import ArenaServer, RemoteArenas
from changefeed.eventstore.reader import MemoryGone, check_slice, read_slice
from changefeed.eventstore.realtime_buffer import Slot
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.segment import SortedSegment, sort_segment
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.rows import RAW_SCHEMA
from changefeed.objectstore import Location
from changefeed.owner.serving.certificate import self_signed
from changefeed.wire.owner import TASK_NAME, RunKey
from pyarrow import flight

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="this system has no memory without a name to share")

RUN = RunFolder(Location("s3://lake/state?endpoint=http://127.0.0.1:1&region=r"), 7, "nonce")
KEY = RunKey(*self_signed(TASK_NAME))
SPANS, ROWS = 3, 50_000
DEADLINE_S = 30.0
NOBODY_S = 0.3  # a deadline that nobody keeps
SILENCE_S = 0.3  # what does not come in it is taken not to come: a right program can't fail by it


def rows_of(span: int) -> pa.RecordBatch:
    count = ROWS * span
    columns = [
        pa.array([span] * count, pa.uint64()),
        pa.array(range(100, 100 + count), pa.uint64()),
        pa.array([50] * count, pa.uint64()),
        pa.array([2] * count, pa.uint8()),
        pa.array([b"k%d" % row for row in range(count)]),
        pa.array([b"value of span %d" % span] * count),
        pa.array([None] * count, pa.binary()),
        pa.array([0] * count, pa.uint64()),
    ]
    return pa.RecordBatch.from_arrays(
        [each.cast(field.type) for each, field in zip(columns, RAW_SCHEMA, strict=True)], schema=RAW_SCHEMA
    )


class Puller:
    """One in whose memory stands one segment of several spans."""

    def __init__(self, compression: str | None, key: RunKey = KEY) -> None:
        spans = [SpanRows.of(span, span + 10, rows_of(span)) for span in range(1, SPANS + 1)]
        sorted_segment = sort_segment(RUN, "t0", 1, spans)
        self.segment = SortedSegment(1, sorted_segment.spans, sorted_segment.schema, compression)
        self.slot = Slot(3, 9, 128, self.segment.size())
        self.arena = SharedArena(self.slot.size + 4096)
        with self.arena.writer(self.slot) as file:
            self.segment.write(file)
        self.server = ArenaServer(self.arena, key, "127.0.0.1")

    def piece(self, span: int) -> SegmentSlice:
        [meta] = [each for each in self.segment.meta("", 0).spans if each.span_id == span]
        return SegmentSlice(
            uri=RUN.segment_uri("t0", 1),
            size=self.slot.size,
            slot=self.arena.address(self.slot).model_copy(update={"address": self.server.address}),
            run=RUN.run,
            seq=1,
            first_batch=meta.first_batch,
            end_batch=meta.end_batch,
            rows=meta.rows,
        )

    def end(self) -> None:
        self.server.close()
        self.arena.close()


@pytest.fixture(params=["lz4", None])
def puller(request: pytest.FixtureRequest) -> Iterator[Puller]:
    made = Puller(request.param)
    yield made
    made.end()


@pytest.fixture
def elsewhere() -> RemoteArenas:
    return RemoteArenas(KEY, "elsewhere")


def test_another_machine_reads_the_rows_of_each_span(puller: Puller, elsewhere: RemoteArenas) -> None:
    for span in range(SPANS, 0, -1):
        piece = puller.piece(span)
        assert elsewhere.has(piece)
        read = read_slice(RUN, piece, elsewhere)
        assert read == pa.Table.from_batches([rows_of(span)])
        check_slice(piece, elsewhere)
    assert puller.piece(SPANS).end_batch > SPANS, "a span of several record batches"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no IPv6")
def test_an_address_may_be_ipv6(puller: Puller, elsewhere: RemoteArenas) -> None:
    puller.server.close()
    puller.server = ArenaServer(puller.arena, KEY, "::1")
    assert puller.server.address.startswith("[::1]:")
    assert read_slice(RUN, puller.piece(1), elsewhere).num_rows == ROWS


def test_what_is_fetched_stays_what_it_was(puller: Puller, elsewhere: RemoteArenas) -> None:
    piece = puller.piece(2)
    read = read_slice(RUN, piece, elsewhere)
    puller.arena.clear(puller.slot)
    with puller.arena.writer(Slot(4, 10, puller.slot.offset, puller.slot.size)) as file:
        file.write(bytes(puller.slot.size))
    check_slice(piece, elsewhere)
    assert read == pa.Table.from_batches([rows_of(2)])


def test_the_same_machine_maps_it(puller: Puller) -> None:
    here = RemoteArenas(RunKey(b"", b""), socket.gethostname())
    piece = puller.piece(1)
    assert not here.has(piece)
    assert read_slice(RUN, piece, here) == pa.Table.from_batches([rows_of(1)])
    puller.arena.clear(puller.slot)
    with pytest.raises(MemoryGone, match="slot 3"):
        check_slice(piece, here)


def test_rule_3_a_slot_that_holds_another_segment_is_not_sent(puller: Puller, elsewhere: RemoteArenas) -> None:
    piece = puller.piece(1)
    puller.arena.clear(puller.slot)
    with pytest.raises(
        MemoryGone, match=r"00001\.arrow can't be read in memory: the puller at .* \(slot 3 of process \d+ .*\)\."
    ) as gone:
        read_slice(RUN, piece, elsewhere)
    assert gone.value.uri == piece.uri
    assert "Traceback" not in gone.value.message


def test_rule_3_nothing_is_sent_of_a_slot_that_is_used_again_while_it_is_copied(
    puller: Puller, elsewhere: RemoteArenas, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    real = flight_module.one_value

    def clear_then_send(content: pa.Buffer) -> pa.RecordBatch:
        puller.arena.clear(puller.slot)
        sent.append(content)
        return real(content)

    monkeypatch.setattr(flight_module, "one_value", clear_then_send)
    with pytest.raises(MemoryGone, match="slot 3"):
        read_slice(RUN, puller.piece(SPANS), elsewhere)
    assert len(sent) == 1, "the second record batch was copied too late"


def test_rule_3_another_puller_at_the_same_address_is_not_taken_for_it(puller: Puller, elsewhere: RemoteArenas) -> None:
    other = Puller("lz4")
    mistaken = other.piece(1).model_copy(
        update={"slot": puller.piece(1).slot.model_copy(update={"address": other.server.address})}
    )
    with pytest.raises(MemoryGone, match="has other memory"):
        read_slice(RUN, mistaken, elsewhere)
    other.end()


@pytest.mark.parametrize("key", [None, RunKey(*self_signed(TASK_NAME))], ids=["none", "another run's"])
def test_who_does_not_show_the_runs_key_is_refused(puller: Puller, key: RunKey | None) -> None:
    shown = {"cert_chain": key.certificate, "private_key": key.private} if key is not None else {}
    client = flight.FlightClient(
        f"grpc+tls://{puller.server.address}", tls_root_certs=KEY.certificate, override_hostname=TASK_NAME, **shown
    )
    ticket = flight.Ticket(puller.piece(1).model_dump_json().encode())
    with pytest.raises(flight.FlightUnavailableError):
        client.do_get(ticket, flight.FlightCallOptions(timeout=DEADLINE_S)).read_all()
    client.close()


def test_a_server_of_another_run_is_asked_nothing(elsewhere: RemoteArenas) -> None:
    other = Puller("lz4", RunKey(*self_signed(TASK_NAME)))
    with pytest.raises(MemoryGone):
        read_slice(RUN, other.piece(1), elsewhere)
    other.end()


def test_a_puller_that_has_gone_gives_nothing(elsewhere: RemoteArenas) -> None:
    puller = Puller("lz4")
    piece = puller.piece(1)
    assert read_slice(RUN, piece, elsewhere).num_rows == ROWS
    puller.server.close()

    def until_gone() -> None:
        while True:  # nobody waits for the server's end, which is soon
            read_slice(RUN, piece, elsewhere)

    with pytest.raises(MemoryGone, match="can't be read in memory: the puller at 127"):
        until_gone()
    puller.arena.close()


def test_a_puller_that_does_not_answer_is_given_up(
    puller: Puller, elsewhere: RemoteArenas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "FETCH_S", NOBODY_S)
    go_on = threading.Event()
    real = flight_module.one_value

    def wait(content: pa.Buffer) -> pa.RecordBatch:
        go_on.wait()
        return real(content)

    monkeypatch.setattr(flight_module, "one_value", wait)
    with pytest.raises(MemoryGone):
        read_slice(RUN, puller.piece(1), elsewhere)
    go_on.set()


def test_an_address_that_swallows_everything_is_given_up(
    puller: Puller, elsewhere: RemoteArenas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "FETCH_S", NOBODY_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slot = puller.piece(1).slot
        assert slot is not None
        lost = slot.model_copy(update={"address": f"127.0.0.1:{silent.getsockname()[1]}"})
        with pytest.raises(MemoryGone):
            read_slice(RUN, puller.piece(1).model_copy(update={"slot": lost}), elsewhere)


def test_more_than_are_served_at_once_wait_their_turn(
    puller: Puller, elsewhere: RemoteArenas, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, go_on = threading.Semaphore(0), threading.Event()
    real = flight_module.one_value

    def wait(content: pa.Buffer) -> pa.RecordBatch:
        served.release()
        go_on.wait()
        return real(content)

    monkeypatch.setattr(flight_module, "one_value", wait)
    pieces = [puller.piece(1)] * (2 * flight_module.SERVED)
    with ThreadPoolExecutor(len(pieces)) as readers:
        read = [readers.submit(read_slice, RUN, piece, elsewhere) for piece in pieces]
        for _ in range(flight_module.SERVED):
            assert served.acquire(timeout=DEADLINE_S)
        assert not served.acquire(timeout=SILENCE_S)
        go_on.set()
        assert [each.result().num_rows for each in read] == [ROWS] * len(pieces)
