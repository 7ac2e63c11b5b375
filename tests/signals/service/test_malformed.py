"""A malformed message is refused with an answer, and other clients do not notice."""

import fcntl
import json
import os
import socket
import struct
from contextlib import suppress

import numpy as np
import pytest
from frame_scorer import FrameScorer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.service.client import ServiceScorer
from vlmsafe.signals.service.server import Server
from vlmsafe.signals.service.sockets import listen
from vlmsafe.signals.service.spec import ModelSpec, parse_address
from vlmsafe.signals.service.wire import (
    F_ADD_SEALS,
    F_SEAL_SHRINK,
    HEADER,
    JSON_LIMIT,
    VERSION,
    Channel,
    Kind,
    Layout,
    Malformed,
    attach_body,
    open_body,
    read_attach,
    read_error,
    read_frames,
    read_open,
    read_scores,
    read_slot,
    slot_body,
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
    channel.send_json(Kind.OPEN, 1, open_body(SPEC, PROMPTS))
    assert channel.receive().kind is Kind.OPENED
    return channel


def attached(address) -> Channel:
    channel = opened(address)
    channel.send_json(Kind.ATTACH, 2, attach_body(LAYOUT, memory=False))
    assert channel.receive().kind is Kind.ATTACHED
    return channel


def refusal(channel: Channel) -> str:
    """What the service says before it hangs up."""
    message = channel.receive()
    assert message.kind is Kind.ERROR, message
    kind, text, _ = read_error(message.body)
    assert kind in ("malformed", "input", "late")
    with pytest.raises(ConnectionError):
        channel.receive()
    channel.socket.close()
    return text


def header(kind: int = Kind.OPEN, length: int = 0, mark: bytes = b"VLMS", version: int = VERSION, rest: int = 0):
    return HEADER.pack(mark, version, kind, rest, 7, length)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "not a message of a scoring service"),
        (bytes(range(256)) * 40, "not a message of a scoring service"),
        (header(version=9), "speaks version 9"),
        (header(kind=99), "no message of the kind 99"),
        (header(kind=Kind.SCORES), "SCORES is not expected now"),
        (header(kind=Kind.SCORE), "SCORE is not expected now"),
        (header(kind=Kind.ATTACH), "ATTACH is not expected now"),
        (header(rest=3), "no message of the kind"),
        (header(length=2**32 - 1), "4294967295 bytes is too long"),
        (header(length=JSON_LIMIT + 1), "is too long"),
        (header(length=4) + b"\x80\x04K\x01", "not JSON"),
        (header(length=100_000) + b"[" * 100_000, "not JSON"),
        (header(length=5000) + b"1" * 5000, "not JSON"),
        (header(length=2) + b"[]", "expected the keys"),
        (header(length=9) + b'{"a": {}}', "expected the keys"),
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
    channel.socket.sendall(header(kind=noise[0] % 32, length=len(noise)) + noise if honest else noise)
    refusal(channel)


GOOD = open_body(SPEC, PROMPTS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0}, {"batch": 10**9}, {"batch": "8"}, {"batch": True}, {"batch": 1.5}, {"precision": "int4"},
        {"device": None}, {"device": "gpu"}, {"compile": 1}, {"scorer": ["clip"]}, {"scorer": "sorcerer"}, {"extra": 1},
        {"prompts": []}, {"prompts": {}}, {"prompts": {**GOOD["prompts"], "positive": "road"}},
        {"prompts": {**GOOD["prompts"], "negative": [1]}}, {"prompts": {**GOOD["prompts"], "negative": []}},
        {"prompts": {**GOOD["prompts"], "descriptions": {"both": "x"}}},
        {"scorer": "python:os:system"}, {"scorer": "rnd"},
        {"prompts": {**GOOD["prompts"], "descriptions": {"positive": 1, "negative": "x"}}},
    ],
)  # fmt: skip
def test_what_cannot_be_opened_is_refused(address, bystander, wrong):
    channel = dial(address)
    channel.send_json(Kind.OPEN, 1, GOOD | wrong)
    message = channel.receive()
    while message.kind is Kind.WAIT:
        message = channel.receive()
    assert message.kind is Kind.ERROR
    assert read_error(message.body)[1]
    channel.socket.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dtype": "float32"}, "frames are uint8, not 'float32'"),
        ({"shape": [8, 8]}, "a frame is"),
        ({"shape": [8, 8, -3]}, "a frame is"),
        ({"shape": [8, "8", 3]}, "a frame is"),
        ({"shape": [10**9, 10**9, 3]}, "a frame is"),
        ({"shape": [8, 8, 4]}, "three channels"),
        ({"shape": [8192, 8192, 3]}, "too many"),
        ({"shape": [1024, 1024, 3], "block": 4096, "slots": 64}, "too many"),
        ({"block": 0}, "a block has"),
        ({"slots": 10**6}, "a block has"),
        ({"memory": True}, "come with its descriptor"),
        ({"more": 1}, "expected the keys"),
    ],
)
def test_frames_that_cannot_be_are_refused(address, bystander, wrong, said):
    channel = opened(address)
    channel.send_json(Kind.ATTACH, 2, attach_body(LAYOUT, memory=False) | wrong)
    assert said in refusal(channel)


