// The curves: a line for each run; of several runs of a group their interquartile mean with a band.
"use strict";

lab.statistics = (() => {
  // Mean without the floor(n / 4) smallest and as many largest values, as `parl-like plot` and `report` have it.
  const iqm = (values) => {
    const sorted = Float64Array.from(values).sort(), cut = Math.floor(sorted.length / 4);
    let sum = 0;
    for (let i = cut; i < sorted.length - cut; i += 1) sum += sorted[i];
    return sum / (sorted.length - 2 * cut);
  };

  // A small generator with a seed, so that a band does not tremble.
  const random = (seed) => () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  const DRAWS = 200;

  // Per point the IQM of the rows, and a band: the 95 % percentile bootstrap over runs, or the lowest and the highest run.
  const summary = (rows, kind) => {
    const n = rows.length, points = rows[0].length;
    const middle = new Array(points).fill(null), low = new Array(points).fill(null), high = new Array(points).fill(null);
    const next = random(1), drawn = Array.from({ length: DRAWS }, () => Array.from({ length: n }, () => Math.floor(next() * n)));
    for (let p = 0; p < points; p += 1) {
      const values = rows.map((row) => row[p]);
      if (values.some((one) => one === null)) continue;
      middle[p] = iqm(values);
      if (kind === "range") { low[p] = Math.min(...values); high[p] = Math.max(...values); }
      if (kind === "interval") {
        const again = Float64Array.from(drawn, (places) => iqm(places.map((place) => values[place]))).sort();
        low[p] = again[Math.floor(0.025 * (DRAWS - 1))];
        high[p] = again[Math.ceil(0.975 * (DRAWS - 1))];
      }
    }
    return { middle, low, high };
  };

  // Mean over a window of so many tenths of the curve, without the future's and past's edges being bent.
  const smooth = (values, tenths) => {
    const half = Math.floor((values.length * tenths) / 80);
    if (!half) return values;
    const sums = [0], counts = [0];
    for (const one of values) { sums.push(sums.at(-1) + (one ?? 0)); counts.push(counts.at(-1) + (one === null ? 0 : 1)); }
    return values.map((one, i) => {
      const reach = Math.min(half, i, values.length - 1 - i), from = i - reach, to = i + reach + 1;
      return one === null ? null : (sums[to] - sums[from]) / (counts[to] - counts[from]);
    });
  };

  // The value of a curve at `at`, between its own points; null outside of it.
  const between = (xs, ys, axis) => {
    const out = new Array(axis.length).fill(null);
    let k = 0;
    for (let i = 0; i < axis.length; i += 1) {
      const at = axis[i];
      if (!xs.length || at < xs[0] || at > xs.at(-1)) continue;
      while (k + 1 < xs.length && xs[k + 1] < at) k += 1;
      if (k + 1 >= xs.length || xs[k] === at) out[i] = ys[k];
      else if (xs[k + 1] === at) out[i] = ys[k + 1];
      else out[i] = ys[k] + ((ys[k + 1] - ys[k]) * (at - xs[k])) / (xs[k + 1] - xs[k] || 1);
    }
    return out;
  };

  return { iqm, summary, smooth, between };
})();

