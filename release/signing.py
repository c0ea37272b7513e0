"""Signatures by cosign: with a key, which needs no other service, or keyless, with the identity of a CI job."""

from __future__ import annotations

from pathlib import Path

from release.tools import run

KEYLESS = "keyless"
#: Without these, cosign fetches Sigstore's list of services and publishes each signature in its transparency log.
_OFFLINE = ("--use-signing-config=false", "--tlog-upload=false")


def sign_file(key: str, file: Path, bundle: Path) -> None:
    """Write `bundle`, by which `cosign verify-blob` verifies the file."""
    run("cosign", "sign-blob", "--yes", *_how(key), "--bundle", bundle, file)


def sign_statement(key: str, statement: Path, bundle: Path) -> None:
    """Write `bundle`, which holds the statement: `cosign verify-blob-attestation` verifies its subjects."""
    run("cosign", "attest-blob", "--yes", *_how(key), "--statement", statement, "--bundle", bundle)


def sign_image(key: str, reference: str) -> None:
    """Put a signature beside what `reference` names by digest, and beside each image of an index."""
    run("cosign", "sign", "--yes", "--recursive", *_how(key), reference)


def _how(key: str) -> tuple[str, ...]:
    return () if key == KEYLESS else ("--key", key, *_OFFLINE)
