"""`changefeed verify`: reads a sink and its upstream, compares them, and reports what was proved."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from changefeed.filter.selection import Selection
from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.open import open_store
from changefeed.owner.locations import state_location
from changefeed.reading.failures import Break, NotVerifiable
from changefeed.reading.layout import files
from changefeed.reading.progress import NoProgress, ReadingProgress
from changefeed.reading.rows.formats import Formats, read_formats
from changefeed.sink.storage.location import generation_location, sink_location
from changefeed.spec.model import Changefeed
from changefeed.upstream import choice
from changefeed.upstream.contract import Access
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.written_rows import NO_KEYS, MaskKeys
from changefeed.verify.comparison import oracles
from changefeed.verify.comparison.ledger import TableLedger
from changefeed.verify.consumer.replay import replay
from changefeed.verify.held import held
from changefeed.verify.recorded import by_id, check_cluster, lives_of, pd_of, routes_of, say_unexplained
from changefeed.verify.result import Result, Verdict
from changefeed.verify.storage.files import StoredSubject, check_table
from changefeed.verify.storage.finality import Finality
from changefeed.verify.storage.table_files import lowest_commit_ts
from changefeed.verify.upstream.lives import Life, Lives


@dataclass(frozen=True)
class StoredSink:
    """Where a sink is, and the folders of its and its state's credentials (objectstore.Location)."""

    uri: str
    secret: Path | None = None
    state_secret: Path | None = None
    newest: bool = False  # the newest generation, of the sink at `uri`; else the folder at `uri`
    mask_keys: MaskKeys = NO_KEYS


async def verify_changefeed(
    changefeed: Changefeed, secrets_dir: Path | None, conserved: str | None, progress: ReadingProgress
) -> Result:
    """`verify` of the newest generation of the changefeed's files."""
    return await verify(
        sink_of(changefeed, secrets_dir), choice.access_of(changefeed, secrets_dir), conserved, progress
    )


def sink_of(changefeed: Changefeed, secrets_dir: Path | None) -> StoredSink:
    """The newest generation of a changefeed's files."""
    found, state = sink_location(changefeed, secrets_dir), state_location(changefeed, secrets_dir)
    return StoredSink(found.uri, found.secret, state.secret, newest=True, mask_keys=MaskKeys(secrets_dir))


async def verify(
    sink: StoredSink | str,
    upstream: Access | Sequence[str],
    conserved: str | None = None,
    progress: ReadingProgress | None = None,
) -> Result:
    """Check `sink` against `upstream`, or the one behind these addresses of PD.

    `conserved`: a column whose sum over all tables no transaction changes. Raises NotVerifiable when there is no
    answer; a broken promise is a Result that is not ok.
    """
    sink = StoredSink(sink) if isinstance(sink, str) else sink
    upstream = TikvAccess(tuple(upstream)) if isinstance(upstream, Sequence) else upstream
    result = Result()
    progress = progress or NoProgress()
    progress.stage("the changefeed's log")
    store = open_folder(sink)
    # Before the log: what `metadata` says stands in the log by then, also while the changefeed runs.
    checkpoint_ts = files.checkpoint(store)
    result.checkpoint_ts = str(checkpoint_ts)
    state, formats = read_state(sink, store)
    if not is_checkpoint_right(checkpoint_ts, state, result):
        return result
    connected = await upstream.connect()
    try:
        pd = pd_of(connected)
        check_cluster(pd, state)
        subject = StoredSubject(
            state.epoch.config,
            pd,
            formats.newest,
            state.from_ts,
            checkpoint_ts,
            conserved,
            progress,
            result,
            store,
            formats,
            mask_keys=sink.mask_keys,
        )
        async with held(pd, state.from_ts, "startTs"):
            await _compare(subject, state)
    finally:
        await connected.close()
    return result


def open_folder(sink: StoredSink) -> ObjectStore:
    """The sink's folder, or that of its newest generation. Raises NotVerifiable."""
    store = open_store(sink.uri, secret=sink.secret)
    if not sink.newest:
        return store
    generation = _read_log(sink, store.uri, files.owner(store))[0].generation
    return open_store(generation_location(store.location, generation).uri, secret=sink.secret)


