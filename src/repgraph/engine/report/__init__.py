"""``repgraph report``: one page about one or several runs."""
