"use strict";
// The data of the page: images, nodes of layers, and underlays, as packing.py writes them. Unpacked when first shown.

const WHOLE = 65535; // 16-bit integers are fractions of a range
const POWERS = { reach: 1, received: 2 }; // maps of a layer: the value at a fraction of the colour bar, to this power
const PATHS = 30; // strongest paths to the nodes of each earlier round
const MARGIN = 0.02; // in positions: a node this close to one position outside of the map reads nothing but zeros

const shorts = (text) => new Uint16Array(bytes(text).buffer);

function bytes(text) {
  const raw = atob(text);
  const array = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) array[i] = raw.charCodeAt(i); // ten times as fast as Uint8Array.from
  return array;
}

const data = JSON.parse(document.getElementById("data").textContent);
const colours = bytes(data.colours); // [256, 3]

/** Return red, green and blue at a fraction of the colour bar. */
function colourAt(share) {
  const index = 3 * Math.round(255 * share);
  return colours.subarray(index, index + 3);
}

/** Return a canvas whose pixels are opaque in the colours of colour(index), or transparent without one. */
function painted(width, height, colour) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const found = colour(i);
    if (found) picture.data.set([...found, 255], 4 * i);
  }
  context.putImageData(picture, 0, 0);
  return canvas;
}

/** Nodes and weights of every position of a layer's map, in one of its rounds; before is the round before. */
class Layer {
  constructor(packed, image, before) {
    Object.assign(this, packed, {
      image,
      before,
      nodes: shorts(packed.nodes), // [cell rows, cells, count, 2]
      tops: shorts(packed.tops), // [rows, columns, sets], square roots of the largest weights
      weights: bytes(packed.weights), // [rows, columns, sets, count], square roots of the quotients to the largest
    });
    for (const name in POWERS) this[name] = { top: packed[name].top, values: shorts(packed[name].values), canvases: [] };
  }

  /** Return reach or received attention of a position, for the mean of the groups (set 0) or for a group. */
  mapAt(name, set, row, column) {
    const { top, values } = this[name];
    return (top * values[(set * this.rows + row) * this.columns + column]) / WHOLE;
  }

  mapCanvas(name, set) {
    const { values, canvases } = this[name];
    const start = set * this.rows * this.columns;
    const colour = (i) => colourAt((values[start + i] / WHOLE) ** (1 / POWERS[name]));
    canvases[set] ??= painted(this.columns, this.rows, colour);
    return canvases[set];
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

  /** Return the window that a node averages, in pixels and clipped to the image; null if it reads zeros only. */
  window(x, y) {
    const side = (at, step, count, size) => {
      const position = (at + 0.5) / step - 0.5;
      if (position < MARGIN - 1 || position > count - MARGIN) return null;
      const middle = (Math.min(Math.max(position, 0), count - 1) + 0.5) * step - 0.5;
      const half = (step * this.node_view) / 2;
      return [Math.max(middle - half, -0.5), Math.min(middle + half, size - 0.5)];
    };
    const across = side(x, this.step[0], this.columns, this.image.width);
    const down = side(y, this.step[1], this.rows, this.image.height);
    return across && down && { left: across[0], top: down[0], right: across[1], bottom: down[1] };
  }

  isOutside({ x, y }) {
    const { width, height } = this.image;
    return x < -0.5 || y < -0.5 || x > width - 0.5 || y > height - 0.5;
  }

  /**
   * Return the strongest paths from nodes on to their nodes in the round before, for each earlier round. A node reads the
   * round's response at the position nearest to it. The weight of a path is the product of its nodes' weights.
   */
  walk(nodes, set) {
    if (!this.before) return [];
    const paths = nodes.filter((node) => !this.isOutside(node)).flatMap((from) => {
      const next = this.before.nodesAt(from.x, from.y, set).nodes;
      return next.map(({ x, y, weight }) => ({ from, x, y, weight: from.weight * weight }));
    });
    const strongest = paths.sort((a, b) => b.weight - a.weight).slice(0, PATHS);
    return [strongest, ...this.before.walk(strongest, set)];
  }

  /** Return the position at a pixel, with its nodes in pixels of the image by descending weight, and statistics. */
  nodesAt(pixelX, pixelY, set) {
    const [row, column] = this.positionAt(pixelX, pixelY);
    const [x, y] = this.centre(row, column);
    const cell = (Math.floor(row / this.grid) * this.cells + Math.floor(column / this.grid)) * this.count;
    const own = (row * this.columns + column) * this.sets + set;
    const nodes = Array.from({ length: this.count }, (_, n) => {
      const node = {
        x: this.origin[0] + this.unit[0] * this.nodes[2 * (cell + n)],
        y: this.origin[1] + this.unit[1] * this.nodes[2 * (cell + n) + 1],
        weight: ((this.tops[own] / WHOLE) * (this.weights[own * this.count + n] / 255)) ** 2,
      };
      const window = this.node_view > 1 ? this.window(node.x, node.y) : null;
      return { ...node, window, distance: Math.hypot(node.x - x, node.y - y) };
    });
    nodes.sort((a, b) => b.weight - a.weight);
    const outside = nodes.filter((node) => this.isOutside(node)).length;
    const share = nodes.reduce((sum, node) => sum + node.weight, 0);
    const [reach, received] = ["reach", "received"].map((name) => this.mapAt(name, set, row, column));
    return { x, y, row, column, nodes, outside, share, reach, received };
  }
}

/** Classes of pixels, or objects: predicted or true. */
class Underlay {
  constructor(packed, image) {
    Object.assign(this, packed, { image });
  }

  get labels() {
    if (!this.unpacked) {
      const lengths = shorts(this.runs.lengths);
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
    this.drawn ??= painted(this.width, this.height, (i) => this.entries[this.labels[i]]?.colour);
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
