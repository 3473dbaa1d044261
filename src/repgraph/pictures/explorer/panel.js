// The controls and texts beside the image. Names are always set as text.

const SHOWN = 9; // nodes in the list; the picture has all

const find = (id) => document.getElementById(id);

function element(name, text = "", more = {}) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  return Object.assign(made, more);
}

function number(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

function percent(weight) {
  if (weight < 0.0005) return "< 0.1 %";
  return `${(100 * weight).toFixed(weight < 0.0995 ? 1 : 0)} %`;
}

function chip(colour, name = "span") {
  const made = element(name, "", { className: name === "span" ? "chip" : "" });
  made.style.setProperty("--colour", `rgb(${colour})`);
  return made;
}

/** The choices under the image: none, prediction and truth as far as there are any, and the two maps. */
function underlayNames(image) {
  const own = image.underlays.map((underlay) => [underlay.title, underlay.title]);
  return [["none", "photo only"], ...own, ["reach", "reach"], ["chosen", "chosen"]];
}

function fillSelect(select, titles, chosen) {
  select.replaceChildren(...titles.map((title, i) => element("option", title, { value: String(i) })));
  select.value = String(chosen);
}

function fillStrip(choose) {
  find("strip").hidden = pictures.length < 2;
  if (pictures.length < 2) return;
  const buttons = pictures.map((picture, i) => {
    const button = element("button", "", { type: "button", title: picture.name });
    button.append(element("img", "", { src: picture.photo.src, alt: "" }), element("span", picture.name));
    button.addEventListener("click", () => choose(i));
    return button;
  });
  find("strip").replaceChildren(...buttons);
}

/** Everything that changes with the image, the layer, the group or what lies underneath. */
function fillChoices(state, image, layer, choose) {
  [...find("strip").children].forEach((button, i) => button.setAttribute("aria-current", String(i === state.image)));
  fillSelect(find("layer"), image.titles, state.layer);
  find("layer").disabled = image.titles.length < 2;
  const groups = Array.from({ length: layer.sets - 1 }, (_, i) => `group ${i + 1} of ${layer.sets - 1}`);
  fillSelect(find("group"), ["mean of all groups", ...groups], state.group);
  find("group-field").hidden = layer.sets < 2;
  find("windows").hidden = layer.nodeView < 2;
  const focused = document.activeElement && document.activeElement.name === "underlay";
  find("underlays").replaceChildren(
    ...underlayNames(image).map(([value, title]) => {
      const label = element("label");
      const input = element("input", "", { type: "radio", name: "underlay", value, checked: value === state.underlay });
      input.addEventListener("change", () => choose({ underlay: value }));
      label.append(input, element("span", title));
      return label;
    }),
  );
  if (focused) find("underlays").querySelector("input:checked").focus();
  find("opacity").disabled = state.underlay === "none";
  find("opacity-field").classList.toggle("off", state.underlay === "none");
  showOpacity(state.opacity);
}

function showOpacity(opacity) {
  const value = Math.round(100 * opacity);
  find("opacity").value = String(value);
  find("opacity-value").textContent = `${value} %`;
}

/** The nodes of the position: each a bar for its weight, and how far it is away. */
function showNodes(layer, look) {
  const list = find("nodes");
  find("nodes-title").textContent = layer.kind === "affinity" ? "Strongest positions" : "Nodes";
  const shown = look ? look.nodes.slice(0, SHOWN) : [];
  while (list.children.length < shown.length) {
    const row = element("li");
    const bar = element("span", "", { className: "bar" });
    bar.append(element("i"));
    row.append(bar, element("span"), element("span"));
    list.append(row);
  }
  while (list.children.length > shown.length) list.lastChild.remove();
  const top = shown.length ? shown[0].weight || 1 : 1;
  shown.forEach((node, i) => {
    const [bar, weight, away] = list.children[i].children;
    bar.firstChild.style.width = `${(100 * node.weight) / (layer.kind === "affinity" ? top : 1)}%`;
    weight.textContent = percent(node.weight);
    away.textContent = `${number(node.away)} px away`;
  });
  find("summary").textContent = look ? summary(layer, look) : "Point at the image.";
  find("note").textContent = look ? note(layer, look) : "";
  find("pin").disabled = !look;
}

function summary(layer, look) {
  const words = [`reach ${number(look.reach)} px`, `chosen ${number(look.chosen)} × the mean`];
  if (look.outside) words.push(`${look.outside} of ${layer.count} outside`);
  return words.join(" · ");
}

function note(layer, look) {
  if (layer.kind === "affinity") {
    return (
      `This layer attends to all positions of its map. Drawn are the ${layer.count} strongest, ` +
      `which have ${percent(look.share)} of this position's weight; reach and chosen count no others.`
    );
  }
  if (layer.grid >= Math.max(layer.rows, layer.columns)) return "All positions share these nodes; weights are their own.";
  const grid = `${layer.grid} × ${layer.grid} positions of the dashed cell share these nodes; weights are their own.`;
  return layer.grid > 1 ? grid : "";
}

function showHere(image, point) {
  const parts = [];
  if (point) {
    parts.push(`x ${Math.round(point.x)}, y ${Math.round(point.y)}`);
    for (const underlay of image.underlays) {
      const entry = underlay.at(point.x, point.y);
      parts.push(` · ${underlay.title}: `);
      if (entry) parts.push(chip(entry.colour, "i"), entry.name);
      else parts.push("—");
    }
  }
  find("here").replaceChildren(...parts);
}

function showPins(pins, layer, takeAway) {
  const buttons = pins.map((pin, i) => {
    const [x, y] = layer.place(...layer.at(pin.x, pin.y)).map(Math.round);
    const button = element("button", `${i + 1} · ${x}, ${y} ✕`, { type: "button" });
    button.setAttribute("aria-label", `Take away pin ${i + 1}, at ${x}, ${y}`);
    button.addEventListener("click", () => takeAway(i));
    return button;
  });
  if (pins.length > 1) {
    const all = element("button", "clear all", { type: "button" });
    all.addEventListener("click", () => takeAway(null));
    buttons.push(all);
  }
  find("pins").replaceChildren(...buttons);
}

function dot(size, here = false) {
  const made = element("span", "", { className: here ? "dot here" : "dot" });
  made.style.width = made.style.height = `${size}px`;
  return made;
}

function scaleBar(low, middle, high, title) {
  const bar = element("div", "", { className: "scale" });
  const canvas = painted(256, 1, (i, pixel) => pixel.set([...colours.subarray(3 * i, 3 * i + 3), 255]));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Colours from ${low} to ${high}`);
  bar.append(canvas, element("span", low), element("span", middle), element("span", high));
  const row = element("div");
  row.append(element("div", title), bar);
  return row;
}

/** What the marks and colours in the picture mean. */
function fillLegend(view, image, layer, shown) {
  const here = element("div", "", { className: "row" });
  here.append(dot(14, true), element("span", "position, and its place in the layer's map"));
  const rows = [here];
  if (layer.kind === "affinity") {
    rows.push(scaleBar("0", "", "strongest", "attention of the strongest positions"));
  } else {
    const sizes = element("div", "", { className: "row sizes" });
    for (const weight of [0.01, 0.1, 0.5]) {
      const one = element("span");
      one.append(dot(2 * radius(view, image, weight)), percent(weight));
      sizes.append(one);
    }
    rows.push(element("div", "nodes, by the attention they get"), sizes);
    if (layer.nodeView > 1) {
      const windows = element("div", "", { className: "row" });
      const text = `${layer.nodeView} × ${layer.nodeView} positions, of which a node is the mean; fewer at the rim`;
      windows.append(element("span", "", { className: "window" }), element("span", text));
      rows.push(windows);
    }
  }
  if (shown && shown.maps) {
    const [middle, high] = [0.5, 1].map((share) => number(shown.maps.value(share)));
    const title = shown.name === "reach" ? "reach: mean distance of the nodes, pixels" : "chosen: 1 is an even share";
    rows.push(scaleBar("0", middle, high, title));
  }
  if (shown && shown.underlay) rows.push(entryList(shown.underlay));
  find("legend").replaceChildren(...rows);
}

function entryList(underlay) {
  const list = element("ul");
  for (const entry of underlay.entries) {
    const item = element("li");
    item.append(chip(entry.colour), element("b", entry.name, { title: entry.name }));
    item.append(element("small", entry.share < 0.001 ? "< 0.1 %" : `${(100 * entry.share).toFixed(1)} %`));
    list.append(item);
  }
  return list;
}

let speaking = 0;

/** What a screen reader is told, when the position has come to rest. */
function speak(image, layer, look, point) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const names = image.underlays.map((one) => `${one.title} ${one.at(point.x, point.y)?.name ?? "nothing"}`);
    const nodes = look.nodes
      .slice(0, 3)
      .map((node) => `${percent(node.weight)} at ${Math.round(node.x)}, ${Math.round(node.y)}`);
    find("spoken").textContent =
      `Position ${Math.round(look.x)}, ${Math.round(look.y)}. ${names.join(", ")}. ` +
      `Reach ${number(look.reach)} pixels. Strongest of ${layer.count}: ${nodes.join("; ")}.`;
  }, 400);
}

