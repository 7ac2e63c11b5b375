"""The scorer of an endpoint, against a real server in another process that is slow, limited, wrong or gone."""

import random
import threading
import time

import gymnasium
import numpy as np
import pytest
from frame_scorer import FrameScorer
from openai_server import MODEL, Server, probability
from recorded_traces import write_recorded

from vlmsafe.cli import main
from vlmsafe.distillation.teach import Teacher
from vlmsafe.errors import InputError, RunError
from vlmsafe.evaluation.trace.rescore import rescore_sets
from vlmsafe.runs.traces import open_trace
from vlmsafe.signals.prompts import PromptSet
from vlmsafe.signals.scorers.api import check_scorer
from vlmsafe.signals.scorers.endpoint.options import TOKENS, EndpointOptions
from vlmsafe.signals.scorers.endpoint.scorer import EndpointScorer
from vlmsafe.signals.scorers.make import look_up_scorer, make_scorer
from vlmsafe.signals.scorers.registry import parse_scorer
from vlmsafe.signals.service.spec import GivenUp
from vlmsafe.wrapper import SemanticSignals

pytestmark = pytest.mark.slow

PROMPTS = PromptSet(("a free road",), ("a crash",), "a free road", "danger ahead")
FRAMES = (
    np.random.default_rng(1).integers(0, 256, (9, 20, 30, 3), np.uint8)
    // np.arange(1, 10, dtype=np.uint8)[:, None, None, None]
)
QUICK = {"timeout": 0.5, "wait": 60.0}


@pytest.fixture(scope="module")
def process():
    server = Server()
    yield server
    server.kill()


@pytest.fixture
def server(process, monkeypatch):
    for name in (*TOKENS, "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    process.tell(token="")
    return process


@pytest.fixture
def load(server):
    """Loads scorers of the server, and closes them."""
    loaded = []

    def make(prompts: PromptSet = PROMPTS, frames: int = 1, give_up=lambda: False, **options) -> EndpointScorer:
        argument = server.scorer.removeprefix("openai:")
        given = EndpointOptions(**{**QUICK, **options})
        loaded.append(EndpointScorer.load(argument, prompts, given, frames=frames, give_up=give_up))
        return loaded[-1]

    yield make
    for scorer in loaded:
        scorer.close()


def expected(frames: np.ndarray = FRAMES) -> np.ndarray:
    return np.array([[probability([frame], text) for text in ("road", "danger")] for frame in frames], np.float32)


def test_each_frame_gets_its_own_answers_in_order(load):
    scorer = load(concurrency=5)
    check_scorer(scorer)
    found = scorer.score(FRAMES)
    np.testing.assert_allclose(found, expected(), atol=1e-6)
    assert len(np.unique(found[:, 0])) == len(FRAMES), "the answers differ, so their order shows"
    np.testing.assert_array_equal(scorer.score(FRAMES[::-1]), found[::-1])
    assert scorer.score(FRAMES[:0]).shape == (0, 2)


def test_the_question_is_that_of_a_model_in_this_process(load, server):
    load(concurrency=1).score(FRAMES[:1])
    assert server.asked()["last"]["messages"][0]["content"][-1]["text"] == (
        "Does this image show danger ahead? Answer yes or no."
    )


def test_a_stack_is_sent_as_several_images_the_oldest_first(load, server):
    stack = np.concatenate([FRAMES[:2], FRAMES[2:4]], axis=-1)
    found = load(frames=2).score(stack)
    wanted = [[probability([stack[i][..., :3], stack[i][..., 3:]], text) for text in ("", "danger")] for i in range(2)]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    content = server.asked()["last"]["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    assert content[-1]["text"].startswith("These images show one scene over time, the oldest first.")


@pytest.mark.parametrize("trouble", ["slow", "dropped", "limited", "failing", "no JSON", "no choices", "NaN"])
def test_trouble_that_passes_changes_no_score(load, server, trouble):
    scorer = load()
    server.tell(trouble, every=4)
    np.testing.assert_allclose(scorer.score(FRAMES), expected(), atol=1e-6)
    bill = scorer.bill()
    assert bill["retries"] >= 1
    assert bill["requests"] == bill["retries"] + 2 * (len(FRAMES) + 1), "one picture was asked about when it was loaded"


def test_the_bill_counts_frames_requests_and_tokens(load):
    scorer = load()
    scorer.score(FRAMES)
    bill = scorer.bill()
    assert (bill["frames"], bill["requests"], bill["retries"], bill["undecided"]) == (9, 20, 0, 0)
    assert (bill["tokens_in"], bill["tokens_out"]) == (20 * 117, 20)
    assert bill["seconds"] > 0.0


def test_pauses_draw_no_random_numbers_of_others(load, server):
    scorer = load()
    server.tell("failing", every=3)
    before = random.getstate(), np.random.get_state()[1].copy()
    scorer.score(FRAMES)
    assert scorer.bill()["retries"] > 0
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


def test_a_rate_that_is_set_is_kept(load):
    scorer = load(per_minute=1200.0)
    begun = time.monotonic()
    scorer.score(FRAMES[:5])
    assert time.monotonic() - begun > 9 * 60.0 / 1200.0


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("no logprobs", "gives no logprobs for the model 'toy/brightness@1'"),
        ("too many logprobs", "lower --signal.endpoint.top-logprobs"),
        ("quota", "has no quota left"),
        ("redirecting", "redirects to https://elsewhere/v1; give that URL"),
    ],
)
def test_trouble_that_does_not_pass_stops_at_once(load, server, trouble, message):
    scorer = load()
    before = server.asked()["count"]
    server.tell(trouble)
    with pytest.raises(RunError, match=message):
        scorer.score(FRAMES)
    assert server.asked()["count"] - before <= 8, "nothing is asked again"
    server.tell()
    np.testing.assert_allclose(scorer.score(FRAMES), expected(), atol=1e-6, err_msg="and it can go on afterwards")
    server.tell(trouble)
    with pytest.raises(InputError, match=message):
        load()


