"""``repgraph info``."""

from typing import Annotated

import typer


def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show versions, devices, and which backends can run here."""
    import json

    from repgraph.info import gather, render

    facts = gather()
    print(json.dumps(facts, indent=2) if as_json else render(facts))
