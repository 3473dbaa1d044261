// Controls and texts beside the image. Names are always set as text, never as HTML.

const LISTED = 9; // nodes in the list; the picture has all

const find = (id) => document.getElementById(id);

/** Return a new element; content is a text, or a list of texts and elements. */
function element(name, content = [], more = {}) {
  const made = Object.assign(document.createElement(name), more);
  made.append(...[content].flat());
  return made;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const chip = (colour) => element("span", "", { className: "chip", style: `--colour: rgb(${colour})` });

function fillSelect(select, titles, index) {
  select.replaceChildren(...titles.map((title) => element("option", title)));
  select.selectedIndex = index;
}

/** Update the controls for the chosen image, layer and overlay. */
function fillChoices(state, image, layer) {
  fillSelect(find("image"), data.images.map((one) => one.name), state.image);
  fillSelect(find("layer"), image.layers.map((one) => one.name), state.layer);
  fillSelect(find("overlay"), ["none", ...image.overlays.map((one) => one.title)], state.overlay);
  find("layer").title = layer.name; // it can be longer than the control
  find("windows-field").hidden = layer.node_view < 2;
  find("windows").checked = state.windows;
  find("walk-field").hidden = !layer.before;
  find("walk").checked = state.walk;
}

/** List the nodes of the position: a bar for the weight, and the distance. */
function showNodes(layer, position) {
  const strongest = layer.kind === "affinity";
  find("nodes-title").textContent = strongest ? "Strongest positions" : "Nodes";
  const max = strongest ? position.nodes[0].weight || 1 : 1;
  const rows = position.nodes.slice(0, LISTED).map((node) => {
    const bar = element("i", "", { className: "bar", style: `--share: ${(100 * node.weight) / max}%` });
    const distance = `${node.distance.toFixed(1)} px away`;
    return element("li", [bar, element("span", percent(node.weight)), element("span", distance)]);
  });
  find("nodes").replaceChildren(...rows);
  const outside = position.nodes.filter((node) => !node.inside).length;
  find("summary").textContent = `reach ${position.reach.toFixed(1)} px · ${outside} of ${layer.count} outside the image`;
  find("note").textContent = note(layer, position);
}

function note(layer, position) {
  if (layer.kind === "affinity") {
    return (
      `This layer attends to all positions of its map. The page shows the ${layer.count} strongest, ` +
      `which have ${percent(position.share)} of this position's weight; reach is computed from these only.`
    );
  }
  const { grid, node_view: side } = layer;
  const notes = [];
  if (layer.before) notes.push(`The nodes of this round sample the responses of round ${layer.round - 1}.`);
  if (side > 1) notes.push(`A node is the mean of the ${side} × ${side} positions around its center.`);
  if (grid > 1) notes.push(`The ${grid} × ${grid} positions of a cell share these nodes; each position has its own weights.`);
  return notes.join(" ");
}

function showStatus(image, point) {
  const parts = [`x ${Math.round(point.x)}, y ${Math.round(point.y)}`];
  for (const overlay of image.overlays) {
    const entry = overlay.at(point.x, point.y);
    parts.push(` · ${overlay.title}: `);
    if (entry) parts.push(chip(entry.colour), entry.name);
    else parts.push("—");
  }
  find("status").replaceChildren(...parts);
}

/** Explain the colors of the overlay. */
function fillLegend(overlay) {
  const entries = (overlay?.entries ?? []).filter(({ share }) => share > 0);
  find("legend").replaceChildren(...entries.map(({ colour, name, share }) => {
    return element("li", [chip(colour), element("b", name, { title: name }), percent(share)]);
  }));
}
