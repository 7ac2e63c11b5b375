"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const TALL = 100; // units of a plot from bottom to top; its width is the episode's steps

  // What can be drawn: a name, where its values are, and whether they belong to a scorer or to the environment.
  const SCORES = [
    { key: "kappa", name: "kappa", about: "the gate", low: 0, high: 1 },
    { key: "positive", name: "r_vlm", about: "positive prompts", style: "positive" },
    { key: "negative", name: "c_vlm", about: "negative prompts", style: "negative" },
    { key: "margin", name: "margin", about: "u+ less u−" },
  ].map((signal) => ({ ...signal, of: (episode) => episode.scores[state.scorer][signal.key], scored: true }));
  const COST = { key: "cost", name: "cost", about: "of the step", style: "costs", low: 0, of: (e) => e.cost };
  const EXTRAS = data.extras.map((key) => ({ key: "env:" + key, name: key.replaceAll("_", " "), about: "environment", of: (e) => e.extras[key] }));
  const SIGNALS = [...SCORES, COST, ...EXTRAS];
  const shown = new Set([...SCORES.map((signal) => signal.key), "cost"]);

  const state = { episode: -1, step: 1, scorer: 0, playing: false };
  const albums = new Map(); // pictures of an episode, parsed when it is first opened
  let drawn = []; // what moves with the cursor: functions of the step
  let cursors = [];

  const make = (tag, attributes = {}, text = null) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    return element;
  };
  const makeSvg = (tag, attributes) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const current = () => data.episodes[state.episode];
  const present = (value) => value !== null && value !== undefined;

  // A number as people write it; `steady` keeps its zeros, so that digits do not dance while a film runs.
  const steady = (value) => {
    if (!present(value)) return "-";
    const size = Math.abs(value);
    const digits = size >= 100 ? 1 : size >= 10 ? 2 : 4;
    const text = size > 0 && size < 0.001 ? value.toExponential(1) : value.toFixed(digits);
    return text.replace("-", "−");
  };
  const figure = (value) => {
    const text = steady(value);
    return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
  };

  // How many of an ascending list's values come before one that fails the test.
  const count = (values, passes) => {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (passes(values[middle])) low = middle + 1; else high = middle;
    }
    return low;
  };
  // Which scored frame is the newest at a step: its place among the scored ones, -1 before the first.
  const newest = (episode, step) => count(episode.scored, (scored) => scored <= step) - 1;
  const valueAt = (signal, step) => {
    const episode = current(), values = signal.of(episode);
    if (!values) return null;
    if (!signal.scored) return values[step - 1];
    const place = newest(episode, step);
    return place < 0 ? null : values[place];
  };

  // The lowest and highest value over all episodes, so that episodes can be compared by eye.
  const span = (lists, low = null, high = null) => {
    let least = Infinity, most = -Infinity;
    for (const list of lists) for (const value of list || []) {
      if (!present(value)) continue;
      if (value < least) least = value;
      if (value > most) most = value;
    }
    if (least > most) return [0, 1];
    least = low ?? least;
    most = high ?? most;
    if (!(most > least)) { const around = Math.abs(least) || 1; return low === null ? [least - around / 2, most + around / 2] : [least, least + 1]; }
    return [least, most];
  };

  // A stepped path: a value holds until the next one.
  const path = (values, at, length, [low, high]) => {
    const parts = [];
    let open = false;
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      if (!present(value)) { open = false; continue; }
      const x = at[i] - 1, end = (i + 1 < at.length ? at[i + 1] : length + 1) - 1;
      const y = (6 + (TALL - 12) * (1 - (value - low) / (high - low))).toFixed(2);
      parts.push(open ? `V${y}H${end}` : `M${x} ${y}H${end}`);
      open = true;
    }
    return parts.join("");
  };

  const plot = (values, at, range, lines = []) => {
    const episode = current();
    const svg = makeSvg("svg", { viewBox: `0 0 ${episode.length} ${TALL}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const [from, to] of episode.contacts)
      svg.append(makeSvg("rect", { class: "touch", x: from - 1, y: 0, width: to - from + 1, height: TALL }));
    for (const level of lines) {
      const y = 6 + (TALL - 12) * (1 - (level - range[0]) / (range[1] - range[0]));
      svg.append(makeSvg("line", { class: "centre", x1: 0, x2: episode.length, y1: y, y2: y }));
    }
    svg.append(makeSvg("path", { class: "line", d: path(values, at, episode.length, range) }));
    return svg;
  };
  const everyStep = (episode) => Array.from({ length: episode.length }, (_, i) => i + 1);

  const addCursor = (box) => {
    const cursor = make("div", { class: "cursor" });
    box.append(cursor);
    cursors.push(cursor);
  };

  const drawCharts = () => {
    const episode = current(), box = byId("charts");
    box.replaceChildren();
    for (const signal of SIGNALS) {
      const values = signal.of(episode);
      if (!shown.has(signal.key) || !values) continue;
      const row = make("div", { class: `row chart ${signal.style || ""}`, "data-signal": signal.key });
      const name = make("span", { class: "name" }, signal.name);
      name.append(make("small", {}, signal.about));
      const area = make("div", { class: "plot" });
      const range = span(data.episodes.map(signal.of), signal.low, signal.high);
      const centre = data.scorers[state.scorer].gate.centre;
      const lines = signal.key === "margin" && present(centre) && centre >= range[0] && centre <= range[1] ? [centre] : [];
      area.append(plot(values, signal.scored ? episode.scored : everyStep(episode), range, lines));
      const scale = make("span", { class: "scale" });
      scale.append(make("span", {}, figure(range[1])), make("span", {}, figure(range[0])));
      addCursor(area);
      const value = make("output", { class: "value" });
      row.append(name, scale, area, value);
      box.append(row);
      scrubs(area);
      const shape = signal.scored ? steady : figure;
      drawn.push((step) => { value.textContent = shape(valueAt(signal, step)); });
    }
  };

  // Where in the file a score is highest, or lowest: moments some steps apart, one after another at each press.
  const APART = 10, STOPS = 20;
  const stops = (of, sign) => {
    const all = data.episodes.flatMap((episode, index) => of(episode).map((value, i) => [index, episode.scored[i], value]));
    const chosen = [];
    for (const one of all.filter((stop) => present(stop[2])).sort((a, b) => sign * (b[2] - a[2]))) {
      if (chosen.length === STOPS) break;
      if (chosen.every(([index, step]) => index !== one[0] || Math.abs(step - one[1]) >= APART)) chosen.push(one);
    }
    return chosen;
  };
  let tour = { of: null, stop: 0 };
  const tours = (name, of, key) => {
    const box = make("span", { class: "tours" });
    for (const [word, label, sign] of [["max", "highest", 1], ["min", "lowest", -1]]) {
      const button = make("button", { type: "button", title: `Go to where this is ${label}, then to the next such moment`, "aria-label": `${label}: ${name}` }, word);
      button.addEventListener("click", () => {
        const found = stops(of, sign), same = tour.of === key + word;
        if (!found.length) return;
        tour = { of: key + word, stop: same ? (tour.stop + 1) % found.length : 0 };
        const [index, step] = found[tour.stop];
        pause();
        if (index === state.episode) goTo(step); else open(index, step);
        say(`${label} ${tour.stop + 1} of ${found.length}, episode ${current().episode}`);
        document.querySelector(`[data-tour="${key + word}"]`).focus(); // it may have been drawn anew
      });
      button.dataset.tour = key + word;
      box.append(button);
    }
    return box;
  };

  const drawPrompts = () => {
    const episode = current(), scorer = data.scorers[state.scorer], box = byId("prompts");
    box.replaceChildren();
    const groups = [["positive", "positive: r_vlm comes from their mean"], ["negative", "negative: c_vlm comes from their mean"], ["", "similarities"]];
    for (const [group, heading] of groups) {
      const members = scorer.prompts.map((prompt, index) => ({ ...prompt, index })).filter((prompt) => prompt.group === group);
      if (!members.length) continue;
      const title = make("h3", {}, heading);
      if (group) title.append(tours(group === "positive" ? "r_vlm" : "c_vlm", (one) => one.scores[state.scorer][group], `${state.scorer}.${group}.`));
      box.append(title);
      for (const prompt of members) {
        const lists = data.episodes.map((one) => one.scores[state.scorer].similarities[prompt.index]);
        const values = episode.scores[state.scorer].similarities[prompt.index];
        const sorted = lists.flat().filter(present).sort((a, b) => a - b);
        const row = make("div", { class: `prompt ${group}` });
        const text = prompt.text ?? `${group || "similarity"} ${prompt.index + 1}, no text`;
        row.append(make("span", { class: "text" }, text));
        const spark = make("div", { class: "plot spark" });
        spark.append(plot(values, episode.scored, span(lists)));
        addCursor(spark);
        const number = make("span", { class: "number" });
        const share = make("span", { class: "share", title: "Share of all frames in this file that score lower" });
        const bar = make("i"), percent = make("span", { class: "percent" }), back = make("span", { class: "bar" });
        back.append(bar);
        share.append(back, percent);
        const own = (one) => one.scores[state.scorer].similarities[prompt.index];
        row.append(spark, number, share, tours(text, own, `${state.scorer}.${prompt.index}.`));
        box.append(row);
        scrubs(spark);
        drawn.push((step) => {
          const place = newest(episode, step), value = place < 0 ? null : values[place];
          number.textContent = steady(value);
          const lower = present(value) ? count(sorted, (other) => other < value) / sorted.length : null;
          bar.style.width = lower === null ? "0" : `${100 * lower}%`;
          percent.textContent = lower === null ? "-" : `${Math.round(100 * lower)} %`;
        });
      }
    }
  };

  const drawTimeline = () => {
    const episode = current(), box = byId("timeline");
    box.setAttribute("aria-valuemax", episode.length);
    box.querySelectorAll(".mark").forEach((mark) => mark.remove());
    for (const [from, to] of episode.contacts) {
      const mark = make("div", { class: "mark" });
      mark.style.left = `${(100 * (from - 1)) / episode.length}%`;
      mark.style.width = `${(100 * (to - from + 1)) / episode.length}%`;
      box.insertBefore(mark, box.querySelector(".thumb"));
    }
  };

  const drawState = () => {
    const box = byId("state"), names = ["step", "frame of step", "cost", "cost so far", ...EXTRAS.map((signal) => signal.name)];
    box.replaceChildren();
    const fields = names.map((name) => {
      const pair = make("div"), value = make("dd");
      pair.append(make("dt", { title: name }, name), value);
      box.append(pair);
      return value;
    });
    const episode = current();
    const sums = [];
    episode.cost.reduce((sum, cost, i) => (sums[i] = sum + (cost || 0)), 0);
    drawn.push((step) => {
      const place = newest(episode, step);
      const values = [`${step} of ${episode.length}`, place < 0 ? "-" : String(episode.scored[place]), figure(episode.cost[step - 1]),
        figure(Number(sums[step - 1].toPrecision(6))), ...EXTRAS.map((signal) => figure(valueAt(signal, step)))];
      fields.forEach((field, i) => { field.textContent = values[i]; });
    });
  };

  const pictures = () => {
    if (!albums.has(state.episode)) albums.set(state.episode, JSON.parse(byId(`frames-${state.episode}`).textContent));
    return albums.get(state.episode);
  };

  const show = () => {
    const episode = current(), step = state.step, place = newest(episode, step), image = byId("frame");
    const source = place < 0 ? null : "data:image/webp;base64," + pictures()[place];
    image.hidden = source === null;
    byId("no-frame").hidden = source !== null;
    if (source !== null && image.dataset.step !== `${state.episode}.${episode.scored[place]}`) {
      image.src = source;
      image.dataset.step = `${state.episode}.${episode.scored[place]}`;
      image.alt = `Frame of step ${episode.scored[place]} of episode ${episode.episode}`;
    }
    const cost = episode.cost[step - 1];
    byId("frame-box").classList.toggle("touching", cost > 0);
    byId("badge").hidden = !(cost > 0);
    byId("badge").textContent = `contact, cost ${figure(cost)}`;
    const left = `${(100 * (step - 0.5)) / episode.length}%`;
    for (const cursor of cursors) cursor.style.left = left;
    byId("timeline").querySelector(".thumb").style.left = left;
    byId("timeline").setAttribute("aria-valuenow", step);
    byId("timeline").setAttribute("aria-valuetext", `step ${step} of ${episode.length}`);
    byId("step").textContent = `${step} / ${episode.length}`;
    for (const move of drawn) move(step);
    remember();
  };

  // The address keeps the moment, so that it can be cited; written after a while, not at every frame of a film.
  let waiting = 0, written = "";
  const remember = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      written = `#${current().episode}.${state.step}`;
      location.replace(written);
    }, 250);
  };
  const recall = () => {
    const [number, step] = location.hash.slice(1).split(".").map(Number);
    const index = data.episodes.findIndex((episode) => episode.episode === number);
    if (index < 0 || (index === state.episode && step === state.step)) return false;
    open(index, step || null);
    return true;
  };

  const goTo = (step) => {
    state.step = Math.min(Math.max(Math.round(step), 1), current().length);
    show();
  };

  const open = (index, step = null) => {
    state.episode = Math.min(Math.max(index, 0), data.episodes.length - 1);
    byId("episode").value = String(state.episode);
    byId("episode-back").disabled = state.episode === 0;
    byId("episode-on").disabled = state.episode === data.episodes.length - 1;
    redraw(step ?? current().scored[0] ?? 1);
  };

  const redraw = (step) => {
    drawn = [];
    cursors = [];
    drawTimeline();
    drawState();
    drawCharts();
    drawPrompts();
    goTo(step);
  };

  const say = (text) => { byId("message").textContent = text; };

  // The first step of the next contact, in this episode or a later one; backwards, of the one before.
  const toContact = (direction) => {
    pause();
    const here = current().contacts.map(([from]) => from);
    const near = direction > 0 ? here.find((from) => from > state.step) : here.findLast((from) => from < state.step);
    if (near !== undefined) { say(""); goTo(near); return; }
    for (let i = state.episode + direction; i >= 0 && i < data.episodes.length; i += direction) {
      const starts = data.episodes[i].contacts.map(([from]) => from);
      if (!starts.length) continue;
      open(i, direction > 0 ? starts[0] : starts.at(-1));
      say(`episode ${current().episode}`);
      return;
    }
    say(direction > 0 ? "no later onset" : "no earlier onset");
  };

  let last = 0, owed = 0;
  const tick = (now) => {
    if (!state.playing) return;
    owed += ((now - last) / 1000) * Number(byId("speed").value);
    last = now;
    const whole = Math.floor(owed);
    if (whole > 0) {
      owed -= whole;
      goTo(state.step + whole);
      if (state.step === current().length) { pause(); return; }
    }
    requestAnimationFrame(tick);
  };
  const pause = () => {
    state.playing = false;
    byId("play").textContent = "play";
  };
  const play = () => {
    if (state.playing) { pause(); return; }
    if (state.step === current().length) goTo(1);
    say("");
    state.playing = true;
    byId("play").textContent = "pause";
    last = performance.now();
    owed = 0;
    requestAnimationFrame(tick);
  };
  const by = (steps) => { pause(); say(""); goTo(state.step + steps); };

  function scrubs(area) {
    const follow = (event) => {
      const box = area.getBoundingClientRect();
      goTo(Math.floor(((event.clientX - box.left) / box.width) * current().length) + 1);
    };
    area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      pause();
      say("");
      area.setPointerCapture(event.pointerId);
      follow(event);
    });
    area.addEventListener("pointermove", (event) => { if (area.hasPointerCapture(event.pointerId)) follow(event); });
  }

  const KEYS = {
    " ": play,
    ArrowLeft: (event) => by(event.shiftKey ? -10 : -1),
    ArrowRight: (event) => by(event.shiftKey ? 10 : 1),
    Home: () => by(-Infinity),
    End: () => by(Infinity),
    n: () => toContact(1),
    p: () => toContact(-1),
    "[": () => byId("episode-back").click(),
    "]": () => byId("episode-on").click(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("select")) return; // it has keys of its own
    if (event.key === " " && event.target.closest("button")) return;
    const action = KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action(event);
  });

  const THEMES = ["auto", "light", "dark"];
  byId("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "auto") + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
    byId("theme").textContent = `theme: ${next}`;
  });

  for (const [index, episode] of data.episodes.entries()) {
    const cost = episode.cost.reduce((sum, value) => sum + (value || 0), 0);
    const onsets = episode.contacts.length === 1 ? "1 onset" : `${episode.contacts.length || "no"} onsets`;
    const parts = [`episode ${episode.episode}`, `scenario ${episode.scenario}`, `${episode.length} steps`, onsets, `cost ${figure(Number(cost.toPrecision(6)))}`];
    byId("episode").append(make("option", { value: index }, parts.join(" · ")));
  }
  for (const [index, scorer] of data.scorers.entries()) byId("scorer").append(make("option", { value: index }, scorer.name));
  byId("scorer-choice").hidden = data.scorers.length < 2;
  for (const signal of SIGNALS) {
    const chip = make("button", { type: "button", class: "chip", "aria-pressed": String(shown.has(signal.key)) }, signal.name);
    chip.addEventListener("click", () => {
      if (!shown.delete(signal.key)) shown.add(signal.key);
      chip.setAttribute("aria-pressed", String(shown.has(signal.key)));
      redraw(state.step);
    });
    byId("chips").append(chip);
  }
  const gate = data.scorers.length === 1 ? [["scorer", data.scorers[0].name]] : [];
  byId("about").textContent = [...gate, ...data.about].map(([name, value]) => `${name}: ${value}`).join(" · ");
  const any = data.episodes.some((episode) => episode.contacts.length);
  for (const id of ["contact-back", "contact-on"]) {
    byId(id).disabled = !any;
    if (!any) byId(id).title = "There is no contact in these episodes";
  }
  byId("episode").addEventListener("change", (event) => { pause(); say(""); open(Number(event.target.value)); });
  byId("scorer").addEventListener("change", (event) => { state.scorer = Number(event.target.value); redraw(state.step); });
  byId("episode-back").addEventListener("click", () => { pause(); say(""); open(state.episode - 1); });
  byId("episode-on").addEventListener("click", () => { pause(); say(""); open(state.episode + 1); });
  byId("step-back").addEventListener("click", () => by(-1));
  byId("step-on").addEventListener("click", () => by(1));
  byId("play").addEventListener("click", play);
  byId("contact-back").addEventListener("click", () => toContact(-1));
  byId("contact-on").addEventListener("click", () => toContact(1));
  scrubs(byId("timeline"));
  const image = byId("frame"); // of few pixels, each is drawn as a square: blurred, it would show what was not there
  image.addEventListener("load", () => image.classList.toggle("coarse", image.naturalWidth < 160));
  // The page's own change is heard late, when the moment in view may be another already.
  window.addEventListener("hashchange", () => { if (location.hash !== written) recall(); });
  if (!recall()) open(0);
})();
