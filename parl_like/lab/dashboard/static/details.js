// One run: its robot, events, settings, pictures; and how the drawn runs differ.
"use strict";

lab.details = (() => {
  const { h } = lab;
  const TABS = [["robot", "Robot"], ["events", "Events"], ["settings", "Settings"], ["differences", "Differences"], ["pictures", "Pictures"]];
  let now = null, differences = null, sought = "", quiet = true, shown = "";

  const table = (head, rows, kind = "") => h("div", { class: "scroll" }, h("table", { class: kind }, h("thead", {}, h("tr", {}, head.map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, rows.map(([name, ...values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((one) => h("td", {}, one === null ? "–" : one)))))));

  const bad = (event) => /fail|error|died|rolled back/.test(event) ? "bad" : /warn|replaced|stopped/.test(event) ? "warned" : "";

  const events = () => {
    const all = now.events.filter((one) => !quiet || one.event !== "checkpoint");
    const less = h("input", { type: "checkbox", onchange: (event) => { quiet = !event.target.checked; draw(); } });
    less.checked = !quiet;
    const notes = now.notes.map((note) => h("li", { class: "warned" }, note));
    const lines = all.map((one) => h("li", { class: bad(one.event) }, h("time", { datetime: one.time }, one.time.slice(11, 19)), h("strong", {}, one.event), h("span", {}, one.text)));
    return [h("div", { class: "bar" }, h("label", {}, less, " checkpoints, too")), notes.length ? h("ul", { class: "events" }, notes) : null, lines.length ? h("ol", { class: "events scroll" }, lines) : h("p", { class: "soft" }, "nothing has happened yet")];
  };

  const settings = () => {
    const field = h("input", { type: "search", placeholder: "filter settings", "aria-label": "filter settings", id: "sought" });
    field.value = sought;
    field.oninput = () => { sought = field.value; draw(); const again = lab.at("sought"); again.focus(); again.setSelectionRange(sought.length, sought.length); };
    const all = [...Object.entries(now.versions).map(([key, value]) => [`made with ${key}`, String(value)]), ...Object.entries(now.settings)];
    const rows = all.filter(([key, value]) => `${key}=${value}`.toLowerCase().includes(sought.toLowerCase()));
    return [h("div", { class: "bar" }, field, h("span", { class: "soft" }, `${rows.length} of ${all.length}`)), table(["setting", "value"], rows, "settings")];
  };

  const pictures = () => (now.files.length ? h("div", { class: "pictures" }, now.files.map((file) => {
    const source = lab.hear.picture(lab.view.get("run"), file);
    const seen = file.kind.startsWith("video/") ? h("video", { src: source, controls: true, loop: true, muted: true }) : h("img", { src: source, alt: file.name, loading: "lazy" });
    return h("figure", {}, seen, h("figcaption", {}, file.name, " ", h("span", { class: "soft" }, lab.bytes(file.size))));
  })) : h("p", { class: "soft" }, "no pictures yet: `parl-like play RUN` films an episode, of planning robots also every plan"));

  const compared = () => lab.table.drawn().slice(0, 8);

  const differing = () => {
    if (!differences) return h("p", { class: "soft" }, "reading …");
    const names = differences.runs.map((id) => (lab.known.runs.get(id) || {}).name || id);
    if (names.length < 2) return h("p", { class: "soft" }, "draw two runs or more to see how they differ");
    return [h("p", { class: "soft" }, `the first ${names.length} of the drawn runs, in the order of the table`), differences.rows.length ? table(["what", ...names], differences.rows.map((one) => [one.what, ...one.values])) : h("p", {}, "settings, versions, code, data and results are the same")];
  };

  const panel = { robot: () => h("div", { id: "robot" }), events, settings, differences: differing, pictures };

  const draw = () => {
    const tab = lab.view.get("tab"), row = lab.known.runs.get(lab.view.get("run"));
    lab.at("focus-title").textContent = row ? row.name : "Run";
    const tabs = lab.at("tabs");
    if (!tabs.children.length) {
      lab.fill(tabs, TABS.map(([key, name]) => h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", onclick: () => choose(key) }, name)));
      tabs.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = (TABS.findIndex(([key]) => key === lab.view.get("tab")) + step + TABS.length) % TABS.length;
        choose(TABS[next][0]);
        tabs.children[next].focus();
      });
    }
    TABS.forEach(([key], i) => { tabs.children[i].setAttribute("aria-selected", String(key === tab)); tabs.children[i].tabIndex = key === tab ? 0 : -1; });
    const place = lab.at("panel");
    place.setAttribute("aria-labelledby", `tab-${tab}`);
    if (!now && tab !== "differences") { lab.fill(place, h("p", { class: "soft" }, row ? "reading …" : "choose a run in the table")); shown = ""; return; }
    if (tab === "robot") {
      if (!lab.at("robot")) lab.fill(place, panel.robot());
      lab.robot.draw(lab.at("robot"), now.robot && { ...now.robot, running: !lab.exported && (row || {}).state === "running" });
      shown = "robot";
      return;
    }
    // What is as it was is left alone: a reader's place, a selection, a film that runs.
    const content = JSON.stringify([tab, quiet, sought, tab === "differences" ? differences : tab === "events" ? [now.events, now.notes] : tab === "pictures" ? now.files : [now.settings, now.versions]]);
    if (content !== shown) { shown = content; lab.fill(place, [panel[tab]()].flat()); }
  };

  const choose = (tab) => { lab.view.set({ tab }); draw(); hear(); };

  const hear = async () => {
    const id = lab.view.get("run"), tab = lab.view.get("tab");
    if (tab === "differences") {
      const found = await lab.hear.differences(compared());
      if (tab === lab.view.get("tab")) { differences = found; draw(); }
    }
    if (!id) return;
    try {
      const found = await lab.hear.run(id);
      if (id === lab.view.get("run")) { now = found; draw(); }
    } catch (error) {
      if (error.status !== 404) throw error;
      if (id === lab.view.get("run")) { now = { robot: {}, events: [], notes: ["the run was deleted"], settings: {}, versions: {}, files: [] }; draw(); }
    }
  };

  const focus = () => { now = null; shown = ""; draw(); return hear(); };
  const start = () => new ResizeObserver(() => { if (lab.view.get("tab") === "robot" && now) draw(); }).observe(lab.at("panel"));

  return { start, draw, hear, focus };
})();