@pytest.mark.parametrize("trouble", ["no JSON", "no choices", "NaN"])
def test_answers_that_stay_wrong_end_the_run(load, server, trouble):
    scorer = load()
    server.tell(trouble)
    with pytest.raises(RunError, match=r"answered 5 times in a row with .*; put it right and resume the run"):
        scorer.score(FRAMES[:1])


def test_a_pause_longer_than_the_wait_is_not_waited_for(load, server):
    scorer = load()
    server.tell("limited for long")
    with pytest.raises(RunError, match=r"asks for a pause of 3600 seconds .* longer than --signal.endpoint.wait, 60"):
        scorer.score(FRAMES)


def test_an_endpoint_that_stays_silent_ends_the_run_after_the_wait(load, server):
    scorer = load(wait=0.5)
    server.tell("failing")
    with pytest.raises(RunError, match=r"has not answered for [01] seconds .*503: overloaded.*resume the run"):
        scorer.score(FRAMES)


def test_a_server_that_comes_back_is_asked_again(load, server):
    scorer = load()
    server.kill()
    back = threading.Timer(0.7, server.start)
    back.start()
    np.testing.assert_allclose(scorer.score(FRAMES), expected(), atol=1e-6)
    back.join()


def test_closing_ends_the_wait_and_scoring_again_reopens(load, server):
    scorer = load(wait=600.0, timeout=600.0)
    server.tell("failing")
    closing = threading.Timer(0.3, scorer.close)
    closing.start()
    with pytest.raises(GivenUp):
        scorer.score(FRAMES)
    closing.join()
    server.tell()
    np.testing.assert_allclose(scorer.score(FRAMES), expected(), atol=1e-6)


def test_a_request_to_give_up_ends_a_request_under_way(load, server):
    given_up = threading.Event()
    scorer = load(wait=600.0, timeout=600.0, give_up=given_up.is_set)
    server.tell("slow")
    threading.Timer(0.2, given_up.set).start()
    with pytest.raises(GivenUp):
        scorer.score(FRAMES)


def test_a_model_that_does_not_say_yes_or_no_is_refused_and_a_single_such_answer_counts_half(load, server):
    scorer = load(concurrency=1)
    server.tell("thinking", every=3)
    found = scorer.score(FRAMES[:3])
    assert (found == 0.5).sum() == 2
    assert scorer.bill()["undecided"] == 2
    server.tell("thinking")
    with pytest.raises(InputError, match=r"does not answer yes or no: .* '<think>'.*enable_thinking"):
        load()


def test_the_token_is_sent_and_shown_nowhere(load, server, monkeypatch):
    server.tell(token="tok-123")
    with pytest.raises(InputError, match=r"wants a token \(401\); set VLMSAFE_OPENAI_TOKEN"):
        load()
    monkeypatch.setenv("VLMSAFE_OPENAI_TOKEN", "tok-wrong")
    with pytest.raises(InputError, match=r"refused the token \(401\)") as refused:
        load()
    assert "tok-wrong" not in str(refused.value)
    monkeypatch.setenv("VLMSAFE_OPENAI_TOKEN", "tok-123")
    scorer = load()
    np.testing.assert_allclose(scorer.score(FRAMES), expected(), atol=1e-6)
    assert "tok-123" not in repr((scorer.describe(), scorer.notes(), scorer.bill()))


