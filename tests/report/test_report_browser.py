"""The report in a real browser: every chart has its data, switches work, nothing overflows, nothing is asked for."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.report.report_cases import EXPERIMENTS, HOSTILE, PRIVATE, charts_of, hostile_folder, rows_of
from upcycled.report import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed: apt-get install chromium")

PHONE, DESK = (390, 844), (1440, 1000)
AXES = {"Iterations": 5, "Data rounds": 5, "Megabytes": 5, "Seconds": 5, "Epsilon": 2}
"""How many experiments have a line against each."""

STICKS_OUT = """() => [...document.querySelectorAll("body *")].filter((node) => {
  const box = node.getBoundingClientRect();
  const hidden = !box.width || !box.height || node.closest(".scroll > *, pre > *, svg *");
  return !hidden && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((node) => `${node.tagName}.${node.className}`)"""


@pytest.fixture(scope="module")
def page_file(several, tmp_path_factory):
    return write_report(several, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"], timeout=120_000)
        yield found
        found.close()


@pytest.fixture
def visit(browser, page_file):
    """Open the page at a size; at the end nothing may have been asked for or complained about."""
    opened, asked, said = [], [], []

    def visit(size=DESK, file=page_file, **options):
        context = browser.new_context(viewport=dict(zip(("width", "height"), size, strict=True)), **options)
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(file.as_uri())
        opened.append((context, file.as_uri()))
        return page

    yield visit
    for context, _ in opened:
        context.close()
    assert set(asked) <= {uri for _, uri in opened}
    assert said == []


def lines(page, chart):
    """Return how many points each line of a chart on the screen has, by experiment."""
    path = f".chart[data-chart='{chart}']:not([data-axis]) g.series"
    groups = page.eval_on_selector_all(
        path, "all => all.map(g => [g.dataset.part, Number(g.querySelector('path.line')?.dataset.points)])"
    )
    return {int(part): points for part, points in groups}


def choose(page, axis):
    page.get_by_label(axis, exact=True).check()


def test_every_chart_has_a_line_with_points_for_every_experiment(visit):
    page = visit()
    for axis, count in AXES.items():
        choose(page, axis)
        for chart in ("score:accuracy", "score:loss"):
            found = lines(page, chart)
            assert len(found) == count, (axis, chart)
            assert all(points >= 5 for points in found.values())
    assert len(lines(page, "spent")) == len(PRIVATE)
    for chart, count in (("clients:accuracy", 5), ("clients:epsilon", 2)):
        rows = page.locator(f".chart[data-chart='{chart}'] g.series")
        assert rows.count() == count
        for k in range(count):
            assert rows.nth(k).locator("rect").count() >= 1


DRAWN = """() => [...document.querySelectorAll(".charts.screen-only .chart g.series")].map((group) => {
  const [frame, path] = [group.closest(".chart").getBoundingClientRect(), group.querySelector("path.line")];
  const box = path.getBoundingClientRect();
  const across = box.left >= frame.left && box.right <= frame.right + 1;
  const inside = across && box.top >= frame.top && box.bottom <= frame.bottom;
  const [part, dots] = [Number(group.dataset.part), group.querySelectorAll("circle").length];
  return { inside, width: box.width, part, dots, dashed: path.classList.contains("dashed") };
})"""


@pytest.mark.slow
def test_paths_lie_within_their_chart_and_upcycled_iterations_are_marked(visit):
    page = visit()
    parts = charts_of(page.content())["parts"]
    for axis, count in AXES.items():
        choose(page, axis)
        drawn = page.evaluate(DRAWN)
        assert len(drawn) == 2 * count
        for one in drawn:
            assert one["inside"]
            assert one["width"] > 0
            part = parts[one["part"]]
            assert (one["dots"] > 0) == part["upcycled"]
            assert one["dashed"] == part["dashed"]


@pytest.mark.slow
def test_switches_hide_and_show_lines_by_mouse_and_by_keyboard(visit):
    page = visit()
    button = page.locator(".legend button", has_text="FedAvg, vanilla")
    part = int(button.get_attribute("data-part"))
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for chart in ("score:accuracy", "score:loss", "clients:accuracy"):
        assert part not in lines(page, chart)
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert part in lines(page, "score:accuracy")
    page.get_by_role("button", name="none", exact=True).click()
    assert lines(page, "score:accuracy") == {}
    assert page.get_by_text("Every line is switched off").count() > 0
    page.get_by_role("button", name="all", exact=True).click()
    assert len(lines(page, "score:accuracy")) == len(EXPERIMENTS)


@pytest.mark.slow
def test_the_chosen_x_changes_the_chart_and_its_words(visit):
    page = visit()
    host = page.locator(".charts.screen-only .chart[data-chart='score:accuracy']")
    seen = set()
    for axis, words in (("Iterations", "iterations"), ("Seconds", "seconds of training"), ("Megabytes", "MB sent")):
        choose(page, axis)
        assert host.locator("text", has_text=words).count() == 1
        assert page.locator(".screen-only figcaption", has_text=f"against {words}").count() == 2
        seen.add(host.locator("path.line").first.get_attribute("d"))
    assert len(seen) == 3
    page.get_by_label("Megabytes", exact=True).press("ArrowLeft")  # radio buttons: the keyboard moves between them
    assert page.get_by_label("Data rounds", exact=True).is_checked()


@pytest.mark.slow
def test_hovering_shows_the_values_of_the_files(visit, several):
    page = visit()
    host = page.locator(".charts.screen-only .chart[data-chart='score:accuracy']")
    readout = host.locator(".readout")
    assert not readout.is_visible()
    box = host.bounding_box()
    host.hover(position={"x": box["width"] - 14, "y": box["height"] / 2})
    readout.wait_for(state="visible")
    words = readout.inner_text()
    assert words.startswith("10 iterations")
    # Vanilla runs have five iterations: they are not in the box at the tenth.
    assert sorted(re.findall(r"^.*, (?:vanilla|upcycled)$", words, re.MULTILINE)) == [
        "FedAvg, upcycled",
        "FedProx, upcycled",
        "PFedMe, upcycled",
    ]
    rows = [rows_of(several / "fedavg-upcycled" / f"seed-{seed}")[-1] for seed in (0, 1)]
    mean = sum(50 * row["accuracy"] for row in rows)
    assert f"{float(f'{mean:.4g}'):g} %" in words
    page.mouse.move(5, 5)
    readout.wait_for(state="hidden")


@pytest.mark.slow
def test_arrow_keys_read_values_and_the_box_stays_inside(visit):
    page = visit(PHONE)
    host = page.locator(".charts.screen-only .chart[data-chart='score:loss']")
    host.focus()
    page.keyboard.press("Home")
    assert host.locator(".readout").inner_text().startswith("1 iterations")
    page.keyboard.press("ArrowRight")
    assert host.locator(".readout").inner_text().startswith("2 iterations")
    for key in ("Home", "End"):
        page.keyboard.press(key)
        box = host.locator(".readout").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE[0]
        assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE[0]
    page.keyboard.press("Escape")
    assert not host.locator(".readout").is_visible()
    clients = page.locator(".chart[data-chart='clients:epsilon']")
    clients.focus()
    page.keyboard.press("ArrowRight")
    assert re.search(r"\d+ clients?", clients.locator(".readout").inner_text())


@pytest.mark.slow
@pytest.mark.parametrize("size", [PHONE, DESK, (320, 700), (820, 1180)], ids=str)
def test_nothing_sticks_out_of_the_page(visit, size):
    page = visit(size)
    for axis in AXES:
        choose(page, axis)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert page.evaluate(STICKS_OUT) == []
    page.eval_on_selector_all("details", "all => all.forEach(d => { d.open = true; })")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert page.evaluate(STICKS_OUT) == []
    assert page.evaluate("innerWidth") == size[0]


@pytest.mark.slow
def test_charts_are_drawn_anew_when_the_window_changes(visit):
    page = visit()
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.wait_for_function("document.querySelector('.charts.screen-only svg').clientWidth < 390")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


COLOURS = """() => {
  const [page, line] = [document.body, document.querySelector("path.line")].map((node) => getComputedStyle(node));
  return [page.backgroundColor, page.color, line.stroke];
}"""


@pytest.mark.slow
def test_dark_and_light_follow_the_system_and_the_switch(visit):
    light, dark = (visit(color_scheme=scheme).evaluate(COLOURS) for scheme in ("light", "dark"))
    assert all(a != b for a, b in zip(light, dark, strict=True))
    page = visit(color_scheme="light")
    page.get_by_role("button", name="Switch to dark colours").click()
    assert page.evaluate(COLOURS) == dark
    page.get_by_role("button", name="Switch to light colours").click()
    assert page.evaluate(COLOURS) == light


@pytest.mark.slow
def test_on_paper_every_chart_is_visible_in_light_colours_with_everything_open(visit):
    light = visit(color_scheme="light").evaluate(COLOURS)
    page = visit((794, 1123), color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    for axis in ("iteration", "data_round", "megabytes", "seconds", "epsilon"):
        for score in ("accuracy", "loss"):
            host = page.locator(f".chart[data-axis={axis}][data-chart='score:{score}']")
            assert host.is_visible()
            count = len(PRIVATE) if axis == "epsilon" else len(EXPERIMENTS)
            assert host.locator("path.line").count() == count
    for chart in ("spent", "clients:accuracy", "clients:epsilon"):
        assert page.locator(f".chart[data-chart='{chart}'] g.series").first.is_visible()
    assert not page.locator(".legend").is_visible()
    assert not page.locator("#theme").is_visible()
    page.wait_for_function("[...document.querySelectorAll('details')].every(d => d.open)")
    assert page.get_by_text("coefficient = 0.5").first.is_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert page.evaluate(COLOURS)[:2] == light[:2]
    assert len(page.pdf()) > 20_000
    page.emulate_media(media="screen")
    page.wait_for_function("![...document.querySelectorAll('details')].every(d => d.open)")


@pytest.mark.slow
def test_without_a_script_tables_and_still_pictures_are_there(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("table").first.is_visible()
    assert page.locator(".still path").count() == 2 * len(EXPERIMENTS)
    assert page.locator(".still svg").first.is_visible()
    assert not page.locator(".controls").is_visible()
    assert not page.locator("#theme").is_visible()


@pytest.mark.slow
def test_a_hostile_title_is_shown_and_does_nothing(visit, several, tmp_path):
    file = write_report(several / "fedavg-upcycled", tmp_path / "page.html", title=HOSTILE)
    page = visit(file=file)
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.title() == HOSTILE
    assert page.evaluate("typeof hacked") == "undefined"
    assert len(lines(page, "score:accuracy")) == 1


def test_hostile_texts_in_every_file_are_shown_and_do_nothing(visit, several, tmp_path):
    page = visit(PHONE, file=write_report(hostile_folder(several, tmp_path / "results"), tmp_path / "page.html"))
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("main img, main script, main b, main i").count() == 0
    assert len(lines(page, "score:accuracy")) == len(EXPERIMENTS)
    assert HOSTILE in page.locator(".legend button").first.inner_text()
    assert HOSTILE in page.locator("[data-chart='clients:accuracy']").inner_text()
    assert page.evaluate(STICKS_OUT) == []


@pytest.mark.slow
def test_of_many_experiments_eight_are_shown_and_the_others_can_be(visit, several, tmp_path):
    for k in range(20):
        source = several / "fedavg-upcycled" / "seed-0"
        shutil.copytree(source, tmp_path / "many" / f"run-{k}" / "seed-0", ignore=lambda *_: ["checkpoint"])
    page = visit(PHONE, file=write_report(tmp_path / "many"))
    assert page.locator(".legend button[data-part]").count() == 20
    assert len(lines(page, "score:accuracy")) == 8
    page.get_by_role("button", name="all", exact=True).click()
    assert len(lines(page, "score:accuracy")) == 20
    assert page.evaluate(STICKS_OUT) == []
