"use strict";
// The data of the page: images, nodes of layers, and underlays, as packing.py writes them. Unpacked when first shown.

const WHOLE = 65535; // 16-bit integers are fractions of a range
const OUTSIDE = 1; // nodes are at most this many times the image's sides outside of it
const PATHS = 30; // strongest paths to the nodes of each earlier round

const shorts = (text) => new Uint16Array(bytes(text).buffer);

function bytes(text) {
  const raw = atob(text);
  const array = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) array[i] = raw.charCodeAt(i); // ten times as fast as Uint8Array.from
  return array;
}

const data = JSON.parse(document.getElementById("data").textContent);

/** Nodes and weights of every position of a layer's map, in one of its rounds; before is the round before. */
class Layer {
  constructor(packed, image, before) {
    Object.assign(this, packed, {
      image,
      before,
      nodes: shorts(packed.nodes), // [cell rows, cells, count, 2]
      weights: shorts(packed.weights), // [rows, columns, count], square roots
    });
  }

  /** Return row and column of the position nearest to a pixel. */
  positionAt(x, y) {
    const row = Math.floor((y + 0.5) / this.step[1]);
    const column = Math.floor((x + 0.5) / this.step[0]);
    return [Math.min(Math.max(row, 0), this.rows - 1), Math.min(Math.max(column, 0), this.columns - 1)];
  }

  /** Return the pixel at the centre of a position. */
  centre(row, column) {
    return [(column + 0.5) * this.step[0] - 0.5, (row + 0.5) * this.step[1] - 0.5];
  }

  isOutside({ x, y }) {
    const { width, height } = this.image;
    return x < -0.5 || y < -0.5 || x > width - 0.5 || y > height - 0.5;
  }

  /**
   * Return the strongest paths from nodes on to their nodes in the round before, for each earlier round. A node reads the
   * round's response at the position nearest to it. The weight of a path is the product of its nodes' weights.
   */
  walk(nodes) {
    if (!this.before) return [];
    const paths = nodes.filter((node) => !this.isOutside(node)).flatMap((from) => {
      const next = this.before.nodesAt(from.x, from.y).nodes;
      return next.map(({ x, y, weight }) => ({ from, x, y, weight: from.weight * weight }));
    });
    const strongest = paths.sort((a, b) => b.weight - a.weight).slice(0, PATHS);
    return [strongest, ...this.before.walk(strongest)];
  }

  /** Return the position at a pixel, with its nodes in pixels of the image by descending weight, and statistics. */
  nodesAt(pixelX, pixelY) {
    const [row, column] = this.positionAt(pixelX, pixelY);
    const [x, y] = this.centre(row, column);
    const cell = (Math.floor(row / this.grid) * this.cells + Math.floor(column / this.grid)) * this.count;
    const own = (row * this.columns + column) * this.count;
    const pixel = (fraction, size) => ((fraction / WHOLE) * (1 + 2 * OUTSIDE) - OUTSIDE) * size;
    const nodes = Array.from({ length: this.count }, (_, n) => {
      const at = 2 * (cell + n);
      const node = {
        x: pixel(this.nodes[at], this.image.width),
        y: pixel(this.nodes[at + 1], this.image.height),
        weight: (this.weights[own + n] / WHOLE) ** 2,
      };
      return { ...node, distance: Math.hypot(node.x - x, node.y - y) };
    });
    nodes.sort((a, b) => b.weight - a.weight);
    const outside = nodes.filter((node) => this.isOutside(node)).length;
    const share = nodes.reduce((sum, node) => sum + node.weight, 0);
    const reach = nodes.reduce((sum, node) => sum + node.weight * node.distance, 0) / (share || 1);
    return { x, y, row, column, nodes, outside, share, reach };
  }
}

/** Classes of pixels, or objects: predicted or true. */
class Underlay {
  constructor(packed, image) {
    Object.assign(this, packed, { image });
  }

  get labels() {
    if (!this.unpacked) {
      const lengths = new Uint32Array(bytes(this.runs.lengths).buffer);
      this.unpacked = new Uint8Array(this.width * this.height);
      let at = 0;
      bytes(this.runs.values).forEach((value, i) => this.unpacked.fill(value, at, (at += lengths[i])));
    }
    return this.unpacked;
  }

  /** Return the class or object at a pixel of the image, if there is one. */
  at(x, y) {
    const column = Math.min(Math.floor(((x + 0.5) * this.width) / this.image.width), this.width - 1);
    const row = Math.min(Math.floor(((y + 0.5) * this.height) / this.image.height), this.height - 1);
    return this.entries[this.labels[row * this.width + column]];
  }

  get canvas() {
    if (!this.drawn) {
      const { width, height } = this;
      this.drawn = Object.assign(document.createElement("canvas"), { width, height });
      const context = this.drawn.getContext("2d");
      const picture = context.createImageData(width, height);
      this.labels.forEach((label, i) => {
        if (label in this.entries) picture.data.set([...this.entries[label].colour, 255], 4 * i);
      });
      context.putImageData(picture, 0, 0);
    }
    return this.drawn;
  }
}

class Picture {
  constructor(packed) {
    Object.assign(this, packed, { pins: [], unpacked: [] });
    this.underlays = packed.underlays.map((one) => new Underlay(one, this));
    this.photo = Object.assign(new Image(), { src: packed.photo });
  }

  layer(index) {
    const packed = this.layers[index];
    this.unpacked[index] ??= new Layer(packed, this, packed.round > 1 ? this.layer(index - 1) : null);
    return this.unpacked[index];
  }
}

const pictures = data.images.map((packed) => new Picture(packed));
