// The two canvases: the image with what lies over it, and above that the positions with their nodes.

const HERE = "#1466d8";
const NODE = "226, 33, 47";
const RIM = "#fff";

/** The radius of a node on the screen; the least can still be seen. */
function radius(view, image, weight) {
  const unit = Math.min(640, view.fitting(image) * Math.min(image.width, image.height));
  return Math.max(3, unit * (0.007 + 0.043 * Math.sqrt(weight)));
}

function clear(canvas, view) {
  const context = canvas.getContext("2d");
  const density = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(view.width * density));
  const height = Math.max(1, Math.round(view.height * density));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, view.width, view.height);
  return context;
}

/** The photograph, and over it labels, objects or a map of the layer. */
function drawBase(canvas, view, image, shown, opacity) {
  const context = clear(canvas, view);
  const box = [view.left, view.top, view.scale * image.width, view.scale * image.height];
  context.imageSmoothingQuality = "high";
  context.imageSmoothingEnabled = view.scale < 6;
  if (image.photo.complete && image.photo.naturalWidth) context.drawImage(image.photo, ...box);
  if (!shown) return;
  context.save();
  context.beginPath();
  context.rect(...box);
  context.clip();
  context.imageSmoothingEnabled = false;
  context.globalAlpha = opacity;
  if (shown.underlay) {
    context.drawImage(shown.underlay.canvas, ...box);
    context.restore();
    drawBoxes(context, view, shown.underlay);
    return;
  }
  const { layer, maps, set } = shown;
  const size = [view.scale * layer.step[0] * layer.columns, view.scale * layer.step[1] * layer.rows];
  context.drawImage(maps.canvas(set), view.left, view.top, ...size);
  context.restore();
}

function drawBoxes(context, view, underlay) {
  context.font = "600 12px system-ui, sans-serif";
  for (const { corners, entry } of [...underlay.boxes].reverse()) {
    const [left, top] = view.toScreen(corners[0], corners[1]);
    const [right, bottom] = view.toScreen(corners[2], corners[3]);
    const { name, colour } = underlay.entries[entry];
    context.lineWidth = 4;
    context.strokeStyle = "rgba(0, 0, 0, 0.55)";
    context.strokeRect(left, top, right - left, bottom - top);
    context.lineWidth = 2;
    context.strokeStyle = `rgb(${colour})`;
    context.strokeRect(left, top, right - left, bottom - top);
    const width = context.measureText(name).width + 10;
    const above = Math.max(0, Math.min(top - 18, view.height - 18));
    context.fillStyle = "rgba(12, 14, 18, 0.78)";
    context.fillRect(left, above, width, 18);
    context.fillStyle = "#fff";
    context.fillText(name, left + 5, above + 13);
  }
}

/** All pins and the position; gives back where the position's nodes were drawn. */
function drawMarks(canvas, view, image, layer, looks, current) {
  const context = clear(canvas, view);
  const nodes = (look) =>
    layer.kind === "affinity" ? drawCells(context, view, layer, look) : drawNodes(context, view, image, look);
  const same = (look) => current && look.row === current.row && look.column === current.column;
  context.globalAlpha = current ? 0.8 : 1;
  looks.filter((look) => !same(look)).forEach(nodes);
  context.globalAlpha = 1;
  if (current) drawWindows(context, view, current); // of pins it would be too much
  const drawn = current ? nodes(current) : [];
  looks.forEach((look, i) => drawHere(context, view, layer, look, String(i + 1)));
  if (current && !looks.some(same)) drawHere(context, view, layer, current, "");
  return drawn;
}

