"""The messages between a client and a scoring service.

A message is a header of 16 bytes and a body. The header has the body's length. Bodies are JSON, except for frames and
scores, which are plain numbers. Anything malformed is refused before it is used, and nothing is ever unpickled.

    client                                          service
    OPEN    model, prompts, threads, token, JSON    OPENED    what the scorer is, JSON
    NOTES   an environment's name, JSON             NOTED     what its user should be told, JSON
    ATTACH  shape of frames, slots, JSON;           ATTACHED
            on one machine with the descriptor
            of the memory they lie in
    SCORE   slot and count; without memory          SCORES    rows and columns, then float32
            count, then the frames themselves       WAIT      not yet, but all is well
                                                    ERROR     kind, message and details, JSON
"""

from __future__ import annotations

import hmac
import json
import math
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Similarities
from vlmsafe.signals.service.spec import ModelSpec, WrongToken

VERSION = 2
HEADER = struct.Struct("<4sBBHII")  # mark, version, kind, zero, number of the request, length of the body
_MARK = b"VLMS"
_PLACE = struct.Struct("<II")  # slot and count, rows and columns
_COUNT = struct.Struct("<I")

# Constants for shared memory on Linux; Python's fcntl has them from version 3.13 on.
F_ADD_SEALS, F_GET_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1034, 2, 4

JSON_LIMIT = 256 * 1024
FRAME_LIMIT = 64 * 1024**2
BLOCK_LIMIT = 512 * 1024**2
MEMORY_LIMIT = 4 * 1024**3
_FRAMES_LIMIT, _SLOTS_LIMIT, _SIDE_LIMIT, _CHANNEL_LIMIT, _THREADS_LIMIT = 4096, 64, 8192, 48, 4096


class Kind(IntEnum):
    OPEN, NOTES, ATTACH, SCORE = 1, 2, 3, 4
    OPENED, NOTED, ATTACHED, SCORES, WAIT, ERROR = 17, 18, 19, 20, 21, 22


class Malformed(VlmsafeError):
    """A message that breaks the protocol or exceeds its limits."""


@dataclass(frozen=True)
class Message:
    kind: Kind
    number: int
    body: bytearray
    fd: int | None = None
    """A descriptor that came with the message; the receiver closes it."""


@dataclass(frozen=True)
class Layout:
    """How a client's frames are stored in memory: in slots, each with a block of frames."""

    shape: tuple[int, int, int]
    block: int
    slots: int

    @property
    def frame_bytes(self) -> int:
        return math.prod(self.shape)

    @property
    def block_bytes(self) -> int:
        return self.block * self.frame_bytes

    @property
    def size(self) -> int:
        return self.slots * self.block_bytes


