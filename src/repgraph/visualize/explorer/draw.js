// The two canvases: the image with the overlay, and above it the positions with their nodes.

const POSITION = "#1466d8";
const NODE = "226, 33, 47";
const PATH = "255, 176, 32"; // nodes of earlier rounds
const OUTLINE = "#fff";
const OPACITY = 0.6; // of the overlay

function clear(canvas, view) {
  const context = canvas.getContext("2d");
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.round(view.width * density); // this clears the canvas and resets the context
  canvas.height = Math.round(view.height * density);
  context.scale(density, density);
  return context;
}

/** Draw the photograph, and over it an overlay: classes or objects. */
function drawBase(canvas, view, overlay) {
  const { image } = view;
  const context = clear(canvas, view);
  const box = [view.left, view.top, view.scale * image.width, view.scale * image.height];
  context.imageSmoothingQuality = "high";
  context.imageSmoothingEnabled = view.scale * image.width < 6 * image.photo.naturalWidth;
  context.drawImage(image.photo, ...box); // nothing before it is loaded
  if (!overlay) return;
  context.imageSmoothingEnabled = false;
  context.globalAlpha = OPACITY;
  context.drawImage(overlay.canvas, ...box);
  context.globalAlpha = 1;
  drawBoxes(context, view, overlay);
}

/** Draw a disc, and its outline if that has a width. */
function disc(context, [x, y], radius, fillStyle, lineWidth = 0) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  Object.assign(context, { fillStyle, lineWidth, strokeStyle: OUTLINE });
  context.fill();
  if (lineWidth) context.stroke();
}

function line(context, start, end, lineWidth, strokeStyle) {
  Object.assign(context, { lineWidth, strokeStyle, lineCap: "round" });
  context.beginPath();
  context.moveTo(...start);
  context.lineTo(...end);
  context.stroke();
}

function drawBoxes(context, view, overlay) {
  context.font = "600 12px system-ui, sans-serif";
  for (const [i, [x, y, endX, endY]] of [...overlay.boxes.entries()].reverse()) {
    const { name, colour } = overlay.entries[i];
    const [left, top] = view.toScreen(x, y);
    const [right, bottom] = view.toScreen(endX, endY);
    const above = clamp(top - 18, 0, view.height - 18);
    Object.assign(context, { lineWidth: 2, strokeStyle: `rgb(${colour})`, fillStyle: "rgba(12, 14, 18, 0.78)" });
    context.strokeRect(left, top, right - left, bottom - top);
    context.fillRect(left, above, context.measureText(name).width + 10, 18);
    context.fillStyle = OUTLINE;
    context.fillText(name, left + 5, above + 13);
  }
}

/** Draw all pins and the current position with their nodes. */
function drawMarks(canvas, view, layer, pins, current, windows, walked) {
  const context = clear(canvas, view);
  context.globalAlpha = 0.8;
  for (const position of pins) drawNodes(context, view, position);
  context.globalAlpha = 1;
  if (windows) drawWindows(context, view, layer, current.nodes); // not those of pins, nor their paths
  drawPaths(context, view, walked);
  drawNodes(context, view, current);
  drawPosition(context, view, layer, current, "");
  pins.forEach((position, i) => drawPosition(context, view, layer, position, String(i + 1)));
}

function drawNodes(context, view, position) {
  const start = view.toScreen(position.x, position.y);
  const unit = Math.min(640, view.fitting * Math.min(view.image.width, view.image.height));
  const weakestFirst = [...position.nodes].reverse();
  for (const { x, y, weight } of weakestFirst) {
    line(context, start, view.toScreen(x, y), 1 + 4 * weight, `rgba(${NODE}, ${0.45 + 0.5 * weight})`);
  }
  for (const { x, y, weight } of weakestFirst) {
    const radius = Math.max(3, unit * (0.007 + 0.043 * Math.sqrt(weight))); // small weights stay visible
    disc(context, view.toScreen(x, y), radius, `rgba(${NODE}, ${0.72 + 0.2 * weight})`, 1.5);
    disc(context, view.toScreen(x, y), 1.2, OUTLINE); // the exact point
  }
}

/** Draw the paths from nodes to theirs in earlier rounds, the last round on top. */
function drawPaths(context, view, walked) {
  [...walked].reverse().forEach((paths, i) => {
    const faint = 0.6 ** (walked.length - 1 - i);
    const top = paths[0]?.weight || 1;
    for (const { from, x, y, weight } of [...paths].reverse()) {
      const share = Math.sqrt(weight / top);
      const [start, end] = [view.toScreen(from.x, from.y), view.toScreen(x, y)];
      line(context, start, end, 0.8 + 1.2 * share, `rgba(${PATH}, ${faint * (0.2 + 0.4 * share)})`);
      disc(context, end, 1.5 + 2.5 * share, `rgba(${PATH}, ${faint * (0.4 + 0.6 * share)})`);
    }
  });
}

/** Outline side x side positions of the map around a pixel. */
function outline(context, view, layer, point, side, strokeStyle) {
  const [x, y] = view.toScreen(point.x, point.y);
  const [width, height] = layer.step.map((step) => side * view.scale * step);
  Object.assign(context, { lineWidth: 1.5, strokeStyle });
  context.strokeRect(x - width / 2, y - height / 2, width, height);
}

/** Draw the windows that nodes in the image average, more opaque for more weight. */
function drawWindows(context, view, layer, nodes) {
  const { image, left, top, scale } = view;
  context.save();
  context.beginPath();
  context.rect(left, top, scale * image.width, scale * image.height);
  context.clip();
  for (const node of nodes.filter((one) => one.inside).reverse()) {
    outline(context, view, layer, node, layer.node_view, `rgba(${NODE}, ${0.4 + 0.6 * Math.sqrt(node.weight)})`);
  }
  context.restore();
}

/** Draw a position: a blue dot, and its outline in the map. */
function drawPosition(context, view, layer, position, text) {
  const [x, y] = view.toScreen(position.x, position.y);
  outline(context, view, layer, position, 1, POSITION);
  disc(context, [x, y], text ? 9 : 6, POSITION, 2);
  const font = "700 11px system-ui, sans-serif";
  Object.assign(context, { font, textAlign: "center", textBaseline: "middle", fillStyle: OUTLINE });
  context.fillText(text, x, y + 0.5);
}