lab.curves = (() => {
  const { h, number, statistics } = lab;
  const GRID = 400, EXACT = 1200, LINES = 120, HEIGHT = 230;
  const charts = new Map(); // metric → {element, plot, readout}

  const alpha = (colour, share) => `color-mix(in srgb, ${colour} ${share}%, transparent)`;

  const preferred = () => {
    const { metrics } = lab.known;
    const first = ["return/mean", "eval/score", ...metrics.filter((one) => one.endsWith("/loss") || one === "loss")];
    const found = first.filter((one) => metrics.includes(one));
    return (found.length ? found : metrics).slice(0, 2);
  };

  const shown = () => (lab.view.get("metrics") ? lab.view.list("metrics", "|") : preferred());
  const show = (metrics) => { lab.view.set({ metrics: metrics.join("|") }); lab.draw(); lab.poll(); };

  // The curve of a run on the x that was chosen, rising, without gaps.
  const curve = (one, tenths) => {
    const across = lab.view.get("x") === "step" ? one.points.x : one.seconds;
    const xs = [], ys = [];
    statistics.smooth(one.points.y, tenths).forEach((y, i) => {
      const x = across[i];
      if (x === null || y === null || (xs.length && x <= xs.at(-1))) return;
      xs.push(x);
      ys.push(y);
    });
    return { xs, ys };
  };

  const data = (metric) => {
    const kept = lab.known.curves.get(metric), tenths = Number(lab.view.get("smooth")), log = lab.view.get("y") === "log";
    const groups = lab.table.groups().map((group) => ({ ...group, lines: group.members.filter((row) => !lab.table.isOff(row.id)).map((row) => ({ row, one: kept && kept.of.get(row.id) }))
      .filter(({ one }) => one && one.points.x && one.points.x.length).map(({ row, one }) => ({ row, one, ...curve(one, tenths) })).filter(({ xs }) => xs.length) })).filter(({ lines }) => lines.length);
    const all = groups.flatMap(({ lines }) => lines);
    if (!all.length) return null;
    const exact = new Set();
    for (const { xs } of all) { for (const x of xs) exact.add(x); if (exact.size > EXACT) break; }
    let axis = [...exact].sort((a, b) => a - b);
    if (exact.size > EXACT) {
      const [from, to] = [Math.min(...all.map(({ xs }) => xs[0])), Math.max(...all.map(({ xs }) => xs.at(-1)))];
      axis = Array.from({ length: GRID }, (_, i) => from + ((to - from) * i) / (GRID - 1));
    }
    const positive = (values) => (log ? values.map((one) => (one > 0 ? one : null)) : values);
    const columns = [axis], series = [{}], bands = [], kind = lab.view.get("band"), few = all.length === 1;
    const legend = [];
    for (const { name, lines, colour } of groups) {
      const ink = lab.colour(colour), dash = colour >= lab.colours ? [6, 4] : undefined;
      const rows = lines.map(({ xs, ys }) => statistics.between(xs, ys, axis));
      const several = lines.length > 1;
      if (several) {
        const { middle, low, high } = statistics.summary(rows, kind);
        if (kind !== "none") {
          columns.push(positive(low), positive(high));
          series.push({ width: 0, points: { show: false }, said: null }, { width: 0, points: { show: false }, said: null });
          bands.push({ series: [series.length - 1, series.length - 2], fill: alpha(ink, 18) });
        }
        columns.push(positive(middle));
        series.push({ stroke: ink, width: 2, dash, spanGaps: true, points: { show: false }, said: name });
        legend.push({ name: `${name}: IQM of ${lines.length} runs`, colour, value: middle.findLast((one) => one !== null) });
      } else {
        const { low, high } = lines[0].one.points;
        if (few && low && !tenths && lab.view.get("x") === "step") {
          columns.push(positive(statistics.between(lines[0].one.points.x, low, axis)), positive(statistics.between(lines[0].one.points.x, high, axis)));
          series.push({ width: 0, points: { show: false }, said: null }, { width: 0, points: { show: false }, said: null });
          bands.push({ series: [series.length - 1, series.length - 2], fill: alpha(ink, 30) });
        }
        legend.push({ name, colour, value: lines[0].ys.at(-1) });
      }
      if (!several || all.length <= LINES) {
        lines.forEach(({ xs, row }, i) => {
          columns.push(positive(rows[i]));
          series.push({ stroke: several ? alpha(ink, 35) : ink, width: several ? 0.75 : 1.75, dash, spanGaps: true, points: { show: xs.length < 30 && !several, size: 5, stroke: ink }, said: several ? null : name, run: row.id });
        });
      }
    }
    return { columns, series, bands, legend };
  };

  const readout = (element, plot, found) => {
    const { idx } = plot.cursor;
    if (idx === null || idx === undefined) { element.textContent = ""; return; }
    const said = found.series.map((one, i) => (one.said && found.columns[i][idx] !== null ? `${one.said} ${number(found.columns[i][idx])}` : null)).filter((one) => one);
    const x = found.columns[0][idx], where = lab.view.get("x") === "step" ? `step ${lab.count(x)}` : lab.seconds(x);
    element.textContent = `${where} · ${said.slice(0, 4).join(" · ")}${said.length > 4 ? ` · +${said.length - 4}` : ""}`;
  };

  const options = (found, width, element) => {
    const ink = lab.style("--soft"), grid = { stroke: lab.style("--line"), width: 1 }, font = "11px system-ui, sans-serif";
    const axis = { stroke: ink, grid, ticks: grid, font };
    const seconds = lab.view.get("x") !== "step";
    return {
      width, height: HEIGHT, legend: { show: false }, padding: [8, 18, 0, 0],
      scales: { x: { time: false }, y: { distr: lab.view.get("y") === "log" ? 3 : 1 } },
      axes: [{ ...axis, size: 30, space: 70, values: (_, all) => all.map((one) => (seconds ? lab.seconds(one) : lab.number(one))) }, { ...axis, size: 52, values: (_, all) => all.map((one) => (one === null ? "" : lab.number(one))) }],
      series: found.series.map(({ said, run, ...one }) => one), bands: found.bands,
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      hooks: { setCursor: [(plot) => readout(element, plot, found)] },
    };
  };

  const make = (metric) => {
    const said = h("p", { class: "readout soft", "aria-live": "polite" }), place = h("div", { class: "plot" });
    const away = h("button", { type: "button", class: "icon", "aria-label": `remove the chart of ${metric}`, onclick: () => show(shown().filter((one) => one !== metric)) }, "×");
    const element = h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, metric), away), place, said);
    const chart = { metric, element, place, said, plot: null, shape: "" };
    place.tabIndex = 0;
    place.setAttribute("role", "img");
    place.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !chart.plot) return;
      const { plot } = chart, last = plot.data[0].length - 1, now = plot.cursor.idx ?? (step > 0 ? -1 : last + 1);
      const next = Math.min(Math.max(now + step * Math.max(1, Math.round(last / 60)), 0), last);
      plot.setCursor({ left: plot.valToPos(plot.data[0][next], "x"), top: 10 });
      event.preventDefault();
    });
    return chart;
  };

  const drawOne = (chart) => {
    const found = data(chart.metric), width = Math.max(240, Math.floor(chart.element.clientWidth - 2));
    if (!found) {
      if (chart.plot) chart.plot.destroy();
      Object.assign(chart, { plot: null, shape: "" });
      lab.fill(chart.place, h("p", { class: "soft empty" }, lab.known.curves.has(chart.metric) ? "no value yet" : "reading …"));
      chart.place.setAttribute("aria-label", `${chart.metric}: nothing to draw`);
      return [];
    }
    const shape = JSON.stringify([found.series, found.bands, lab.view.get("y"), lab.view.get("x")]);
    if (chart.plot && chart.shape === shape) {
      const { plot } = chart, zoomed = plot.scales.x.min > plot.data[0][0] || plot.scales.x.max < plot.data[0].at(-1);
      chart.found = Object.assign(chart.found, found);
      plot.setData(found.columns, !zoomed);
      if (zoomed) plot.redraw();
      if (plot.width !== width) plot.setSize({ width, height: HEIGHT });
    } else {
      if (chart.plot) chart.plot.destroy();
      lab.fill(chart.place);
      chart.found = { ...found };
      chart.plot = new uPlot(options(chart.found, width, chart.said), found.columns, chart.place);
      chart.shape = shape;
    }
    const said = found.legend.slice(0, 12).map(({ name, value }) => `${name} ${number(value)}`).join("; ");
    chart.place.setAttribute("aria-label", `${chart.metric} over ${lab.view.get("x") === "step" ? "steps" : "seconds"}, at the end: ${said}. Left and right read values.`);
    return found.legend;
  };

  const draw = () => {
    const metrics = shown(), place = lab.at("charts");
    for (const metric of charts.keys()) if (!metrics.includes(metric)) { const { plot } = charts.get(metric); if (plot) plot.destroy(); charts.delete(metric); }
    for (const metric of metrics) if (!charts.has(metric)) charts.set(metric, make(metric));
    const wanted = metrics.map((metric) => charts.get(metric).element);
    if (wanted.length !== place.children.length || wanted.some((one, i) => one !== place.children[i])) lab.fill(place, wanted);
    const legends = metrics.map((metric) => drawOne(charts.get(metric)));
    const longest = legends.reduce((one, other) => (other.length > one.length ? other : one), []);
    const entries = longest.slice(0, 16).map(({ name, colour }) => h("li", {}, h("span", { class: `swatch k${colour % lab.colours}` }), name));
    lab.fill(lab.at("legend"), entries, longest.length > 16 ? h("li", { class: "soft" }, `+${longest.length - 16} more`) : null);
    const rest = lab.known.metrics.filter((one) => !metrics.includes(one));
    const menu = lab.at("metric");
    if (document.activeElement !== menu) lab.choose(menu, [["", "a metric …"], ...rest.map((one) => [one, one])], "", (value) => value && show([...metrics, value]));
  };

  const settle = () => {
    const redraw = (key) => (value) => { lab.view.set({ [key]: value }); draw(); };
    lab.choose(lab.at("across"), [["step", "steps"], ["seconds", "seconds"]], lab.view.get("x"), redraw("x"));
    lab.choose(lab.at("up"), [["linear", "linear"], ["log", "log"]], lab.view.get("y"), redraw("y"));
    lab.choose(lab.at("band"), [["interval", "95 % bootstrap"], ["range", "lowest to highest"], ["none", "none"]], lab.view.get("band"), redraw("band"));
    const slider = lab.at("smooth");
    slider.value = lab.view.get("smooth");
    slider.oninput = () => redraw("smooth")(slider.value);
  };

  const start = () => { settle(); new ResizeObserver(() => draw()).observe(lab.at("charts")); };

  const restyle = () => { for (const chart of charts.values()) chart.shape = ""; draw(); };

  return { start, settle, draw, shown, restyle };
})();
