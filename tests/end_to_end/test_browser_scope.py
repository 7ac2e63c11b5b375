"""The scope in a browser: Debian's chromium, headless, driven by Playwright."""

import pytest
from recorded_traces import CONTACTS, LENGTH, PROMPTS, write_recorded

from vlmsafe.report.scope import write_scope


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    trace = write_recorded(tmp_path_factory.mktemp("trace"), scorers=("clip", "oracle"))
    return write_scope(trace)[0]


@pytest.fixture
def page(browser, file):
    """The open page; what it logged, raised or asked the network for fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    heard = []
    page.on("console", lambda message: heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (heard.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: heard.append(request.url) if not _own(request.url, file) else None)
    page.goto(file.as_uri())
    yield page
    page.wait_for_timeout(300)  # the address is written a little later
    context.close()
    assert heard == []


def _own(url, file):
    return url.startswith("data:image/webp") or url.split("#")[0] == file.as_uri()


def where(page):
    """What is in view: the frame's step, and the step under the cursors, of which there is one in every plot."""
    return page.evaluate(
        """() => ({
            frame: document.getElementById("frame").dataset.step,
            loaded: document.getElementById("frame").naturalWidth,
            lefts: [...new Set([...document.querySelectorAll(".cursor")].map((cursor) => cursor.style.left))],
            cursors: document.querySelectorAll(".cursor").length,
            thumb: document.querySelector(".thumb").style.left,
            step: Number(document.getElementById("timeline").getAttribute("aria-valuenow")),
        })"""
    )


