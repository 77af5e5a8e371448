"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const data = JSON.parse(document.getElementById("tables").textContent);

  /* Theme: the system's until somebody chooses. A file opened from disk may have no storage. */
  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const remembered = { get: () => localStorage.getItem("quantkit-theme"), set: (v) => localStorage.setItem("quantkit-theme", v) };
  const attempt = (action) => { try { return action(); } catch { return null; } };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  /* The button says what it does, not what is. */
  const showTheme = () => { toggle.textContent = isDark() ? "Light" : "Dark"; };
  const saved = attempt(remembered.get);
  if (saved === "dark" || saved === "light") root.dataset.theme = saved;
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    attempt(() => remembered.set(root.dataset.theme));
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  /* Tips, on hover and on focus; Escape takes them away. */
  const tip = document.getElementById("tip");
  const showTip = (mark) => {
    const lines = mark.dataset.tip.split("\n");
    tip.replaceChildren(...lines.map((line, i) => {
      const row = document.createElement(i ? "div" : "strong");
      row.textContent = line;
      return row;
    }));
    tip.hidden = false;
    const at = (mark.querySelector(".sign") || mark).getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const left = Math.min(Math.max(8, at.left + at.width / 2 - own.width / 2), width - own.width - 8);
    const above = at.top - own.height - 12;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above > 0 ? above : at.bottom + 12) + scrollY}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  const markOf = (event) => event.target instanceof Element && event.target.closest("[data-tip]");
  for (const [show, hide] of [["pointerover", "pointerout"], ["focusin", "focusout"]]) {
    document.addEventListener(show, (event) => { const mark = markOf(event); if (mark) showTip(mark); });
    document.addEventListener(hide, (event) => { if (markOf(event)) hideTip(); });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

  /* Panels: one at a time, chosen by tabs with the arrow keys. */
  for (const group of all("[data-panels]")) {
    const list = group.querySelector("[role=tablist]");
    if (!list) continue;
    const tabs = all("[role=tab]", list);
    const choose = (chosen, focus) => {
      for (const tab of tabs) {
        const on = tab === chosen;
        tab.setAttribute("aria-selected", String(on));
        tab.tabIndex = on ? 0 : -1;
        document.getElementById(tab.getAttribute("aria-controls")).classList.toggle("closed", !on);
      }
      if (focus) chosen.focus();
    };
    list.hidden = false;
    group.classList.add("tabbed");
    choose(tabs[0], false);
    list.addEventListener("click", (event) => { const tab = event.target.closest("[role=tab]"); if (tab) choose(tab, false); });
    list.addEventListener("keydown", (event) => {
      const now = tabs.indexOf(document.activeElement);
      const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (next === undefined || now < 0) return;
      event.preventDefault();
      choose(tabs[(next + tabs.length) % tabs.length], true);
    });
  }

  /* Long tables: sorted by their headings, searched as one types. */
  const figure = (text) => {
    if (text === "—" || text === "") return null;
    if (text === "no error" || text === "identical") return Infinity;
    const value = parseFloat(text.replace("−", "-").replace(/[\u00a0,]/g, ""));
    return Number.isNaN(value) ? null : value;
  };
  const words = new Intl.Collator("en", { numeric: true });
  const compare = (kind) => (kind === "num"
    ? (a, b) => { const x = figure(a), y = figure(b); return x === y ? 0 : x - y; }
    : (a, b) => words.compare(a, b));
  /* An option such as --exclude is not broken after its hyphens; what stands between backticks is code. */
  const unbroken = (text) => text.split(/(--[a-z][a-z-]*|`[^`]+`)/).map((part, i) => {
    if (!(i % 2)) return part;
    const isCode = part.startsWith("`");
    const piece = document.createElement(isCode ? "code" : "span");
    if (!isCode) piece.className = "nobr";
    piece.textContent = isCode ? part.slice(1, -1) : part;
    return piece;
  });
  const isMissing = (kind, cell) => (kind === "num" ? figure(cell) === null : cell === "" || cell === "—");

  for (const holder of all("[data-table]")) {
    const rows = data.rows[holder.dataset.table].map((row) => row.map((at) => data.texts[at]));
    const heads = all("th", holder), kinds = heads.map((head) => head.className);
    const body = holder.querySelector("tbody"), first = body.rows.length;
    const input = holder.querySelector("input"), count = holder.querySelector(".count");
    const more = holder.querySelector(".all");
    /* Names of layers lead into the graph, where there is a page of it. */
    const graph = holder.dataset.graph;
    const shownCell = (cell, kind) => {
      if (!graph || kind !== "node") return unbroken(cell);
      const link = document.createElement("a");
      link.href = `${graph}#node=${encodeURIComponent(cell)}`;
      link.textContent = cell;
      return [link];
    };
    let sorted = rows, open = false;
    const show = () => {
      const wanted = input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
      const found = sorted.filter((row) => wanted.every((word) => row.some((cell) => cell.toLowerCase().includes(word))));
      const shown = open ? found : found.slice(0, first);
      body.replaceChildren(...shown.map((row) => {
        const line = document.createElement("tr");
        row.forEach((cell, i) => { const place = line.insertCell(); place.className = kinds[i]; place.append(...shownCell(cell, kinds[i])); });
        return line;
      }));
      count.textContent = wanted.length ? `${found.length} of ${rows.length}` : `${rows.length}`;
      more.hidden = found.length <= first;
      more.textContent = open ? `Show the first ${first}` : `Show all ${found.length}`;
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      const label = head.querySelector(".static");
      button.type = "button";
      button.textContent = label.textContent;
      if (label.title) button.title = label.title;
      label.replaceWith(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const order = compare(kinds[column]), kind = kinds[column];
        const has = rows.filter((row) => !isMissing(kind, row[column]));
        const none = rows.filter((row) => isMissing(kind, row[column]));
        has.sort((a, b) => (up ? 1 : -1) * order(a[column], b[column]));
        sorted = [...has, ...none];
        show();
      });
    });
    input.addEventListener("input", show);
    more.addEventListener("click", () => { open = !open; show(); });
    holder.querySelector(".tools").hidden = false;
    all(".without", holder).forEach((note) => note.remove());
    show();
  }

  /* Sections are folded; a link to one, or into one, opens it. */
  const folds = all("details.fold");
  const unfold = document.getElementById("unfold");
  const areOpen = () => folds.every((fold) => fold.open);
  const showFolds = () => { unfold.textContent = areOpen() ? "Close all" : "Open all"; };
  const openAt = (hash) => {
    const target = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (!target) return;
    const own = target.querySelector(":scope > details.fold");
    if (own) own.open = true;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView();
  };
  unfold.parentElement.hidden = false;
  unfold.addEventListener("click", () => { const open = !areOpen(); folds.forEach((fold) => { fold.open = open; }); });
  folds.forEach((fold) => fold.addEventListener("toggle", showFolds));
  addEventListener("hashchange", () => openAt(location.hash));
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest("a[href^='#']");
    if (link) openAt(link.hash);
  });
  showFolds();
  openAt(location.hash);

  /* Contents: where one is. The last section that has begun; at the very top the first. */
  const bar = document.querySelector(".contents");
  const links = new Map(all(".contents a").map((link) => [link.hash.slice(1), link]));
  const places = [...links.keys()].map((id) => document.getElementById(id));
  let shown = null;
  const showPlace = () => {
    const line = bar.offsetHeight < 100 ? bar.offsetHeight + 40 : innerHeight / 4;
    const begun = places.filter((place) => place.getBoundingClientRect().top <= line);
    const atEnd = innerHeight + scrollY >= root.scrollHeight - 2;
    const asked = document.getElementById(location.hash.slice(1));
    /* The last sections may be too short to get to the top. */
    const late = atEnd && asked && places.includes(asked) && asked.getBoundingClientRect().top >= 0;
    const place = late ? asked : begun[begun.length - 1] || places[0];
    if (scrollY < 8 && !late) return mark(places[0]);
    return mark(place);
  };
  const mark = (place) => {
    if (place === shown) return;
    shown = place;
    links.forEach((link, id) => {
      if (id === place.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
    const link = links.get(place.id), list = bar.firstElementChild;
    list.scrollTo({ left: link.offsetLeft - list.clientWidth / 2 + link.offsetWidth / 2 });
  };
  addEventListener("scroll", showPlace, { passive: true });
  addEventListener("resize", showPlace);
  showPlace();

  /* Tables that are wider than their box say so. */
  const wider = new ResizeObserver((seen) => {
    for (const { target } of seen) target.classList.toggle("wider", target.scrollWidth > target.clientWidth + 2);
  });
  all(".scroll").forEach((box) => wider.observe(box));

  /* Copy. */
  for (const button of all("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        getSelection().selectAllChildren(source);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  /* Paper has no buttons: everything opened. */
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    closed.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((details) => { details.open = false; }));
})();
