"""A sink's versions with their schema files, for readers without an upstream."""

from __future__ import annotations

from changefeed.objectstore import ObjectStore
from changefeed.reading.failures import Break
from changefeed.reading.layout.files import SinkFiles, parse_json, read_layout
from changefeed.reading.layout.walk import WalkedVersion, walk
from changefeed.reading.schema.schema_file import ConsumerSchemaFile, read_schema_file

_ASK_VERIFY = "Run changefeed verify for a full report."


class SchemaVersions:
    """Schema files are read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._files: dict[str, ConsumerSchemaFile] = {}
        self._by_id: bool | None = None  # None: not known yet

    @property
    def by_id(self) -> bool:
        """Whether folders have ids for names; False also while there is none."""
        return bool(self._by_id)

    def upto(self, ts: int) -> list[WalkedVersion]:
        """Those that stand in the sink now, in ascending order. `ts`: a checkpoint that was published before."""
        sink = read_layout(self._store, ts)
        if self._by_id is None:
            self._by_id = self._has_ids(sink)
        return list(walk(sink, has_dates=False, by_id=self.by_id))

    def schema_file(self, path: str) -> ConsumerSchemaFile:
        """Raises Break."""
        if path not in self._files:
            file, problems = read_schema_file(path, self._store.get(path).body, self.by_id)
            if file is None:
                raise Break("; ".join(problems), _ASK_VERIFY)
            self._files[path] = file
        return self._files[path]

    def named(self, version: WalkedVersion) -> dict[str, ConsumerSchemaFile]:
        """The version's schema files by the directory stems that they are of. Raises Break where data has none."""
        found = {path.partition("/meta/")[0]: self.schema_file(path) for path in version.schema_files}
        for data in version.data:
            if data.directory_stem not in found and data.directory.published:
                raise Break(f"{data.directory.path} has no schema file.", _ASK_VERIFY)
        return found

    def _has_ids(self, sink: SinkFiles) -> bool | None:
        """Whether folders have tables' ids for names: then schema files of tables stand where those of databases do."""
        folders = {folder: paths for (folder, _), paths in sink.schemas.items()}
        if any("/" in folder for folder in folders):
            return False
        content = next((parse_json(self._store.get(paths[0]).body) for paths in folders.values()), None)
        return bool(content.get("Table")) if isinstance(content, dict) else None
