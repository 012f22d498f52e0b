"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const colour = (index) => `var(--c${index % 8})`;
  const outcome = (value) => (value > 0.5 ? "var(--good)" : "var(--bad)");

  function svg(parent, name, attributes, text) {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  function html(parent, name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  function shown(value) {
    const size = Math.abs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
    for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= unit && (unit > 1e3 || size >= 1e4)) return `${+(value / unit).toPrecision(4)}${name}`;
    return `${+value.toPrecision(4)}`;
  }

  /** Return about `count` round numbers between two bounds. */
  function ticks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at <= high / step + 1e-9; at++) found.push(+(at * step).toPrecision(12));
    return found;
  }

  /** Return the bounds of a chart's data, wide enough for intervals, cells, goals and the axis' own range. */
  function bounds(chart) {
    const xs = [], ys = [];
    for (const one of chart.series) {
      const [wide, tall] = one.size || [0, 0];
      for (const x of one.x) xs.push(x - wide / 2, x + wide / 2);
      for (const values of [one.y, one.low || [], one.high || []])
        for (const y of values) if (y !== null) ys.push(y - tall / 2, y + tall / 2);
      if (one.goal) xs.push(one.goal[0]), ys.push(one.goal[1]);
      if (one.kind === "bars") ys.push(0);
    }
    const range = (values) => values.reduce(([a, b], v) => (v === null ? [a, b] : [Math.min(a, v), Math.max(b, v)]), [Infinity, -Infinity]);
    let [x0, x1] = range(xs), [y0, y1] = range(ys);
    if (!isFinite(y0)) [y0, y1] = [0, 1];
    if (x0 === x1) [x0, x1] = x0 > 0 ? [0, x0] : [x0 - 0.5, x0 + 0.5];
    if (y0 === y1) { const room = Math.abs(y0) * 0.1 || 0.5; [y0, y1] = [y0 - room, y1 + room]; }
    const lines = chart.series.every((one) => one.kind === "line" || one.kind === "dots") && !chart.equal;
    if (lines && x0 > 0 && x0 < 0.5 * x1) x0 = 0;
    const room = (y1 - y0) * 0.06;
    if (chart.y_range) { y0 = Math.min(y0, chart.y_range[0]); y1 = Math.max(y1, chart.y_range[1]); y0 -= 0.02 * (y1 - y0); y1 += 0.02 * (y1 - y0); }
    else { y1 += room; if (!chart.series.some((one) => one.kind === "bars")) y0 -= room; }
    if (chart.equal) { const rx = (x1 - x0) * 0.04; x0 -= rx; x1 += rx; }
    return [x0, x1, y0, y1];
  }

  function draw(figure) {
    const chart = charts[figure.dataset.chart];
    const plot = figure.querySelector(".plot");
    plot.replaceChildren();
    const width = plot.clientWidth;
    if (!width) return;
    const hero = figure.classList.contains("main");
    let height = hero ? Math.max(250, Math.min(430, width * 0.52)) : Math.max(190, Math.min(270, width * 0.46));
    if (hero) height = Math.max(height, Math.min(520, plot.clientHeight));
    if (chart.equal) height = Math.max(260, Math.min(430, width * 0.8));
    let [x0, x1, y0, y1] = bounds(chart);
    const yTicks = () => ticks(y0, y1, Math.max(3, Math.floor(height / 55)));
    const left = 14 + (chart.y ? 16 : 0) + Math.max(...yTicks().map((value) => shown(value).length)) * 6.6;
    const top = 8, right = 12, bottom = 42;
    const inner = { width: width - left - right, height: height - top - bottom };
    if (chart.equal) {
      const scale = Math.max((x1 - x0) / inner.width, (y1 - y0) / inner.height);
      const [mx, my] = [(x0 + x1) / 2, (y0 + y1) / 2];
      [x0, x1, y0, y1] = [mx - scale * inner.width / 2, mx + scale * inner.width / 2, my - scale * inner.height / 2, my + scale * inner.height / 2];
    }
    const X = (x) => left + ((x - x0) / (x1 - x0)) * inner.width;
    const Y = (y) => top + (1 - (y - y0) / (y1 - y0)) * inner.height;
    const root = svg(plot, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": chart.title });
    for (const value of yTicks()) {
      svg(root, "line", { class: "gridline", x1: left, x2: width - right, y1: Y(value), y2: Y(value) });
      svg(root, "text", { x: left - 8, y: Y(value) + 4, "text-anchor": "end" }, shown(value));
    }
    for (const value of ticks(x0, x1, Math.max(2, Math.floor(inner.width / 85))))
      svg(root, "text", { x: X(value), y: height - bottom + 17, "text-anchor": "middle" }, shown(value));
    svg(root, "line", { class: "axis", x1: left, x2: width - right, y1: top + inner.height, y2: top + inner.height });
    svg(root, "text", { x: left + inner.width / 2, y: height - 5, "text-anchor": "middle" }, chart.x || "");
    if (chart.y) svg(root, "text", { transform: `translate(11 ${top + inner.height / 2}) rotate(-90)`, "text-anchor": "middle" }, chart.y);
    chart.series.forEach((one, index) => layers[one.kind](root, one, X, Y, index, chart));
    if (chart.series.some((one) => one.kind === "line" || one.kind === "dots")) hover(plot, root, chart, X, Y, [top, top + inner.height, left, width - right]);
    figure.dataset.drawn = "1";
  }

  /** Join points to a path; a missing value interrupts it. */
  function trace(xs, ys, X, Y) {
    let path = "", pen = "M";
    ys.forEach((y, index) => {
      if (y === null) pen = "M";
      else { path += `${pen}${X(xs[index]).toFixed(1)},${Y(y).toFixed(1)}`; pen = "L"; }
    });
    return path;
  }

  const layers = {
    line(root, one, X, Y) {
      const stroke = colour(one.colour);
      if (one.low && one.high) {
        const back = trace([...one.x].reverse(), [...one.low].reverse(), X, Y).replace("M", "L");
        svg(root, "path", { d: `${trace(one.x, one.high, X, Y)}${back}Z`, fill: stroke, opacity: 0.16 });
      }
      if (one.low && one.y.length === 1 && one.low[0] !== null)
        svg(root, "line", { x1: X(one.x[0]), x2: X(one.x[0]), y1: Y(one.low[0]), y2: Y(one.high[0]), stroke, "stroke-width": 5, opacity: 0.25 });
      const style = { fill: "none", stroke, "stroke-width": one.faint ? 1 : 2, "stroke-linejoin": "round", opacity: one.faint ? 0.4 : 1 };
      svg(root, "path", { d: trace(one.x, one.y, X, Y), ...style });
      if (one.marked || one.y.length === 1)
        one.y.forEach((y, index) => y !== null && svg(root, "circle", { cx: X(one.x[index]), cy: Y(y), r: 3.2, fill: stroke, stroke: "var(--card)", "stroke-width": 1.2 }));
    },
    dots(root, one, X, Y) {
      one.y.forEach((y, index) => {
        if (y === null) return;
        const at = { cx: X(one.x[index]), cy: Y(y) };
        if (one.value) svg(root, "circle", { ...at, r: 4.2, fill: outcome(one.value[index]), stroke: "var(--card)", "stroke-width": 1.5 });
        else svg(root, "circle", { ...at, r: 1.7, fill: colour(one.colour), opacity: 0.32 });
      });
    },
    bars(root, one, X, Y, index, chart) {
      const many = chart.series.length;
      one.y.forEach((y, bin) => {
        if (y === null) return;
        const wide = (X(one.x[bin + 1]) - X(one.x[bin]) - 1) / many;
        const bar = svg(root, "rect", { x: X(one.x[bin]) + 0.5 + index * wide, y: Y(Math.max(0, y)), width: Math.max(0.5, wide), height: Math.max(0, Math.abs(Y(0) - Y(y))), rx: 1.5, fill: colour(one.colour), opacity: 0.85 });
        svg(bar, "title", {}, `${one.name}, ${shown(one.x[bin])} to ${shown(one.x[bin + 1])}: ${shown(y)}`);
      });
    },
    cells(root, one, X, Y) {
      one.value.forEach((value, index) => {
        const [wide, tall] = one.size, x = one.x[index] - wide / 2, y = one.y[index] + tall / 2;
        const cell = svg(root, "rect", {
          x: X(x) + 0.5, y: Y(y) + 0.5, width: X(x + wide) - X(x) - 1, height: Y(y - tall) - Y(y) - 1, rx: 3,
          fill: `color-mix(in srgb, ${outcome(value)} ${Math.round(200 * Math.abs(value - 0.5))}%, var(--mid))`, opacity: 0.75,
        });
        svg(cell, "title", {}, `success while exploring: ${shown(value)}`);
      });
    },
    path(root, one, X, Y) {
      const stroke = outcome(one.value[0]), last = one.x.length - 1;
      svg(root, "path", { d: trace(one.x, one.y, X, Y), fill: "none", stroke, "stroke-width": 1.8, opacity: 0.85, "stroke-linejoin": "round" });
      svg(root, "circle", { cx: X(one.x[0]), cy: Y(one.y[0]), r: 3.6, fill: "var(--muted)" });
      svg(root, "circle", { cx: X(one.goal[0]), cy: Y(one.goal[1]), r: 6.5, fill: "none", stroke: "var(--ink)", "stroke-width": 1.8 });
      svg(root, "circle", { cx: X(one.x[last]), cy: Y(one.y[last]), r: 3.6, fill: stroke });
    },
  };

  function hover(plot, root, chart, X, Y, [top, bottom, left, right]) {
    const guide = svg(root, "line", { class: "guide", y1: top, y2: bottom });
    const tip = html(plot, "div", "tip");
    const lines = chart.series.filter((one) => one.kind === "line" && !one.faint);
    const watched = lines.length ? lines : chart.series.filter((one) => one.kind === "dots");
    const hide = () => { tip.style.visibility = guide.style.visibility = "hidden"; };
    plot.onpointerleave = hide;
    plot.onpointermove = (event) => {
      const box = plot.getBoundingClientRect(), at = event.clientX - box.left, up = event.clientY - box.top;
      if (at < left - 6 || at > right + 6) return hide();
      const flat = !lines.length;
      const near = (one) => one.x.reduce((best, x, index) => {
        const far = Math.hypot(X(x) - at, flat ? Y(one.y[index]) - up : 0);
        return one.y[index] !== null && far < best[0] ? [far, index] : best;
      }, [Infinity, -1])[1];
      const found = watched.map((one) => [one, near(one)]).filter(([, index]) => index >= 0);
      if (!found.length) return hide();
      const centre = found.map(([one, index]) => one.x[index]).reduce((a, b) => (Math.abs(X(b) - at) < Math.abs(X(a) - at) ? b : a));
      tip.replaceChildren();
      html(tip, "b", "", flat ? `(${shown(centre)}, ${shown(found[0][0].y[found[0][1]])})` : `${centre.toLocaleString("en")} ${chart.x || ""}`);
      for (const [one, index] of found.slice(0, 12)) {
        const line = html(tip, "div");
        html(line, "i").style.setProperty("--colour", one.value ? outcome(one.value[index]) : colour(one.colour));
        const band = one.low && one.low[index] !== null ? ` [${shown(one.low[index])}, ${shown(one.high[index])}]` : "";
        line.append(flat && one.value ? (one.value[index] > 0.5 ? "reached" : "missed") : `${one.name}: ${shown(one.y[index])}${band}${one.x[index] === centre ? "" : ` at ${shown(one.x[index])}`}`);
      }
      guide.setAttribute("x1", X(centre));
      guide.setAttribute("x2", X(centre));
      guide.style.visibility = flat ? "hidden" : "visible";
      tip.style.visibility = "visible";
      tip.style.left = `${Math.max(0, Math.min(at + 14, plot.clientWidth - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(0, up - tip.offsetHeight - 12)}px`;
    };
  }

  function legend(figure) {
    const chart = charts[figure.dataset.chart], box = figure.querySelector(".legend"), entries = [];
    for (const one of chart.series) {
      if (one.faint && one.kind === "line") continue;
      if (one.kind === "cells") entries.push(["scale", "success 0 to 1", "none"]);
      else if (one.kind === "path") entries.push(["dot", "start", "var(--muted)"], ["ring", "goal", "var(--ink)"], ["dot", "end, reached", "var(--good)"], ["dot", "end, missed", "var(--bad)"]);
      else if (one.value) entries.push(["dot", "reached", "var(--good)"], ["dot", "missed", "var(--bad)"]);
      else entries.push([one.kind === "dots" ? "dot" : one.kind === "bars" ? "square" : "", one.name, colour(one.colour)]);
      if (one.low) entries.push(["square", "95% interval", `color-mix(in srgb, ${colour(one.colour)} 25%, transparent)`]);
    }
    const known = new Set();
    box.replaceChildren();
    for (const [kind, name, fill] of entries) {
      if (known.has(name)) continue;
      known.add(name);
      html(box, "span", kind, name).style.setProperty("--colour", fill);
    }
  }

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (button) button.onclick = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
        const rows = [...table.tBodies[0].rows].sort((a, b) => key(a).localeCompare(key(b), "en", { numeric: true }));
        const numeric = rows.every((row) => key(row) === "" || isFinite(key(row)));
        if (numeric) rows.sort((a, b) => (key(a) === "" ? -Infinity : +key(a)) - (key(b) === "" ? -Infinity : +key(b)));
        table.tBodies[0].append(...(down ? rows.reverse() : rows));
      };
    });
  }

  let charts = {};
  function show() {
    charts = JSON.parse(document.getElementById("charts").textContent);
    const figures = [...document.querySelectorAll("figure.chart")];
    figures.forEach((figure) => { legend(figure); draw(figure); });
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.querySelectorAll(".command button").forEach((button) => {
      button.onclick = () => navigator.clipboard?.writeText(button.parentNode.querySelector("code").textContent).then(() => { button.textContent = "Copied"; });
    });
    document.documentElement.dataset.charts = `${figures.filter((figure) => figure.dataset.drawn).length}/${figures.length}`;
  }

  const stored = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } }, set: (value) => { try { localStorage.setItem("theme", value); } catch { /* private window */ } } };
  const root = document.documentElement;
  if (stored.get()) root.dataset.theme = stored.get();
  document.getElementById("theme").onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    stored.set(root.dataset.theme);
  };

  show();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; document.querySelectorAll("figure.chart").forEach(draw); } });

  const every = +root.dataset.refresh;
  if (every) setInterval(async () => {
    try {
      const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
      const open = [...document.querySelectorAll("details")].map((one) => one.open);
      for (const id of ["page", "charts"]) document.getElementById(id).replaceWith(page.getElementById(id));
      document.querySelectorAll("details").forEach((one, index) => { one.open = open[index] ?? one.open; });
      show();
    } catch { /* the server is gone; the page stays as it is */ }
  }, 1000 * every);
})();
