// The image on the stage: screen = left + scale * (x + 0.5), because pixel centers are at integers.

class View {
  constructor(image) {
    Object.assign(this, { image, width: 1, height: 1, scale: 1, left: 0, top: 0, whole: true });
  }

  /** The scale that shows the whole image, with a margin for nodes outside of it. */
  get fitting() {
    const margin = Math.min(36, 0.05 * Math.min(this.width, this.height));
    return Math.min((this.width - 2 * margin) / this.image.width, (this.height - 2 * margin) / this.image.height);
  }

  /** Show the whole of an image. */
  fit(image) {
    Object.assign(this, { image, whole: true });
    this.scale = this.fitting;
    this.left = (this.width - this.scale * image.width) / 2;
    this.top = (this.height - this.scale * image.height) / 2;
  }

  toScreen(x, y) {
    return [this.left + this.scale * (x + 0.5), this.top + this.scale * (y + 0.5)];
  }

  toImage(across, down) {
    return [(across - this.left) / this.scale - 0.5, (down - this.top) / this.scale - 0.5];
  }

  /** Zoom about a point of the screen. */
  zoom(factor, across, down) {
    const least = this.fitting;
    const scale = clamp(this.scale * factor, least, Math.max(40, 8 * least));
    if (scale === least) return this.fit(this.image);
    const [x, y] = this.toImage(across, down);
    Object.assign(this, { scale, whole: false, left: across - scale * (x + 0.5), top: down - scale * (y + 0.5) });
    this.move(0, 0);
  }

  /** Move the image, but keep the center of the stage on it. */
  move(right, below) {
    if (this.whole) return;
    const { image, scale, width, height } = this;
    this.left = clamp(this.left + right, width / 2 - scale * image.width, width / 2);
    this.top = clamp(this.top + below, height / 2 - scale * image.height, height / 2);
  }

  /** Move a pixel to the center of the stage if it is near the border of the stage or outside. */
  show(x, y) {
    const [across, down] = this.toScreen(x, y);
    const [right, below] = [this.width / 2 - across, this.height / 2 - down];
    if (Math.max(Math.abs(right) / this.width, Math.abs(below) / this.height) > 0.4) this.move(right, below);
  }

  /** Change the size of the stage; what is in its center stays there. */
  resize(width, height) {
    const [right, below] = [(width - this.width) / 2, (height - this.height) / 2];
    Object.assign(this, { width, height });
    if (this.whole) this.fit(this.image);
    else this.move(right, below);
  }
}
