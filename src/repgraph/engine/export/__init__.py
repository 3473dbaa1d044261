"""Trained networks for other programs: torch.export, ONNX, safetensors."""