class Channel:
    """One end of a connection. One thread may receive while another sends."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.local = connection.family == socket.AF_UNIX
        self.body_limit = JSON_LIMIT
        """The longest body that is accepted now."""

    def send(self, kind: Kind, number: int, *parts: Any, fd: int | None = None) -> None:
        """Send a message; its body is the given bytes, one after another."""
        views = [memoryview(part).cast("B") for part in parts]
        length = sum(len(view) for view in views)
        header = HEADER.pack(_MARK, VERSION, kind, 0, number, length)
        if fd is not None:
            socket.send_fds(self.socket, [header], [fd])
        elif length <= JSON_LIMIT:
            self.socket.sendall(b"".join([header, *views]))
            return
        else:
            self.socket.sendall(header)
        for view in views:
            self.socket.sendall(view)

    def send_json(self, kind: Kind, number: int, content: Any, fd: int | None = None) -> None:
        self.send(kind, number, json.dumps(content).encode(), fd=fd)

    def receive(self) -> Message:
        """The next message; ConnectionError if the other end is gone."""
        header, fd = self._header()
        try:
            mark, version, kind, nothing, number, length = HEADER.unpack(header)
            if mark != _MARK:
                raise Malformed("this is not a message of a scoring service or its clients")
            if version != VERSION:
                raise Malformed(f"the other end speaks version {version}, this one {VERSION}; install equal ones")
            if nothing or kind not in set(Kind):
                raise Malformed(f"there is no message of the kind {kind}")
            if length > self.body_limit:
                raise Malformed(f"a message of {length} bytes is too long; at most {self.body_limit} are taken here")
            if fd is not None and kind != Kind.ATTACH:
                raise Malformed("a descriptor came with a message that takes none")
            body = bytearray(length)
            self._fill(memoryview(body))
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return Message(Kind(kind), number, body, fd)

    def _header(self) -> tuple[bytearray, int | None]:
        header = bytearray(HEADER.size)
        if not self.local:
            self._fill(memoryview(header))
            return header, None
        # A descriptor comes with the first byte of its message.
        first, fds, _, _ = socket.recv_fds(self.socket, HEADER.size, 1, socket.MSG_CMSG_CLOEXEC)
        fd = fds[0] if fds else None
        try:
            if not first:
                raise ConnectionResetError("the other end has closed the connection")
            header[: len(first)] = first
            self._fill(memoryview(header)[len(first) :])
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return header, fd

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise ConnectionResetError("the other end has closed the connection")
            view = view[count:]


# What bodies hold.


def fields(body: bytearray, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a JSON body, which must have exactly these keys and types."""
    try:
        content = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a body is not JSON: {type(error).__name__}") from None
    if not isinstance(content, dict) or set(content) != set(kinds):
        came = ", ".join(sorted(map(str, content)))[:200] if isinstance(content, dict) else type(content).__name__
        raise Malformed(f"expected the keys {', '.join(kinds)}, got {came or 'none'}")
    for name, kind in kinds.items():
        # To Python, True is a number; here it is not.
        if not isinstance(content[name], kind) or (isinstance(content[name], bool) and kind is not bool):
            raise Malformed(f"'{name}' has the wrong type {type(content[name]).__name__}")
    return content


def open_body(spec: ModelSpec, prompts: PromptSet | None, threads: int = 0, token: str = "") -> dict[str, Any]:
    texts = None if prompts is None else prompts.to_dict()
    return asdict(spec) | {"prompts": texts, "threads": threads, "token": token}


def read_open(body: bytearray, token: str = "") -> tuple[ModelSpec, PromptSet | None, int]:
    """Model, prompts and the number of the client's threads; InputError for invalid prompts.

    WrongToken if the client does not have the token, where one is asked for.
    """
    kinds = {"scorer": str, "device": str, "precision": str, "compile": bool, "batch": int, "frames": int | None}
    content = fields(body, kinds | {"prompts": dict | None, "threads": int, "token": str})
    shown = content.pop("token")
    if token and not hmac.compare_digest(shown.encode(), token.encode()):
        raise WrongToken("the token is another one, or there is none")
    prompts, threads = content.pop("prompts"), content.pop("threads")
    if not 0 <= threads <= _THREADS_LIMIT:
        raise Malformed(f"a client has from 0 to {_THREADS_LIMIT} threads, not {threads}")
    if content["precision"] not in ("float32", "bfloat16") or not 1 <= content["batch"] <= _FRAMES_LIMIT:
        raise Malformed("a precision is float32 or bfloat16, and a batch has from 1 to 4096 frames")
    if content["frames"] is not None and not 1 <= content["frames"] <= _CHANNEL_LIMIT // 3:
        raise Malformed(f"a stack has from 1 to {_CHANNEL_LIMIT // 3} frames, not {content['frames']}")
    return ModelSpec(**content), None if prompts is None else _prompts(prompts), threads


def _prompts(content: dict[str, Any]) -> PromptSet:
    descriptions = content.get("descriptions", {})
    texts = [content.get("positive"), content.get("negative")]
    if set(content) - {"descriptions"} != {"positive", "negative"} or not isinstance(descriptions, dict):
        raise Malformed("prompts have the keys positive, negative and descriptions")
    if not set(descriptions) <= {"positive", "negative"}:
        raise Malformed("descriptions have the keys positive and negative")
    for group in (*texts, list(descriptions.values())):
        if not isinstance(group, list) or not all(isinstance(text, str) for text in group):
            raise Malformed("prompts are lists of texts")
    return PromptSet(
        tuple(content["positive"]),
        tuple(content["negative"]),
        positive_description=descriptions.get("positive", ""),
        negative_description=descriptions.get("negative", ""),
    )