function drawNodes(context, view, image, look) {
  const [x, y] = view.toScreen(look.x, look.y);
  const drawn = look.nodes.map((node) => {
    const [across, down] = view.toScreen(node.x, node.y);
    const { x, y, weight, window } = node;
    return { x, y, weight, window, across, down, radius: radius(view, image, weight) };
  });
  const weakestFirst = [...drawn].reverse();
  context.lineCap = "round";
  for (const node of weakestFirst) {
    context.lineWidth = 1 + 4 * node.weight;
    context.strokeStyle = `rgba(${NODE}, ${0.45 + 0.5 * node.weight})`;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(node.across, node.down);
    context.stroke();
  }
  for (const node of weakestFirst) {
    context.beginPath();
    context.arc(node.across, node.down, node.radius, 0, 2 * Math.PI);
    context.fillStyle = `rgba(${NODE}, ${0.72 + 0.2 * node.weight})`;
    context.fill();
    context.lineWidth = 1.5;
    context.strokeStyle = RIM;
    context.stroke();
    context.beginPath(); // where exactly it is read
    context.arc(node.across, node.down, 1.2, 0, 2 * Math.PI);
    context.fillStyle = RIM;
    context.fill();
  }
  return drawn;
}

/** What the nodes are the mean of, where that is several positions: thin squares, the clearer the more weight. */
function drawWindows(context, view, look) {
  const crisp = ([x, y]) => [Math.floor(x) + 0.5, Math.floor(y) + 0.5]; // along the screen's pixels
  for (const { window, weight } of look.nodes.filter((node) => node.window).reverse()) {
    const [left, top] = crisp(view.toScreen(window.left, window.top));
    const [right, bottom] = crisp(view.toScreen(window.right, window.bottom));
    const clear = 0.25 + 0.7 * Math.sqrt(weight);
    context.lineWidth = 3; // a pale rim, for dark images
    context.strokeStyle = `rgba(255, 255, 255, ${0.4 * clear})`;
    context.strokeRect(left, top, right - left, bottom - top);
    context.lineWidth = 1;
    context.strokeStyle = `rgba(${NODE}, ${clear})`;
    context.strokeRect(left, top, right - left, bottom - top);
  }
}

/** The strongest positions of a layer that attends to all: squares of the map, in the colours of their weights. */
function drawCells(context, view, layer, look) {
  const top = look.nodes[0].weight || 1;
  const width = view.scale * layer.step[0];
  const height = view.scale * layer.step[1];
  const drawn = look.nodes.map((node) => {
    const [across, down] = view.toScreen(node.x, node.y);
    return { x: node.x, y: node.y, weight: node.weight, across, down, radius: width / 2 };
  });
  for (const node of [...drawn].reverse()) {
    const colour = 3 * Math.round((255 * node.weight) / top);
    context.fillStyle = `rgb(${colours[colour]}, ${colours[colour + 1]}, ${colours[colour + 2]})`;
    context.fillRect(node.across - width / 2, node.down - height / 2, width + 0.5, height + 0.5);
  }
  return drawn;
}

/** The position: a blue point, and the outline of its place in the map and of the cell that shares its nodes. */
function drawHere(context, view, layer, look, text) {
  const [x, y] = view.toScreen(look.x, look.y);
  const [across, down] = layer.step.map((step) => view.scale * step);
  context.lineWidth = 1.5;
  context.strokeStyle = HERE;
  context.strokeRect(x - across / 2, y - down / 2, across, down);
  if (layer.grid > 1) {
    const row = Math.floor(look.row / layer.grid) * layer.grid;
    const column = Math.floor(look.column / layer.grid) * layer.grid;
    const rows = Math.min(layer.grid, layer.rows - row);
    const columns = Math.min(layer.grid, layer.columns - column);
    context.setLineDash([5, 4]);
    context.strokeRect(view.left + column * across, view.top + row * down, columns * across, rows * down);
    context.setLineDash([]);
  }
  context.beginPath();
  context.arc(x, y, text ? 9 : 6, 0, 2 * Math.PI);
  context.fillStyle = HERE;
  context.fill();
  context.lineWidth = 2;
  context.strokeStyle = RIM;
  context.stroke();
  if (text) {
    context.font = "700 11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = RIM;
    context.fillText(text, x, y + 0.5);
    context.textAlign = "start";
    context.textBaseline = "alphabetic";
  }
}