def read_state(sink: StoredSink, store: ObjectStore) -> tuple[State, Formats]:
    """What the log says of a folder of the sink. Raises NotVerifiable, also when files of it have expired."""
    owner = files.owner(store)
    state, formats = _read_log(sink, store.uri, owner)
    state = _at_generation(state, owner.generation, store.uri)
    if state.expired_before:
        raise NotVerifiable(
            f"Files of {store.uri} from before {state.expired_before} have expired (fileExpirationDays).",
            "Only a sink that still has all its files can be verified.",
        )
    return state, formats


def _at_generation(state: State, number: int, sink_uri: str) -> State:
    """The state as the folder of a generation shows it; of one that a rewind has ended only the bounds are known."""
    if number == state.generation:
        return state
    if number > state.generation:
        raise NotVerifiable(
            f"{sink_uri} is of generation {number}, but the log knows {state.generation}.",
            "The state was restored from an older copy; verify needs it as the changefeed left it.",
        )
    if state.initial_copy:
        raise NotVerifiable(
            f"{sink_uri} is of generation {number}, which a rewind has ended: which rows it began with is forgotten.",
            "Verify the newest one.",
        )
    ended = state.generations[number - 1]
    bounds = {
        "rewound_to": ended.from_ts,
        "checkpoint_ts": ended.checkpoint_ts,
        "dispatchers": {},
        "expired_before": ended.expired_before,
    }
    return state.model_copy(update=bounds)


def _read_log(sink: StoredSink, sink_uri: str, owner: files.SinkOwner) -> tuple[State, Formats]:
    uid, state_uri = owner.uid, owner.state_uri
    store = open_store(state_uri, secret=sink.state_secret)
    state = Log(store).read()
    if state.epoch.number == 0:
        raise NotVerifiable(
            f"The changefeed's log is not at {state_uri}, which {files.OWNER} in {sink_uri} names.",
            "Run verify where the state can be read, before it is deleted.",
        )
    if state.uid != uid:
        raise NotVerifiable(
            f"{sink_uri} belongs to changefeed {uid!r}, but the log at {state_uri} is of {state.uid!r}.",
            "The sink or the state was copied or replaced; verify needs both as the changefeed left them.",
        )
    return state, read_formats(store, state.epoch.config["spec"])


def is_checkpoint_right(published: int, state: State, result: Verdict) -> bool:
    """Rows can be compared only up to a checkpoint that the changefeed has reached."""
    reached, start = state.checkpoint_ts, state.from_ts
    if published > reached:
        result.problem(
            f"`metadata` publishes checkpoint {published}, above {reached}, the last one in the log: "
            "rows up to it may be missing."
        )
    if published < start:
        result.problem(f"`metadata` publishes checkpoint {published}, below startTs {start}: it has gone back.")
    return result.ok


async def _compare(subject: StoredSubject, state: State) -> None:
    result, store = subject.result, subject.store
    lives = await _lives(subject, state)
    subject.progress.stage("the sink's files")
    sink = files.read_layout(store, subject.checkpoint_ts)
    for problem in sink.problems:
        result.problem(problem)
    finality = Finality()
    finality.see(sink.listing(), {})
    if state.adopted and state.from_ts == state.start_ts and (count := sink.forget_before(state.start_ts)):
        result.note(
            f"{count} files are of table versions below startTs: TiCDC wrote them before this changefeed adopted the "
            "folder. They were not compared."
        )
    check_published(state, sink, result)
    say_unexplained(lives, result)
    for table, ts in lives.statements:
        if (table, ts) not in sink.schemas:
            result.problem(f"No file {table}/meta/schema_{ts}_….json tells a reader of the DDL at {ts}.")
    with tempfile.TemporaryDirectory(prefix="changefeed-verify-") as folder:
        ledger = TableLedger(Path(folder))
        try:
            await _check_tables(subject, lives.all, sink, ledger)
            await replay(subject, lives, routes_of(state).is_written, sink, ledger, by_id(state))
        finally:
            ledger.close()
    subject.progress.stage("the sink once more")
    check_finality(store, subject.formats, finality, result)


