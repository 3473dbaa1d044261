"""``repgraph info``."""


def info() -> None:
    """Show versions, devices, and which backends can run here."""
    from repgraph.info import describe

    print(describe())
