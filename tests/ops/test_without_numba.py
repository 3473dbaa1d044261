"""The operator where numba is broken."""

from tests.absent import run_without


def test_with_a_broken_numba(tmp_path) -> None:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('numba needs another numpy')")
    script = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch
        from repgraph import representative_attention
        x = torch.randn(1, 4, 5, 5)
        representative_attention(x, x, x, torch.randn(1, 6, 5, 5))
        try:
            representative_attention(x, x, x, torch.randn(1, 6, 5, 5), backend="cpu")
        except RuntimeError as error:
            print(error)
    """
    done = run_without((), script)
    assert done.returncode == 0, done.stderr
    assert "backend 'cpu' cannot run here: numba cannot be imported: numba needs another numpy" in done.stdout