def attach_body(layout: Layout, memory: bool) -> dict[str, Any]:
    return asdict(layout) | {"dtype": "uint8", "memory": memory}


def read_attach(body: bytearray) -> tuple[Layout, bool]:
    """The layout of frames, and whether they come through shared memory."""
    content = fields(body, {"shape": list, "block": int, "slots": int, "dtype": str, "memory": bool})
    shape = content["shape"]
    if content["dtype"] != "uint8":
        raise Malformed(f"frames are uint8, not {content['dtype'][:40]!r}")
    if len(shape) != 3 or not all(isinstance(side, int) and 1 <= side <= _SIDE_LIMIT for side in shape):
        raise Malformed(f"a frame is [height, width, channels], each from 1 to {_SIDE_LIMIT}, not {str(shape)[:80]}")
    if shape[2] % 3 or shape[2] > _CHANNEL_LIMIT:
        raise Malformed(f"a frame has three channels, or a multiple of it up to {_CHANNEL_LIMIT}, not {shape[2]}")
    if not 1 <= content["block"] <= _FRAMES_LIMIT or not 1 <= content["slots"] <= _SLOTS_LIMIT:
        raise Malformed(f"a block has from 1 to {_FRAMES_LIMIT} frames, and there are from 1 to {_SLOTS_LIMIT} slots")
    layout = Layout((shape[0], shape[1], shape[2]), content["block"], content["slots"])
    if layout.frame_bytes > FRAME_LIMIT or layout.block_bytes > BLOCK_LIMIT or layout.size > MEMORY_LIMIT:
        raise Malformed(f"{layout.size} bytes of frames are too many; take smaller frames, blocks or fewer slots")
    return layout, content["memory"]


def slot_body(slot: int, count: int) -> bytes:
    return _PLACE.pack(slot, count)


def count_body(count: int) -> bytes:
    return _COUNT.pack(count)


def read_slot(body: bytearray, layout: Layout) -> tuple[int, int]:
    """The slot of the memory to score, and the number of its frames."""
    if len(body) != _PLACE.size:
        raise Malformed(f"expected {_PLACE.size} bytes that name a slot, got {len(body)}")
    slot, count = _PLACE.unpack(body)
    if slot >= layout.slots or not 1 <= count <= layout.block:
        raise Malformed(f"there is no slot {slot} with {count} frames; {layout.slots} hold {layout.block} each")
    return slot, count


def read_frames(body: bytearray, layout: Layout) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The frames in a body."""
    if len(body) < _COUNT.size:
        raise Malformed(f"expected a number of frames and then the frames, got {len(body)} bytes")
    (count,) = _COUNT.unpack_from(body)
    expected = _COUNT.size + count * layout.frame_bytes
    if not 1 <= count <= layout.block or len(body) != expected:
        raise Malformed(f"{count} frames of {list(layout.shape)} are {expected} bytes, got {len(body)}")
    return np.frombuffer(body, np.uint8, offset=_COUNT.size).reshape(count, *layout.shape)


def frames_limit(layout: Layout) -> int:
    """The longest body with frames in it."""
    return _COUNT.size + layout.block_bytes


def scores_parts(found: Similarities) -> tuple[bytes, Any]:
    return _PLACE.pack(*found.shape), np.ascontiguousarray(found, np.float32)


def read_scores(body: bytearray) -> Similarities:
    rows, columns = _PLACE.unpack_from(body) if len(body) >= _PLACE.size else (0, 0)
    if len(body) != _PLACE.size + 4 * rows * columns:
        raise Malformed(f"{rows} x {columns} similarities came in {len(body)} bytes")
    return np.frombuffer(body, np.float32, offset=_PLACE.size).reshape(rows, columns)


def read_error(body: bytearray) -> tuple[str, str, str]:
    content = fields(body, {"kind": str, "message": str, "details": str})
    return content["kind"], content["message"], content["details"]


def error_body(kind: str, error: BaseException) -> dict[str, str]:
    return {"kind": kind, "message": str(error)[:4000], "details": getattr(error, "details", "")[-20_000:]}


def kind_of_error(error: BaseException) -> str:
    """The kind of an error for the client: wrong input, or a scorer that failed."""
    return "input" if isinstance(error, InputError) else "failure"
