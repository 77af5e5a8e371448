"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const attempt = (action) => { try { return action(); } catch { return null; } };
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes = {}, ...children) => {
    const found = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    found.append(...children.filter((child) => child !== null && child !== undefined));
    return found;
  };
  const draw = (name, attributes, text) => {
    const found = document.createElementNS(SVG, name);
    for (const key in attributes) found.setAttribute(key, attributes[key]);
    if (text !== undefined) found.textContent = text;
    return found;
  };

  /* Numbers for people. */
  const size = (n) => (n < 1000 ? `${n} bytes` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(2)} GB`);
  const percent = (share) => (share >= 0.0995 ? `${(100 * share).toFixed(0)} %` : share >= 0.001 ? `${(100 * share).toFixed(1)} %` : share > 0 ? "< 0.1 %" : "0 %");
  const short = (x) => (x === 0 ? "0" : Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3 ? x.toExponential(2) : String(Number(x.toPrecision(4))));
  const time = (s) => (s >= 1e-3 ? `${(s * 1e3).toFixed(2)} ms` : `${(s * 1e6).toFixed(1)} µs`);
  const decibels = (x) => (x === null || x === undefined ? "no error" : `${x.toFixed(1)} dB`);
  const clipped = (text, most) => {
    if (text.length <= most) return text;
    const tail = Math.floor((most - 1) * 0.55);
    return `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
  };

  /* Theme: the system's until somebody chooses. A file opened from disk may have no storage. */
  const root = document.documentElement, toggle = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => { toggle.textContent = isDark() ? "Light" : "Dark"; };
  const saved = attempt(() => localStorage.getItem("quantkit-theme"));
  if (saved === "dark" || saved === "light") root.dataset.theme = saved;
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    attempt(() => localStorage.setItem("quantkit-theme", root.dataset.theme));
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  /* What boxes are coloured by. Kinds are words; shares are numbers that add up over a group. */
  const statusOf = data.graphs.map((graph) => new Array(graph.boxes.length).fill("same"));
  const changesOf = data.graphs.map((graph) => new Array(graph.boxes.length).fill(null));
  const twinOf = data.graphs.map((graph) => new Array(graph.boxes.length).fill(-1));
  for (const { a, b, status, changes } of data.pairs) {
    [a, b].forEach((box, side) => {
      if (box === undefined) return;
      statusOf[side][box] = status;
      changesOf[side][box] = changes;
      const other = side ? a : b;
      twinOf[side][box] = other === undefined ? -1 : other;
    });
  }
  const ofTwin = (side, box, get) => {
    const own = get(data.graphs[side].boxes[box]);
    const twin = twinOf[side][box];
    return own === undefined && twin >= 0 ? get(data.graphs[1 - side].boxes[twin]) : own;
  };
  const last = data.graphs.length - 1;
  const kindOf = (side, box) => {
    const found = data.graphs[side].boxes[box];
    return found.role || !found.runs ? "none" : found.runs.kind;
  };
  const total = (side, get) => data.graphs[side].boxes.reduce((sum, box) => sum + (get(box) || 0), 0);
  const share = (get, whole) => {
    const sums = data.graphs.map((_, side) => (whole ? data.graphs[side].nbytes : total(side, get)) || 1);
    return (side, box) => (get(data.graphs[side].boxes[box]) || 0) / sums[side];
  };
  const has = (get) => data.graphs.some((graph) => graph.boxes.some((box) => get(box) !== undefined));
  const overlays = [];
  if (has((box) => box.runs)) overlays.push({ id: "run", label: "how it runs", kind: kindOf });
  if (has((box) => box.planned)) overlays.push({ id: "plan", label: data.plan, kind: (side, box) => { const found = data.graphs[side].boxes[box]; return found.planned ? found.planned.kind : "none"; } });
  if (data.graphs.length > 1) overlays.push({ id: "change", label: "what changed", kind: (side, box) => statusOf[side][box] });
  if (has((box) => box.layer)) overlays.push({ id: "drift", label: "share of the drift", what: "of the noise at the output", share: (side, box) => ofTwin(side, box, (b) => (b.layer ? b.layer.share : undefined)) || 0 });
  if (has((box) => box.seconds)) overlays.push({ id: "time", label: "share of the time", what: "of a run", share: share((box) => box.seconds, false) });
  overlays.push({ id: "size", label: "share of the size", what: "of the file", share: share((box) => box.nbytes, true) });
  /* Of a float model alone it says more what would become of it. */
  if (data.graphs.length === 1 && overlays.length > 1 && overlays[1].id === "plan") overlays.unshift(overlays.splice(1, 1)[0]);
  let overlay = overlays[0];
  let filter = null;
  const select = byId("by");
  select.append(...overlays.map((one) => make("option", { value: one.id }, one.label)));

  /* Widths: about those of the letters. */
  const HIGH = 44, GAP = 40, APART = 22, PAD = 16, TITLE = 30;
  const wide = (text, letter) => text.length * letter;
  const sizeOf = (box) => ({ w: Math.min(250, Math.max(box.role ? 70 : 118, 34 + Math.max(wide(clipped(box.label, 30), 7), wide(box.sub, 5.8) + (box.role ? 0 : 50)))), h: box.role ? 34 : HIGH });
  const closedSize = (group) => ({ w: Math.min(270, Math.max(150, 64 + Math.max(wide(clipped(group.label, 30), 7.3), wide(group.sub, 6)))), h: HIGH + 6 });

  /* Places in one layer: as near as can be to where they are wanted, in their order, apart. Least squares, exactly. */
  const settle = (wanted, weight, apart) => {
    const blocks = [];
    let shift = 0;
    const shifts = wanted.map((_, i) => (shift += i ? apart[i] : 0));
    wanted.forEach((want, i) => {
      let block = { sum: weight[i] * (want - shifts[i]), weight: weight[i], count: 1 };
      while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].weight > block.sum / block.weight) {
        const before = blocks.pop();
        block = { sum: before.sum + block.sum, weight: before.weight + block.weight, count: before.count + block.count };
      }
      blocks.push(block);
    });
    const found = [];
    for (const block of blocks) for (let i = 0; i < block.count; i++) found.push(block.sum / block.weight + shifts[found.length]);
    return found;
  };

  class Pane {
    constructor(side, svg) {
      this.side = side;
      this.svg = svg;
      this.graph = data.graphs[side];
      this.groups = this.graph.groups;
      this.open = new Set([0]);
      this.home = new Array(this.graph.boxes.length).fill(0);
      this.groups.forEach((group, number) => group.items.forEach((item) => { if (item >= 0) this.home[item] = number; }));
      this.inside = this.groups.map(() => []);
      this.home.forEach((group, box) => { for (let at = group; at >= 0; at = this.groups[at].parent) this.inside[at].push(box); });
      this.byPath = new Map(this.groups.map((group, number) => [group.path, number]));
      this.readers = this.graph.boxes.map(() => []);
      this.graph.boxes.forEach((box, number) => box.reads.forEach((source) => this.readers[source].push(number)));
      this.prepare();
      this.world = draw("g", {});
      svg.append(this.world);
      this.at = { x: 0, y: 0, k: 1 };
      this.openFirst();
    }

    /* Pieces of lines from a layer to the next, once for each group. */
    prepare() {
      for (const group of this.groups) {
        group.entryPlaces = new Set(Object.values(group.entries));
        group.exitPlaces = new Set(Object.values(group.exits));
        group.layer = [];
        group.layers.forEach((places, depth) => places.forEach((place) => { group.layer[place] = depth; }));
        group.links = [];
        group.nets.forEach((net, n) => {
          const chain = [net.start, ...net.via];
          for (let i = 1; i < chain.length; i++) group.links.push({ u: chain[i - 1], v: chain[i], n, weight: 5 });
          for (const end of net.ends) group.links.push({ u: chain[group.layer[end] - group.layer[net.start] - 1], v: end, n, weight: net.via.length ? 3 : 1.5 });
        });
        group.above = [];
        group.below = [];
        for (const link of group.links) {
          (group.below[link.u] ||= []).push(link);
          (group.above[link.v] ||= []).push(link);
        }
      }
    }

    /* Groups are opened from the outside as long as it stays a picture that one can take in. */
    openFirst() {
      const MOST = 60;
      let shown = this.groups.length ? this.groups[0].items.length : 0;
      const queue = [0];
      for (let i = 0; i < queue.length; i++) {
        for (const item of this.groups[queue[i]].items) {
          if (item >= 0) continue;
          const number = -1 - item, count = this.groups[number].items.length;
          if (shown + count - 1 > MOST) continue;
          shown += count - 1;
          this.open.add(number);
          queue.push(number);
        }
      }
    }

    isShown(group) { for (let at = group; at >= 0; at = this.groups[at].parent) if (!this.open.has(at)) return false; return true; }
    /* What stands for a box: itself, or the outermost closed group around it. */
    standing(box) {
      let found = box;
      for (let at = this.home[box]; at >= 0; at = this.groups[at].parent) if (!this.open.has(at)) found = -1 - at;
      return found;
    }
    sizeOf(item) {
      if (item >= 0) return sizeOf(this.graph.boxes[item]);
      const number = -1 - item;
      return this.open.has(number) ? this.groups[number].area : closedSize(this.groups[number]);
    }
    /* Where a line meets an item, from its middle: at a group that is open, where it goes on inside. */
    offset(group, place, net, into) {
      const item = group.items[place];
      if (item === undefined || item >= 0 || !this.open.has(-1 - item)) return 0;
      const inner = this.groups[-1 - item];
      const port = (into ? inner.entries : inner.exits)[net];
      return port === undefined ? 0 : inner.x[port] - inner.area.w / 2;
    }

    layout() {
      for (let number = this.groups.length - 1; number >= 0; number--) if (this.isShown(number)) this.layoutGroup(this.groups[number]);
      this.spots = new Map();
      this.frames = [];
      const todo = [[0, 0, 0]];
      while (todo.length) {
        const [number, x, y] = todo.pop();
        const group = this.groups[number];
        group.left = x;
        group.top = y;
        this.frames.push(number);
        group.items.forEach((item, place) => {
          const { w, h } = this.sizeOf(item), depth = group.layer[place];
          const spot = { x: x + group.x[place] - w / 2, y: y + group.y[depth], w, h };
          this.spots.set(item, spot);
          if (item < 0 && this.open.has(-1 - item)) todo.push([-1 - item, spot.x, spot.y]);
        });
      }
      this.frames.sort((a, b) => a - b);
    }

    layoutGroup(group) {
      const count = group.items.length;
      const sizes = group.items.map((item) => this.sizeOf(item));
      const width = (place) => (place < count ? sizes[place].w : 6);
      const apart = (a, b) => (width(a) + width(b)) / 2 + (a < count && b < count ? APART : 14);
      const x = group.x = [];
      for (const places of group.layers) {
        let at = 0;
        places.forEach((place, i) => { at += i ? apart(places[i - 1], place) : 0; x[place] = at; });
        const middle = at / 2;
        for (const place of places) x[place] -= middle;
      }
      const sweep = (places, links, down) => {
        const wanted = [], weight = [];
        for (const place of places) {
          let sum = 0, all = 0;
          for (const link of links[place] || []) {
            const other = down ? link.u : link.v;
            sum += link.weight * (x[other] + this.offset(group, other, link.n, !down) - this.offset(group, place, link.n, down));
            all += link.weight;
          }
          wanted.push(all ? sum / all : x[place]);
          weight.push(all || 0.05);
        }
        settle(wanted, weight, places.map((place, i) => (i ? apart(places[i - 1], place) : 0))).forEach((at, i) => { x[places[i]] = at; });
      };
      for (let round = 0; round < 8; round++) {
        if (round % 2 === 0) for (let i = 1; i < group.layers.length; i++) sweep(group.layers[i], group.above, true);
        else for (let i = group.layers.length - 2; i >= 0; i--) sweep(group.layers[i], group.below, false);
      }
      let low = Infinity, high = -Infinity;
      x.forEach((at, place) => { low = Math.min(low, at - width(place) / 2); high = Math.max(high, at + width(place) / 2); });
      if (!x.length) { low = 0; high = 0; }
      const whole = group.parent < 0;
      const least = whole ? 0 : 60 + wide(clipped(group.label, 40), 7);
      const w = Math.max(high - low + 2 * PAD, least), shift = (w - (high - low)) / 2 - low;
      x.forEach((at, place) => { x[place] = at + shift; });
      const isExit = (depth) => group.layers[depth].every((place) => group.exitPlaces.has(place));
      group.y = [];
      group.high = [];
      let y = whole ? 0 : TITLE;
      group.layers.forEach((places, depth) => {
        const tall = Math.max(0, ...places.filter((place) => place < count).map((place) => sizes[place].h));
        const lines = group.links.filter((link) => group.layer[link.u] === depth && Math.abs(x[link.u] - x[link.v]) > 30).length;
        group.y.push(y);
        group.high.push(tall);
        /* Layers of entries and exits are no boxes: they need less room. */
        y += tall + (depth < group.layers.length - 1 ? (tall ? (isExit(depth + 1) ? 14 : GAP + Math.min(50, 2.5 * Math.max(0, lines - 3))) : 20) : 0);
      });
      group.area = { w, h: y + (whole ? 0 : PAD) };
    }

    /* Lines run straight down through a layer and bend only between layers: so none crosses a box. */
    ends(group) {
      const into = new Map();
      group.items.forEach((item, place) => {
        const links = (group.above[place] || []).slice();
        const inner = item < 0 && this.open.has(-1 - item);
        links.sort((a, b) => group.x[a.u] + this.offset(group, a.u, a.n, false) - group.x[b.u] - this.offset(group, b.u, b.n, false));
        const step = links.length > 1 ? Math.min(14, (this.sizeOf(item).w - 30) / (links.length - 1)) : 0;
        links.forEach((link, i) => into.set(link, inner ? this.offset(group, place, link.n, true) : (i - (links.length - 1) / 2) * step));
      });
      return into;
    }
    piece(group, link, into) {
      const count = group.items.length, { left, top } = group;
      const du = group.layer[link.u], dv = group.layer[link.v];
      const ux = left + group.x[link.u] + this.offset(group, link.u, link.n, false);
      const vx = left + group.x[link.v] + (link.v < count ? into.get(link) : 0);
      const entry = link.u >= count && group.entryPlaces.has(link.u), exit = link.v >= count && group.exitPlaces.has(link.v);
      const from = top + group.y[du] + group.high[du], to = top + group.y[dv] - (link.v < count ? 8 : 0);
      let path = `M${ux.toFixed(1)} `;
      if (entry) path += top.toFixed(1);
      else if (link.u < count) { const spot = this.spots.get(group.items[link.u]); path += (spot.y + spot.h).toFixed(1); } else path += (top + group.y[du]).toFixed(1);
      path += `V${from.toFixed(1)}`;
      const middle = (from + to) / 2;
      path += Math.abs(ux - vx) < 0.6 ? `V${to.toFixed(1)}` : `C${ux.toFixed(1)} ${middle.toFixed(1)} ${vx.toFixed(1)} ${middle.toFixed(1)} ${vx.toFixed(1)} ${to.toFixed(1)}`;
      if (exit) path += `V${(top + group.area.h).toFixed(1)}`;
      else if (link.v < count) {
        const item = group.items[link.v], spot = this.spots.get(item);
        path += `V${spot.y.toFixed(1)}`;
        if (item >= 0 || !this.open.has(-1 - item)) path += `m-3.5 -6l3.5 6l3.5 -6`;
      } else path += `V${(to + group.high[dv]).toFixed(1)}`;
      return path;
    }

    render() {
      this.layout();
      const frames = draw("g", {}), lines = draw("g", {}), boxes = draw("g", {});
      this.elements = new Map();
      this.into = new Map();
      for (const number of this.frames) {
        const group = this.groups[number];
        if (number) frames.append(this.frame(number));
        const into = this.ends(group);
        this.into.set(number, into);
        const paths = group.nets.map(() => "");
        for (const link of group.links) paths[link.n] += this.piece(group, link, into);
        paths.forEach((path) => { if (path) lines.append(draw("path", { class: "net", d: path })); });
        for (const item of group.items) {
          if (item < 0 && this.open.has(-1 - item)) continue;
          boxes.append(item < 0 ? this.closed(-1 - item) : this.box(item));
        }
        if (number) boxes.append(this.handle(number));
      }
      this.wires = draw("g", { "aria-hidden": "true" });
      lines.setAttribute("aria-hidden", "true");
      this.world.replaceChildren(frames, lines, this.wires, boxes);
      this.paint();
    }

    frame(number) {
      const group = this.groups[number];
      let depth = 0;
      for (let at = group.parent; at > 0; at = this.groups[at].parent) depth++;
      const found = draw("rect", { class: `frame${depth % 2 ? " deep" : ""}`, x: group.left, y: group.top, width: group.area.w, height: group.area.h, rx: 10 });
      found.dataset.item = -1 - number;
      return found;
    }
    handle(number) {
      const group = this.groups[number];
      const found = draw("g", { class: "box", role: "button", tabindex: "-1", "aria-expanded": "true", "aria-label": `${group.label}, group of ${this.inside[number].length} layers, open` });
      found.dataset.item = -1 - number;
      found.dataset.fold = "1";
      const x = group.left + 12, y = group.top + 8;
      found.append(draw("rect", { class: "fold", x, y, width: 15, height: 15, rx: 3 }), draw("path", { class: "fold-sign", d: `M${x + 4} ${y + 7.5}h7` }));
      const text = draw("text", { class: "head", x: x + 22, y: y + 12 }, clipped(group.label, 40));
      text.append(draw("title", {}, group.path));
      found.append(text);
      this.elements.set(-1 - number, found);
      return found;
    }
    closed(number) {
      const group = this.groups[number], item = -1 - number, { x, y, w, h } = this.spots.get(item);
      const found = draw("g", { class: "box", role: "button", tabindex: "-1", "aria-expanded": "false", "aria-label": `${group.label}, group of ${this.inside[number].length} layers, closed` });
      found.dataset.item = item;
      found.append(draw("rect", { class: "pile", x: x + 4, y: y + 4, width: w - 4, height: h - 4, rx: 7 }));
      found.append(draw("rect", { class: "body", x, y, width: w - 5, height: h - 5, rx: 7 }));
      const sign = draw("g", {});
      sign.dataset.fold = "1";
      sign.append(draw("rect", { class: "fold", x: x + w - 29, y: y + 8, width: 15, height: 15, rx: 3 }), draw("path", { class: "fold-sign", d: `M${x + w - 25.5} ${y + 15.5}h8m-4 -4v8` }));
      found.append(sign, draw("text", { class: "head", x: x + 12, y: y + 18 }, clipped(group.label, 30)), draw("text", { class: "sub", x: x + 12, y: y + 33 }, group.sub));
      found.append(draw("title", {}, group.path));
      this.elements.set(item, found);
      return found;
    }
    box(number) {
      const box = this.graph.boxes[number], { x, y, w, h } = this.spots.get(number);
      const found = draw("g", { class: `box${box.role ? " end" : ""}`, role: "button", tabindex: "-1" });
      found.dataset.item = number;
      found.append(draw("rect", { class: "body", x, y, width: w, height: h, rx: box.role ? h / 2 : 6 }));
      const left = box.role ? x + w / 2 : x + 15, middle = box.role ? { "text-anchor": "middle" } : {};
      found.append(draw("text", { ...middle, x: left, y: y + (box.role ? 15 : 18) }, clipped(box.label, 30)));
      found.append(draw("text", { ...middle, class: "sub", x: left, y: y + (box.role ? 28 : 34) }, clipped(box.sub, 34)));
      found.append(draw("title", {}, box.name));
      this.elements.set(number, found);
      return found;
    }

    /* Colours: a band and a tint for kinds, heat for shares; of a closed group what is in it. */
    paint() {
      const largest = overlay.share ? Math.max(1e-9, ...data.graphs.map((graph, side) => graph.boxes.reduce((most, _, box) => Math.max(most, overlay.share(side, box)), 0))) : 0;
      for (const [item, element] of this.elements) {
        element.querySelectorAll(".painted").forEach((old) => old.remove());
        const spot = this.spots.get(item);
        const isOpen = item < 0 && this.open.has(-1 - item);
        const inside = item < 0 ? this.inside[-1 - item] : [item];
        const role = item >= 0 && this.graph.boxes[item].role;
        const add = (name, attributes, text) => {
          const found = draw(name, attributes, text);
          found.classList.add("painted");
          if (name === "text") element.append(found);
          else element.querySelector(".body").after(found);
        };
        let words = "";
        if (overlay.share) {
          const value = inside.reduce((sum, box) => sum + overlay.share(this.side, box), 0);
          words = value ? `${percent(value)} ${overlay.what}` : "";
          if (!isOpen && !role && value) {
            const w = item < 0 ? spot.w - 5 : spot.w, h = item < 0 ? spot.h - 5 : spot.h;
            add("rect", { class: "heat", x: spot.x, y: spot.y, width: w, height: h, rx: 6, "fill-opacity": Math.min(0.62, 0.05 + 0.55 * Math.sqrt(value / largest)).toFixed(3) });
            add("text", { class: "figure", x: spot.x + w - 8, y: spot.y + h - 7, "text-anchor": "end" }, percent(value));
          }
        } else {
          const counts = new Map();
          for (const box of inside) { const kind = overlay.kind(this.side, box); counts.set(kind, (counts.get(kind) || 0) + 1); }
          const ranked = [...counts].filter(([kind]) => kind !== "none").sort((a, b) => b[1] - a[1]);
          words = ranked.map(([kind, n]) => (item < 0 ? `${n} ${data.kinds[kind]}` : data.kinds[kind])).join(", ");
          if (!isOpen && !role && ranked.length) {
            if (item >= 0) {
              add("rect", { class: `tint k-${ranked[0][0]}`, x: spot.x, y: spot.y, width: spot.w, height: spot.h, rx: 6 });
              add("path", { class: `band k-${ranked[0][0]}`, d: `M${spot.x + 7} ${spot.y}h-1a6 6 0 0 0 -6 6v${spot.h - 12}a6 6 0 0 0 6 6h1z` });
              add("text", { class: "sub", x: spot.x + spot.w - 8, y: spot.y + 34, "text-anchor": "end" }, data.short[ranked[0][0]]);
            } else {
              let at = spot.x + 12;
              const room = spot.w - 29, all = ranked.reduce((sum, [, n]) => sum + n, 0);
              for (const [kind, n] of ranked) { add("rect", { class: `bar k-${kind}`, x: at, y: spot.y + spot.h - 10, width: (room * n) / all, height: 3 }); at += (room * n) / all; }
            }
          }
        }
        const box = item >= 0 ? this.graph.boxes[item] : null;
        if (box) element.setAttribute("aria-label", [box.name, box.op_type || box.role, words].filter(Boolean).join(", "));
        element.classList.toggle("dim", filter !== null && !isOpen && !inside.some((b) => overlay.kind(this.side, b) === filter));
      }
    }

    move() { this.world.setAttribute("transform", `translate(${this.at.x.toFixed(2)} ${this.at.y.toFixed(2)}) scale(${this.at.k.toFixed(4)})`); }
    zoom(factor, px, py) {
      const box = this.svg.getBoundingClientRect(), k = Math.min(3, Math.max(0.04, this.at.k * factor));
      const x = px === undefined ? box.width / 2 : px, y = py === undefined ? box.height / 2 : py;
      this.at = { x: x - ((x - this.at.x) * k) / this.at.k, y: y - ((y - this.at.y) * k) / this.at.k, k };
      this.move();
    }
    fit(readable) {
      const { width, height } = this.svg.getBoundingClientRect(), { w, h } = this.groups[0].area;
      const across = (width - 40) / Math.max(1, w), whole = Math.min(across, (height - 70) / Math.max(1, h));
      /* At first sight letters count more than the whole. */
      const k = readable ? Math.min(1.1, Math.max(whole, Math.min(across, 1), Math.min(0.6, 0.6))) : Math.min(1.4, Math.max(0.04, whole));
      const use = readable && whole >= 0.75 ? Math.min(1.1, whole) : k;
      this.at = { x: (width - w * use) / 2, y: Math.max(46, (height - h * use) / 2), k: use };
      if (h * use > height - 70) this.at.y = 46;
      if (w * use > width) this.focusTop(width, use);
      this.move();
    }
    /* Wider than the screen: begin where the first layer is. */
    focusTop(width, k) {
      const group = this.groups[0], places = (group.layers[0] || []).filter((place) => place < group.items.length);
      if (places.length) this.at.x = width / 2 - (k * places.reduce((sum, place) => sum + group.x[place], 0)) / places.length;
    }
    show(item, smooth) {
      const spot = this.spots.get(item);
      if (!spot) return;
      const { width, height } = this.svg.getBoundingClientRect(), k = Math.max(this.at.k, 0.7);
      const tall = item < 0 && this.open.has(-1 - item) ? Math.min(spot.h, height / k - 80) : spot.h;
      const goal = { x: width / 2 - (spot.x + spot.w / 2) * k, y: height / 2 - (spot.y + tall / 2) * k, k };
      if (!smooth || matchMedia("(prefers-reduced-motion: reduce)").matches) { this.at = goal; this.move(); return; }
      const from = this.at, began = performance.now();
      const step = (now) => {
        const part = Math.min(1, (now - began) / 220), eased = part * (2 - part);
        this.at = { x: from.x + (goal.x - from.x) * eased, y: from.y + (goal.y - from.y) * eased, k: from.k + (goal.k - from.k) * eased };
        this.move();
        if (part < 1) requestAnimationFrame(step);
      };
      requestAnimationFrame(step);
    }
    isInSight(item) {
      const spot = this.spots.get(item), { width, height } = this.svg.getBoundingClientRect();
      const x = spot.x * this.at.k + this.at.x, y = spot.y * this.at.k + this.at.y;
      return x > 0 && y > 40 && x + spot.w * this.at.k < width && y + Math.min(spot.h, 60) * this.at.k < height;
    }
    /* Open or close, and keep what was clicked where it is. */
    toggle(number) {
      const before = this.spots.get(-1 - number) || { x: 0, y: 0 };
      if (this.open.has(number)) this.open.delete(number); else this.open.add(number);
      this.render();
      const after = this.spots.get(-1 - number) || before;
      this.at.x += (before.x + (before.w || 0) / 2 - after.x - (after.w || 0) / 2) * this.at.k;
      this.at.y += (before.y - after.y) * this.at.k;
      this.move();
    }
    reveal(box) {
      let changed = false;
      for (let at = this.home[box]; at >= 0; at = this.groups[at].parent) if (!this.open.has(at)) { this.open.add(at); changed = true; }
      if (changed) this.render();
    }
    neighbours(item, down) {
      const own = new Set(item < 0 ? this.inside[-1 - item] : [item]), found = new Map();
      for (const box of own) {
        for (const other of down ? this.readers[box] : this.graph.boxes[box].reads) {
          const standing = this.standing(other);
          if (!own.has(other) && standing !== item) found.set(standing, this.spots.get(standing));
        }
      }
      const middle = this.spots.get(item);
      return [...found].sort((a, b) => Math.abs(a[1].x + a[1].w / 2 - middle.x - middle.w / 2) - Math.abs(b[1].x + b[1].w / 2 - middle.x - middle.w / 2)).map(([other]) => other);
    }
    beside(item, step) {
      const group = this.groups[item >= 0 ? this.home[item] : this.groups[-1 - item].parent];
      const place = group.items.indexOf(item), layer = group.layers[group.layer[place]].filter((p) => p < group.items.length);
      const next = layer[layer.indexOf(place) + step];
      return next === undefined ? undefined : group.items[next];
    }
    /* The lines of what is selected: all that it makes, and of what it reads only the way to it. */
    light(item) {
      this.wires.replaceChildren();
      if (item === null) return;
      const own = new Set(item < 0 ? this.inside[-1 - item] : [item]), read = new Set();
      for (const box of own) for (const source of this.graph.boxes[box].reads) if (!own.has(source)) read.add(source);
      let path = "";
      for (const number of this.frames) {
        if (own.has(this.inside[number][0]) && item < 0 && this.inside[-1 - item].length >= this.inside[number].length) continue;
        const group = this.groups[number], into = this.into.get(number);
        const holds = new Map(group.items.map((one, place) => [place, one]));
        const holdsOwn = this.inside[number].some((box) => own.has(box));
        for (const link of group.links) {
          const net = group.nets[link.n];
          if (net.boxes.some((box) => own.has(box)) && (holdsOwn || net.start >= group.items.length)) { path += this.piece(group, link, into); continue; }
          if (!net.boxes.some((box) => read.has(box))) continue;
          const ends = net.ends.filter((end) => {
            if (!holdsOwn) return group.exitPlaces.has(end);
            const held = holds.get(end);
            if (held === undefined) return false;
            return held === item || (held < 0 && this.inside[-1 - held].some((box) => own.has(box)));
          });
          const deepest = Math.max(-1, ...ends.map((end) => group.layer[end]));
          if (ends.includes(link.v) || (net.via.includes(link.v) && group.layer[link.v] < deepest)) path += this.piece(group, link, into);
        }
      }
      if (path) this.wires.append(draw("path", { class: "wire", d: path }));
    }
  }

  const panes = [...document.querySelectorAll("svg.graph")].map((svg, side) => new Pane(side, svg));
  let chosen = null; /* { side, item } */
  const said = byId("said");

  /* Selecting: here, and what stands for it in the other model. */
  const choose = (side, item, { focus = false, move = true } = {}) => {
    for (const pane of panes) {
      pane.world.querySelectorAll(".chosen,.twin").forEach((one) => one.classList.remove("chosen", "twin"));
      pane.light(null);
    }
    chosen = item === null ? null : { side, item };
    if (!chosen) { byId("panel").hidden = true; attempt(() => history.replaceState(null, "", location.pathname + location.search)); return; }
    const pane = panes[side];
    mark(pane, item, "chosen");
    if (move && !pane.isInSight(item)) pane.show(item, true);
    if (panes.length > 1) follow(side, item, move);
    showPanel(side, item);
    const box = item >= 0 ? pane.graph.boxes[item] : null;
    attempt(() => history.replaceState(null, "", box ? `#node=${encodeURIComponent(box.name)}` : location.pathname + location.search));
    if (focus) pane.elements.get(item).focus({ preventScroll: true });
    said.textContent = box ? box.name : pane.groups[-1 - item].path;
  };
  const mark = (pane, item, name) => {
    const element = pane.elements.get(item);
    if (!element) return;
    element.classList.add(name);
    if (item < 0 && pane.open.has(-1 - item)) pane.world.querySelector(`.frame[data-item="${item}"]`).classList.add(name);
    pane.light(item);
  };
  const follow = (side, item, move) => {
    const other = panes[1 - side];
    let twin;
    if (item >= 0) {
      const box = twinOf[side][item];
      if (box < 0) return;
      other.reveal(box);
      twin = box;
    } else {
      const number = other.byPath.get(panes[side].groups[-1 - item].path);
      if (number === undefined || !number) return;
      let changed = false;
      for (let at = other.groups[number].parent; at >= 0; at = other.groups[at].parent) if (!other.open.has(at)) { other.open.add(at); changed = true; }
      if (changed) other.render();
      twin = -1 - number;
    }
    mark(other, twin, "twin");
    if (move && !other.isInSight(twin)) other.show(twin, true);
  };
  const toggleGroup = (side, number) => {
    const pane = panes[side], path = pane.groups[number].path;
    pane.toggle(number);
    const isOpen = pane.open.has(number);
    for (const other of panes) {
      const twin = other === pane ? undefined : other.byPath.get(path);
      if (twin && other.open.has(twin) !== isOpen && other.isShown(other.groups[twin].parent)) other.toggle(twin);
    }
    const item = chosen && chosen.side === side ? chosen.item : -1 - number;
    const standing = item >= 0 ? pane.standing(item) : item;
    choose(side, pane.elements.has(standing) ? standing : -1 - number, { focus: true, move: false });
    said.textContent = `${path}: ${isOpen ? "open" : "closed"}`;
  };
  const goTo = (side, box, focus = true) => {
    panes[side].reveal(box);
    choose(side, box, { focus, move: false });
    panes[side].show(box, true);
    if (panes.length > 1 && twinOf[side][box] >= 0) panes[1 - side].show(twinOf[side][box], true);
  };

  /* The panel. */
  const chip = (kind) => make("span", { class: `chip k-${kind}` }, data.kinds[kind]);
  const pairs = (rows) => make("dl", {}, ...rows.filter(Boolean).flatMap(([what, value]) => [make("dt", {}, what), make("dd", {}, value)]));
  const heading = (text) => make("h3", {}, text);
  const shapeText = (shape) => (shape ? (shape.length ? shape.join(" × ") : "a single number") : "shape not known");
  const linkTo = (side, number) => {
    const button = make("button", { type: "button", class: "link" }, panes[side].graph.boxes[number].name);
    button.addEventListener("click", () => goTo(side, number));
    return make("li", {}, button);
  };
  const links = (title, side, boxes) => (boxes.length ? [heading(title), make("ul", {}, ...boxes.slice(0, 12).map((box) => linkTo(side, box)), boxes.length > 12 ? make("li", { class: "muted" }, `and ${boxes.length - 12} more`) : null)] : []);
  const spread = (tensor) => {
    const found = draw("svg", { class: "spread", viewBox: "0 0 320 64", preserveAspectRatio: "none", role: "img", "aria-label": "Histogram of the calibration" });
    const { low, high, bins } = tensor.histogram, at = (x) => Math.min(320, Math.max(0, ((x - low) / (high - low)) * 320));
    if (tensor.low !== undefined) found.append(draw("rect", { class: "kept", x: at(tensor.low), y: 0, width: Math.max(0.5, at(tensor.high) - at(tensor.low)), height: 64 }));
    bins.forEach((share, i) => { if (share) { const tall = Math.max(1, 60 * Math.sqrt(share)); found.append(draw("rect", { x: (i * 320) / bins.length, y: 64 - tall, width: 320 / bins.length - 0.6, height: tall })); } });
    if (tensor.low !== undefined) for (const end of [tensor.low, tensor.high]) found.append(draw("line", { x1: at(end), x2: at(end), y1: 0, y2: 64 }));
    return make("div", {}, found, make("p", { class: "muted" }, `seen ${short(low)} to ${short(high)}; heights are square roots of counts; shaded: the range`));
  };
  const tensorRows = (tensor) => make("div", { class: "tensor" }, make("strong", {}, tensor.name), pairs([
    ["type", [tensor.dtype || "not known", tensor.integers ? `as ${tensor.integers}` : ""].filter(Boolean).join(", ")],
    ["shape", shapeText(tensor.shape)],
    tensor.scale !== undefined ? ["scale", short(tensor.scale)] : tensor.integers ? ["scale", "taken at run time, or per channel"] : null,
    tensor.zero_point !== undefined ? ["zero point", String(tensor.zero_point)] : null,
    tensor.low !== undefined ? ["range", `${short(tensor.low)} to ${short(tensor.high)}`] : null,
  ]), tensor.histogram ? spread(tensor) : null);
  const weightRows = (weight) => make("div", { class: "tensor" }, make("strong", {}, weight.name), pairs([
    weight.dtype ? ["type", weight.dtype] : null,
    weight.dtype ? ["shape", shapeText(weight.shape)] : null,
    ["size", weight.nbytes ? size(weight.nbytes) : "counted where it is read first"],
    weight.low !== undefined ? ["values", `${short(weight.low)} to ${short(weight.high)}`] : null,
  ]));
  const runRows = (run, title) => (run ? [heading(title), make("p", {}, chip(run.kind), run.kernel ? make("code", {}, run.kernel) : null), run.why ? make("p", {}, run.why) : null, run.fix ? make("p", { class: "muted" }, `What would change it: ${run.fix}`) : null] : []);
  const driftRows = (layer) => (layer ? [heading("Drift"), pairs([
    ["share", `${percent(layer.share)} of the noise at the output`],
    ["alone", decibels(layer.alone_db)],
    layer.local_db !== undefined ? ["local", decibels(layer.local_db)] : null,
    layer.accumulated_db !== undefined ? ["accumulated", decibels(layer.accumulated_db)] : null,
    layer.clipped ? ["clipped", percent(layer.clipped)] : null,
  ]), layer.fix ? make("p", {}, layer.fix) : null] : []);
  const costRows = (side, boxes) => {
    const graph = data.graphs[side], bytes = boxes.reduce((sum, box) => sum + graph.boxes[box].nbytes, 0);
    const seconds = boxes.reduce((sum, box) => sum + (graph.boxes[box].seconds || 0), 0), all = total(side, (box) => box.seconds);
    return [heading("Cost"), pairs([["size", `${size(bytes)}, ${percent(bytes / (graph.nbytes || 1))} of the file`], seconds ? ["time", `${time(seconds)}, ${percent(seconds / all)} of a run`] : null])];
  };
  const changeRows = (side, number) => {
    if (panes.length < 2) return [];
    const twin = twinOf[side][number], changes = changesOf[side][number] || [];
    return [heading("Against the other model"), make("p", {}, chip(statusOf[side][number])), make("ul", {}, ...changes.map((text) => make("li", {}, text))), twin >= 0 ? make("ul", {}, linkTo(1 - side, twin)) : null];
  };
  const boxPanel = (side, number) => {
    const pane = panes[side], box = pane.graph.boxes[number];
    const twin = twinOf[side][number], other = twin >= 0 ? data.graphs[1 - side].boxes[twin] : null;
    const isFloat = panes.length > 1 && side < last;
    return [
      make("h2", {}, box.name), make("p", { class: "path" }, [box.role || box.what, pane.groups[pane.home[number]].path].filter(Boolean).join(" · ")),
      ...runRows(box.runs, "Runs in"), ...(box.runs || box.role || !pane.graph.notes.length ? [] : [heading("Runs in"), make("p", {}, "not known"), ...pane.graph.notes.map((note) => make("p", { class: "muted" }, note))]), ...(isFloat && other ? runRows(other.runs, `In ${data.graphs[last].name}`) : []),
      ...(box.planned ? [heading(data.plan), make("p", {}, chip(box.planned.kind)), make("p", {}, box.planned.why)] : []),
      ...changeRows(side, number), ...driftRows(box.layer || (other && other.layer)), ...costRows(side, [number]),
      ...(box.makes.length ? [heading("Makes"), ...box.makes.map(tensorRows)] : []),
      ...(box.weights.length ? [heading("Weights"), ...box.weights.map(weightRows)] : []),
      ...(box.attributes.length ? [heading("Attributes"), pairs(box.attributes)] : []),
      ...(box.operators.length ? [heading(box.operators.length > 1 ? `${box.operators.length} nodes of the file` : "Node of the file"), make("ul", {}, ...box.operators.map(({ name, op_type: op, fate }) => make("li", {}, make("code", {}, name), ` ${op}`, fate ? make("span", { class: "muted" }, ` → ${fate}`) : null)))] : []),
      ...links("Reads", side, box.reads), ...links("Read by", side, pane.readers[number]),
    ];
  };
  const groupPanel = (side, number) => {
    const pane = panes[side], group = pane.groups[number], inside = pane.inside[number];
    const counts = new Map();
    for (const box of inside) { const kind = kindOf(side, box); if (kind !== "none") counts.set(kind, (counts.get(kind) || 0) + 1); }
    const drift = inside.reduce((sum, box) => sum + (ofTwin(side, box, (b) => (b.layer ? b.layer.share : undefined)) || 0), 0);
    const button = make("button", { type: "button" }, pane.open.has(number) ? "Close the group" : "Open the group");
    button.addEventListener("click", () => toggleGroup(side, number));
    return [make("h2", {}, group.label), make("p", { class: "path" }, group.path), button,
      ...(counts.size ? [heading("Runs in"), ...[...counts].sort((a, b) => b[1] - a[1]).map(([kind, n]) => make("p", {}, chip(kind), `${n} layer${n === 1 ? "" : "s"}`))] : []),
      ...(drift ? [heading("Drift"), make("p", {}, `${percent(drift)} of the noise at the output`)] : []),
      ...costRows(side, inside), ...links("Layers", side, inside.filter((box) => !pane.graph.boxes[box].role))];
  };
  const showPanel = (side, item) => {
    const panel = byId("panel"), wasHidden = panel.hidden;
    const leave = make("button", { type: "button", class: "leave", "aria-label": "Close the facts", title: "Close (Esc)" }, "×");
    leave.addEventListener("click", () => { choose(0, null); panes[side].svg.focus(); });
    panel.replaceChildren(leave, ...(item >= 0 ? boxPanel(side, item) : groupPanel(side, -1 - item)).filter(Boolean));
    panel.hidden = false;
    panel.scrollTop = 0;
    /* The panel takes room: what was in sight stays so. */
    if (wasHidden) for (const pane of panes) { const now = pane === panes[side] ? item : null; if (now !== null && !pane.isInSight(now)) pane.show(now, false); }
  };

  /* Legend. */
  const showLegend = () => {
    const list = byId("legend");
    if (overlay.share) { list.replaceChildren(make("li", {}, `0 `), make("li", { class: "ramp", "aria-hidden": "true" }), make("li", {}, `the most of one layer; figures: share ${overlay.what}`)); return; }
    const counts = new Map();
    const isChange = overlay.id === "change";
    const count = (kind, side) => { const found = counts.get(kind) || data.graphs.map(() => 0); found[side] += 1; counts.set(kind, found); };
    data.graphs.forEach((graph, side) => graph.boxes.forEach((box, number) => { const kind = overlay.kind(side, number); if (!box.role && kind !== "none" && !(side && kind !== "added" && isChange)) count(kind, side); }));
    /* Of two models both counts; what changed belongs to one of them. */
    const shown = (kind) => (isChange ? counts.get(kind).filter((n) => n) : counts.get(kind)).join(" \u2192 ");
    list.replaceChildren(...Object.keys(data.kinds).filter((kind) => counts.has(kind)).map((kind) => {
      const button = make("button", { type: "button", "aria-pressed": String(filter === kind), title: "Show only these" }, make("span", { class: `key k-${kind}` }), `${data.kinds[kind]} (${shown(kind)})`);
      button.addEventListener("click", () => { filter = filter === kind ? null : kind; panes.forEach((pane) => pane.paint()); showLegend(); });
      return make("li", {}, button);
    }));
  };
  select.addEventListener("change", () => {
    overlay = overlays.find((one) => one.id === select.value);
    filter = null;
    panes.forEach((pane) => pane.paint());
    showLegend();
  });

  /* Search. */
  const find = byId("find"), found = byId("found");
  const MOST = 40;
  let picked = 0, results = [];
  const index = panes.flatMap((pane, side) => pane.graph.boxes.map((box, number) => ({ side, number, name: box.name, text: [box.name, box.op_type, ...box.operators.map((node) => `${node.name} ${node.op_type}`), ...box.makes.map((t) => t.name), ...box.weights.map((w) => w.name)].join(" ").toLowerCase() })));
  const showFound = () => {
    found.replaceChildren(...(results.length ? results.map((result, i) => {
      const line = make("li", { role: "option", id: `found-${i}`, "aria-selected": String(i === picked) }, result.name, make("span", {}, [panes[result.side].graph.boxes[result.number].what || panes[result.side].graph.boxes[result.number].role, panes.length > 1 ? data.graphs[result.side].name : ""].filter(Boolean).join(" · ")));
      line.addEventListener("mousedown", (event) => { event.preventDefault(); picked = i; goFound(); });
      return line;
    }) : [make("li", { class: "none" }, "nothing found")]));
    find.setAttribute("aria-activedescendant", results.length ? `found-${picked}` : "");
  };
  const search = () => {
    const words = find.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const isOpen = words.length > 0;
    found.hidden = !isOpen;
    find.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) return;
    const all = index.filter((one) => words.every((word) => one.text.includes(word)));
    const rank = (one) => (one.name.toLowerCase() === words.join(" ") ? 0 : one.name.toLowerCase().includes(words[0]) ? 1 : 2) * 2 + (one.side === last ? 0 : 1);
    all.sort((a, b) => rank(a) - rank(b));
    results = all.slice(0, MOST);
    picked = 0;
    showFound();
    said.textContent = `${all.length} found`;
  };
  const leaveSearch = () => { found.hidden = true; find.setAttribute("aria-expanded", "false"); };
  const goFound = () => { const result = results[picked]; if (!result) return; leaveSearch(); goTo(result.side, result.number); };
  find.addEventListener("input", search);
  find.addEventListener("focus", search);
  find.addEventListener("blur", leaveSearch);
  find.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && results.length) { event.preventDefault(); picked = (picked + step + results.length) % results.length; showFound(); found.children[picked].scrollIntoView({ block: "nearest" }); }
    if (event.key === "Enter") { event.preventDefault(); goFound(); }
    if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); find.value = ""; leaveSearch(); panes[chosen ? chosen.side : last].svg.focus(); }
  });

  /* Pointer. */
  for (const pane of panes) {
    const { svg, side } = pane;
    let drag = null;
    const pointers = new Map();
    svg.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      drag = { x: event.clientX, y: event.clientY, moved: false };
    });
    svg.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before || !drag) return;
      const now = { x: event.clientX, y: event.clientY };
      if (!drag.moved && Math.hypot(now.x - drag.x, now.y - drag.y) < 4) return;
      if (!drag.moved) svg.setPointerCapture(event.pointerId);
      drag.moved = true;
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1], box = svg.getBoundingClientRect();
        const factor = Math.hypot(now.x - other.x, now.y - other.y) / Math.max(1, Math.hypot(before.x - other.x, before.y - other.y));
        pane.zoom(factor, other.x - box.left, other.y - box.top);
      } else { pane.at.x += now.x - before.x; pane.at.y += now.y - before.y; pane.move(); }
      pointers.set(event.pointerId, now);
    });
    const end = (event) => { pointers.delete(event.pointerId); };
    svg.addEventListener("pointerup", end);
    svg.addEventListener("pointercancel", end);
    svg.addEventListener("pointerleave", (event) => { if (!svg.hasPointerCapture(event.pointerId)) end(event); });
    const itemOf = (event) => { const element = event.target.closest("[data-item]"); return element ? Number(element.dataset.item) : null; };
    svg.addEventListener("click", (event) => {
      if (drag && drag.moved) return;
      const item = itemOf(event);
      if (item === null) { choose(side, null); return; }
      if (item < 0 && event.target.closest("[data-fold]")) { toggleGroup(side, -1 - item); return; }
      choose(side, item, { focus: true });
    });
    svg.addEventListener("dblclick", (event) => { const item = itemOf(event); if (item !== null && item < 0 && !event.target.closest("[data-fold]")) toggleGroup(side, -1 - item); });
    svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = svg.getBoundingClientRect(), unit = event.deltaMode === 1 ? 16 : 1;
      if (event.ctrlKey || event.metaKey) pane.zoom(Math.exp(-event.deltaY * unit * 0.004), event.clientX - box.left, event.clientY - box.top);
      else { pane.at.x -= (event.shiftKey ? event.deltaY : event.deltaX) * unit; pane.at.y -= (event.shiftKey ? 0 : event.deltaY) * unit; pane.move(); }
    }, { passive: false });
  }

  /* Keys and buttons. */
  const help = byId("help");
  const each = (action) => () => { panes.forEach(action); if (chosen) again(); };
  const again = () => {
    const pane = panes[chosen.side], item = chosen.item >= 0 ? pane.standing(chosen.item) : chosen.item;
    if (pane.elements.has(item)) choose(chosen.side, item, { move: false }); else choose(0, null);
  };
  const openMore = each((pane) => {
    const closed = pane.frames.flatMap((number) => pane.groups[number].items.filter((item) => item < 0 && !pane.open.has(-1 - item)));
    closed.forEach((item) => pane.open.add(-1 - item));
    if (closed.length) { pane.render(); pane.fit(true); }
  });
  const closeAll = each((pane) => { pane.open = new Set([0]); pane.render(); pane.fit(true); });
  const walk = (key) => {
    const side = chosen ? chosen.side : Math.max(0, panes.findIndex((pane) => pane.svg.contains(document.activeElement)));
    const pane = panes[side];
    if (!chosen) { const first = (pane.groups[0] || { items: [] }).items[0]; if (first !== undefined) choose(side, first, { focus: true }); return; }
    const next = key === "ArrowUp" || key === "ArrowDown" ? pane.neighbours(chosen.item, key === "ArrowDown")[0] : pane.beside(chosen.item, key === "ArrowRight" ? 1 : -1);
    if (next !== undefined) choose(side, next, { focus: true });
  };
  const keys = {
    "/": () => { find.focus(); find.select(); }, "?": () => help.showModal(),
    "+": () => panes.forEach((pane) => pane.zoom(1.25)), "=": () => panes.forEach((pane) => pane.zoom(1.25)), "-": () => panes.forEach((pane) => pane.zoom(0.8)),
    0: () => panes.forEach((pane) => pane.fit(false)), o: openMore, c: closeAll,
    Escape: () => { const side = chosen ? chosen.side : last; choose(0, null); panes[side].svg.focus(); },
    Enter: () => { if (!chosen) walk("ArrowDown"); else if (chosen.item < 0) toggleGroup(chosen.side, -1 - chosen.item); else byId("panel").focus(); },
    ArrowUp: () => walk("ArrowUp"), ArrowDown: () => walk("ArrowDown"), ArrowLeft: () => walk("ArrowLeft"), ArrowRight: () => walk("ArrowRight"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const target = event.target instanceof Element ? event.target : document.body;
    if (target.matches("input, select, textarea")) return;
    const isPanel = target.closest("#panel"), isControl = target.matches("button, a");
    if ((isPanel || isControl) && (event.key === "Enter" || event.key.startsWith("Arrow"))) return;
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  byId("more").addEventListener("click", keys["+"]);
  byId("less").addEventListener("click", keys["-"]);
  byId("fit").addEventListener("click", keys[0]);
  byId("open").addEventListener("click", openMore);
  byId("close").addEventListener("click", closeAll);
  byId("keys").addEventListener("click", keys["?"]);

  /* A link may name a node: #node=NAME, in the last model if it has it. */
  const goHash = () => {
    const name = attempt(() => decodeURIComponent((location.hash.match(/^#node=(.*)$/) || ["", ""])[1]));
    if (!name) return;
    for (let side = last; side >= 0; side--) {
      const boxes = data.graphs[side].boxes;
      let number = boxes.findIndex((box) => box.name === name);
      if (number < 0) number = boxes.findIndex((box) => box.operators.some((node) => node.name === name) || box.makes.some((tensor) => tensor.name === name));
      if (number >= 0) { goTo(side, number); return; }
    }
    said.textContent = `There is no node '${name}' here.`;
  };
  panes.forEach((pane) => { pane.render(); pane.fit(true); });
  showLegend();
  addEventListener("hashchange", goHash);
  goHash();
})();
