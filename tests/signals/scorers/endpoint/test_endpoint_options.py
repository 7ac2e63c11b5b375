"""Names and options of an endpoint: what is understood, and what is refused in one line."""

import pytest

from vlmsafe.cli import main
from vlmsafe.config.settings import SignalConfig, TrainConfig
from vlmsafe.errors import InputError
from vlmsafe.signals.scorers.endpoint.options import TOKENS, EndpointOptions, parse_endpoint, token


@pytest.mark.parametrize(
    ("argument", "model", "url"),
    [
        ("org/model@http://localhost:8000/v1", "org/model", "http://localhost:8000/v1"),
        ("org/model@http://localhost:8000", "org/model", "http://localhost:8000/v1"),
        ("m@https://host/api/v1/chat/completions", "m", "https://host/api/v1"),
        ("@cf/meta/model@https://host/v1/", "@cf/meta/model", "https://host/v1"),
        ("model@latest@http://[::1]:8000/v1", "model@latest", "http://[::1]:8000/v1"),
    ],
)
def test_a_name_is_a_model_and_a_url(argument, model, url):
    found = parse_endpoint(argument)
    assert (found.model, found.url) == (model, url)


def test_an_endpoint_that_has_moved_keeps_its_model():
    assert parse_endpoint("m@http://old:1/v1", "http://new:2/v1").url == "http://new:2/v1"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("model", "openai:<model>@<url>"),
        ("model@localhost:8000", "openai:<model>@<url>"),
        ("@http://localhost", "openai:<model>@<url>"),
        ("m@http://", "is not the URL of an endpoint"),
        ("m@http://host:port/v1", "cannot be read"),
        ("m@https://user:secret@host/v1", "VLMSAFE_OPENAI_TOKEN"),
        ("m@https://host/v1?key=secret", "VLMSAFE_OPENAI_TOKEN"),
    ],
)
def test_a_name_that_cannot_be_is_refused_without_repeating_a_secret(argument, message):
    with pytest.raises(InputError, match=message) as refused:
        parse_endpoint(argument)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["https://user:secret@host/v1", "https://host/v1?key=secret"])
def test_a_url_with_a_secret_is_refused_before_a_run_writes_it_to_its_files(url, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = TrainConfig(env="braking", method="vlm-ppo-lag", signal=SignalConfig(scorer=f"openai:m@{url}"))
    with pytest.raises(InputError, match=TOKENS[0]):
        config.resolved()
    with pytest.raises(SystemExit):
        main(["train", "--env", "braking", "--method", "vlm-ppo-lag", "--scorer", f"openai:m@{url}"])
    shown = capsys.readouterr()
    assert TOKENS[0] in shown.err
    assert "secret" not in shown.err + shown.out
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("concurrency", 0, "signal.endpoint.concurrency is 0"),
        ("per_minute", 0.0, "signal.endpoint.per_minute is 0"),
        ("timeout", 0.0, "signal.endpoint.timeout is 0"),
        ("wait", -1.0, "signal.endpoint.wait is -1"),
        ("top_logprobs", 1, "signal.endpoint.top_logprobs is 1"),
        ("url", "localhost", "signal.endpoint.url: 'localhost' is not the URL"),
        ("extra", "{", "signal.endpoint.extra is not JSON"),
        ("extra", "[1]", "signal.endpoint.extra is a list"),
        ("extra", '{"model": "other"}', "signal.endpoint.extra has 'model'"),
    ],
)
def test_options_that_cannot_be_are_refused_when_a_run_is_set_up(option, value, message):
    signal = SignalConfig(endpoint=EndpointOptions(**{option: value}))
    with pytest.raises(InputError, match=message):
        TrainConfig(env="braking", signal=signal).resolved()


def test_the_token_comes_from_the_environment(monkeypatch):
    for name in TOKENS:
        monkeypatch.delenv(name, raising=False)
    assert token("https://a/v1") == ""
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    assert token("https://a/v1") == "theirs"
    assert token("http://a/v1") == "", "a key for other programs is not sent unencrypted"
    monkeypatch.setenv("VLMSAFE_OPENAI_TOKEN", "ours\n")
    assert token("https://a/v1") == token("http://a/v1") == "ours"


@pytest.mark.parametrize("value", ["sk-SECRET\norg-1", "sk-SECRET two", "sk-SECRÉT"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(monkeypatch, value):
    monkeypatch.setenv("VLMSAFE_OPENAI_TOKEN", value)
    with pytest.raises(InputError, match="VLMSAFE_OPENAI_TOKEN") as caught:
        token("http://a/v1")
    assert "SECR" not in str(caught.value)