def until(page, condition):
    """Wait for a condition; the page's policy does not let Playwright do it."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {condition}")


def at(step):
    return f"{100 * (step - 0.5) / LENGTH:g}%"


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)
    return where(page)


def click_step(page, place, step):
    """Click where a step is in a plot."""
    box = page.locator(place).bounding_box()
    page.mouse.click(box["x"] + box["width"] * (step - 0.5) / LENGTH, box["y"] + box["height"] / 2)
    return where(page)


def test_page_opens_at_the_first_frame_with_all_signals(page):
    now = where(page)
    assert now["step"] == 2
    assert now["frame"] == "0.2"
    until(page, "document.getElementById('frame').naturalWidth === 32")
    names = page.locator("#charts .name").evaluate_all("all => all.map((one) => one.firstChild.textContent)")
    assert names == ["kappa", "r_vlm", "c_vlm", "margin", "cost"]
    assert now["cursors"] == 5 + len(PROMPTS)


def test_scrubbing_moves_frame_cursors_and_values_together(page):
    for place in ("#timeline", "[data-signal=negative] .plot", ".spark >> nth=0"):
        for step, frame in ((13, "0.12"), (20, "0.20"), (3, "0.2")):
            now = click_step(page, place, step)
            assert (now["step"], now["frame"]) == (step, frame)
            assert now["lefts"] == [now["thumb"]]
            assert float(now["thumb"].rstrip("%")) == pytest.approx(float(at(step).rstrip("%")), abs=0.01)
    box = page.locator("#timeline").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 17)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5 + 1, box["y"] + 17, steps=4)
    assert where(page)["step"] == LENGTH // 2 + 1
    page.mouse.move(box["x"] + box["width"] + 50, box["y"] + 17, steps=4)
    assert where(page)["step"] == LENGTH
    page.mouse.up()
    assert page.locator("[data-signal='cost'] .value").inner_text() == "0"
    click_step(page, "#timeline", 10)
    assert page.locator("[data-signal='cost'] .value").inner_text() == "1.5"
    assert page.locator("#badge").inner_text() == "contact, cost 1.5"


def test_before_the_first_score_there_is_no_frame_and_no_value(page):
    now = press(page, "Home")
    assert now["step"] == 1
    assert page.locator("#no-frame").is_visible()
    assert not page.locator("#frame").is_visible()
    assert page.locator("[data-signal='kappa'] .value").inner_text() == "-"


def test_next_contact_jumps_to_onsets_through_all_episodes_and_back(page):
    onsets = [(0, 10), (0, 18), (2, 6)]
    assert CONTACTS == {0: (10, 11, 18), 1: (), 2: (6,)}
    for episode, step in onsets:
        now = press(page, "n")
        assert (int(now["frame"].split(".")[0]), now["step"]) == (episode, step)
    assert press(page, "n")["step"] == 6
    assert page.locator("#message").inner_text() == "no later onset"
    page.click("#contact-back")
    assert (where(page)["frame"], where(page)["step"]) == ("0.18", 18)
    page.click("#contact-on")
    assert where(page)["frame"] == "2.6"
    assert page.locator("#episode").input_value() == "2"


def test_keys_step_and_change_episodes(page):
    assert press(page, "ArrowRight", "ArrowRight")["step"] == 4
    assert press(page, "Shift+ArrowRight")["step"] == 14
    assert press(page, "ArrowLeft")["step"] == 13
    assert press(page, "End", "ArrowRight")["step"] == LENGTH
    assert press(page, "]")["frame"] == "1.2"
    page.select_option("#episode", "2")
    assert where(page)["frame"] == "2.2"
    assert page.locator("#episode-on").is_disabled()


def test_play_runs_to_the_end_and_pauses(page):
    page.select_option("#speed", "50")
    page.keyboard.press("Escape")
    page.click("#play")
    until(page, "document.getElementById('timeline').getAttribute('aria-valuenow') === '24'")
    until(page, "document.getElementById('play').textContent === 'play'")
    page.select_option("#speed", "5")
    page.click("#play")  # from the start again, and nobody can be too late for a pause
    page.click("#play")
    assert page.locator("#play").inner_text() == "play"
    assert where(page)["step"] < LENGTH


def test_signals_and_scorers_can_be_switched(page):
    page.get_by_role("button", name="kappa", exact=True).click()
    page.get_by_role("button", name="hazard", exact=True).click()
    shown = page.locator("#charts .chart").evaluate_all("all => all.map((one) => one.dataset.signal)")
    assert shown == ["positive", "negative", "margin", "cost", "env:hazard"]
    first = page.locator("[data-signal='positive'] .value").inner_text()
    page.select_option("#scorer", "1")
    assert page.locator("[data-signal='positive'] .value").inner_text() != first
    assert where(page)["step"] == 2


def test_each_prompts_score_on_the_frame_in_view_is_shown_and_its_text_stays_text(page):
    texts = page.locator(".prompt .text").all_inner_texts()
    assert texts == [text for _, text in PROMPTS]
    assert page.locator("#prompts script").count() == 0
    click_step(page, "#timeline", 10)
    good, bad = page.locator(".prompt .number").all_inner_texts()
    assert float(good) == pytest.approx(0.21, abs=1e-4)
    assert float(bad) == pytest.approx(0.5, abs=1e-4)
    share = page.locator(".prompt.negative .percent").inner_text()
    assert int(share.split()[0]) > 85  # no frame scores higher than one in contact


def test_highest_frames_of_a_prompt_are_visited_one_after_another_through_all_episodes(page):
    button = page.get_by_role("button", name=f"highest: {PROMPTS[1][1]}")
    visited = []
    for _ in range(2):
        button.click()
        visited.append(where(page)["frame"])
    # It scores most in contact: of frames 10 and 18 of an episode, less than ten steps apart, only one is a stop.
    assert set(visited) == {"0.10", "2.6"}
    assert page.locator("#message").inner_text().startswith("highest 2 of ")
    page.get_by_role("button", name="lowest: c_vlm").click()
    assert where(page)["frame"] == "0.20"  # the first frame that no contact follows


def test_address_keeps_the_moment(page, file):
    click_step(page, "#timeline", 15)
    until(page, "location.hash === '#0.15'")
    page.goto(f"{file.as_uri()}#2.7")
    page.reload()
    assert (where(page)["frame"], where(page)["step"]) == ("2.6", 7)


def test_dark_mode_follows_the_system_and_the_switch(page):
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 26)")
    page.click("#theme")
    assert page.evaluate(background) == light
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) == dark
    page.click("#theme")
    assert page.evaluate(background) == light


@pytest.mark.parametrize("width", [390, 760, 1280])
def test_nothing_sticks_out_and_plots_line_up(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    edges = page.locator(".signals .plot").evaluate_all(
        "all => all.map((one) => [one.getBoundingClientRect().left, one.getBoundingClientRect().right])"
    )
    assert len(edges) == 6
    assert all(abs(left - edges[0][0]) < 1 and abs(right - edges[0][1]) < 1 for left, right in edges)
    short = page.locator("button").evaluate_all("all => all.filter((one) => one.offsetHeight < 28).length")
    assert short == 0


def test_on_a_phone_the_frame_stays_in_view_beside_its_prompts(page):
    page.set_viewport_size({"width": 390, "height": 700})
    page.locator(".prompt").last.scroll_into_view_if_needed()
    frame, prompt = (page.locator(place).last.bounding_box() for place in ("#frame-box", ".prompt"))
    assert 0 <= frame["y"] < frame["y"] + frame["height"] <= prompt["y"] < 700


def test_address_of_the_very_first_step_opens_there(page, file):
    page.goto("about:blank")
    page.goto(file.as_uri() + "#0.1")
    assert where(page)["step"] == 1


def test_before_the_first_episode_and_after_the_last_keys_do_nothing(page):
    assert press(page, "End")["step"] == LENGTH
    assert press(page, "[")["step"] == LENGTH
    page.select_option("#episode", index=page.locator("#episode option").count() - 1)
    assert press(page, "End", "]")["step"] == LENGTH
    assert press(page, "[")["step"] < LENGTH


def test_paper_is_white(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) != "rgb(255, 255, 255)"
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
