"""How a child differs from its manifest, judged by the data itself. Pure.

The API server adds defaults and addresses, and drops empty members. So everything in the manifest must be in the
object, and lists must have no further entries; other members of the object are ignored. Comparing never raises,
whatever the object contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.template import KEYS

#: The API server adds nothing to these: an extra member is a change.
_CLOSED = ("data", "matchLabels", "selector", "podSelector", "nodeSelector", "roleRef")
#: Immutable in an existing object.
_FIXED = (".roleRef", ".data", ".immutable", ".spec.clusterIP")
#: Members that the API server omits when they are false.
_FALSE_IS_LEFT_OUT = ("hostIPC", "hostNetwork", "hostPID", "readOnly", "stdin", "stdinOnce", "tty")
_QUANTITY = re.compile(r"([+-]?[0-9]{1,20}(?:[.][0-9]{1,20})?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[+-]?[0-9]{1,3})?")
_MOST_PATHS = 3
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_EXPONENTS = {"m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@dataclass(frozen=True)
class DriftedField:
    """A field of a child that differs from its manifest.

    `path`: as ".spec.selector". `needs_new`: applying the manifest is not enough, the object must be recreated.
    """

    path: str
    needs_new: bool = False


def differences(manifest: Json, found: Json) -> tuple[DriftedField, ...]:
    """Where `found`, the live object, does not match `manifest`. The status is not compared."""
    compared = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata")}
    annotations = dict(api.mapping_at(manifest, "metadata", "annotations"))
    annotations.pop(api.APPLIED, None)
    marks = {"labels": api.mapping_at(manifest, "metadata", "labels"), "annotations": annotations}
    owners = api.list_at(found, "metadata", "ownerReferences")
    lacks_owner = not all(
        any(_same(owner, each) for each in owners) for owner in api.list_at(manifest, "metadata", "ownerReferences")
    )
    return (
        *_below("", compared, {name: found.get(name) for name in compared}),
        *_below(".metadata", marks, api.mapping_at(found, "metadata")),
        *([DriftedField(".metadata.ownerReferences")] if lacks_owner else []),
    )


def changed_by_others(manifest: Json, found: Json) -> str:
    """The differing fields as text; "" if there are none, or if the operator applied a different manifest."""
    if api.annotation_of(found, api.APPLIED) != api.annotation_of(manifest, api.APPLIED):
        return ""
    paths = [each.path.removeprefix(".") for each in differences(manifest, found)]
    more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
    return ", ".join(paths[:_MOST_PATHS]) + more


def _below(path: str, wanted: Any, found: Any) -> Iterator[DriftedField]:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        yield from _of_mapping(path, wanted, found)
    elif _is_list(wanted) and _is_list(found):
        yield from _of_list(path, wanted, found)
    elif not _is_same_value(path, wanted, found):
        yield DriftedField(path, _is_fixed(path))


def _of_mapping(path: str, wanted: Json, found: Json) -> Iterator[DriftedField]:
    for name, value in wanted.items():
        yield from _below(f"{path}.{name}", value, found.get(name))
    if path.rpartition(".")[2] in _CLOSED and not found.keys() <= wanted.keys():
        yield DriftedField(path, _is_fixed(path))


def _of_list(path: str, wanted: Sequence[Any], found: Sequence[Any]) -> Iterator[DriftedField]:
    """Some lists are keyed: an apply keeps entries that someone else added to them. Others are replaced as a whole."""
    name = path.rpartition(".")[2]
    key = "" if name == "tolerations" else KEYS.get(name, "")
    if not key or not all(isinstance(each, Mapping) and key in each for each in wanted):
        if len(wanted) != len(found) or not all(map(_same, wanted, found)):
            yield DriftedField(path)
        return
    by_key = {each.get(key): each for each in found if isinstance(each, Mapping) and isinstance(each.get(key), str)}
    for each in wanted:
        yield from _below(f"{path}[{each[key]}]", each, by_key.get(each[key]))
    if len(found) > len(wanted) or not by_key.keys() <= {each[key] for each in wanted}:
        yield DriftedField(path, needs_new=True)


def _is_fixed(path: str) -> bool:
    return any(path == fixed or path.startswith(f"{fixed}.") for fixed in _FIXED)


def _same(wanted: Any, found: Any) -> bool:
    return next(_below("", wanted, found), None) is None


def _is_same_value(path: str, wanted: Any, found: Any) -> bool:
    if wanted == found and isinstance(wanted, bool) == isinstance(found, bool):
        return True
    if found is None:
        name = path.rpartition(".")[2]
        return wanted in ("", None) or wanted in ({}, []) or (wanted is False and name in _FALSE_IS_LEFT_OUT)
    is_resource = ".limits." in path or ".requests." in path or path.endswith(".sizeLimit")
    return is_resource and _quantity(wanted) is not None and _quantity(wanted) == _quantity(found)


def _quantity(value: Any) -> Fraction | None:
    """As a number, since the API server turns "1000m" into "1"."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    unit = match[2] or ""
    if unit in _BINARY:
        return Fraction(match[1]) * (1 << 10 * (_BINARY.index(unit) + 1))
    exponent = unit[1:] if unit.startswith("e") else _EXPONENTS[unit]
    return Fraction(f"{match[1]}e{exponent}")


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
