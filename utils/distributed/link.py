"""A connection between the launchers of two nodes, each of which proves that it knows the job.

Each side first sends a line with a random number of its own. Every line after it is a JSON object
behind its HMAC-SHA256 over the receiver's random number, the count of lines, and the object, with
the job's token as key. The token itself never travels, and no line can be sent again later.
A line that is too long or has another HMAC ends the connection: it is from a stranger.
"""

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import socket
import time
from typing import Any

LONGEST = 16384  # bytes of a line
GREETING = b"video-zoo-launcher "  # before the random number
# The messages there are, with the types of their values.
SHAPES = (
    {"node": int, "nodes": int, "devices": int},  # hello
    {"refused": str},
    {"port": int, "logs": str},  # the plan
    {"finished": int},  # a node whose workers have ended well
    {"line": str, "status": int, "weight": int},  # a failure
    {"lost": str},  # a node that is gone
)


def job_key(token: str, port: int) -> bytes:
    """The key of a job's messages. Without a token every launcher at this port knows it."""
    return hashlib.sha256(f"{port} {token}".encode(errors="surrogateescape")).digest()


def is_message(value: Any) -> bool:
    return isinstance(value, dict) and any(
        value.keys() == shape.keys() and all(type(value[name]) is shape[name] for name in shape)
        for shape in SHAPES
    )


class Link:
    """Reading and writing never wait. `fault` says why a link was given up, `lost` that it was."""

    def __init__(self, connection: socket.socket, peer: str, key: bytes):
        self.connection, self.peer, self.key = connection, peer, key
        self.rest, self.lost, self.fault = b"", False, ""
        self.began = time.monotonic()
        self.own, self.theirs = secrets.token_hex(16).encode(), b""  # random numbers
        self.sent = self.received = 0  # lines
        self.unsent: list[dict[str, Any]] = []  # until the other side's random number is here
        connection.setblocking(False)
        # A host that lost its power or its network is noticed after 10 + 4 * 5 seconds; the last
        # one is for lines that nobody has confirmed, in milliseconds.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limits = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
        for name, value in {**limits, "TCP_USER_TIMEOUT": 30000}.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.write(GREETING + self.own)

    def write(self, line: bytes) -> None:
        """A few bytes, which the system takes at once; to one who is gone they need not go."""
        with contextlib.suppress(OSError):
            self.connection.sendall(line + b"\n")

    def send(self, message: dict[str, Any]) -> None:
        if not self.theirs:
            self.unsent.append(message)
            return
        text = json.dumps(message).encode()
        self.write(self.sign(self.theirs, self.sent, text) + b" " + text)
        self.sent += 1

    def sign(self, number: bytes, count: int, text: bytes) -> bytes:
        signed = b"%s %d %s" % (number, count, text)
        return hmac.new(self.key, signed, hashlib.sha256).hexdigest().encode()

    def receive(self) -> list[dict[str, Any]]:
        """What has come since the last time; sets `lost` where nothing will come any more."""
        if self.lost:
            return []
        try:
            data = self.connection.recv(LONGEST)
            self.lost = not data
        except BlockingIOError:
            return []
        except OSError:
            self.lost, data = True, b""
        *lines, self.rest = (self.rest + data).split(b"\n")
        messages = []
        for line in lines:
            if not self.theirs:
                self.greet(line)
            else:
                messages += self.read(line)
            if self.fault:
                return []
        if len(self.rest) > LONGEST:
            self.give_up("its line is too long")
        return messages

    def greet(self, line: bytes) -> None:
        """Takes the other side's random number, and sends what waits for it."""
        if not re.fullmatch(GREETING + b"[0-9a-f]{32}", line) or line.endswith(self.own):
            return self.give_up("it is no launcher of this version")
        self.theirs = line[len(GREETING) :]
        waiting, self.unsent = self.unsent, []
        for message in waiting:
            self.send(message)
        return None

    def read(self, line: bytes) -> list[dict[str, Any]]:
        """The message of a line; none where that is from a stranger."""
        signature, _, text = line.partition(b" ")
        if not hmac.compare_digest(signature, self.sign(self.own, self.received, text)):
            self.give_up("it does not know this job: is ZOO_JOB_TOKEN the same on all nodes?")
            return []
        self.received += 1
        try:
            message = json.loads(text)
        except (RecursionError, ValueError):
            message = None
        if not is_message(message):
            self.give_up("it sent what no launcher of this version sends")
            return []
        return [message]

    def give_up(self, fault: str) -> None:
        self.lost, self.fault = True, fault

    def is_lost(self) -> bool:
        """For a link on which nothing is expected."""
        self.receive()
        return self.lost

    def close(self) -> None:
        self.connection.close()
