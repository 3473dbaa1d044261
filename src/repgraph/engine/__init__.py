"""Training, inference, evaluation and prediction. Modules are imported one by one: each brings what it needs."""
