"""Labels of images, as files."""
