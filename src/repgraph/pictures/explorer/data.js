"use strict";
// What the page holds: images, the layers' nodes and what can lie underneath. Unpacked when first shown.

const NONE = 255; // in labels: nothing there
const NEAR = 0.02; // positions: as good as one outside of the map, where nothing is read

function bytes(text) {
  const raw = atob(text);
  const array = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) array[i] = raw.charCodeAt(i);
  return array;
}

function shorts(text) {
  return new Uint16Array(bytes(text).buffer);
}

const given = JSON.parse(document.getElementById("data").textContent);
const colours = bytes(given.colours); // 256 of red, green, blue

/** A canvas of width x height whose pixels are painted by paint(index, pixel), pixel being red, green, blue, alpha. */
function painted(width, height, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) paint(i, picture.data.subarray(4 * i, 4 * i + 4));
  context.putImageData(picture, 0, 0);
  return canvas;
}

/** One map of a layer for each group (the mean first): reach, or how much a position is chosen. */
class Maps {
  constructor(packed, rows, columns) {
    Object.assign(this, { top: packed.top, root: packed.root, rows, columns });
    this.values = bytes(packed.values);
    this.canvases = [];
  }

  /** The value that a share of the colour bar stands for. */
  value(share) {
    return this.top * (this.root ? share * share : share);
  }

  at(set, row, column) {
    return this.value(this.values[(set * this.rows + row) * this.columns + column] / 255);
  }

  canvas(set) {
    this.canvases[set] ??= painted(this.columns, this.rows, (i, pixel) => {
      const colour = 3 * this.values[set * this.rows * this.columns + i];
      pixel.set([colours[colour], colours[colour + 1], colours[colour + 2], 255]);
    });
    return this.canvases[set];
  }
}

/** What every position of a layer's map looks at. */
class Layer {
  constructor(packed, image) {
    const { path, title, kind, rows, columns, step, grid, count, sets, origin, unit, cells } = packed;
    Object.assign(this, { path, title, kind, rows, columns, step, grid, count, sets, origin, unit, cells });
    this.image = image;
    this.nodeView = packed.node_view; // a node is the mean of so many x so many positions
    this.places = shorts(packed.places); // [cell rows, cells, count, 2]
    this.tops = shorts(packed.tops); // [rows, columns, sets], roots of the largest weights
    this.weights = bytes(packed.weights); // [rows, columns, sets, count], roots of shares of the largest
    this.share = packed.share ? bytes(packed.share) : null; // [rows, columns], roots
    this.maps = { reach: new Maps(packed.reach, rows, columns), chosen: new Maps(packed.chosen, rows, columns) };
  }

  /** Row and column of the position nearest to a pixel. */
  at(x, y) {
    const row = Math.floor((y + 0.5) / this.step[1]);
    const column = Math.floor((x + 0.5) / this.step[0]);
    return [Math.min(Math.max(row, 0), this.rows - 1), Math.min(Math.max(column, 0), this.columns - 1)];
  }

  /** The pixel in the middle of a position. */
  place(row, column) {
    return [(column + 0.5) * this.step[0] - 0.5, (row + 0.5) * this.step[1] - 0.5];
  }

  /** What a node is the mean of, in pixels: nodeView positions each way, up to the rim. Null if it reads nothing. */
  window(x, y) {
    const side = (at, step, count, size) => {
      const position = (at + 0.5) / step - 0.5;
      if (position < NEAR - 1 || position > count - NEAR) return null;
      const middle = (Math.min(Math.max(position, 0), count - 1) + 0.5) * step - 0.5; // of what it reads
      const half = (step * this.nodeView) / 2;
      return [Math.max(middle - half, -0.5), Math.min(middle + half, size - 0.5)];
    };
    const across = side(x, this.step[0], this.columns, this.image.width);
    const down = side(y, this.step[1], this.rows, this.image.height);
    return across && down && { left: across[0], top: down[0], right: across[1], bottom: down[1] };
  }

  /** The nodes of a position in pixels of the image, the strongest first, and what can be said of them. */
  look(row, column, set) {
    const [x, y] = this.place(row, column);
    const cell = (Math.floor(row / this.grid) * this.cells + Math.floor(column / this.grid)) * this.count;
    const own = (row * this.columns + column) * this.sets + set;
    const top = (this.tops[own] / 65535) ** 2;
    const nodes = [];
    let outside = 0;
    for (let n = 0; n < this.count; n++) {
      const root = this.weights[own * this.count + n] / 255;
      const node = {
        x: this.origin[0] + this.unit[0] * this.places[2 * (cell + n)],
        y: this.origin[1] + this.unit[1] * this.places[2 * (cell + n) + 1],
        weight: top * root * root,
      };
      if (this.nodeView > 1) node.window = this.window(node.x, node.y);
      node.away = Math.hypot(node.x - x, node.y - y);
      const { width, height } = this.image;
      if (node.x < -0.5 || node.y < -0.5 || node.x > width - 0.5 || node.y > height - 0.5) outside++;
      nodes.push(node);
    }
    nodes.sort((a, b) => b.weight - a.weight);
    const share = this.share ? (this.share[row * this.columns + column] / 255) ** 2 : 1;
    const reach = this.maps.reach.at(set, row, column);
    return { x, y, row, column, nodes, outside, share, reach, chosen: this.maps.chosen.at(set, row, column) };
  }
}

/** Labels of pixels, or objects: predicted or true. */
class Underlay {
  constructor(packed, image) {
    const { title, width, height, entries, boxes } = packed;
    Object.assign(this, { title, width, height, entries, boxes, image });
    this.packed = packed.runs;
  }

  get labels() {
    if (!this.unpacked) {
      const values = bytes(this.packed.values);
      const lengths = shorts(this.packed.lengths);
      this.unpacked = new Uint8Array(this.width * this.height);
      for (let i = 0, at = 0; i < values.length; at += lengths[i++]) {
        this.unpacked.fill(values[i], at, at + lengths[i]);
      }
    }
    return this.unpacked;
  }

  /** The class or object at a pixel of the image, or null. */
  at(x, y) {
    const column = Math.min(Math.floor(((x + 0.5) * this.width) / this.image.width), this.width - 1);
    const row = Math.min(Math.floor(((y + 0.5) * this.height) / this.image.height), this.height - 1);
    return this.entries[this.labels[row * this.width + column]] ?? null;
  }

  get canvas() {
    this.drawn ??= painted(this.width, this.height, (i, pixel) => {
      const entry = this.entries[this.labels[i]];
      if (entry) pixel.set([...entry.colour, 255]);
    });
    return this.drawn;
  }
}

/** One image of the page. */
class Picture {
  constructor(packed) {
    const { name, width, height } = packed;
    Object.assign(this, { name, width, height, pins: [], packed });
    this.underlays = packed.underlays.map((one) => new Underlay(one, this));
    this.titles = packed.layers.map((layer) => layer.title);
    this.unpacked = [];
    this.photo = new Image();
    this.photo.src = packed.photo;
  }

  layer(index) {
    this.unpacked[index] ??= new Layer(this.packed.layers[index], this);
    return this.unpacked[index];
  }
}

const pictures = given.images.map((packed) => new Picture(packed));

