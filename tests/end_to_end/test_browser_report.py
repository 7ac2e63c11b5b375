"""The report in a real browser: nothing is loaded or complained of, tables sort, figures answer, both themes work."""

import re

import pytest
from report_runs import SIGNAL, costs_with, made_up_prompts, write_evaluation, write_run, write_study

from vlmsafe.report.request import StudyInfo
from vlmsafe.report.write import write_report

EVIL = "<script>document.title = 'taken over'</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    write_study(folder / "runs", traces=True)
    for seed in (1, 2):
        run = write_run(folder / "runs", SIGNAL, seed, arm="<script>x", prompts=made_up_prompts(EVIL))
        write_evaluation(run, costs_with(3))
    info = StudyInfo("study", f"Does it help? {EVIL}")
    return write_report([folder / "runs"], folder / "report.html", info, files=False).page


@pytest.fixture
def opened(browser, report):
    """A way to open the report, which fails the test where the browser complained or asked for anything else."""
    pages, complaints, requests = [], [], []

    def open_page(width=1280, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report.as_uri())
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []
    assert set(requests) == {report.as_uri()}


def colour(page, selector, name):
    found = page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).getPropertyValue('{name}')")
    return tuple(int(part) for part in re.findall(r"\d+", found)[:3])


def column(page, table, place):
    return page.eval_on_selector_all(f"{table} tbody tr", f"rows => rows.map(row => row.cells[{place}].dataset.sort)")


def test_a_click_sorts_by_number_and_another_turns_it_round(opened):
    page = opened()
    table = "#table-summary table"
    heads = page.eval_on_selector_all(f"{table} th", "heads => heads.map(head => head.textContent)")
    place = next(i for i, head in enumerate(heads) if head.startswith("cost"))
    button = page.locator(f"{table} th").nth(place).locator("button")
    button.click()
    up = [float(value) for value in column(page, table, place)]
    assert up == sorted(up)
    assert page.locator(f"{table} th").nth(place).get_attribute("aria-sort") == "ascending"
    button.click()
    assert [float(value) for value in column(page, table, place)] == up[::-1]
    page.locator(f"{table} th").first.locator("button").click()
    assert column(page, table, 0) == sorted(column(page, table, 0))
    assert page.locator(f"{table} th").nth(place).get_attribute("aria-sort") is None


def test_pointing_at_a_curve_shows_the_value_there(opened):
    page = opened()
    plot = page.locator("#figure-curves svg.plot").first
    plot.scroll_into_view_if_needed()
    target = plot.evaluate(
        "plot => { const series = JSON.parse(plot.dataset.hover).s.find(s => s.n.endsWith('mean'));"
        " const box = plot.getBoundingClientRect(), scale = box.width / plot.viewBox.baseVal.width;"
        " const [x, y, , value] = series.p[4];"
        " return {x: box.left + x * scale, y: box.top + y * scale, name: series.n, value} }"
    )
    tip = page.locator("#tip")
    assert not tip.is_visible()
    page.mouse.move(target["x"], target["y"])
    assert tip.is_visible()
    assert tip.inner_text().splitlines() == [
        target["name"],
        "environment steps: 100,000",
        f"cost per episode: {target['value']}",
    ]
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1280
    page.mouse.move(5, 5)
    assert not tip.is_visible()


def test_a_legend_entry_leaves_one_arm_in_view(opened):
    page = opened()
    figure = page.locator("#figure-curves")
    button = figure.locator(".legend button", has_text=SIGNAL).first
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    faded = figure.evaluate(
        "figure => [...figure.querySelectorAll('.plot .line')]"
        ".map(line => [line.dataset.g, getComputedStyle(line).opacity])"
    )
    assert {opacity for group, opacity in faded if group == button.get_attribute("data-g")} == {"1"}
    assert max(float(opacity) for group, opacity in faded if group != button.get_attribute("data-g")) < 0.2
    button.click()
    assert figure.get_attribute("data-only") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_system_and_the_switch_turns_it_round(opened, scheme):
    page = opened(scheme=scheme)
    before = colour(page, "body", "background-color")
    assert (sum(before) < 200) == (scheme == "dark")
    page.click("#theme")
    after = colour(page, "body", "background-color")
    assert (sum(after) < 200) == (scheme == "light")
    assert abs(sum(colour(page, "body", "color")) - sum(after)) > 400  # text stands out from its ground
    page.click("#theme")
    assert colour(page, "body", "background-color") == before


