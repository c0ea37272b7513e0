"""A registry of container images on 127.0.0.1: what was pushed once is neither compressed nor copied a second time.

As much of the distribution protocol as buildah's push and containerd's pull need. Blobs lie in a folder, by digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

_CHUNK = 1 << 20
_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>blobs|manifests)/(?P<rest>.+)")


class Registry:
    """`with Registry(folder) as registry`; images are named as `registry.address/NAME:TAG`.

    The port is the same each time where it can be: buildah remembers by it what it has pushed.
    """

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)
        self._port = folder / "port"

    def __enter__(self) -> Registry:
        self._server = _Server(("127.0.0.1", self._free_port()), _Handler)
        self._server.store = self._store
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._port.write_text(str(self._server.server_port))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="registry", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def images(self) -> list[str]:
        """As NAME:TAG."""
        return self._store.images()

    def _free_port(self) -> int:
        port = int(self._port.read_text()) if self._port.exists() else 0
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return 0
        return port


class Store:
    """A registry's folder: blobs and manifests by digest, tags that name manifests."""

    def __init__(self, folder: Path) -> None:
        self._blobs = folder / "blobs"
        self._tags = folder / "tags"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._tags.mkdir(exist_ok=True)

    def images(self) -> list[str]:
        """As NAME:TAG."""
        return sorted(str(tag.relative_to(self._tags)) for tag in self._tags.rglob("*:*") if tag.is_file())

    def add(self, content: bytes) -> str:
        """The blob's digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blob(digest).write_bytes(content)
        return digest

    def blob(self, digest: str) -> Path:
        return self._blobs / digest.replace(":", "-")

    def upload(self) -> Path:
        """A new file that `keep` makes a blob."""
        return self._blobs / f"upload-{secrets.token_hex(8)}"

    def keep(self, upload: Path, digest: str) -> bool:
        """False when its content is another."""
        with upload.open("rb") as file:
            right = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == digest
        upload.replace(self.blob(digest)) if right else upload.unlink()
        return right

    def tag(self, image: str, digest: str) -> None:
        tag = self._tags / image
        tag.parent.mkdir(parents=True, exist_ok=True)
        tag.write_text(digest)

    def take(self, layout: Path, image: str) -> None:
        """The image of an OCI layout on the same disk, with all its architectures."""
        (described,) = json.loads((layout / "index.json").read_text())["manifests"]
        for blob in (layout / "blobs" / "sha256").iterdir():
            ours = self.blob(f"sha256:{blob.name}")
            if not ours.exists():
                os.link(blob, ours)
        self.tag(image, described["digest"])

    def manifest(self, name: str, reference: str) -> tuple[str, bytes] | None:
        """Digest and content; `reference`: a tag or a digest."""
        tag = self._tags / f"{name}:{reference}"
        digest = reference if reference.startswith("sha256:") else tag.read_text() if tag.exists() else ""
        return (digest, self.blob(digest).read_bytes()) if digest and self.blob(digest).exists() else None

    def forget_others(self, images: list[str]) -> None:
        """Delete what is not of these images."""
        for image in set(self.images()) - set(images):
            (self._tags / image).unlink()
        used = {blob for image in self.images() for blob in self._blobs_of((self._tags / image).read_text())}
        for blob in self._blobs.iterdir():
            if blob not in used:
                blob.unlink()

    def _blobs_of(self, digest: str) -> Iterator[Path]:
        """Yield the blobs of a manifest, or of an index with its manifests."""
        yield self.blob(digest)
        described = json.loads(self.blob(digest).read_bytes())
        for manifest in described.get("manifests", ()):
            yield from self._blobs_of(manifest["digest"])
        for part in (described.get("config"), *described.get("layers", ())):
            if part:
                yield self.blob(part["digest"])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    store: Store


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        match = _PATH.fullmatch(urlsplit(self.path).path)
        if match is None:
            self._answer(200)
        elif match["kind"] == "manifests":
            self._give_manifest(match["name"], match["rest"])
        else:
            self._give_blob(match["rest"])

    do_HEAD = do_GET

    def do_POST(self) -> None:
        upload = self.server.store.upload()
        upload.touch()
        self._accepted(upload)

    def do_PATCH(self) -> None:
        upload = self._upload()
        with upload.open("ab") as file:
            self._read_body(file)
        self._accepted(upload)

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        match = _PATH.fullmatch(url.path)
        assert match is not None, self.path
        if match["kind"] == "manifests":
            digest = self.server.store.add(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.store.tag(f"{match['name']}:{match['rest']}", digest)
            self._answer(201, {"Docker-Content-Digest": digest})
            return
        upload = self._upload()
        with upload.open("ab") as file:
            self._read_body(file)
        digest = parse_qs(url.query)["digest"][0]
        self._answer(201 if self.server.store.keep(upload, digest) else 400, {"Docker-Content-Digest": digest})

    def _give_manifest(self, name: str, reference: str) -> None:
        found = self.server.store.manifest(name, reference)
        if found is None:
            self._answer(404)
            return
        digest, content = found
        described = json.loads(content)
        kind = "index" if "manifests" in described else "manifest"
        media_type = described.get("mediaType", f"application/vnd.oci.image.{kind}.v1+json")
        headers = {"Content-Type": media_type, "Docker-Content-Digest": digest}
        self._answer(200, headers, len(content))
        if self.command == "GET":
            self.wfile.write(content)

    def _give_blob(self, digest: str) -> None:
        blob = self.server.store.blob(digest)
        if not blob.exists():
            self._answer(404)
            return
        with blob.open("rb") as file:
            self._answer(200, {"Docker-Content-Digest": digest}, blob.stat().st_size)
            if self.command == "GET":
                shutil.copyfileobj(file, self.wfile, _CHUNK)

    def _upload(self) -> Path:
        return self.server.store.upload().with_name(urlsplit(self.path).path.rpartition("/")[2])

    def _accepted(self, upload: Path) -> None:
        path = urlsplit(self.path).path
        there = path.rpartition("/")[0] if self.command == "PATCH" else path.rstrip("/")
        self._answer(202, {"Location": f"{there}/{upload.name}", "Range": f"0-{max(upload.stat().st_size - 1, 0)}"})

    def _read_body(self, file: BinaryIO) -> None:
        if self.headers.get("Transfer-Encoding") != "chunked":
            file.write(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            return
        while size := int(self.rfile.readline().strip(), 16):
            file.write(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, status: int, headers: dict[str, str] | None = None, length: int = 0) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest's output is for its tests."""