def test_larger_stacks_than_the_scorer_wants_are_refused(address, bystander):
    channel = opened(address)
    layout = Layout((8, 8, 6), 8, 2)
    channel.send_json(Kind.ATTACH, 2, attach_body(layout, memory=False))
    assert channel.receive().kind is Kind.ATTACHED
    channel.send(Kind.SCORE, 3, struct.pack("<I", 1), bytes(layout.frame_bytes))
    assert "[N, height, width, 3], got uint8 [1, 8, 8, 6]" in refusal(channel)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\x01", struct.pack("<I", 0), struct.pack("<I", 1), struct.pack("<I", 2**32 - 1),
        struct.pack("<I", 1) + bytes(191), struct.pack("<I", 9) + bytes(9 * 192), struct.pack("<I", 2) + bytes(192),
    ],
)  # fmt: skip
def test_blocks_of_another_size_are_refused(address, bystander, body):
    channel = attached(address)
    channel.send(Kind.SCORE, 3, body)
    refusal(channel)


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
    channel.send_json(Kind.ATTACH, 2, attach_body(LAYOUT, memory=True), fd)
    assert said in refusal(channel)
    os.close(fd)


@pytest.mark.parametrize("body", [b"", slot_body(0, 0), slot_body(2, 1), slot_body(0, 9), slot_body(2**32 - 1, 1)])
def test_slots_that_are_not_there_are_refused(address, bystander, body):
    if address.kind == "tcp":
        pytest.skip("descriptors travel on one machine only")
    channel, fd = opened(address), memory(LAYOUT.size)
    channel.send_json(Kind.ATTACH, 2, attach_body(LAYOUT, memory=True), fd)
    assert channel.receive().kind is Kind.ATTACHED
    channel.send(Kind.SCORE, 3, body)
    refusal(channel)
    os.close(fd)


def test_a_descriptor_where_none_belongs_is_refused_and_closed(address, bystander):
    if address.kind == "tcp":
        pytest.skip("descriptors travel on one machine only")
    before = len(os.listdir("/proc/self/fd"))
    channel, fd = dial(address), memory(10)
    channel.send_json(Kind.OPEN, 1, GOOD, fd)
    assert "a descriptor came" in refusal(channel)
    os.close(fd)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_second_opening_is_refused(address, bystander):
    channel = opened(address)
    channel.send_json(Kind.OPEN, 2, GOOD)
    assert "OPEN is not expected now" in refusal(channel)


def test_a_client_that_says_nothing_in_time_is_let_go(address, bystander, monkeypatch):
    monkeypatch.setattr("vlmsafe.signals.service.server._FIRST_SECONDS", 0.2)
    monkeypatch.setattr("vlmsafe.signals.service.server._MESSAGE_SECONDS", 0.2)
    assert "did not come in time" in refusal(dial(address))
    half = dial(address)
    half.socket.sendall(header(length=100) + b"{")
    assert "did not come in time" in refusal(half)


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=300))
def test_bodies_are_read_or_refused_and_nothing_else(body):
    """Also what a service could send to a client."""
    readers = (
        read_open, read_attach, read_scores, read_error,
        lambda raw: read_slot(raw, LAYOUT), lambda raw: read_frames(raw, LAYOUT),
    )  # fmt: skip
    for read in readers:
        with suppress(Malformed):
            read(bytearray(body))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from([*GOOD, *attach_body(LAYOUT, memory=False)]), value=json_values)
def test_values_of_any_kind_are_read_or_refused(key, value):
    for read, good in ((read_open, GOOD), (read_attach, attach_body(LAYOUT, memory=False))):
        if key in good:
            with suppress(Malformed):
                read(bytearray(json.dumps(good | {key: value}).encode()))
