"""A folder of certificates: a CA, the cluster's own certificate, and one for its clients as a Kubernetes Secret has it.

    ca.crt, ca.key    the CAs that both sides trust, and the newest one's key
    server.pem        key and certificate of PD and of all stores
    client/           ca.crt, tls.crt, tls.key: the Secret

Certificates are read again at each handshake, the stores' CAs too; PD reads its clients' CAs when it starts, as the
real one does.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SERVER_NAME = "devcluster"
CLIENT_NAME = "changefeed"
CLIENT = "client"
_DAY = timedelta(days=1)


class Certificates:
    """The folder; `names`: host names and IP addresses that the cluster is reached by.

    A folder that has a CA keeps it, and its client's certificate; the cluster's own is issued for these names.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "ca.key").exists():
            _new_authority(folder)
        if not (folder / CLIENT / "tls.crt").exists():
            _issue_client(folder)
        _issue_server(folder, [_name(name) for name in dict.fromkeys(names)])

    def store_credentials(self) -> grpc.ServerCredentials:
        """Let in only who shows a certificate of a CA in ca.crt."""
        return self._credentials(lambda: self.cas)

    def pd_credentials(self) -> grpc.ServerCredentials:
        """Make them as a store's, but of a CA that stands in ca.crt now."""
        cas = self.cas
        return self._credentials(lambda: cas)

    @property
    def cas(self) -> bytes:
        return (self._folder / "ca.crt").read_bytes()

    def context(self, cas: bytes) -> ssl.SSLContext:
        """Make one for a handshake of today with a client that one of the CAs has certified; TLS 1.2 with HTTP/2."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=cas.decode())
        context.load_cert_chain(self._folder / "server.pem")
        context.set_alpn_protocols(["h2"])
        return context

    def _credentials(self, cas: Callable[[], bytes]) -> grpc.ServerCredentials:
        def present() -> grpc.ServerCertificateConfiguration:
            pair = (self._folder / "server.pem").read_bytes()
            return grpc.ssl_server_certificate_configuration([(pair, pair)], cas())

        return grpc.dynamic_ssl_server_credentials(present(), present, require_client_authentication=True)


def common_names(certificate: bytes) -> list[str]:
    """Return the names in a certificate in DER."""
    subject = x509.load_der_x509_certificate(certificate).subject
    return [str(name.value) for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def client_channel(folder: Path, address: str) -> grpc.Channel:
    """A channel with the folder's client certificate. Raises OSError."""
    ca, certificate, key = ((folder / CLIENT / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key"))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate))


def rotate(folder: Path) -> None:
    """A new CA, which both sides trust beside the old ones, and a certificate of it for the cluster. Raises OSError.

    PD knows the new CA after a restart; then the client may have a certificate of it: `retire`.
    """
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = list(server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    _new_authority(folder)
    _issue_server(folder, names)
    _write(folder / CLIENT / "ca.crt", (folder / "ca.crt").read_bytes())


def retire(folder: Path) -> None:
    """A certificate of the newest CA for the client, and that CA alone is trusted. Raises OSError.

    Certificates of older ones are refused from the next handshake on, by PD from its next start on.
    """
    newest = _pem(x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()))
    _write(folder / "ca.crt", newest)
    _issue_client(folder)


def _new_authority(folder: Path) -> None:
    """It stands first in ca.crt; those before it stay below."""
    older = (folder / "ca.crt").read_bytes() if (folder / "ca.crt").exists() else b""
    key = ec.generate_private_key(ec.SECP256R1())
    number = x509.random_serial_number()
    subject = _subject(f"devcluster CA {number:x}"[:40])
    certificate = _builder(subject, subject, key.public_key(), number).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    _write(folder / "ca.key", _private(key))
    _write(folder / "ca.crt", _pem(certificate.sign(key, hashes.SHA256())) + older)


def _issue_server(folder: Path, names: list[x509.GeneralName]) -> None:
    key, certificate = _issue(folder, SERVER_NAME, names)
    _write(folder / "server.pem", key + certificate)


def _issue_client(folder: Path) -> None:
    secret = folder / CLIENT
    secret.mkdir(exist_ok=True)
    key, certificate = _issue(folder, CLIENT_NAME, [x509.DNSName(CLIENT_NAME)])
    _write(secret / "tls.key", key)
    _write(secret / "tls.crt", certificate)
    _write(secret / "ca.crt", (folder / "ca.crt").read_bytes())


def _issue(folder: Path, common_name: str, names: list[x509.GeneralName]) -> tuple[bytes, bytes]:
    """(private key, certificate) in PEM, of the newest CA."""
    authority_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey), "ca.key is ours"
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    number = x509.random_serial_number()
    certificate = _builder(_subject(common_name), authority.subject, key.public_key(), number).add_extension(
        x509.SubjectAlternativeName(names), critical=False
    )
    return _private(key), _pem(certificate.sign(authority_key, hashes.SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, number: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(number)
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 365 * _DAY)
    )


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(file: Path, content: bytes) -> None:
    """All or nothing, for its owner alone."""
    new = file.with_name(f".{file.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)
    new.replace(file)
