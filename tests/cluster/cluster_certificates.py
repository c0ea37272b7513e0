"""A certificate authority for one test cluster, valid for a day, and kubeconfigs from it; keys stay in its folder."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM = serialization.Encoding.PEM


class Authority:
    """Writes `<name>.crt` and `<name>.key` into `folder`: `ca` at once, others by `issue`; keys are mode 0600."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("changefeed-test-cluster", ())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        certificate = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        self._write("ca", certificate.add_extension(usage, True).sign(self._key, hashes.SHA256()), self._key)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, name: str, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        """(certificate, key) for a server at `hosts` and a client who is `user` of `groups` to Kubernetes."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = self._builder(_subject(user, groups), key).add_extension(usages, False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False)
        return self._write(name, builder.sign(self._key, hashes.SHA256()), key)

    def signing_key(self, name: str) -> tuple[Path, Path]:
        """(public key, private key) that ServiceAccount tokens are signed with."""
        key = ec.generate_private_key(ec.SECP256R1())
        public, private = self.folder / f"{name}.pub", self.folder / f"{name}.key"
        public.write_bytes(key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
        _write_private(private, _private_bytes(key))
        return public, private

    def kubeconfig(self, path: Path, server: str, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig whose user is a new client certificate."""
        certificate, key = self.issue(name, user, groups)
        who = {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
        return write_kubeconfig(path, server, self.ca, who)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        ours = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours), False)
        )

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
        public, private = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        public.write_bytes(certificate.public_bytes(_PEM))
        _write_private(private, _private_bytes(key))
        return public, private


def write_kubeconfig(path: Path, server: str, ca: Path, user: dict[str, str], namespace: str = "default") -> Path:
    """`user`: what a kubeconfig's user may hold, for example {"token": …}. JSON is YAML."""
    cluster = {"server": server, "certificate-authority-data": _encoded(ca)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
    }
    _write_private(path, json.dumps(config, indent=1).encode())
    return path


def _subject(user: str, groups: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
