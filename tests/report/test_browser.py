"""The report in a browser: it fits the screen, in light and dark, without errors or requests."""

import pytest
from tests.report.run_folders import finished_run
from tests.trained import save_data

from repgraph.report import Options, report

NAME = "a-run-with-a-very-long-name-of-many-letters"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    root = save_data(folder / "data")
    runs = [finished_run(folder / name, root) for name in (NAME, "other")]
    path = folder / "report.html"
    path.write_text(report(runs, Options(pictures=1)), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1200, "light"), (2000, "light")])
def test_page(chromium, path, width, scheme):
    page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tables = page.eval_on_selector_all(".scroll", "all => all.filter(e => e.scrollWidth > e.clientWidth).length")
    assert tables == 0  # none is cut off
    charts = page.eval_on_selector_all("figure > svg", "all => all.map(each => each.getBoundingClientRect().width)")
    assert len(charts) >= 5 and min(charts[:5]) > 300
    style = "({}) => getComputedStyle({})['{}'].match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
    ground = page.eval_on_selector("body", style.format("e", "e", "backgroundColor"))
    text = page.eval_on_selector("figure > svg text", style.format("e", "e", "fill"))
    assert (ground > 600 and text < 400) if scheme == "light" else (ground < 150 and text > 400)
    assert problems == [] and all(request.startswith(("file:", "data:")) for request in requests)
    page.close()