def test_a_proxy_of_the_environment_is_used(server, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    name = f"{MODEL}@http://nowhere.invalid/v1"
    scorer = EndpointScorer.load(name, PROMPTS, EndpointOptions(**QUICK))
    np.testing.assert_allclose(scorer.score(FRAMES), expected(), atol=1e-6)
    assert scorer.notes() == ["frames are sent to http://nowhere.invalid/v1"]
    scorer.close()


def test_frames_that_leave_the_machine_are_announced(load):
    assert load().notes() == []


def test_further_fields_reach_the_endpoint(load, server):
    load(extra='{"chat_template_kwargs": {"enable_thinking": false}}').score(FRAMES[:1])
    assert server.asked()["last"]["chat_template_kwargs"] == {"enable_thinking": False}


def test_an_endpoint_is_looked_up_without_loading_it(server):
    before = server.asked()["count"]
    assert look_up_scorer(server.scorer, PROMPTS) == ("frame", ("yes-no", "decoupled"))
    assert before == server.asked()["count"], "a listed model needs no completion"
    with pytest.raises(InputError, match=r"unknown model of the endpoint .* 'toy/brigthness'; did you mean"):
        look_up_scorer(f"openai:toy/brigthness@{server.url}", PROMPTS)
    server.tell(lists_models=False)
    assert look_up_scorer(server.scorer, PROMPTS)[0] == "frame", "not every endpoint lists its models"
    with pytest.raises(InputError, match=r"refuses requests for the model 'other' \(404\): the model other does not"):
        look_up_scorer(f"openai:other@{server.url}", PROMPTS)
    server.tell(token="needed")
    with pytest.raises(InputError, match="wants a token"):
        look_up_scorer(server.scorer, PROMPTS)
    with pytest.raises(InputError, match=r"does not answer \(Connection refused\); start it, or correct the URL"):
        look_up_scorer(f"openai:{MODEL}@http://127.0.0.1:9/v1", PROMPTS)
    with pytest.raises(InputError, match="asks about each group of prompts by its description"):
        look_up_scorer(server.scorer, PromptSet(("a",), ("b",)))


def test_an_endpoint_that_cannot_be_is_refused_when_it_is_loaded(server):
    quick = EndpointOptions(wait=0.2, timeout=0.5)
    with pytest.raises(RunError, match=r"does not answer \(Connection refused\)"):
        make_scorer(f"openai:{MODEL}@http://127.0.0.1:9/v1", PROMPTS, endpoint=quick, cache="off")
    with pytest.raises(InputError, match="there is no host"):
        make_scorer(f"openai:{MODEL}@http://nowhere.invalid/v1", PROMPTS, endpoint=quick, cache="off")
    with pytest.raises(InputError, match=r"refuses requests .*; it has toy/brightness@1, toy/other"):
        make_scorer(f"openai:other@{server.url}", PROMPTS, endpoint=quick, cache="off")


class _Still(gymnasium.Env):
    """An environment that shows one picture."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}

    def render(self):
        return FRAMES[0]


def test_an_endpoint_that_has_moved_is_asked_there_by_everything_that_loads_a_scorer(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name, moved = f"openai:{MODEL}@http://127.0.0.1:9/v1", EndpointOptions(url=server.url, concurrency=3, **QUICK)
    with pytest.raises(InputError, match="a scorer by name"):
        SemanticSignals(_Still(), FrameScorer(PROMPTS), endpoint=moved)
    wrapped = SemanticSignals(_Still(), name, PROMPTS, every=1, rule="yes-no", endpoint=moved)
    wrapped.reset(seed=0)
    assert wrapped.step(0)[4]["scored"]
    wrapped.close()
    teacher = Teacher.load(name, PROMPTS, endpoint=moved)
    assert teacher.scorer.describe()["endpoint"] == server.url
    teacher.scorer.close()
    pictures = open_trace(write_recorded(tmp_path)).pictures().head(2)
    found = rescore_sets([pictures], parse_scorer(name), {"one": PROMPTS}, endpoint=moved)["one"]
    assert found.similarities.shape == (2, 2)


@pytest.mark.parametrize(
    ("verb", "place"),
    [
        (["prompts", "bench", "here"], "vlmsafe.evaluation.trace.prompt_trial.compare"),
        (["embedded", "distil", "braking", "--teacher", "oracle"], "vlmsafe.distillation.distil.distil"),
    ],
)
def test_the_options_of_an_endpoint_are_options_of_every_command_that_asks_it(verb, place, monkeypatch):
    given = {}
    monkeypatch.setattr("vlmsafe.evaluation.trace.prompt_trial.open_traces", lambda *places: [])

    def catch(*positional, **named):
        given.update(named)
        raise InputError("enough")

    monkeypatch.setattr(place, catch)
    with pytest.raises(SystemExit):
        main([*verb, "--endpoint.url", "http://here:1/v1", "--endpoint.timeout", "5"])
    assert given["endpoint"] == EndpointOptions(url="http://here:1/v1", timeout=5.0)
