"""A malformed message is refused with an answer, and other clients do not notice."""

import dataclasses
import fcntl
import os
import socket
import time
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from frame_scorer import FrameScorer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import wait_until

from vlmsafe.errors import InputError
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.service import session
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.server import Server
from vlmsafe.signals.service.sockets import listen
from vlmsafe.signals.service.spec import ModelSpec, parse_address
from vlmsafe.signals.service.wire import (
    _MARK,
    ANSWERS,
    BODY_LIMIT,
    F_ADD_SEALS,
    F_SEAL_SHRINK,
    HEADER,
    REQUESTS,
    VERSION,
    Attach,
    Attached,
    Channel,
    Error,
    Layout,
    Malformed,
    Message,
    Open,
    Opened,
    Reason,
    Score,
    Scored,
    ScoreFrames,
    Wait,
    decode,
)

PROMPTS = PromptSet(("a clear road",), ("danger",))
SPEC = ModelSpec("python:frame_scorer:FrameScorer", device="cpu", batch=8)
LAYOUT = Layout((8, 8, 3), 8, 2)
FRAMES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)


@pytest.fixture(scope="module", params=["unix", "tcp"])
def address(request, tmp_path_factory):
    if request.param == "unix":
        where = parse_address(f"unix:{tmp_path_factory.mktemp('service') / 'socket'}")
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            where = parse_address(f"tcp:127.0.0.1:{probe.getsockname()[1]}")
    listener, clean_up = listen(where)
    server = Server(listener)
    yield where
    server.stop()
    clean_up()


@pytest.fixture(scope="module")
def bystander(address):
    """A client that is there all the time, and must not notice anything."""
    client = ServiceScorer(address, SPEC, PROMPTS, 10.0)
    channel = client._connection.channel
    yield client
    np.testing.assert_array_equal(client.score(FRAMES), FrameScorer(PROMPTS).score(FRAMES))
    assert client._connection.channel is not None
    assert channel is not None
    client.close()


def dial(address) -> Channel:
    if address.kind == "tcp":
        connection = socket.create_connection((address.place, address.port), timeout=600.0)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10.0)
        connection.connect(address.place)
    return Channel(connection)


def opened(address) -> Channel:
    channel = dial(address)
    channel.send(Open.of(SPEC, PROMPTS))
    assert isinstance(channel.receive().message, Opened)
    return channel


def attached(address) -> Channel:
    channel = opened(address)
    channel.send(Attach(layout=LAYOUT, memory=False))
    assert isinstance(channel.receive().message, Attached)
    return channel


def refusal(channel: Channel) -> str:
    """What the service says before it hangs up."""
    message = channel.receive().message
    while isinstance(message, Wait):
        message = channel.receive().message
    assert isinstance(message, Error), message
    assert Reason[message.reason] in (Reason.MALFORMED, Reason.INPUT, Reason.AGAIN)
    with pytest.raises(ConnectionError):
        channel.receive()
    channel.socket.close()
    return message.text


def header(length: int = 0, mark: bytes = b"VLMS", version: int = VERSION) -> bytes:
    return HEADER.pack(mark, version, length)


def raw(content: Any) -> bytes:
    """A message with any content."""
    body = msgspec.msgpack.encode(content)
    return header(len(body)) + body


