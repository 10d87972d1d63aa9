// Begins the page, and asks again and again what is new.
"use strict";

(() => {
  const EVERY = 2000, AGAIN = 5000, REDRAW = 300; // ms
  const CURVES = 2000; // as many as the server keeps
  const THEMES = [["", "auto"], ["light", "light"], ["dark", "dark"]];
  let timer = 0, busy = false, asked = false, failed = 0, drawn = 0, took = 0, stale = true;

  const theme = () => {
    const chosen = lab.view.get("theme"), at = Math.max(0, THEMES.findIndex(([key]) => key === chosen));
    document.documentElement.dataset.theme = THEMES[at][0];
    const button = lab.at("theme");
    button.textContent = `theme: ${THEMES[at][1]}`;
    button.onclick = () => { lab.view.set({ theme: THEMES[(at + 1) % THEMES.length][0] }); theme(); lab.curves.restyle(); };
  };

  const say = () => {
    const all = [...lab.known.runs.values()], running = all.filter((row) => row.state === "running").length;
    const text = failed ? "the server does not answer; the last numbers stay" : `${all.length} run${all.length === 1 ? "" : "s"}${lab.exported ? `, as of ${lab.exported.time}` : `, ${running} running`}`;
    const status = lab.at("status");
    if (status.textContent !== text) status.textContent = text;
    status.className = failed ? "gone" : running && !lab.exported ? "live" : "";
  };

  lab.focus = (id) => { lab.view.set({ run: id }); lab.table.draw(); return lab.details.focus(); };

  lab.draw = () => { lab.table.draw(); lab.curves.draw(); lab.details.draw(); say(); };

  lab.poll = async () => {
    if (busy) { asked = true; return; }
    busy = true;
    clearTimeout(timer);
    let more = false;
    try {
      const runs = await lab.hear.runs();
      if (!lab.known.runs.has(lab.view.get("run")) && lab.known.ids.length && !lab.view.get("run")) lab.view.set({ run: (lab.known.ids.map((id) => lab.known.runs.get(id)).find((row) => row && row.state === "running") || { id: lab.known.ids[0] }).id });
      if (runs.changed) lab.table.draw();
      more = runs.more;
      const metrics = lab.curves.shown(), ids = lab.table.drawn().slice(0, Math.floor(CURVES / Math.max(1, metrics.length)));
      stale = runs.changed || stale;
      for (const metric of metrics) {
        const answer = await lab.hear.curves(metric, ids);
        stale = answer.changed || stale;
        more = answer.more || more;
      }
      // All lines are drawn anew for a few points: while more is to come, seldom, and in a fifth of the time.
      const begin = performance.now();
      if (stale && (!more || !lab.begun || begin - drawn > Math.max(REDRAW, 4 * took))) {
        lab.curves.draw();
        [stale, drawn] = [false, performance.now()];
        took = drawn - begin;
      }
      if (!more || !lab.begun) await lab.details.hear();
      failed = 0;
      lab.begun = lab.begun || Math.round(performance.now());
      document.documentElement.dataset.begun = lab.begun;
      document.documentElement.dataset.whole = String(!more);
      if (!more && !lab.whole) { lab.whole = Math.round(performance.now()); document.documentElement.dataset.wholeAt = lab.whole; }
    } catch (error) {
      failed += 1;
      if (error.status === 403) lab.known.notes = [error.message];
      lab.table.draw();
    } finally {
      busy = false;
      say();
    }
    if (lab.exported) return;
    const wait = asked || (more && !failed) ? 0 : failed ? AGAIN : EVERY;
    asked = false;
    if (!document.hidden) timer = setTimeout(lab.poll, wait);
  };

  addEventListener("visibilitychange", () => { if (!document.hidden && !lab.exported) lab.poll(); });
  addEventListener("hashchange", () => { lab.view.read(); theme(); lab.table.settle(); lab.curves.settle(); lab.draw(); lab.details.focus(); lab.poll(); });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { lab.at("filter").focus(); event.preventDefault(); }
  });
  lab.at("skip").addEventListener("click", (event) => { event.preventDefault(); lab.at("curves").focus(); lab.at("curves").scrollIntoView(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => lab.curves.restyle());

  if (location.search) history.replaceState(null, "", location.pathname + location.hash); // the token is used, and not for others
  theme();
  lab.table.start();
  lab.curves.start();
  lab.details.start();
  lab.poll();
})();
