"use strict";
// The data of the page: images, nodes of layers, and overlays, as packing.py writes them.

const WHOLE = 65535; // 16-bit integers are fractions of a range
const OUTSIDE = 1; // nodes are at most this many times the image's sides outside of it
const PATHS = 30; // strongest paths to the nodes of each earlier round

const data = JSON.parse(document.getElementById("data").textContent);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const shorts = (text) => new Uint16Array(bytes(text).buffer);

function bytes(text) {
  const raw = atob(text);
  const array = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) array[i] = raw.charCodeAt(i); // ten times as fast as Uint8Array.from
  return array;
}

/** Nodes and weights of every position of a layer's map, in one of its rounds; before is the round before. */
class Layer {
  constructor(packed, image, before) {
    Object.assign(this, packed, { image, before });
    this.nodes = shorts(packed.nodes); // [cell rows, cells, count, 2]
    this.weights = shorts(packed.weights); // [rows, columns, count], square roots
  }

  /** Return the position nearest to a pixel, with the pixel at its center. */
  positionAt(pixelX, pixelY) {
    const [across, down] = this.step;
    const row = clamp(Math.floor((pixelY + 0.5) / down), 0, this.rows - 1);
    const column = clamp(Math.floor((pixelX + 0.5) / across), 0, this.columns - 1);
    return { row, column, x: (column + 0.5) * across - 0.5, y: (row + 0.5) * down - 0.5 };
  }

  /** Return the position at a pixel, with its nodes in pixels of the image by descending weight, and statistics. */
  nodesAt(pixelX, pixelY) {
    const { image, count } = this;
    const position = this.positionAt(pixelX, pixelY);
    const { row, column } = position;
    const cell = (Math.floor(row / this.grid) * this.cells + Math.floor(column / this.grid)) * count;
    const own = (row * this.columns + column) * count;
    const pixel = (fraction, size) => ((fraction / WHOLE) * (1 + 2 * OUTSIDE) - OUTSIDE) * size;
    const nodes = Array.from({ length: count }, (_, n) => {
      const x = pixel(this.nodes[2 * (cell + n)], image.width);
      const y = pixel(this.nodes[2 * (cell + n) + 1], image.height);
      const distance = Math.hypot(x - position.x, y - position.y);
      return { x, y, weight: (this.weights[own + n] / WHOLE) ** 2, distance, inside: image.contains(x, y) };
    });
    nodes.sort((a, b) => b.weight - a.weight);
    const share = nodes.reduce((sum, node) => sum + node.weight, 0);
    const reach = nodes.reduce((sum, node) => sum + node.weight * node.distance, 0) / (share || 1);
    return { ...position, nodes, share, reach };
  }

  /**
   * Return the strongest paths from nodes on to their nodes in the round before, for each earlier round. A node samples the
   * round's response at the position nearest to it. The weight of a path is the product of its nodes' weights.
   */
  walk(nodes) {
    if (!this.before) return [];
    const paths = nodes.filter((node) => node.inside).flatMap((from) => {
      const next = this.before.nodesAt(from.x, from.y).nodes;
      return next.map((node) => ({ ...node, from, weight: from.weight * node.weight }));
    });
    const strongest = paths.sort((a, b) => b.weight - a.weight).slice(0, PATHS);
    return [strongest, ...this.before.walk(strongest)];
  }
}

/** Classes of pixels, or objects: predicted or true. */
class Overlay {
  constructor(packed, image) {
    const { width, height, runs, entries } = packed;
    Object.assign(this, packed, { image, labels: new Uint8Array(width * height) });
    const lengths = new Uint32Array(bytes(runs.lengths).buffer);
    let at = 0;
    bytes(runs.values).forEach((value, i) => this.labels.fill(value, at, (at += lengths[i])));
    this.canvas = Object.assign(document.createElement("canvas"), { width, height });
    const context = this.canvas.getContext("2d");
    const picture = context.createImageData(width, height);
    const pixels = new Uint32Array(picture.data.buffer);
    const colours = entries.map(({ colour: [red, green, blue] }) => 0xff000000 | (blue << 16) | (green << 8) | red);
    this.labels.forEach((label, i) => (pixels[i] = colours[label])); // transparent without an entry
    context.putImageData(picture, 0, 0);
  }

  /** Return the class or object at a pixel of the image, if there is one. */
  at(x, y) {
    const column = clamp(Math.floor(((x + 0.5) * this.width) / this.image.width), 0, this.width - 1);
    const row = clamp(Math.floor(((y + 0.5) * this.height) / this.image.height), 0, this.height - 1);
    return this.entries[this.labels[row * this.width + column]];
  }
}

class Picture {
  constructor(packed) {
    Object.assign(this, packed, { pins: [], photo: Object.assign(new Image(), { src: packed.photo }) });
    this.overlays = packed.overlays.map((one) => new Overlay(one, this));
    this.layers = [];
    for (const one of packed.layers) {
      this.layers.push(new Layer(one, this, one.round > 1 ? this.layers.at(-1) : null));
    }
  }

  contains(x, y) {
    return x >= -0.5 && y >= -0.5 && x <= this.width - 0.5 && y <= this.height - 0.5;
  }
}

const pictures = [];

/** Return a picture, which is unpacked when it is first shown. */
function pictureAt(index) {
  return (pictures[index] ??= new Picture(data.images[index]));
}
