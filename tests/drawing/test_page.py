"""HTML pages: values are escaped and substituted once, and only the page's own script can run."""

import hashlib
import re
from base64 import b64encode

import pytest
from jinja2 import UndefinedError
from PIL import Image

from repgraph.drawing.page import data_uri, render


@pytest.mark.parametrize("name", ["{{ script }}", "</script><b>", "{% include 'x' %}", "</title>&amp;"])
def test_values_are_escaped_and_not_templates(name):
    page = render("base.html", title=name, style="p { margin: 0 }", script="const a = 1 < 2;", body=name)
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")
    assert page.count(escaped) == 2 and page.count("<script>") == 1


def test_content_policy():
    page = render("base.html", title="", style="p { margin: 0 }", script="const a = 1 < 2;", body="")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'")
    for kind, directive in (("style", "style-src-elem"), ("script", "script-src")):
        inside = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)[1]
        assert f"{directive} 'sha256-{b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'" in policy
    assert "script-src &#39;none&#39;" in render("base.html", title="", style="", body="")
    with pytest.raises(UndefinedError):
        render("base.html", title="", style="")


def test_data_uri():
    assert data_uri(Image.new("RGB", (2, 2))).startswith("data:image/png;base64,")
    assert data_uri(Image.new("RGB", (2, 2)), photo=True).startswith("data:image/jpeg;base64,")
