"""The library on a machine where Triton was never installed."""

from tests.absent import run_without


def test_everything_but_triton_works() -> None:
    done = run_without(
        ("triton",),
        """
        import torch
        from repgraph import representative_attention
        x, offsets = torch.randn(1, 4, 5, 5, requires_grad=True), torch.randn(1, 6, 5, 5)
        for backend in ("auto", "cpu", "reference"):
            representative_attention(x, x, x, offsets, backend=backend).sum().backward()
        try:
            representative_attention(x, x, x, offsets, backend="triton")
        except RuntimeError as error:
            print(error)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "backend 'triton' cannot run here: triton is not installed" in done.stdout