def plain(message: Message) -> dict[str, Any]:
    """The entries of a message as they travel."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message))


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "not a message of a scoring service"),
        (bytes(range(256)) * 40, "not a message of a scoring service"),
        (header(version=2), "speaks version 2, this one 3"),
        (header(2**32 - 1), "4294967295 bytes is too long"),
        (header(BODY_LIMIT + 1), "is too long"),
        (header(4) + b"\x80\x04K\x01", "missing required field `kind`"),
        (header(100_000) + b"\x91" * 100_000, "got `array`"),
        (header(), "truncated"),
        (raw([]), "got `array`"),
        (raw({}), "missing required field `kind`"),
        (raw({"kind": "Close"}), "Invalid value 'Close'"),
        (raw({"kind": 7}), "Expected `str`"),
        (raw({"kind": "Scored", "rows": 1, "columns": 1, "similarities": bytes(4)}), "Invalid value 'Scored'"),
        (raw({"kind": "AskNotes", "env": None}), "AskNotes is not expected from a client that is new"),
        (raw({"kind": "AskNotes", "env": None, "number": -1}), "at `$.number`"),
        (raw({"kind": "Score", "slot": 0, "count": 1}), "Score is not expected"),
        (raw(Attach(layout=LAYOUT, memory=False)), "Attach is not expected"),
    ],
)
def test_what_is_no_message_is_refused(address, bystander, sent, said):
    channel = dial(address)
    channel.socket.sendall(sent)
    assert said in refusal(channel)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(min_size=16, max_size=2000), honest=st.booleans())
def test_random_bytes_are_refused(address, bystander, noise, honest):
    channel = dial(address)
    channel.socket.sendall(header(len(noise)) + noise if honest else noise)
    refusal(channel)


GOOD = plain(Open.of(SPEC, PROMPTS))
ATTACH = plain(Attach(layout=LAYOUT, memory=False))


@pytest.mark.parametrize(
    ("entry", "wrong", "said"),
    [
        ("spec", {"batch": 0}, "a batch has from 1 to 4096 frames, not 0"),
        ("spec", {"batch": 10**9}, "a batch has from 1 to 4096 frames"),
        ("spec", {"batch": "8"}, "at `$.batch`"),
        ("spec", {"batch": True}, "at `$.batch`"),
        ("spec", {"batch": 1.5}, "at `$.batch`"),
        ("spec", {"precision": "int4"}, "Invalid enum value 'int4' - at `$.precision`"),
        ("spec", {"device": None}, "at `$.device`"),
        ("spec", {"device": "gpu"}, "device 'gpu'"),
        ("spec", {"compile": 1}, "at `$.compile`"),
        ("spec", {"scorer": ["clip"]}, "at `$.scorer`"),
        ("spec", {"scorer": "sorcerer"}, "unknown scorer 'sorcerer'"),
        ("spec", {"frames": 0}, "a stack has from 1 to 16 frames, not 0"),
        ("spec", {"frames": 17}, "a stack has from 1 to 16 frames"),
        ("spec", {"later": 1}, "a ModelSpec has scorer, device, precision, compile, batch"),
        ("prompts", {"positive": "road"}, "at `$.positive`"),
        ("prompts", {"negative": [1]}, "at `$.negative[0]`"),
        ("prompts", {"negative": []}, "the negative group is empty"),
        ("prompts", {"descriptions": {}}, "a PromptSet has positive, negative"),
        ("prompts", {"positive_description": 1}, "at `$.positive_description`"),
        (None, {"prompts": []}, "at `$.prompts`"),
        (None, {"prompts": {}}, "missing required field `positive`"),
        (None, {"spec": {}}, "missing required field `scorer`"),
        (None, {"extra": 1}, "unknown field `extra`"),
        (None, {"threads": -1}, "at `$.threads`"),
        (None, {"token": 5}, "at `$.token`"),
        ("spec", {"scorer": "python:os:system"}, "os"),
    ],
)
def test_what_cannot_be_opened_is_refused(address, bystander, entry, wrong, said):
    channel = dial(address)
    channel.socket.sendall(raw(GOOD | (wrong if entry is None else {entry: GOOD[entry] | wrong})))
    assert said in refusal(channel)


def test_a_scorer_that_stays_in_the_run_is_refused_with_its_own_reason(address, bystander):
    channel = dial(address)
    channel.send(Open.of(dataclasses.replace(SPEC, scorer="rnd"), PROMPTS))
    message = channel.receive().message
    assert isinstance(message, Error)
    assert message.reason == Reason.PRIVATE.name
    channel.socket.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shape": [8, 8]}, "at `$.layout.shape`"),
        ({"shape": [8, 8, -3]}, "at `$.layout.shape[2]`"),
        ({"shape": [8, "8", 3]}, "at `$.layout.shape[1]`"),
        ({"shape": [10**9, 10**9, 3]}, "at `$.layout.shape[0]`"),
        ({"shape": [8, 8, 4]}, "three channels"),
        ({"shape": [8192, 8192, 3]}, "too many"),
        ({"shape": [1024, 1024, 3], "block": 4096, "slots": 64}, "too many"),
        ({"block": 0}, "at `$.layout.block`"),
        ({"slots": 10**6}, "at `$.layout.slots`"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_frames_that_cannot_be_are_refused(address, bystander, wrong, said):
    channel = opened(address)
    channel.socket.sendall(raw(ATTACH | {"layout": ATTACH["layout"] | wrong}))
    assert said in refusal(channel)


def test_memory_without_its_descriptor_is_refused(address, bystander):
    channel = opened(address)
    channel.send(Attach(layout=LAYOUT, memory=True))
    assert "come with its descriptor" in refusal(channel)


def test_larger_stacks_than_the_scorer_wants_are_refused(address, bystander):
    channel = opened(address)
    layout = Layout((8, 8, 6), 8, 2)
    channel.send(Attach(layout=layout, memory=False))
    assert isinstance(channel.receive().message, Attached)
    channel.send(ScoreFrames(number=3, count=1, frames=memoryview(bytes(layout.frame_bytes))))
    assert "[N, height, width, 3], got uint8 [1, 8, 8, 6]" in refusal(channel)


@pytest.mark.parametrize(
    ("count", "size"), [(0, 0), (1, 0), (4097, 192), (2**40, 192), (1, 191), (9, 9 * 192), (2, 192)]
)
def test_blocks_of_another_size_are_refused(address, bystander, count, size):
    channel = attached(address)
    channel.socket.sendall(raw({"kind": "ScoreFrames", "count": count, "frames": bytes(size)}))
    refusal(channel)


def test_a_slot_of_memory_that_was_never_attached_is_refused(address, bystander):
    channel = attached(address)
    channel.send(Score(slot=0, count=1))
    assert "there is no slot 0 with 1 frames; 0 hold 8 each" in refusal(channel)


def memory(size: int, seals: int = F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("frames", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("fd_of", "said"),
    [
        (lambda: memory(LAYOUT.size, seals=0), "may still shrink"),
        (lambda: memory(LAYOUT.size - 1), "the memory has 767 bytes, and the frames need 3072".replace("767", "3071")),
        (lambda: os.open("/etc/hostname", os.O_RDONLY), "is not one of shared memory"),
        (lambda: os.pipe()[0], "is not one of shared memory"),
    ],
)
def test_memory_that_cannot_be_trusted_is_refused(address, bystander, fd_of, said):
    if address.kind == "tcp":
        pytest.skip("descriptors travel on one machine only")
    channel, fd = opened(address), fd_of()
    channel.send(Attach(layout=LAYOUT, memory=True), fd)
    assert said in refusal(channel)
    os.close(fd)


@pytest.mark.parametrize(("slot", "count"), [(0, 0), (2, 1), (0, 9), (2**32 - 1, 1), (-1, 1), ("0", 1)])
def test_slots_that_are_not_there_are_refused(address, bystander, slot, count):
    if address.kind == "tcp":
        pytest.skip("descriptors travel on one machine only")
    channel, fd = opened(address), memory(LAYOUT.size)
    channel.send(Attach(layout=LAYOUT, memory=True), fd)
    assert isinstance(channel.receive().message, Attached)
    channel.socket.sendall(raw({"kind": "Score", "slot": slot, "count": count}))
    refusal(channel)
    os.close(fd)


def test_a_descriptor_where_none_belongs_is_refused_and_closed(address, bystander):
    if address.kind == "tcp":
        pytest.skip("descriptors travel on one machine only")
    before = len(os.listdir("/proc/self/fd"))
    channel, fd = dial(address), memory(10)
    channel.send(Open.of(SPEC, PROMPTS), fd)
    assert "a descriptor came" in refusal(channel)
    os.close(fd)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # the service closes its side a little later


def test_a_second_opening_is_refused(address, bystander):
    channel = opened(address)
    channel.send(Open.of(SPEC, PROMPTS))
    assert "Open is not expected from a client that is open" in refusal(channel)


def test_a_client_that_says_nothing_in_time_is_let_go(address, bystander, monkeypatch):
    monkeypatch.setattr("vlmsafe.signals.service.session._FIRST_SECONDS", 0.2)
    monkeypatch.setattr("vlmsafe.signals.service.session._MESSAGE_SECONDS", 0.2)
    assert "did not come in time" in refusal(dial(address))
    half = dial(address)
    half.socket.sendall(header(100) + b"{")
    assert "did not come in time" in refusal(half)


def read(body: bytes, reads: msgspec.msgpack.Decoder) -> None:
    message = decode(body, reads)
    match message:
        case Open():
            message.model()
            message.prompt_set()
        case ScoreFrames():
            message.array(LAYOUT)
        case Scored():
            message.array()


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=300))
def test_bodies_are_read_or_refused_and_nothing_else(body):
    """Also what a service could send to a client."""
    for reads in (REQUESTS, ANSWERS):
        with suppress(Malformed):
            read(body, reads)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = (
    GOOD,
    ATTACH,
    {"kind": "ScoreFrames", "count": 1, "frames": bytes(192)},
    plain(Scored.of(np.zeros((2, 3), np.float32), 1)),
    plain(Error.of(Malformed("no"), 1)),
)


@settings(max_examples=200, deadline=None)
@given(good=st.sampled_from(MESSAGES), data=st.data(), value=values)
def test_values_of_any_kind_are_read_or_refused(good, data, value):
    key = data.draw(st.sampled_from(sorted(good)))
    inner = good[key]
    if isinstance(inner, dict) and data.draw(st.booleans()):
        wrong = good | {key: inner | {data.draw(st.sampled_from(sorted(inner))): value}}
    else:
        wrong = good | {key: value}
    for reads in (REQUESTS, ANSWERS):
        with suppress(Malformed, InputError):
            read(msgspec.msgpack.encode(wrong), reads)


@pytest.fixture
def on_tcp():
    """A server on TCP of its own, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listener, clean_up = listen(parse_address(f"tcp:127.0.0.1:{port}"))
    server = Server(listener, token="right")
    yield server, port
    server.stop()
    clean_up()


def test_a_first_message_that_comes_byte_by_byte_holds_no_place(on_tcp, monkeypatch):
    monkeypatch.setattr(session, "_FIRST_SECONDS", 0.5)
    server, port = on_tcp
    with socket.create_connection(("127.0.0.1", port)) as slow:
        wait_until(lambda: server.clients == 1)
        begun = time.monotonic()
        with suppress(ConnectionError):
            for byte in HEADER.pack(_MARK, VERSION, BODY_LIMIT) + bytes(BODY_LIMIT):
                slow.send(bytes([byte]))
                time.sleep(0.05)
                if server.clients == 0 or time.monotonic() - begun > 20.0:
                    break
        assert server.clients == 0, "it would hold its place for as long as it sends a byte now and then"


def test_a_client_on_tcp_whose_machine_is_gone_is_noticed(on_tcp):
    server, port = on_tcp
    with socket.create_connection(("127.0.0.1", port)):
        wait_until(lambda: server.clients == 1)
        (one,) = server._sessions
        assert one._channel.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
