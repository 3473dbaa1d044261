"""Benchmarks. Importing this package imports nothing; plots and tables need the extra ``repgraph[bench]``."""
