// The table of runs: sorted, filtered, in groups; and which of them are drawn.
"use strict";

lab.table = (() => {
  const { h, number } = lab;
  const text = (value) => value || "–";
  const COLUMNS = [
    ["name", "run", text], ["state", "state", text], ["experiment", "experiment", text, "wide"], ["setting", "setting", text, "wide"],
    ["seed", "seed", text, "number wide"], ["steps", "steps", lab.count, "number"], ["score", "score", number, "number"], ["best", "best", number, "number wide"],
    ["return", "return", number, "number"], ["speed", "steps/s", number, "number wide"], ["seconds", "time", lab.seconds, "number wide"],
    ["started", "started", (value) => text(value).slice(0, 16).replace("T", " "), "wide"],
  ];
  const GROUPS = [["setting", "by setting"], ["experiment", "by experiment"], ["state", "by state"], ["none", "no groups"]];

  const groupOf = (row) => {
    const kind = lab.view.get("group");
    if (kind === "none") return row.name;
    if (kind === "setting") return [row.experiment, row.setting].filter((one) => one).join(" ") || "?";
    return row[kind] || "?";
  };

  const rows = () => {
    const words = lab.view.get("filter").toLowerCase().split(/\s+/).filter((one) => one);
    const all = lab.known.ids.map((id) => lab.known.runs.get(id)).filter((row) => row);
    const found = all.filter((row) => words.every((word) => `${row.name} ${row.experiment} ${row.setting} ${row.state} seed=${row.seed}`.toLowerCase().includes(word)));
    const key = lab.view.get("sort"), sign = lab.view.get("down") ? -1 : 1;
    const value = (row) => (row[key] === null || row[key] === "" ? null : key === "seed" && !Number.isNaN(Number(row[key])) ? Number(row[key]) : row[key]);
    return found.sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      if (one === null || other === null) return (one === null) - (other === null);
      return (typeof one === "string" && typeof other === "string" ? one.localeCompare(other, "en", { numeric: true }) : one < other ? -1 : one > other ? 1 : 0) * sign;
    });
  };

  // Groups in the order of their names, so that a group keeps its colour while runs come and go.
  const groups = () => {
    const found = new Map();
    for (const row of rows()) {
      const name = groupOf(row);
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(row);
    }
    const colours = [...found.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    return [...found].map(([name, members]) => ({ name, members, colour: colours.indexOf(name) }));
  };

  const isOff = (id) => lab.view.list("off").includes(id);

  const turn = (ids, on) => {
    const off = new Set(lab.view.list("off"));
    for (const id of ids) on ? off.delete(id) : off.add(id);
    lab.view.set({ off: [...off].join(",") });
    lab.draw();
  };

  const head = () => {
    const sorted = lab.view.get("sort"), down = lab.view.get("down");
    const cells = COLUMNS.map(([key, name, , kind]) => {
      const direction = key !== sorted ? "none" : down ? "descending" : "ascending";
      const sort = () => {
        lab.view.set({ sort: key, down: key === sorted ? (down ? "" : "1") : ["name", "experiment", "setting", "state", "seed"].includes(key) ? "" : "1" });
        lab.draw();
        lab.at("table").querySelector(`[data-sort="${key}"]`).focus();
      };
      const arrow = key !== sorted ? "" : down ? " ↓" : " ↑";
      return h("th", { scope: "col", class: kind, "aria-sort": direction }, h("button", { type: "button", "data-sort": key, onclick: sort }, name + arrow));
    });
    return h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "hidden" }, "drawn")), cells));
  };

  const box = (ids, label, colour) => {
    const on = ids.filter((id) => !isOff(id)).length;
    const one = h("input", { type: "checkbox", "aria-label": label, class: colour === null ? "" : `k${colour % lab.colours}`, "data-ids": ids.join(" "), onchange: (event) => turn(ids, event.target.checked) });
    one.checked = on > 0;
    one.indeterminate = on > 0 && on < ids.length;
    return one;
  };

  const line = (row, colour) => {
    const cells = COLUMNS.map(([key, , shown, kind]) => {
      const value = shown(row[key]);
      if (key === "name") return h("th", { scope: "row" }, h("button", { type: "button", class: "run", "data-run": row.id, title: row.name, "aria-pressed": String(row.id === lab.view.get("run")), onclick: () => lab.focus(row.id) }, value));
      if (key === "state") return h("td", { class: `state ${/^[a-z]+$/.test(row.state) ? row.state : ""}`, title: row.note || null }, value);
      if (key === "steps" && row.total) return h("td", { class: kind, title: `of ${lab.count(row.total)}` }, value);
      return h("td", { class: kind, title: key === "setting" ? value : null }, value);
    });
    return h("tr", { class: row.id === lab.view.get("run") ? "focus" : null }, h("td", {}, box([row.id], `draw ${row.name}`, colour)), cells);
  };

  const middle = (values) => (values.length ? lab.statistics.iqm(values) : null);

  const draw = () => {
    const active = document.activeElement, held = active && (active.dataset.run || active.dataset.ids);
    const found = groups(), plain = lab.view.get("group") === "none";
    const body = found.flatMap(({ name, members, colour }) => {
      const lines = members.map((row) => line(row, colour));
      if (plain || (found.length === members.length && found.length === 1)) return lines;
      const scores = members.map((row) => row.score).filter((one) => typeof one === "number");
      const said = `${members.length} run${members.length === 1 ? "" : "s"}${scores.length > 1 ? `, score ${number(middle(scores))} (IQM)` : ""}`;
      return [h("tr", { class: "group" }, h("td", {}, box(members.map((row) => row.id), `draw ${name}`, colour)), h("th", { scope: "rowgroup", colspan: COLUMNS.length }, h("span", {}, name), h("span", { class: "soft" }, said))), ...lines];
    });
    const empty = lab.known.ids.length ? "no run matches the filter" : "no runs yet: `parl-like train ppo-cartpole` makes one";
    lab.fill(lab.at("table"), body.length ? h("table", {}, head(), h("tbody", {}, body)) : h("p", { class: "soft" }, empty));
    if (held) {
      const again = [...lab.at("table").querySelectorAll("[data-run], [data-ids]")].find((one) => one.tagName === active.tagName && (one.dataset.run || one.dataset.ids) === held);
      if (again) again.focus({ preventScroll: true });
    }
    lab.fill(lab.at("notes"), lab.known.notes.map((note) => h("li", {}, note)));
  };

  const settle = () => {
    const filter = lab.at("filter");
    filter.value = lab.view.get("filter");
    filter.oninput = () => { lab.view.set({ filter: filter.value }); lab.draw(); };
    lab.choose(lab.at("group"), GROUPS, lab.view.get("group"), (value) => { lab.view.set({ group: value }); lab.draw(); });
  };

  const start = () => {
    settle();
    // Up and down go from row to row.
    lab.at("table").addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], here = document.activeElement;
      if (!step || !here.closest("tbody")) return;
      const alike = [...lab.at("table").querySelectorAll(here.dataset.run ? "[data-run]" : "tbody input")];
      const next = alike[alike.indexOf(here) + step];
      if (next) { next.focus(); event.preventDefault(); }
    });
  };

  return { start, settle, draw, groups, rows, isOff, drawn: () => rows().filter((row) => !isOff(row.id)).map((row) => row.id) };
})();