def test_names_and_prompts_are_shown_as_text_and_not_run(opened):
    page = opened()
    assert page.title() == "study"
    assert EVIL in page.locator(".question").inner_text()
    assert EVIL in page.locator("#configs").evaluate("section => section.textContent")
    assert page.locator("#figure-curves .legend button", has_text="<script>x").count() == 1
    assert page.locator("script").count() == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_as_wide_as_the_window_and_no_panel_sticks_out(opened, width):
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.eval_on_selector_all("svg.plot", "plots => plots.map(p => { const b = p.getBoundingClientRect();"
                                                  " return [b.left, b.right, b.height] })")  # fmt: skip
    assert boxes
    assert all(left >= 0 and right <= width and height > 60 for left, right, height in boxes)


def test_no_label_is_cut_off_by_the_edge_of_its_picture(opened):
    page = opened()
    cut = page.eval_on_selector_all(
        "svg.plot",
        """plots => plots.flatMap(plot => {
            const frame = plot.getBoundingClientRect();
            return [...plot.querySelectorAll('text')].filter(text => {
                const box = text.getBoundingClientRect();
                return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
            }).map(text => [plot.getAttribute('aria-label'), text.textContent]);
        })""",
    )
    assert cut == []


@pytest.mark.parametrize("width", [1280, 390])
def test_no_labels_of_an_axis_overlap(opened, width):
    page = opened(width)
    overlaps = page.eval_on_selector_all(
        "svg.plot",
        """plots => plots.flatMap(plot => {
            const boxes = [...plot.querySelectorAll('text.tick, text.name')]
                .map(text => [text.textContent, text.getBoundingClientRect()]);
            const found = [];
            boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
                const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
                const along = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                if (across > 1 && along > 3) found.push([plot.getAttribute('aria-label'), a, b]);
            }));
            return found;
        })""",
    )
    assert overlaps == []


def test_a_finding_that_is_linked_to_opens(opened):
    page = opened()
    page.evaluate("document.querySelectorAll('.finding-group').forEach(group => { group.open = false })")
    link = page.locator(".answer .finding").first
    target = link.get_attribute("href")
    link.click()
    assert page.locator(target).evaluate("group => group.open")


def test_the_printed_page_shows_whole_tables_on_white(opened):
    page = opened(scheme="dark")
    page.emulate_media(media="print")
    assert colour(page, "body", "background-color") == (255, 255, 255)
    assert page.eval_on_selector(".scroll", "box => getComputedStyle(box).overflowX") == "visible"
    assert not page.locator("#theme").is_visible()
    page.set_viewport_size({"width": 718, "height": 1000})  # of A4, between usual margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 718


def test_what_is_folded_is_printed_and_folded_again(opened):
    page = opened()
    folded = "[...document.querySelectorAll('details.part, .finding-group')].filter(part => !part.open).length"
    page.evaluate("document.querySelectorAll('.finding-group').forEach(group => { group.open = false })")
    page.locator("details.part").first.evaluate("part => { part.open = true }")
    before = page.evaluate(folded)
    assert before > 1
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(folded) == 0
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})
    wide = page.eval_on_selector_all("table", "tables => tables.map(table => table.getBoundingClientRect().right)")
    assert max(wide) <= 718
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(folded) == before
    assert page.locator("details.part").first.evaluate("part => part.open")  # it was before


def test_the_way_through_the_page_stays_in_view(opened):
    page = opened()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.evaluate("scrollY") > 1000
    assert page.locator(".bar-top").bounding_box()["y"] == 0


def test_keys_walk_through_the_values_of_a_figure(opened):
    page = opened()
    plot, tip = page.locator("#figure-curves svg.plot").first, page.locator("#tip")
    series = plot.evaluate("plot => JSON.parse(plot.dataset.hover).s.map(s => [s.n, s.p.map(p => p[3])])")
    (first, values), (second, others) = series[:2]
    plot.focus()
    assert not tip.is_visible()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
        lines = tip.inner_text().splitlines()
        seen.append((lines[0], lines[2].removeprefix("cost per episode: ")))
    assert seen == [(first, values[0]), (first, values[1]), (first, values[0]), (second, others[0])]
    assert plot.locator(".at").get_attribute("visibility") == "visible"
    page.keyboard.press("Escape")
    assert not tip.is_visible()
