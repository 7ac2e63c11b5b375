"""The messages between a client and a scoring service.

A message is a header of 12 bytes, which has the length of the body, and a body: one of the structs below, in
MessagePack. msgspec refuses a body with another shape, unknown entries or values out of range, before anything uses it.
Nothing is ever unpickled.

    client                                          service
    Open         model, prompts, threads, token     Opened    what the scorer is
    AskNotes     an environment's name              Noted     what its user should be told
    Attach       the layout of frames; on one       Attached
                 machine with the descriptor of
                 the memory they lie in
    Score        a slot of that memory              Scored    similarities
    ScoreFrames  the frames, without memory         Wait      not yet, but all is well
                                                    Error     why not
"""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import struct
import time
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from vlmsafe.errors import InputError, VlmsafeError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import Inputs, ScorerFailure, Similarities
from vlmsafe.signals.service.spec import ModelSpec, NotShared, ServiceStopped, WrongToken

VERSION = 3
HEADER = struct.Struct("<4sB3xI")  # mark, version, length of the body
_MARK = b"VLMS"

# Constants for shared memory on Linux; Python's fcntl has them from version 3.13 on.
F_ADD_SEALS, F_GET_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1034, 2, 4

BODY_LIMIT = 256 * 1024
"""The longest body without frames."""
FRAME_LIMIT = 64 * 1024**2
BLOCK_LIMIT = 512 * 1024**2
MEMORY_LIMIT = 4 * 1024**3
_BATCH_LIMIT = 4096
_CHANNEL_LIMIT = 48
_TEXT_LIMIT, _DETAILS_LIMIT = 4_000, 20_000  # characters of an error

T = TypeVar("T")
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Side = Annotated[int, msgspec.Meta(ge=1, le=8192)]
Frames = Annotated[int, msgspec.Meta(ge=1, le=_BATCH_LIMIT)]


class Malformed(VlmsafeError):
    """A message that breaks the protocol or exceeds its limits."""


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a client's frames are stored in memory: in slots, each with a block of frames."""

    shape: tuple[Side, Side, Side]
    block: Frames
    slots: Annotated[int, msgspec.Meta(ge=1, le=64)]

    def __post_init__(self) -> None:
        if self.shape[2] % 3 or self.shape[2] > _CHANNEL_LIMIT:
            raise ValueError(
                f"a frame has three channels, or a multiple of it up to {_CHANNEL_LIMIT}, not {self.shape[2]}"
            )
        if self.frame_bytes > FRAME_LIMIT or self.block_bytes > BLOCK_LIMIT or self.size > MEMORY_LIMIT:
            raise ValueError(f"{self.size} bytes of frames are too many; take smaller frames, blocks or fewer slots")

    @property
    def frame_bytes(self) -> int:
        return math.prod(self.shape)

    @property
    def block_bytes(self) -> int:
        return self.block * self.frame_bytes

    @property
    def size(self) -> int:
        return self.slots * self.block_bytes


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag=True):
    """What all messages have. The name of the struct travels as `kind`."""

    number: Number = 0
    """Of the question, which its answer repeats."""


class Open(Message, frozen=True):
    spec: dict[str, Any]
    """The entries of a `ModelSpec`."""
    prompts: dict[str, Any] | None
    """The entries of a `PromptSet`."""
    threads: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    token: str = ""

    @classmethod
    def of(cls, spec: ModelSpec, prompts: PromptSet | None, threads: int = 0, token: str = "") -> Open:
        texts = None if prompts is None else dataclasses.asdict(prompts)
        return cls(spec=dataclasses.asdict(spec), prompts=texts, threads=threads, token=token)

    def model(self) -> ModelSpec:
        spec = _convert(self.spec, ModelSpec)
        if not 1 <= spec.batch <= _BATCH_LIMIT:
            raise Malformed(f"a batch has from 1 to {_BATCH_LIMIT} frames, not {spec.batch}")
        if spec.frames is not None and not 1 <= spec.frames <= _CHANNEL_LIMIT // 3:
            raise Malformed(f"a stack has from 1 to {_CHANNEL_LIMIT // 3} frames, not {spec.frames}")
        return spec

    def prompt_set(self) -> PromptSet | None:
        """InputError for prompts that are well formed but invalid."""
        return None if self.prompts is None else _convert(self.prompts, PromptSet)


class AskNotes(Message, frozen=True):
    env: str | None


class Attach(Message, frozen=True):
    layout: Layout
    memory: bool
    """Whether frames come through memory, whose descriptor is with the message."""


class Score(Message, frozen=True):
    slot: Number
    count: Frames


class ScoreFrames(Message, frozen=True):
    count: Frames
    frames: memoryview

    def array(self, layout: Layout) -> Inputs:
        expected = self.count * layout.frame_bytes
        if self.count > layout.block or len(self.frames) != expected:
            raise Malformed(
                f"{self.count} frames of {list(layout.shape)} are {expected} bytes, and a block has {layout.block}; "
                f"got {len(self.frames)} bytes"
            )
        return np.frombuffer(self.frames, np.uint8).reshape(self.count, *layout.shape)


