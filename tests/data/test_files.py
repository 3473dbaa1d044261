"""Images become uint8 RGB, masks keep their values, and damaged files are errors that name them."""

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from tests.data.layouts import cut, fails, mask, picture

from repgraph.data.files import read_image, read_mask


def pixels(path) -> np.ndarray:
    return read_image(path).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("extension", ["JPEG", "png", "bmp", "tif", "webp", "ppm"])
def test_formats(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    stored = picture(path, (7, 5))
    image = read_image(path)
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 7, 5))
    np.testing.assert_array_equal(pixels(path), stored)
    assert not image.zero_().any()  # writable: a warning would be an error


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_modes(tmp_path, mode):
    colours = np.full((4, 3, 3), 255, np.uint8)
    colours[:, :2] = 0
    path = tmp_path / ("a.jpg" if mode in ("CMYK", "YCbCr") else "a.png")
    Image.fromarray(colours).convert(mode).save(path, quality=100)
    assert np.abs(pixels(path).astype(int) - colours).max() <= 3


def test_transparency_16_bits_and_exif(tmp_path):
    Image.fromarray(np.full((4, 3, 4), (10, 200, 30, 0), np.uint8)).save(tmp_path / "a.png")
    assert (pixels(tmp_path / "a.png") == (10, 200, 30)).all()
    drawn = Image.frombytes("P", (3, 4), bytes(range(12)))
    drawn.putpalette([5, 6, 7] * 12)
    drawn.save(tmp_path / "b.png", transparency=bytes([0, 128] * 6))
    assert (pixels(tmp_path / "b.png") == (5, 6, 7)).all()
    values = np.array([[0, 255, 256], [32768, 65280, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    np.testing.assert_array_equal(pixels(tmp_path / "a.png")[..., 1], [[0, 0, 1], [128, 255, 255]])
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees: ignored
    Image.new("RGB", (8, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert tuple(read_image(tmp_path / "a.jpg").shape) == (3, 4, 8)


def test_masks(tmp_path):
    for mode, values in (("L", [0, 3, 255]), ("P", [0, 3, 255]), ("I;16", [0, 26003, 65535])):
        stored = mask(tmp_path / "a.png", values, (5, 7), mode)
        np.testing.assert_array_equal(read_mask(tmp_path / "a.png"), stored)
    Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1").save(tmp_path / "b.png")
    assert read_mask(tmp_path / "b.png").tolist() == [[0, 1], [1, 0]]
    (tmp_path / "a.regions.txt").write_text("0 1 -1\n7 7 7\n")
    assert read_mask(tmp_path / "a.regions.txt").tolist() == [[0, 1, -1], [7, 7, 7]]
    for content in ("0 1\n2\n", "0.5 1\n", " \n", "# 1\n"):
        (tmp_path / "a.txt").write_text(content)
        fails(r"a\.txt: cannot read this mask", read_mask, tmp_path / "a.txt")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, ">u2", np.float64])
def test_masks_of_matlab(tmp_path, compressed, dtype):
    values = np.arange(15).reshape(3, 5).astype(dtype)
    scipy.io.savemat(tmp_path / "a.mat", {"x": 1, "LabelMap": values}, do_compression=compressed)
    read = read_mask(tmp_path / "a.mat")
    assert read.tolist() == values.tolist() and read.dtype == np.int32


def test_damaged_matlab_files(tmp_path):
    """SciPy crashes on some values of the type that follows the name."""
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"LabelMap": np.ones((6, 4), np.uint16)})
    content = path.read_bytes()
    start = content.index(b"LabelMap") + 8
    for code in range(256):
        path.write_bytes(content[:start] + bytes([code, code]) + content[start + 2 :])
        fails("unknown type", read_mask, path)
    for other in ({"Other": 1}, {"LabelMap": "text"}, {"LabelMap": np.zeros((2, 2, 2))}):
        scipy.io.savemat(path, other)
        fails(r"a\.mat: cannot read this mask", read_mask, path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + b"\0" * 300)
    fails("matlab v7.3 files", read_mask, path)


def test_refused_images_and_masks(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "a.tif")
    fails(r"a\.tif: floating-point images", read_image, tmp_path / "a.tif")
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    fails(r"a\.png: the mask is a RGB image", read_mask, tmp_path / "a.png")
    Image.new("L", (4, 3)).save(tmp_path / "a.jpg")
    fails(r"a\.jpg: JPEG does not preserve class numbers", read_mask, tmp_path / "a.jpg")
    fails(r"b\.png: no such mask", read_mask, tmp_path / "b.png")
    fails("cannot read this image", read_image, tmp_path)
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png", "EPS")  # for which Pillow would run Ghostscript
    for read in (read_image, read_mask):
        fails(r"a\.png: cannot read this .* \(cannot identify image file\)", read, tmp_path / "a.png")
    picture(tmp_path / "large.png", (30, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    fails(r"large\.png: .*MAX_IMAGE_PIXELS sets the limit", read_image, tmp_path / "large.png")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9])
def test_truncated_files(tmp_path, share):
    for extension in ("jpg", "png", "bmp", "tif", "webp"):
        path = tmp_path / f"a.{extension}"
        picture(path, (60, 60))
        cut(path, share)
        fails(rf"a\.{extension}: cannot read this image", read_image, path)
    values = np.random.default_rng(0).integers(0, 255, 6000)
    mask(tmp_path / "mask.png", values, (60, 100))
    for compressed in (True, False):
        content = {"LabelMap": values.reshape(60, 100).astype(np.uint16)}
        scipy.io.savemat(tmp_path / f"{compressed}.mat", content, do_compression=compressed)
    for name in ("mask.png", "True.mat", "False.mat"):
        cut(tmp_path / name, share)
        fails(rf"{name}: cannot read this mask", read_mask, tmp_path / name)
