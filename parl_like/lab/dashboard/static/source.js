// Where the page has its numbers from: the server, or, of an exported page, the page itself. And the view, which is kept in the address.
"use strict";

lab.exported = (() => {
  const inside = document.getElementById("data");
  return inside ? JSON.parse(inside.textContent) : null;
})();

lab.ask = async (path) => {
  const answer = await fetch(path, { credentials: "same-origin", cache: "no-store" });
  if (!answer.ok) throw Object.assign(new Error((await answer.text()).trim()), { status: answer.status });
  return answer.json();
};

const START = { sort: "started", down: "1", filter: "", group: "setting", metrics: "", x: "step", y: "linear", smooth: "0", band: "interval", off: "", run: "", tab: "robot", theme: "" };

lab.view = (() => {
  const view = { ...START };
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const key of Object.keys(START)) view[key] = given.has(key) ? given.get(key) : START[key];
  };
  read();
  return {
    get: (key) => view[key],
    list: (key, separator = ",") => view[key].split(separator).filter((one) => one),
    read,
    set(changes) {
      Object.assign(view, changes);
      const kept = new URLSearchParams();
      for (const [key, value] of Object.entries(view)) if (value !== START[key]) kept.set(key, value);
      history.replaceState(null, "", `${location.pathname}${kept.size ? `#${kept}` : ""}`);
    },
  };
})();

// Runs by id, and curves by metric and id, as they were last heard of.
lab.known = { ids: [], runs: new Map(), metrics: [], notes: [], curves: new Map(), now: 0 };

lab.hear = {
  async runs() {
    const { known } = lab;
    const answer = lab.exported ? lab.exported.runs : await lab.ask(`/api/runs?since=${known.now}`);
    for (const row of answer.runs) known.runs.set(row.id, row);
    for (const id of known.runs.keys()) if (!answer.ids.includes(id)) known.runs.delete(id);
    known.ids = answer.ids;
    Object.assign(known, { now: answer.now, metrics: answer.metrics, notes: answer.notes });
    return { changed: answer.runs.length > 0, more: answer.more };
  },

  // The curves of one metric; those of runs that are asked for the first time come whole.
  async curves(metric, ids) {
    const { curves } = lab.known;
    if (!curves.has(metric)) curves.set(metric, { now: 0, of: new Map(), asked: new Set() });
    const kept = curves.get(metric);
    if (lab.exported) {
      if (kept.now) return { changed: false, more: false };
      for (const one of lab.exported.curves) if (one.metric === metric) kept.of.set(one.run, one);
      kept.now = 1;
      return { changed: true, more: false };
    }
    if (ids.some((id) => !kept.asked.has(id))) kept.now = 0;
    kept.asked = new Set(ids);
    for (const id of kept.of.keys()) if (!lab.known.runs.has(id)) kept.of.delete(id);
    const query = new URLSearchParams({ since: kept.now, runs: ids.join(",") });
    query.append("metric", metric);
    const answer = await lab.ask(`/api/curves?${query}`);
    for (const one of answer.curves) kept.of.set(one.run, one);
    kept.now = answer.now; // what an answer had no time or room for changes later, or comes since then
    return { changed: answer.curves.length > 0, more: answer.more };
  },

  async run(id) {
    return lab.exported ? lab.exported.details[id] : lab.ask(`/api/run/${id}`);
  },

  async differences(ids) {
    return lab.exported ? lab.exported.differences : lab.ask(`/api/differences?runs=${ids.join(",")}`);
  },

  picture(id, file) {
    return lab.exported ? file.data : `/picture/${id}/${file.id}`;
  },
};