class Opened(Message, frozen=True):
    """The attributes of a scorer that its client needs."""

    rules: tuple[str, ...]
    bounds: tuple[float, float]
    gate: str
    frames: int
    frame_distance: int
    groups: tuple[int, int]
    description: dict[str, Any]
    source: dict[str, Any] | None


class Noted(Message, frozen=True):
    notes: list[str]


class Attached(Message, frozen=True):
    pass


class Scored(Message, frozen=True):
    rows: Number
    columns: Number
    similarities: memoryview
    """As float32, row after row."""

    @classmethod
    def of(cls, found: Similarities, number: int) -> Scored:
        rows, columns = found.shape
        numbers = np.ascontiguousarray(found, np.float32)
        return cls(number=number, rows=rows, columns=columns, similarities=memoryview(numbers.tobytes()))

    def array(self) -> Similarities:
        if len(self.similarities) != 4 * self.rows * self.columns:
            raise Malformed(f"{self.rows} x {self.columns} similarities came in {len(self.similarities)} bytes")
        return np.frombuffer(self.similarities, np.float32).reshape(self.rows, self.columns)


class Wait(Message, frozen=True):
    pass


class Reason(Enum):
    """Why a service refuses a message. The order matters: an error has the first reason whose class it is of."""

    AGAIN = ServiceStopped
    PRIVATE = NotShared
    TOKEN = WrongToken
    MALFORMED = Malformed
    INPUT = InputError
    FAILURE = ScorerFailure


class Error(Message, frozen=True):
    reason: str
    """The name of a `Reason`."""
    text: str
    details: str = ""

    @classmethod
    def of(cls, error: VlmsafeError, number: int) -> Error:
        reason = next((one for one in Reason if isinstance(error, one.value)), Reason.FAILURE)
        details = getattr(error, "details", "")[-_DETAILS_LIMIT:]
        return cls(number=number, reason=reason.name, text=str(error)[:_TEXT_LIMIT], details=details)


REQUESTS = msgspec.msgpack.Decoder(Open | AskNotes | Attach | Score | ScoreFrames)
"""Reads what a client may send."""
ANSWERS = msgspec.msgpack.Decoder(Opened | Noted | Attached | Scored | Wait | Error)
"""Reads what a service may send."""
_ENCODER = msgspec.msgpack.Encoder()


def _convert(content: dict[str, Any], kind: type[T]) -> T:
    """A dataclass with these entries. msgspec would ignore unknown ones, which a newer client may rely on."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if unknown := [str(name)[:40] for name in content if name not in names]:
        raise Malformed(f"a {kind.__name__} has {', '.join(names)}, and not {', '.join(unknown[:5])}")
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise Malformed(f"this is not a {kind.__name__}: {error}") from None


def encode(message: Message) -> bytearray:
    """A message as it is sent, with its header."""
    whole = bytearray(HEADER.size)
    _ENCODER.encode_into(message, whole, HEADER.size)
    HEADER.pack_into(whole, 0, _MARK, VERSION, len(whole) - HEADER.size)
    return whole


def decode(body: bytes | bytearray, reads: msgspec.msgpack.Decoder[Any]) -> Message:
    try:
        message: Message = reads.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"this is no message that is expected here: {error or type(error).__name__}") from None
    return message


@dataclass(frozen=True)
class Received:
    message: Message
    fd: int | None = None
    """A descriptor that came with the message; the receiver closes it."""


class Channel:
    """One end of a connection. One thread may receive while another sends."""

    def __init__(self, connection: socket.socket, reads: msgspec.msgpack.Decoder[Any] = ANSWERS) -> None:
        self.socket = connection
        self.local = connection.family == socket.AF_UNIX
        self.body_limit = BODY_LIMIT
        """The longest body that is accepted now."""
        self.until = math.inf
        """When the message that is received must be there, by the monotonic clock."""
        self._reads = reads

    def send(self, message: Message, fd: int | None = None) -> None:
        whole = memoryview(encode(message))
        if fd is not None:
            socket.send_fds(self.socket, [whole[: HEADER.size]], [fd])
            whole = whole[HEADER.size :]
        self.socket.sendall(whole)

    def receive(self) -> Received:
        """The next message; ConnectionError if the other end is gone."""
        header, fd = self._header()
        try:
            mark, version, length = HEADER.unpack(header)
            if mark != _MARK:
                raise Malformed("this is not a message of a scoring service or its clients")
            if version != VERSION:
                raise Malformed(f"the other end speaks version {version}, this one {VERSION}; install equal ones")
            if length > self.body_limit:
                raise Malformed(f"a message of {length} bytes is too long; at most {self.body_limit} are taken here")
            body = bytearray(length)
            self._fill(memoryview(body))
            message = decode(body, self._reads)
            if fd is not None and not isinstance(message, Attach):
                raise Malformed("a descriptor came with a message that takes none")
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return Received(message, fd)

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
            if time.monotonic() > self.until:
                raise BlockingIOError("the message did not come in time")
            count = self.socket.recv_into(view)
            if not count:
                raise ConnectionResetError("the other end has closed the connection")
            view = view[count:]
