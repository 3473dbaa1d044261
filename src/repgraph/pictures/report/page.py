"""The page about runs, from its beginning to its end."""

from collections.abc import Sequence

from repgraph.pictures.curves import style_of
from repgraph.pictures.page import Html, document, table, tag
from repgraph.pictures.report.charts import charts
from repgraph.pictures.report.classes import tested
from repgraph.pictures.report.contents import Contents, Run
from repgraph.pictures.report.style import STYLE


def write(contents: Contents) -> str:
    """The page as HTML: one file, which needs nothing else."""
    runs = contents.runs
    parts = [
        _opening(contents),
        tag("section", tag("h2", "Summary"), _summary(runs), id="summary"),
        tag("section", tag("h2", "Curves"), _hint(runs), charts(runs), id="curves"),
        *(tested(test, runs) for test in contents.tests),
        tag("section", tag("h2", "Recipe"), *_recipes(runs), id="recipe"),
        tag("section", tag("h2", "What happened"), *_sessions(runs), id="sessions"),
    ]
    if contents.command:
        parts.append(tag("p", "This page was made by ", tag("code", contents.command), class_="note"))
    return document(contents.title, *parts, style=STYLE)


def _opening(contents: Contents) -> Html:
    links = [("Summary", "#summary"), ("Curves", "#curves"), ("Recipe", "#recipe"), ("What happened", "#sessions")]
    if contents.tests:
        links.insert(2, ("Scores", "#scores"))
    links += contents.links
    notes = [tag("p", note, class_="warning") for note in contents.notes]
    for run in contents.runs:
        before = f"{run.name}: " if len(contents.runs) > 1 else ""
        notes += [tag("p", before, note, class_="warning") for note in run.notes]
    return tag(
        "header",
        tag("h1", contents.title),
        tag("nav", *(tag("a", text, href=address) for text, address in links)),
        _keys(contents.runs) if len(contents.runs) > 1 else None,
        *notes,
    )


def _keys(runs: Sequence[Run]) -> Html:
    """Which line is whose."""
    found = []
    for number, run in enumerate(runs):
        kind, dash = style_of(number)
        line = tag("line", x1=0, x2=42, y1=6, y2=6, stroke="currentColor", stroke_width=3, stroke_dasharray=dash)
        sample = tag("svg", line, viewBox="0 0 42 12", aria_hidden="true")
        found.append(tag("li", sample, tag("b", run.name), class_=kind))
    return tag("ul", *found, class_="keys")


def _hint(runs: Sequence[Run]) -> Html | None:
    if not any(run.series for run in runs):
        return None
    return tag("p", "Point at a chart for its values.", class_="note")


def _summary(runs: Sequence[Run]) -> Html:
    names = list(dict.fromkeys(name for run in runs for name in run.facts))
    rows = [[tag("th", name, scope="row"), *_facts([run.facts.get(name, "-") for run in runs])] for name in names]
    return tag("div", table(_heads(runs), rows), class_="facts")


def _facts(values: Sequence[str]) -> list[Html]:
    """A cell each, or one for all that are alike."""
    if len(values) > 1 and len(set(values)) == 1:
        return [tag("td", values[0], colspan=len(values))]
    return [tag("td", value) for value in values]


def _heads(runs: Sequence[Run], first: str = "") -> list[Html]:
    heads = [tag("th", run.name, scope="col", class_=f"name {style_of(i)[0]}") for i, run in enumerate(runs)]
    return [tag("th", first) if first else tag("td"), *heads]


def _recipes(runs: Sequence[Run]) -> list[Html]:
    """Settings, those first that differ: between runs, or for one run from the recipe of its name."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    if not names:
        return [tag("p", "No recipe could be read.", class_="note")]
    alone = runs[0] if len(runs) == 1 else None
    columns = [run.settings for run in runs]
    heads = _heads(runs, "setting")
    if alone is not None and alone.usual:
        columns.append(alone.usual)
        heads.append(tag("th", "the recipe of that name", scope="col"))
        names = list(dict.fromkeys([*names, *alone.usual]))
    differing = [name for name in names if len({column.get(name) for column in columns}) > 1]

    def row(name: str, kind: str | None = None) -> Html:
        cells = [tag("td", column.get(name, "-")) for column in columns]
        return tag("tr", tag("th", name, scope="row"), *cells, class_=kind)

    parts = []
    if len(columns) > 1:
        what = "the runs" if alone is None else "the run and the recipe that it is named after"
        if differing:
            parts.append(tag("p", f"What differs between {what}:"))
            parts.append(_settings(heads, [row(name) for name in differing]))
        else:
            parts.append(tag("p", f"There is no difference between {what}."))
    rows = [row(name, "differs" if name in differing else None) for name in names]
    parts.append(tag("details", tag("summary", f"all {len(names)} settings"), _settings(heads, rows)))
    return parts


def _settings(heads: Sequence[Html], rows: Sequence[Html]) -> Html:
    head = tag("thead", tag("tr", *heads))
    return tag("div", tag("div", tag("table", head, tag("tbody", *rows)), class_="scroll"), class_="facts")


def _sessions(runs: Sequence[Run]) -> list[Html]:
    parts = []
    for number, run in enumerate(runs):
        if len(runs) > 1:
            parts.append(tag("h3", run.name, class_=style_of(number)[0]))
        if not run.sessions:
            parts.append(tag("p", "Nothing is known of its sessions.", class_="note"))
            continue
        heads = [tag("th", text, scope="col") for text in ("started (UTC)", "after iteration", "command", "outcome")]
        rows = [
            [session.started, session.start, tag("td", tag("code", session.command)), session.outcome]
            for session in run.sessions
        ]
        parts.append(tag("div", table(heads, rows), class_="facts"))
    return parts
