"""The one upstream that a changefeed has.

TiKV's fields have stood right below `upstream` before there was another kind, and still may: `tikv` says the same, and
becomes that form when it is read. So code, logs and hashes know one form of each kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.config import JsonDict

from changefeed.spec.field.fields import Bytes, ClusterId, PdAddress, Seconds, duration, many, size, text, whole
from changefeed.spec.field.kind import cel_at, fixed, live, rule, wrong
from changefeed.spec.field.section import FROM_CREATION, Credentials, Section, SinkTls, UpstreamTlsSpec, ruled
from changefeed.spec.upstream_address import postgresql_address

_TLS_AND_HTTPS = "upstream.tls and https:// for all of pdAddresses, or neither"
_SCHEMES = "self.pdAddresses.all(address, address.startsWith(has(self.tls) ? 'https:' : 'http:'))"
_ONE = "exactly one upstream: pdAddresses, tikv or postgresql"
_BESIDE = "clusterId, tls and scanRate beside pdAddresses only"
_ANOTHER = "to follow another, create another Changefeed"

_PdAddresses = Annotated[tuple[PdAddress, ...], many(1, 16, "1 to 16 addresses of PD")]
_HOST = r"[0-9A-Za-z_](?:[0-9A-Za-z._-]*[0-9A-Za-z_])?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*"
_NAME = r"[ -~]{1,63}"


class TikvSpec(Section):
    """A TiKV cluster with TiDB's tables in it."""

    model_config = ruled(rule(_SCHEMES, _TLS_AND_HTTPS))

    pd_addresses: _PdAddresses
    """The upstream's PD servers."""
    cluster_id: Annotated[ClusterId | None, fixed("once set")] = None
    """The upstream's cluster id; a PD of any other cluster is refused. Unset: the id seen at the first start."""
    tls: Annotated[UpstreamTlsSpec | None, Field(validate_default=True)] = None
    """
    TLS to PD and TiKV; requires `https://` PD addresses. Renewed certificates take effect with the next connection.
    """
    scan_rate: Annotated[Bytes | None, size("64Ki", "1Ti")] = None
    """
    Limit on how fast initial copies read, in bytes per second across all tables. Unset: as fast as the sink accepts.
    """

    @field_validator("tls")
    @classmethod
    def _as_the_addresses_say(cls, tls: UpstreamTlsSpec | None, info: ValidationInfo) -> UpstreamTlsSpec | None:
        scheme = "https:" if tls else "http:"
        if not all(address.startswith(scheme) for address in info.data.get("pd_addresses", ())):
            raise wrong(_TLS_AND_HTTPS)
        return tls


class PostgresqlSpec(Section):
    """A PostgreSQL database, read by logical replication."""

    host: Annotated[str, text(_HOST, "a host name or an address, such as db.shop.svc", 253)]
    """Host of the primary. It may change, as after a failover; another server's database is refused."""
    port: Annotated[int, whole(1, 65_535)] = 5432
    """Port of the server."""
    database: Annotated[str, text(_NAME, "the name of a database, 1 to 63 ASCII characters", 63), fixed(FROM_CREATION)]
    """The database whose tables are captured."""
    slot: Annotated[
        Annotated[str, text("[a-z0-9_]{1,63}", "1 to 63 characters: lower-case letters, digits, _", 63)] | None,
        fixed(FROM_CREATION),
    ] = None
    """
    The replication slot, which the first start makes and a deletion drops; nobody else may read it. Unset: a name of
    this changefeed's own.
    """
    publication: Annotated[str, text(_NAME, "the name of a publication, 1 to 63 ASCII characters", 63)] = "changefeed"
    """The publication that has the tables, with all their changes. It must be there before the first start."""
    tls: SinkTls | None = None
    """TLS to the server. Without it, rows go in clear text."""
    credentials: Credentials
    """The user to read with, which has the attribute REPLICATION and may select from the tables."""


