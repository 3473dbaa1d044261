"""The pages beside the demo's own: the report on its runs, from tests that were made anyway, and the explorer."""

from collections.abc import Sequence

from repgraph.data.scenes import LABELS, Scenes
from repgraph.demo.report import Results
from repgraph.demo.training import Network
from repgraph.engine.explore import Subject, explore
from repgraph.engine.explore.page import true_labels
from repgraph.engine.inference import Settings
from repgraph.engine.report import build
from repgraph.engine.report.labels import TestedLabels
from repgraph.engine.report.log import read
from repgraph.engine.report.testing import described

REPORT, EXPLORER = "report.html", "explore.html"
PICTURES = 3  # best ones, worst ones, and so on
EXPLORED = ("rgnet", "nl")  # the first of them that there is


def explorer(trained: Sequence[Network], data: Scenes, count: int) -> str | None:
    """The page with the nodes of every position in the first test pictures; None if no network has any."""
    firsts = {one.name: one for one in trained if one.seed == 0}
    chosen = next((firsts[name] for name in EXPLORED if name in firsts), None)
    if chosen is None:
        return None
    subjects = []
    for index in range(min(count, len(data))):
        image, mask = data[index]
        subjects.append(Subject(f"test picture {index}", image, true_labels(mask, LABELS)))
    about = f"{chosen.title}, recipe {chosen.recipe.name}, trained by repgraph demo"
    return explore(chosen.model, subjects, LABELS, title="Where the layer looks", about=about)


def page(trained: Sequence[Network], results: Results, data: Scenes) -> str:
    """The page as HTML; nothing is evaluated again but the few pictures on it."""
    logs = [read(one.folder) for one in trained]
    tests = []
    for number, one in enumerate(trained):
        found = results[one.name][one.seed]
        tests.append(TestedLabels(number, one.model, data, Settings(), found.evaluation, found.each))
    shown = described(tests, build.unlike([one.folder for one in trained]), PICTURES)
    back = [("The demo", "index.html")]
    return build.page(logs, [one.model for one in trained], shown, title="The runs of the demo", links=back)
