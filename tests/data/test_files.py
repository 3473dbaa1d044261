"""Images of every kind become RGB bytes; masks keep their numbers; damaged files are errors that name them."""

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.layouts import cut, mask, matlab, picture

from repgraph.data.files import read_image, read_values
from repgraph.data.labels import DataError
from repgraph.data.matfile import read_matrix


def as_array(image) -> np.ndarray:
    return image.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("extension", ["jpg", "JPEG", "png", "PNG", "bmp", "tif", "webp", "ppm"])
def test_formats(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    stored = picture(path, (7, 5))
    image = read_image(path)
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 7, 5))
    assert (as_array(image) == stored).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_modes(tmp_path, mode):
    colours = np.full((4, 3, 3), 255, np.uint8)
    colours[:, :2] = 0
    path = tmp_path / ("a.jpg" if mode in ("CMYK", "YCbCr") else "a.png")
    Image.fromarray(colours).convert(mode).save(path, quality=100)
    assert np.abs(as_array(read_image(path)).astype(int) - colours).max() <= 3


def test_transparency_is_dropped(tmp_path):
    colours = np.full((4, 3, 4), (10, 200, 30, 0), np.uint8)
    Image.fromarray(colours).save(tmp_path / "a.png")
    assert (as_array(read_image(tmp_path / "a.png")) == (10, 200, 30)).all()


def test_a_palette_with_transparent_colours(tmp_path):
    drawn = Image.frombytes("P", (3, 4), bytes(range(12)))
    drawn.putpalette([5, 6, 7] * 12)
    drawn.save(tmp_path / "a.png", transparency=bytes([0, 128] * 6))
    assert (as_array(read_image(tmp_path / "a.png")) == (5, 6, 7)).all()


def test_16_bits_keep_the_upper_8(tmp_path):
    values = np.array([[0, 255, 256], [32768, 65280, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    expected = np.array([[0, 0, 1], [128, 255, 255]])
    assert (as_array(read_image(tmp_path / "a.png")) == expected[..., None]).all()


def test_floating_point_images_are_refused(tmp_path):
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"a\.tif: an image of floating-point numbers has no known range"):
        read_image(tmp_path / "a.tif")


def test_orientation_is_left_as_stored(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me by 90 degrees"
    Image.new("RGB", (8, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert tuple(read_image(tmp_path / "a.jpg").shape) == (3, 4, 8)


def test_images_can_be_written_to(tmp_path):
    picture(tmp_path / "a.png")
    assert not read_image(tmp_path / "a.png").zero_().any()  # and a warning would be an error


@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
def test_masks_keep_their_numbers(tmp_path, mode):
    values = mask(tmp_path / "a.png", [0, 3, 255], (5, 7), mode)
    read = read_values(tmp_path / "a.png")
    assert (read == values).all() and read.shape == (5, 7)


def test_masks_of_16_bits_hold_large_numbers(tmp_path):
    values = mask(tmp_path / "a.png", [0, 26003, 65535], mode="I;16")
    assert (read_values(tmp_path / "a.png") == values).all()


def test_masks_of_one_bit_hold_0_and_1(tmp_path):
    Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1").save(tmp_path / "a.png")
    assert read_values(tmp_path / "a.png").tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_masks_of_colours_are_refused(tmp_path, mode):
    Image.new(mode, (4, 3)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=rf"a\.png: .* this is a {mode} image; turn its colours into class numbers"):
        read_values(tmp_path / "a.png")


def test_masks_in_jpeg_are_refused(tmp_path):
    Image.new("L", (4, 3)).save(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"a\.jpg: JPEG changes class numbers .* use PNG"):
        read_values(tmp_path / "a.jpg")


@pytest.mark.parametrize("extension", ["jpg", "png", "bmp", "tif", "webp"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9])
def test_files_cut_short(tmp_path, extension, share):
    path = tmp_path / f"a.{extension}"
    picture(path, (60, 60))
    cut(path, share)
    with pytest.raises(DataError, match=rf"a\.{extension}: cannot read this image"):
        read_image(path)


def test_a_mask_cut_short(tmp_path):
    mask(tmp_path / "a.png", np.random.default_rng(0).integers(0, 255, 6000), (60, 100))
    cut(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png: cannot read this mask"):
        read_values(tmp_path / "a.png")


@pytest.mark.parametrize(
    "content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"\xff\xd8\xff" + b"\1" * 50]
)
def test_files_that_are_no_images(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.png: cannot read this image"):
        read_image(tmp_path / "a.png")


def test_damage_inside_a_png(tmp_path):
    picture(tmp_path / "a.png", (60, 60))
    content = bytearray((tmp_path / "a.png").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.png: cannot read this image"):
        read_image(tmp_path / "a.png")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(DataError, match=r"a\.png: there is no such image"):
        read_image(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png: there is no such mask"):
        read_values(tmp_path / "a.png")
    with pytest.raises(DataError, match="cannot read this image"):
        read_image(tmp_path)


def test_pictures_too_large_for_pillow_name_the_limit(tmp_path, monkeypatch):
    picture(tmp_path / "a.png", (30, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with pytest.raises(DataError, match=r"a\.png: .*MAX_IMAGE_PIXELS sets the limit"):
        read_image(tmp_path / "a.png")


def test_masks_as_text(tmp_path):
    (tmp_path / "a.regions.txt").write_text("0 1 -1\n7 7 7\n")
    assert read_values(tmp_path / "a.regions.txt").tolist() == [[0, 1, -1], [7, 7, 7]]


@pytest.mark.parametrize("content", ["0 1\n2\n", "0 x\n", "0.5 1\n"])
def test_broken_masks_as_text(tmp_path, content):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=r"a\.txt: cannot read this mask"):
        read_values(tmp_path / "a.txt")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float64])
def test_matlab_files(tmp_path, compressed, order, dtype):
    values = np.arange(15).reshape(3, 5).astype(dtype)
    matlab(tmp_path / "a.mat", values, compressed=compressed, order=order)
    assert read_values(tmp_path / "a.mat").tolist() == values.tolist()


def test_matlab_files_with_other_content(tmp_path):
    matlab(tmp_path / "a.mat", np.zeros((2, 2), np.uint8), name="Other")
    with pytest.raises(ValueError, match="no variable 'LabelMap'"):
        read_matrix(tmp_path / "a.mat", "LabelMap")
    (tmp_path / "b.mat").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 300)
    with pytest.raises(DataError, match=r"b\.mat: cannot read this mask \(not a MATLAB file of version 5"):
        read_values(tmp_path / "b.mat")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_matlab_files_cut_short(tmp_path, compressed, share):
    matlab(
        tmp_path / "a.mat", np.random.default_rng(0).integers(0, 459, (30, 20)).astype(np.uint16), compressed=compressed
    )
    cut(tmp_path / "a.mat", share)
    with pytest.raises(DataError, match=r"a\.mat: cannot read this mask"):
        read_values(tmp_path / "a.mat")
