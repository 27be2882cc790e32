"""A local HTTP server for tests of streams: it breaks off, stalls, or sends what is no video."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from utils.tests.video.videos import copy_packets


class Answer(NamedTuple):
    """The answer to one request.

    With `stall` the connection stays open, and silent, until the server ends. `length` is the
    Content-Length that the answer states; 0: none, as of a camera.
    """

    body: bytes
    kind: str = "video/mp2t"
    stall: bool = False
    status: int = 200
    length: int = 0


@contextlib.contextmanager
def serve(*answers: Answer) -> Iterator[tuple[str, list[str]]]:
    """(address, paths of the requests so far); the last answer repeats."""
    requests: list[str] = []
    end = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_) -> None:
            pass

        def do_GET(self) -> None:  # noqa: N802 - the name that the class calls
            answer = answers[min(len(requests), len(answers) - 1)]
            requests.append(self.path)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            if answer.length:
                self.send_header("Content-Length", str(answer.length))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(answer.body)
                if answer.stall:
                    self.wfile.flush()
                    end.wait()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            end.set()
            server.shutdown()
            thread.join()


def to_transport_stream(path: Path, folder: Path) -> bytes:
    """The video of a file as an MPEG transport stream, which has no known duration."""
    return copy_packets(path, folder / f"{path.stem}.ts").read_bytes()
