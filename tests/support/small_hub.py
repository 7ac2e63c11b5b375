"""A server that answers as the Hugging Face hub does for one model of a single commit."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(files: Path, name: str = "tiny/qwen") -> Iterator[tuple[str, list[str]]]:
    """Serve a folder as a model; gives the server's address and the paths that it was asked for.

    The revisions main, its only branch, and COMMIT exist. The model tiny/locked is closed, others do not exist.
    """
    asked: list[str] = []
    branches = ("main", COMMIT)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/tiny/locked"):
                self.answer(403, headers={"X-Error-Code": "GatedRepo"})
            elif path in (f"/api/models/{name}", *(f"/api/models/{name}/revision/{one}" for one in branches)):
                names = [{"rfilename": file.name} for file in sorted(files.iterdir())]
                self.answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": names}).encode())
            elif path in [f"/api/models/{name}/tree/{one}" for one in branches]:
                entries = [
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": f"{file.name}-1"}
                    for file in sorted(files.iterdir())
                ]
                self.answer(200, json.dumps(entries).encode())
            elif path.startswith(f"/api/models/{name}/revision/"):
                self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
            elif path.startswith(f"/{name}/resolve/") and (file := files / path.split("/")[-1]).is_file():
                self.answer(200, file.read_bytes(), {"ETag": f'"{file.name}-1"'})
            elif f"/{name}/" in path:
                self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
            else:
                self.answer(404, headers={"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815

        def answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {
                "X-Repo-Commit": COMMIT,
                "Content-Length": str(len(content)),
                **(headers or {}),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