def _upstream_rules() -> Iterator[JsonDict]:
    given = " + ".join(f"(has(self.{kind}) ? 1 : 0)" for kind in ("pdAddresses", "tikv", "postgresql"))
    yield rule(f"{given} == 1", _ONE)
    beside = " || ".join(f"has(self.{field})" for field in ("clusterId", "tls", "scanRate"))
    yield rule(f"has(self.pdAddresses) || !({beside})", _BESIDE)
    yield rule(f"!has(self.pdAddresses) || {_SCHEMES}", _TLS_AND_HTTPS)
    now, before = (
        f"(has({root}.clusterId) ? {root}.clusterId : {cel_at(root, 'tikv.clusterId')})" for root in ("self", "oldSelf")
    )
    yield rule(
        f"{before} == '' || {now} == {before}",
        "the clusterId that was set first; to follow another cluster, create another Changefeed",
    )
    yield rule(
        "has(self.postgresql) == has(oldSelf.postgresql)", f"the kind of upstream that it was created with; {_ANOTHER}"
    )
    for field in ("database", "slot"):
        path = f"postgresql.{field}"
        yield rule(
            f"!has(self.postgresql) || !has(oldSelf.postgresql) || {cel_at('self', path)} == {cel_at('oldSelf', path)}",
            f"the {path} that it was created with, or none as then; {_ANOTHER}",
        )


class UpstreamSpec(TikvSpec):
    model_config = ruled(*_upstream_rules())

    pd_addresses: Annotated[_PdAddresses, Field(default_factory=tuple, exclude_if=lambda given: not given)]
    """The PD servers of a TiKV cluster: the same as `tikv` with these fields in it."""
    safepoint_ttl: Annotated[Seconds, duration("10m", "720h"), live("the driver")] = 86_400.0
    """
    How long the upstream keeps history for this changefeed if its hold is not renewed. The hold is renewed at least
    three times within this period, so an outage shorter than the rest loses nothing. A slot of PostgreSQL keeps it for
    longer: until the changefeed is deleted.
    """
    tikv: TikvSpec | None = None
    """A TiKV cluster with TiDB's tables in it."""
    postgresql: PostgresqlSpec | None = None
    """A PostgreSQL database."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> UpstreamSpec:
        if [bool(self.pd_addresses), self.tikv is not None, self.postgresql is not None].count(True) != 1:
            raise wrong(_ONE)
        if not self.pd_addresses and (self.cluster_id is not None or self.tls or self.scan_rate):
            raise wrong(_BESIDE)
        if self.tikv is None:
            return self
        return self.model_copy(update={"tikv": None, **{field: getattr(self.tikv, field) for field in _OF_TIKV}})

    @property
    def server(self) -> str:
        """What people call the server whose clock counts."""
        return "PD" if self.postgresql is None else "PostgreSQL"

    @property
    def source(self) -> str:
        """Say what to look at when no changes come."""
        return (
            "the TiKV stores and the network to them" if self.postgresql is None else "PostgreSQL and the network to it"
        )

    @property
    def where(self) -> str:
        """Say where tables are looked for, as in "no such table in ..."."""
        return "TiDB" if self.postgresql is None else f"the publication {self.postgresql.publication}"

    @property
    def stays(self) -> dict[str, str | None]:
        """Return by field what must be as it was when the changefeed was created, beside the cluster's id."""
        if self.postgresql is None:
            return {}
        named = {"database": self.postgresql.database, "slot": self.postgresql.slot}
        return {f"spec.upstream.postgresql.{field}": value for field, value in named.items()}

    def servers(self) -> Iterable[str]:
        """URLs of what pods connect to first; these name the others."""
        return self.pd_addresses or (self.address,)

    @property
    def address(self) -> str:
        """The address by which people know the upstream."""
        if self.postgresql is None:
            return ", ".join(self.pd_addresses)
        return postgresql_address(self.postgresql.host, self.postgresql.port, self.postgresql.database)


_OF_TIKV = tuple(TikvSpec.model_fields)
