// How the image lies on the stage: screen = left + scale * (x + 0.5), because pixel centres are at integers.

class View {
  constructor() {
    Object.assign(this, { width: 1, height: 1, scale: 1, left: 0, top: 0, whole: true });
  }

  /** The scale at which all of the image is seen, with a rim for nodes that lie outside. */
  fitting(image) {
    const rim = Math.min(36, 0.05 * Math.min(this.width, this.height));
    return Math.min((this.width - 2 * rim) / image.width, (this.height - 2 * rim) / image.height);
  }

  fit(image) {
    this.scale = this.fitting(image);
    this.left = (this.width - this.scale * image.width) / 2;
    this.top = (this.height - this.scale * image.height) / 2;
    this.whole = true;
  }

  resize(width, height, image) {
    const middle = this.toImage(this.width / 2, this.height / 2);
    Object.assign(this, { width, height });
    if (this.whole) return this.fit(image);
    this.left = width / 2 - this.scale * (middle[0] + 0.5);
    this.top = height / 2 - this.scale * (middle[1] + 0.5);
    this.hold(image);
  }

  toScreen(x, y) {
    return [this.left + this.scale * (x + 0.5), this.top + this.scale * (y + 0.5)];
  }

  toImage(across, down) {
    return [(across - this.left) / this.scale - 0.5, (down - this.top) / this.scale - 0.5];
  }

  /** Zoom such that what is at a place of the screen stays there. */
  zoom(factor, across, down, image) {
    const least = this.fitting(image);
    const scale = Math.min(Math.max(this.scale * factor, least), Math.max(40, 8 * least));
    if (scale === least) return this.fit(image);
    const [x, y] = this.toImage(across, down);
    Object.assign(this, { scale, whole: false });
    this.left = across - scale * (x + 0.5);
    this.top = down - scale * (y + 0.5);
    this.hold(image);
  }

  move(across, down, image) {
    if (this.whole) return;
    this.left += across;
    this.top += down;
    this.hold(image);
  }

  /** Keep the middle of the stage on the image. */
  hold(image) {
    this.left = Math.min(this.width / 2, Math.max(this.width / 2 - this.scale * image.width, this.left));
    this.top = Math.min(this.height / 2, Math.max(this.height / 2 - this.scale * image.height, this.top));
  }

  /** Move until a pixel can be seen; whether anything moved. */
  reveal(x, y, image) {
    const [across, down] = this.toScreen(x, y);
    const rim = Math.min(60, this.width / 4, this.height / 4);
    const right = Math.max(rim - across, 0) + Math.min(this.width - rim - across, 0);
    const low = Math.max(rim - down, 0) + Math.min(this.height - rim - down, 0);
    if (this.whole || (!right && !low)) return false;
    this.move(right, low, image);
    return true;
  }
}

