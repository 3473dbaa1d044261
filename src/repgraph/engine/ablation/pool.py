"""Who does the tasks: joblib's backends. Local threads that wait for processes, or a cluster of Dask or Ray."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from repgraph.engine.ablation.job import Ended, Task, job
from repgraph.errors import UsageError

LOCAL = ("threading", "loky")  # on this machine: data and weights can be looked at before
NEEDS = {"dask": "'dask[distributed]'", "ray": "'ray[default]'"}


def ended(tasks: Sequence[Task], jobs: int, backend: str = "threading", cluster: str = "") -> Iterator[Ended]:
    """Do all tasks, ``jobs`` at a time; they come back as they end (all at the end, where a backend cannot do that).

    Args:
        backend: any that joblib has or that was registered with it.
        cluster: the address of a running cluster, for Dask and Ray; without it they start one here.
    """
    from joblib import Parallel, delayed, parallel_config

    with _cluster(backend, jobs, cluster):
        try:
            with parallel_config(backend, n_jobs=jobs):
                parallel = _parallel(Parallel)
                yield from parallel(delayed(job)(task) for task in tasks)
        except ValueError as error:
            if not str(error).startswith("Invalid backend"):
                raise
            raise UsageError(
                f"--backend {backend!r} is not one that joblib knows; give threading, loky, dask or ray"
            ) from error


def _parallel(kind: type) -> Any:
    options: dict[str, Any] = dict(batch_size=1, pre_dispatch="all")
    try:
        return kind(return_as="generator_unordered", **options)
    except ValueError:
        return kind(**options)


@contextlib.contextmanager
def _cluster(backend: str, jobs: int, address: str) -> Iterator[None]:
    """Join a cluster, or start one on this machine, for backends that need it."""
    if backend not in NEEDS:
        if address:
            raise UsageError(f"--cluster is for --backend dask and ray, not {backend!r}; leave it out")
        yield
        return
    try:
        if backend == "dask":
            from distributed import Client
        else:
            import ray
            from ray.util.joblib import register_ray
    except ImportError as error:
        raise UsageError(f"--backend {backend} needs it installed: pip install {NEEDS[backend]}") from error
    try:
        if backend == "dask":
            client = Client(address) if address else Client(n_workers=jobs, threads_per_worker=1)
        else:
            ray.init(address=address or None, num_cpus=None if address else jobs)
            register_ray()
    except (OSError, ConnectionError, ValueError) as error:
        raise UsageError(f"--cluster {address!r} does not answer ({error}); give its address") from error
    try:
        yield
    finally:
        client.close() if backend == "dask" else ray.shutdown()
