"""What :func:`repgraph.engine.train.train` is made of. The unit is the iteration: all chance is a function of it."""
