"""TLS to PD and TiKV: the files of a Secret, and a handshake of our own that tells who answers.

gRPC says of a refused certificate no more than that a socket was closed, and takes no list of common names. So an
address is proved before its channel is made, and again after a call has failed. Nothing here keeps a file's content
longer than a channel needs it, and no error shows any of it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from changefeed.errors import Refused

CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # as HTTP/2 begins: with empty SETTINGS
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME, _OTHER_IP = 10, 9, 62, 64  # OpenSSL's X509_V_ERR_...


class NoAnswer(Exception):
    """Nothing to be said about certificates: the address does not answer."""


@dataclass(frozen=True)
class Identity:
    """What the files hold, PEM. `certificate` and `key`: None where the Secret has none."""

    ca: bytes
    certificate: bytes | None
    key: bytes | None = field(repr=False)
    context: ssl.SSLContext = field(compare=False, repr=False)


@dataclass(frozen=True)
class Peer:
    """A server whose certificate is good."""

    common_names: tuple[str, ...]
    certificate: bytes  # PEM


@dataclass(frozen=True)
class UpstreamTls:
    """`folder`: of the Secret's files, which may be replaced at any time. `allowed_common_names`: empty: any."""

    folder: Path
    allowed_common_names: tuple[str, ...] = ()

    @property
    def secret(self) -> str:
        return self.folder.name

    def read(self) -> Identity:
        """The files as they are now. Raises Refused when they are of no use."""
        # Kubernetes replaces all files of a Secret at once, by turning this link to another folder.
        link = self.folder / "..data"
        folder = link.resolve() if link.exists() else self.folder
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        ca = self._file(folder, CA)
        try:
            context.load_verify_locations(folder / CA)
        except OSError as error:
            raise self._wrong(f"{CA} holds no certificate in PEM") from error
        if not any((folder / name).exists() for name in (CERTIFICATE, KEY)):
            return Identity(ca, None, None, context)
        certificate, key = self._file(folder, CERTIFICATE), self._file(folder, KEY)
        try:
            context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password="")  # else it asks the terminal
        except (OSError, ValueError) as error:
            mismatch = isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"
            why = f"{KEY} is not the key of" if mismatch else f"{KEY} is no key in PEM without a password, or"
            raise self._wrong(f"{why} {CERTIFICATE}" + ("" if mismatch else " no certificate")) from error
        return Identity(ca, certificate, key, context)

    def _file(self, folder: Path, name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise self._wrong(f"{name} can't be read: {error.strerror}") from error

    def _wrong(self, why: str) -> Refused:
        return Refused(
            f"Secret {self.secret} of spec.upstream.tls can't be used: {why} ({self.folder}).",
            f"It needs {CA}, and for mutual TLS {CERTIFICATE} and {KEY} too, in PEM.",
        )


async def handshake(who: str, target: str, tls: UpstreamTls, identity: Identity, seconds: float) -> Peer:
    """Prove the server at `target` ("host:port") and ourselves to it. `who` names it in errors.

    Raises Refused when one side does not trust the other, NoAnswer.
    """
    try:
        async with asyncio.timeout(seconds):
            peer = await _shaken(target, identity) or await _shaken(target, identity)  # it may just be restarting
    except ssl.SSLCertVerificationError as error:
        raise _untrusted(who, tls, error) from error
    except ssl.SSLError as error:
        raise _refusal(who, tls, identity, error.reason or str(error)) from error
    except TimeoutError as error:
        raise NoAnswer("no reply in time") from error
    except socket.gaierror as error:
        raise NoAnswer("its host name is not known") from error
    except ConnectionRefusedError as error:
        raise NoAnswer("connection refused") from error
    except OSError as error:
        raise NoAnswer(error.strerror or "the connection broke") from error
    if peer is None:
        raise _refusal(who, tls, identity, "it closes the connection")
    allowed = tls.allowed_common_names
    if allowed and not set(allowed).intersection(peer.common_names):
        raise Refused(
            f"{who} shows a certificate with the common name {_listed(peer.common_names)}; "
            f"allowed: {', '.join(allowed)}.",
            "If it is a server of the upstream, add the name to spec.upstream.tls.allowedCommonNames.",
        )
    return peer


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "(none)"


async def _shaken(target: str, identity: Identity) -> Peer | None:
    """None: the server ended the connection after the handshake.

    With TLS 1.3 that is when it has seen our certificate, or that there is none; gRPC's own servers give no reason.
    """
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=identity.context, server_hostname=host)
    try:
        shaken: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.write(_HELLO)
        try:
            if not await reader.read(1):
                return None
        except ConnectionError:
            return None
        certificate = shaken.getpeercert(binary_form=True)
        assert certificate, "a context for clients verifies"
        names = _common_names(x509.load_der_x509_certificate(certificate))
        return Peer(names, ssl.DER_cert_to_PEM_cert(certificate).encode())
    finally:
        writer.transport.abort()


def _common_names(certificate: x509.Certificate) -> tuple[str, ...]:
    return tuple(str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME))


def _untrusted(who: str, tls: UpstreamTls, error: ssl.SSLCertVerificationError) -> Refused:
    """Our side does not trust the server."""
    if error.verify_code in (_OTHER_NAME, _OTHER_IP):
        step = (
            "Use an address that its certificate names, or issue it one with this name as a subject alternative name."
        )
    elif error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        step = "Renew the server's certificate; if it is valid, look at this machine's clock."
    else:
        step = f"Put the CA that signed it into {CA} of Secret {tls.secret}, if it is a server of the upstream."
    return Refused(f"{who} shows a certificate that is not trusted: {error.verify_message.rstrip('.')}.", step)


def _refusal(who: str, tls: UpstreamTls, identity: Identity, why: str) -> Refused:
    """The server does not trust us, or speaks no TLS that we know."""
    said = why.lower().replace("_", " ")
    if "alert" not in said and "closes" not in said:
        return Refused(
            f"{who} does not speak TLS ({said}).",
            "Turn TLS on in the cluster, or leave out spec.upstream.tls and write http:// in pdAddresses.",
        )
    if identity.certificate is None:
        return Refused(
            f"{who} wants a client certificate, and Secret {tls.secret} has none ({said}).",
            f"Add {CERTIFICATE} and {KEY} to it.",
        )
    return Refused(
        f"{who} does not accept the client certificate of Secret {tls.secret} ({said}).",
        f"Put one into {CERTIFICATE} and {KEY} that is valid, of a CA that the cluster trusts, and with a common name "
        "that security.cert-allowed-cn allows, where the cluster sets it; this one's is "
        f"{_listed(_common_names(x509.load_pem_x509_certificate(identity.certificate)))}.",
    )
