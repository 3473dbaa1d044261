"""How good a network is on a data set."""
