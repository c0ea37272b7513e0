"""What can be known of Azure without a server: whose credentials are used, at which address, and what failures mean."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from changefeed.errors import InvalidSpec, NeedsHuman, NotFound, OutcomeUnknown, Refused, Transient
from changefeed.objectstore.open import open_store
from changefeed.objectstore.remote.azure import AZURE
from changefeed.objectstore.remote.failures import changed_meanwhile, meaning, name_taken
from changefeed.objectstore.remote.secret import azure_credentials
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

URI = "az://lake/orders?account-name=shop"


def said(status: int, code: str) -> str:
    return (
        f"Server returned non-2xx status code: {status} X: <Error><Code>{code}</Code><Message>hunter2</Message></Error>"
    )


def test_the_account_is_that_of_the_uri_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a Secret says may change, and the place of a log must not."""
    (tmp_path / "account-key").write_text("aHVudGVyMg==")
    (tmp_path / "account-name").write_text("shop")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    with pytest.raises(InvalidSpec, match="account-name=name"):
        open_store("az://lake/orders", secret=tmp_path)
    store = open_store(URI, secret=tmp_path)
    assert store.uri == URI
    assert "aHVudGVyMg" not in repr(store.location) + repr(vars(store))


def test_a_key_that_is_none_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "account-key").write_text("hunter2!")
    with pytest.raises(NeedsHuman, match="account-key holds no key") as caught:
        open_store(URI, secret=tmp_path)
    assert "hunter2" not in str(caught.value)


def test_names_that_azure_takes_for_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "account-key").write_text("aHVudGVyMg==")
    store = open_store(URI, secret=tmp_path)
    for name in ("shop/orders./1", "shop/or\\ders/1"):
        with pytest.raises(NeedsHuman, match="does not name an object"):
            store.create(name, b"")


def test_the_key_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "account-key").write_text("aHVudGVyMg==\n")
    read = azure_credentials(tmp_path)
    assert read()["access_key"] == "aHVudGVyMg=="
    (tmp_path / "account-key").write_text("aHVudGVyMw==\n")
    assert read()["access_key"] == "aHVudGVyMw=="


def test_a_name_that_is_taken_is_told_from_a_conflict_of_two() -> None:
    assert name_taken(AlreadyExistsError(said(409, "BlobAlreadyExists")), AZURE)
    assert not name_taken(AlreadyExistsError(said(409, "PendingCopyOperation")), AZURE)
    assert changed_meanwhile(PreconditionError(said(412, "ConditionNotMet")), AZURE)
    assert changed_meanwhile(FileNotFoundError(said(404, "BlobNotFound")), AZURE)
    assert not changed_meanwhile(PreconditionError(said(412, "LeaseIdMissing")), AZURE)
    assert not changed_meanwhile(GenericError(said(503, "ServerBusy")), AZURE)


@pytest.mark.parametrize(
    ("error", "writes", "kind", "says"),
    [
        (GenericError(said(404, "ContainerNotFound")), True, Refused, "there is no container lake"),
        (GenericError(said(403, "AuthenticationFailed")), True, Refused, "refuses the credentials"),
        (GenericError(said(403, "AuthorizationPermissionMismatch")), False, Refused, "refuses the credentials"),
        (
            GenericError(f"POST https://login/t/oauth2/v2.0/token {said(400, 'X')}"),
            True,
            Refused,
            "for a token",
        ),
        (GenericError(f"POST https://login/t/oauth2/v2.0/token {said(500, 'X')}"), False, Transient, "500"),
        (GenericError("delete request failed for key a/1: hunter2. (code: 403)"), False, Refused, "refuses the cred"),
        (GenericError("http://169.254.169.254/metadata/identity"), True, Refused, "there are no credentials"),
        (FileNotFoundError(said(404, "BlobNotFound")), False, NotFound, "There is no a/1"),
        (GenericError(said(503, "ServerBusy")), True, OutcomeUnknown, "503 ServerBusy"),
        (GenericError(said(503, "ServerBusy")), False, Transient, "503 ServerBusy"),
        (GenericError(said(400, "Md5Mismatch")), True, OutcomeUnknown, "400 Md5Mismatch"),
        (GenericError(said(400, "InvalidHeaderValue")), True, NeedsHuman, "400 InvalidHeaderValue"),
    ],
)
def test_what_a_failure_means(error: Exception, writes: bool, kind: type[Exception], says: str) -> None:
    found = meaning(error, "create", "a/1", URI, AZURE, writes)
    assert type(found) is kind
    assert says in found.message
    assert "hunter2" not in str(found)


class TokenServer(ThreadingHTTPServer):
    """Gives tokens for the pod's one, and takes blobs for its own."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TokenHandler)
        self.status = 200
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class TokenHandler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        self._answer(self.server.status, b'{"access_token": "hunter2", "expires_in": 3600, "token_type": "Bearer"}')

    def do_PUT(self) -> None:
        self.server.asked.append(self.headers["Authorization"])
        self._answer(201, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response_only(status)
        self.send_header("ETag", '"0x1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what is sent is the test's own."""


def test_a_pods_identity_is_exchanged_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("jwt")
    with TokenServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        environment = {
            "AZURE_CLIENT_ID": "client",
            "AZURE_TENANT_ID": "tenant",
            "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "token"),
            "AZURE_AUTHORITY_HOST": server.address,
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        uri = f"{URI}&endpoint={server.address}"
        open_store(uri).create("a", b"1")
        assert server.asked == ["Bearer hunter2"]
        server.status = 401
        with pytest.raises(Refused, match="not exchanged for a token") as refused:
            open_store(uri).create("a", b"1")
        assert "AZURE_FEDERATED_TOKEN_FILE" in refused.value.next_step
        server.shutdown()
