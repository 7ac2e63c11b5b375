// Sorting of tables, values under the pointer, one group at a time, light and dark. Nothing is loaded, nothing is sent.
"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");

  // -- light and dark
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
  });

  // -- tables: numbers by size, names by letters; empty cells stay last
  const compare = (a, b) => {
    const x = Number(a), y = Number(b);
    if (a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y)) return x - y;
    return a.localeCompare(b, "en", { numeric: true });
  };
  const infinite = (text) => (text === "inf" ? "Infinity" : text === "-inf" ? "-Infinity" : text);
  const sort = (table, column, down) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [infinite(row.cells[column].dataset.sort), row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      return down ? compare(b, a) : compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => {
        sort(table, column, head.getAttribute("aria-sort") === "ascending");
      });
    });
  }

  // -- figures: the nearest value
  const hide = (plot) => {
    tip.hidden = true;
    plot.querySelector(".at").setAttribute("visibility", "hidden");
  };
  const valuesOf = (plot) => (plot.values ??= JSON.parse(plot.dataset.hover));
  const show = (plot, event) => {
    const box = plot.getBoundingClientRect();
    const scale = plot.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = null, nearest = 34 * 34;
    for (const series of valuesOf(plot).s) {
      for (const point of series.p) {
        // Single runs and episodes stand back: a mean beside them is what is meant.
        const distance = ((point[0] - x) ** 2 + (point[1] - y) ** 2) * (series.f ? 3 : 1) + (series.f ? 30 : 0);
        if (distance < nearest) { nearest = distance; best = [series, point]; }
      }
    }
    if (!best) { hide(plot); return; }
    tell(plot, best, event.clientX, event.clientY);
  };
  const tell = (plot, [series, point], x, y) => {
    const lines = [series.n + (point[4] ? ", " + point[4] : "")];
    if (point[2]) lines.push((plot.values.x ? plot.values.x + ": " : "") + point[2]);
    if (point[3]) lines.push((plot.values.y ? plot.values.y + ": " : "") + point[3]);
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const at = plot.querySelector(".at");
    at.setAttribute("cx", point[0]); at.setAttribute("cy", point[1]); at.setAttribute("visibility", "visible");
    const left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8);
    const above = y - tip.offsetHeight - 12;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = (above < 4 ? y + 18 : above) + "px";
  };
  // Keys: left and right to the next value, up and down to the next line or row of dots.
  const walk = (plot, event) => {
    const all = valuesOf(plot).s.flatMap((series) => series.p.map((point) => [series, point]));
    const on = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide(plot);
    if (!on || !all.length) return;
    event.preventDefault();
    const far = event.key === "ArrowDown" || event.key === "ArrowUp", last = all.length - 1;
    let at = plot.at === undefined ? 0 : Math.min(Math.max(plot.at + on, 0), last);
    while (far && plot.at !== undefined && at > 0 && at < last && all[at][0] === all[plot.at][0]) at += on;
    plot.at = at;
    const box = plot.getBoundingClientRect(), scale = box.width / plot.viewBox.baseVal.width, [x, y] = all[at][1];
    tell(plot, all[at], box.left + x * scale, box.top + y * scale);
  };
  for (const plot of document.querySelectorAll("svg.plot")) {
    plot.addEventListener("keydown", (event) => walk(plot, event));
    plot.addEventListener("blur", () => { hide(plot); delete plot.at; });
    plot.addEventListener("pointermove", (event) => show(plot, event));
    plot.addEventListener("pointerdown", (event) => show(plot, event));
    plot.addEventListener("pointerleave", () => hide(plot));
  }

  // -- legends: one group at a time
  for (const chart of document.querySelectorAll(".chart")) {
    for (const button of chart.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => {
        const only = chart.dataset.only === button.dataset.g ? null : button.dataset.g;
        if (only === null) delete chart.dataset.only; else chart.dataset.only = only;
        for (const other of chart.querySelectorAll(".legend button")) {
          other.setAttribute("aria-pressed", String(other.dataset.g === only));
        }
        for (const mark of chart.querySelectorAll(".plot [data-g]")) {
          mark.classList.toggle("kept", mark.dataset.g === only);
        }
      });
    }
  }

  // -- what a link points to is opened
  const open = () => {
    const target = location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", open);
  open();

  // -- tables and findings are printed whole, and closed again afterwards
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.part:not([open]), .finding-group:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
    opened = [];
  });
})();
