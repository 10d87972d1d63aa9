// The robot as a picture: agents, their requests in the two queues of each task, and what the tasks have learned.
"use strict";

lab.robot = (() => {
  const { h, number, count, rate } = lab;
  const WIDE = 640, LANE = 158, QUEUE = 64, GAP = 10;
  let drawn = { shape: "", svg: null, moves: [] };

  // A picture in the making: `text` remembers what each number is made of, so that a new robot only moves the numbers.
  const picture = () => {
    const moves = [], nodes = [];
    const add = (node) => { nodes.push(node); return node; };
    return {
      moves, nodes,
      box: (x, y, width, height, kind) => add(h("svg:rect", { x, y, width, height, rx: 8, class: kind })),
      text: (x, y, of, kind = "", anchor = "start") => {
        const node = add(h("svg:text", { x, y, class: kind, "text-anchor": anchor }));
        moves.push((robot) => {
          const text = of(robot);
          if (node.textContent === text) return;
          if (node.textContent) { node.classList.remove("moved"); void node.getBoundingClientRect(); node.classList.add("moved"); }
          node.textContent = text;
        });
      },
      bar: (x, y, width, of, kind) => {
        add(h("svg:rect", { x, y, width, height: 6, rx: 3, class: "track" }));
        const node = add(h("svg:rect", { x, y, width: 0, height: 6, rx: 3, class: kind }));
        moves.push((robot) => { const share = Math.min(Math.max(of(robot) || 0, 0), 1); node.setAttribute("width", share ? Math.max(3, share * width) : 0); });
      },
      way: (d, of) => {
        const node = add(h("svg:path", { d, class: "way" }));
        moves.push((robot) => node.classList.toggle("flows", of(robot) > 0));
      },
      add,
    };
  };

  const cut = (text, room) => { const most = Math.max(4, Math.floor(room / 6.6)); return text.length > most ? `${text.slice(0, most - 1)}…` : text; };
  const task = (robot, i) => robot.tasks[i] || { predict: {}, learn: {} };

  const queue = (p, x, y, width, i, kind) => {
    const q = (robot) => task(robot, i)[kind] || {};
    const most = (robot) => q(robot).max_rows || (kind === "predict" ? robot.n_envs : null);
    const wrong = (robot) => ["errors", "late", "dropped", "skipped"].filter((one) => q(robot)[one] > 0).map((one) => `${count(q(robot)[one])} ${one}`).join(", ");
    p.box(x, y, width, QUEUE, "queue");
    p.text(x + 10, y + 18, () => (kind === "predict" ? "predictions" : "training"), "name");
    p.text(x + width - 10, y + 18, (robot) => `${rate(q(robot).rows_per_s).replace("/s", "")} rows/s`, "value", "end");
    p.bar(x + 10, y + 26, width - 20, (robot) => q(robot).batch / (most(robot) || q(robot).batch), "fill");
    p.text(x + 10, y + 50, (robot) => `batch ${number(q(robot).batch)}${most(robot) ? ` of ${count(most(robot))}` : ""}`, "small");
    p.text(x + width / 2 + 8, y + 50, (robot) => `depth ${count(q(robot).queue_depth)}`, "small", "middle");
    p.text(x + width - 10, y + 50, (robot) => wrong(robot) || `waits ${lab.seconds(q(robot).wait_p50_s)}`, "small", "end");
    p.moves.push((robot) => p.nodes.filter((node) => node.dataset.wrong === `${i}${kind}`).forEach((node) => node.classList.toggle("wrong", Boolean(wrong(robot)))));
    p.nodes.at(-1).dataset.wrong = `${i}${kind}`;
  };

  const taskBox = (p, x, y, width, i) => {
    const t = (robot) => task(robot, i);
    p.box(x, y, width, 2 * QUEUE + GAP, "task");
    p.text(x + 12, y + 22, (robot) => cut(`task ${t(robot).name}`, width - 20), "title");
    p.text(x + 12, y + 40, (robot) => cut([t(robot).algorithm, t(robot).model, t(robot).device].filter((one) => one).join(" · ") || "–", width - 20), "small");
    p.text(x + 12, y + 62, (robot) => `version ${count(t(robot).version ?? t(robot).updates)}`, "value");
    p.text(x + width - 12, y + 62, (robot) => `${rate(t(robot).updates_per_s).replace("/s", "")} updates/s`, "small", "end");
    p.text(x + 12, y + 82, (robot) => `learned ${number(t(robot).rows)} rows`, "small");
    p.text(x + width - 12, y + 82, (robot) => `${rate(t(robot).rows_per_s).replace("/s", "")} rows/s`, "small", "end");
    p.text(x + 12, y + 102, (robot) => (t(robot).loss === null || t(robot).loss === undefined ? "no loss yet" : `loss ${number(t(robot).loss)}`), "small");
    p.text(x + width - 12, y + 102, (robot) => cut(t(robot).helper || "", width / 2), "small", "end");
    const share = (robot) => (t(robot).buffer ? t(robot).buffer.rows / t(robot).buffer.capacity : 0);
    p.bar(x + 12, y + 110, width - 24, share, "stored");
    p.text(x + 12, y + 128, (robot) => (t(robot).buffer ? `buffer ${number(t(robot).buffer.rows)} of ${number(t(robot).buffer.capacity)} rows` : "no rows stored here"), "small");
  };

  const agents = (p, x, y, width, height, robot) => {
    p.box(x, y, width, height, "agents");
    p.text(x + 12, y + 22, (now) => (now.n_agents ? `${count(now.n_agents)} agent${now.n_agents === 1 ? "" : "s"}` : "agents"), "title");
    const wide = width > 300, envs = (now) => (now.n_envs ? `${count(now.n_envs)} environment${now.n_envs === 1 ? "" : "s"}` : "not described");
    const how = (now) => [now.driver, now.mode].filter((one) => one).join(" · ");
    p.text(x + 12, y + 40, (now) => cut(wide && how(now) ? `${envs(now)} · ${how(now)}` : envs(now), width - 20), "small");
    if (!wide) p.text(x + 12, y + 57, (now) => cut(how(now), width - 20), "small");
    const top = wide ? y + 62 : y + 78;
    p.text(x + 12, top, (now) => `${rate(now.steps_per_s).replace("/s", "")} steps/s`, "value");
    p.text(wide ? x + width / 2 : x + 12, wide ? top : top + 18, (now) => `step ${count(now.step)}`, "small");
    p.text(wide ? x + width - 12 : x + 12, wide ? top : top + 35, (now) => `return ${number(now.return)}`, "small", wide ? "end" : "start");
    let down = wide ? top + 14 : top + 44;
    const workers = robot.workers.length;
    for (let i = 0; i < workers && down + 30 < y + height; i += 1, down += 33) {
      p.box(x + 8, down, width - 16, 28, "worker");
      const light = p.add(h("svg:circle", { cx: x + 20, cy: down + 14, r: 4 }));
      p.moves.push((now) => light.setAttribute("class", `light ${/^[a-z]+$/.test((now.workers[i] || {}).status) ? now.workers[i].status : ""}`));
      p.text(x + 30, down + 18, (now) => `worker ${(now.workers[i] || {}).worker ?? i} ${(now.workers[i] || {}).status || ""}`, "small");
      p.text(x + width - 14, down + 18, (now) => { const again = (now.workers[i] || {}).restarts || 0; return again ? `↻ ${count(again)}` : wide ? `${((now.workers[i] || {}).agents || []).length} agents` : ""; }, "small", "end");
    }
    if (workers) return;
    const many = Math.min(robot.agents.length, 64), across = Math.max(1, Math.floor((width - 20) / 15));
    for (let i = 0; i < many; i += 1) {
      const [cx, cy] = [x + 17 + (i % across) * 15, down + 6 + Math.floor(i / across) * 15];
      if (cy + 6 < y + height) p.add(h("svg:circle", { cx, cy, r: 4.5, class: "agent" })).append(h("svg:title", {}, `${robot.agents[i].name || ""}: ${count(robot.agents[i].steps)} steps`));
    }
  };

  const build = (robot, width) => {
    const p = picture(), n = robot.tasks.length, wide = width >= WIDE;
    const flow = (i, kind) => (now) => (now.running && (task(now, i)[kind] || {}).rows_per_s) || 0;
    const rows = robot.workers.length ? robot.workers.length * 33 : 15 * Math.ceil(Math.min(robot.agents.length, 64) / (wide ? 10 : 20));
    let height;
    if (wide) {
      const [left, right] = [172, Math.min(270, Math.round(width * 0.31))], gap = 40;
      const [qx, qw, tx] = [left + gap, width - left - right - 2 * gap - 2, width - right - 1];
      height = Math.max(n * LANE - 20, Math.min(136 + rows, 640), 2 * QUEUE + GAP) + 2;
      agents(p, 1, 1, left, height - 2, robot);
      for (let i = 0; i < n; i += 1) {
        const y = 1 + i * LANE;
        for (const [kind, top] of [["predict", y], ["learn", y + QUEUE + GAP]]) {
          p.way(`M${left + 1} ${top + 32}H${qx - 1}`, flow(i, kind));
          p.way(`M${qx + qw + 1} ${top + 32}H${tx - 1}`, flow(i, kind));
          queue(p, qx, top, qw, i, kind);
        }
        taskBox(p, tx, y, right, i);
      }
    } else {
      const w = width - 2, top = 84 + Math.min(rows, 300);
      agents(p, 1, 1, w, top, robot);
      height = top + 1;
      for (let i = 0; i < n; i += 1) {
        for (const kind of ["predict", "learn"]) {
          p.way(`M${w / 2} ${height}V${height + 16}`, flow(i, kind));
          queue(p, 1, height + 16, w, i, kind);
          height += 16 + QUEUE;
        }
        p.way(`M${w / 2} ${height}V${height + 16}`, flow(i, "learn"));
        taskBox(p, 1, height + 16, w, i);
        height += 16 + 2 * QUEUE + GAP + 14;
      }
    }
    const svg = h("svg:svg", { class: "robot", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" }, p.nodes);
    return { svg, moves: p.moves };
  };

  const inWords = (robot) => [
    `${count(robot.n_agents)} agents at ${rate(robot.steps_per_s)} steps.`,
    ...robot.tasks.map((one) => `Task ${one.name}: version ${count(one.version)}, predictions in batches of ${number(one.predict.batch)}, ${rate(one.predict.rows_per_s)}, training ${rate(one.learn.rows_per_s)} rows.`),
    ...robot.workers.map((one) => `Worker ${one.worker} ${one.status}, ${count(one.restarts)} restarts.`),
  ].join(" ");

  // Puts the picture into `place`; where the robot has the same parts as before, its numbers move.
  const draw = (place, robot) => {
    const width = Math.floor(place.clientWidth);
    if (width < 200) return; // not laid out yet
    if (!robot || !robot.tasks || !robot.tasks.length) {
      drawn = { shape: "", svg: null, moves: [] };
      lab.fill(place, h("p", { class: "soft" }, "the run has not described its robot yet"));
      return;
    }
    const shape = JSON.stringify([width, robot.tasks.map((one) => one.name), robot.workers.length, robot.agents.length]);
    if (shape !== drawn.shape || drawn.svg.parentNode !== place) {
      drawn = { shape, ...build(robot, width) };
      lab.fill(place, drawn.svg);
    }
    drawn.svg.setAttribute("aria-label", inWords(robot));
    for (const move of drawn.moves) move(robot);
  };

  return { draw };
})();
