from __future__ import annotations

from pathlib import Path

import pytest
from changefeed.errors import NeedsHuman
from changefeed.objectstore.open import open_store
from changefeed.objectstore.remote.secret import s3_credentials


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "access-key-id").write_text("id")
    (tmp_path / "secret-access-key").write_text("hunter2\n")
    return tmp_path


def test_keys_are_read_again_each_time(secret: Path) -> None:
    read = s3_credentials(secret)
    assert (read()["access_key_id"], read()["secret_access_key"], read()["token"]) == ("id", "hunter2", None)
    (secret / "access-key-id").write_text("rotated")
    (secret / "session-token").write_text("token")
    assert (read()["access_key_id"], read()["token"]) == ("rotated", "token")
    assert read()["expires_at"] is not None


@pytest.mark.parametrize("name", ["access-key-id", "secret-access-key"])
def test_a_missing_or_empty_file_is_named_at_once(secret: Path, name: str) -> None:
    (secret / name).write_text(" \n")
    with pytest.raises(NeedsHuman, match=rf"{name} is empty") as caught:
        open_store("s3://lake/x", secret=secret)
    (secret / name).unlink()
    with pytest.raises(NeedsHuman, match=rf"{name} can't be read: No such file") as missing:
        open_store("s3://lake/x", secret=secret)
    assert "--secrets-dir" in missing.value.next_step
    assert "hunter2" not in f"{caught.value}{missing.value}"


def test_a_store_shows_its_place_but_no_secret(secret: Path) -> None:
    store = open_store("s3://lake/x?endpoint=http://127.0.0.1:1", secret=secret)
    assert store.location.uri == store.uri == "s3://lake/x?endpoint=http://127.0.0.1:1"
    assert store.location.secret == secret
    assert "hunter2" not in repr(store.location) + repr(vars(store))