async def _check_tables(subject: StoredSubject, lives: list[Life], sink: files.SinkFiles, ledger: TableLedger) -> None:
    result = subject.result
    # A reader does not look into directories of a later version yet.
    level = 1 if any(life.by_id for life in lives) else 2
    upto_ts = subject.checkpoint_ts
    remaining = {p: d for p, d in sink.directories.items() if (files.version_of(p, level) or 0) <= upto_ts}
    for life in lives:
        await check_table(subject, life, directories_of(life, remaining), sink.schemas, ledger)
    result.tables = len({life.physical_id for life in lives if not life.has_ended})
    ((result.transactions,),) = ledger.run("SELECT count(*) FROM (SELECT DISTINCT * FROM transactions)")
    for path in sorted(remaining):
        result.problem(f"{path} holds files, but no table that the changefeed selects is written there.")
    if subject.conserved is not None:
        start, count, first, move = oracles.conserved(ledger)
        result.conserved = start
        if count:
            result.problem(
                f"The sum of {subject.conserved} changes by {move} at commit ts {first}; {count} transactions in all "
                "do not conserve it."
            )


def check_finality(store: ObjectStore, formats: Formats, finality: Finality, result: Verdict) -> None:
    """O2: nothing came below the checkpoint while all this was read, and nothing that was there has changed."""
    listing = files.read_layout(store, files.checkpoint(store)).listing()
    lowest: dict[str, int | None] = {}
    for path in finality.appeared(listing):
        try:
            lowest[path] = lowest_commit_ts(store, path, formats)
        except Break as undecodable:
            result.problem(undecodable.message)
    for problem in finality.see(listing, lowest):
        result.problem(problem)


async def _lives(subject: StoredSubject, state: State) -> Lives:
    """Read the lives of the tables that the changefeed writes."""
    subject.progress.stage("the upstream's DDLs")
    lives = await lives_of(state, subject.pd, subject.checkpoint_ts)
    selections = [Selection.of(subject.config, life.info) for life in lives.all]
    if subject.conserved is not None and not all(selection.rows.keeps_all for selection in selections):
        raise NotVerifiable(
            f"Event filters leave changes out, so the sum of {subject.conserved} can't be followed.",
            "Verify without --conserved.",
        )
    names = {column.name for selection in selections for column in selection.columns}
    if subject.conserved is not None and subject.conserved not in names:
        raise NotVerifiable(
            f"No selected table has a column {subject.conserved!r}: there is nothing conserved to check.",
            f"Name one of {', '.join(sorted(names))}.",
        )
    return lives


def check_published(state: State, sink: files.SinkFiles, result: Verdict) -> None:
    """What the log committed is published, and every published file exists (rules 8 and 13)."""
    open_files = Counter(entry.output["directory"] for _, entry in state.open_entries())
    for known in state.dispatchers.values():
        path, index = known.output.get("directory", ""), known.output.get("index", 0)
        directory = sink.directories.get(path) or files.DirectoryFiles(path)
        committed = index - open_files[path]
        if directory.published < committed:
            result.problem(
                f"{directory.index_file} publishes {directory.published} files, but {committed} are committed in the "
                "log: it was set back or deleted."
            )
    for directory in sink.directories.values():
        if hole := directory.first_hole:
            result.problem(f"{hole} is missing: {directory.index_file} publishes {directory.published} files.")


def directories_of(life: Life, remaining: dict[str, files.DirectoryFiles]) -> list[files.DirectoryFiles]:
    """Its directories by their dates. They are taken out of `remaining`."""
    mine = sorted(
        path for path in remaining if path == life.directory_stem or path.startswith(f"{life.directory_stem}/")
    )
    return [remaining.pop(path) for path in mine]
