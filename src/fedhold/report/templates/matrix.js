{
  const figure = document.currentScript.closest(".matrix");
  const data = JSON.parse(figure.querySelector(".numbers").textContent), table = figure.querySelector("table");
  const make = (name, text, parent, attributes = {}) => {
    const element = document.createElement(name);
    if (text !== null) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.append(element);
    return element;
  };
  const filters = figure.querySelector(".filters"), behind = figure.querySelector(".behind");
  const choose = (name, words) => {
    const label = make("label", name + " ", filters), select = make("select", null, label);
    words.forEach(([text, value]) => make("option", text, select, {value}));
    select.addEventListener("change", draw);
    return select;
  };
  const selects = data.facets.map(facet => choose(facet.name, [
    ...facet.groups.map(([name, members]) => [name, members.join(" ")]),
    ["all", facet.choices.map((_, k) => k).join(" ")],
    ...facet.choices.map((name, k) => [name, String(k)]),
  ]));
  const how = choose("show", [["worst", "worst"], ["mean", "mean"]]);
  const wanted = make("input", null, make("label", "rules with ", filters), {type: "search", size: 12, "aria-label": "rules with"});
  const plain = make("input", null, make("label", null, filters), {type: "checkbox"});
  plain.parentElement.append(" only rules that are told nothing");
  wanted.addEventListener("input", draw);
  plain.addEventListener("change", draw);
  let sorted = -1, rising = false;

  function kept() {
    const allowed = selects.map(select => new Set(select.value.split(" ").map(Number)));
    return data.entries.filter(entry => entry[2].every((choice, k) => allowed[k].has(choice)));
  }
  function summary(entries) {
    if (!entries.length) return null;
    const least = entries.reduce((a, b) => b[3] < a[3] ? b : a), counted = entries.filter(entry => !entry[6]);
    const mean = entries.reduce((sum, entry) => sum + entry[3], 0) / entries.length;
    return {value: how.value === "worst" ? least[3] : mean, least, refused: entries.length - counted.length, all: entries.length};
  }
  function colours(value) {
    const at = Math.round(Math.min(1, Math.max(0, value)) * (data.scale.length - 1));
    return [data.scale[at], at < data.scale.length * .55 ? "#fff" : "#000"];
  }
  function draw() {
    const cells = data.rows.map(() => data.columns.map(() => []));
    kept().forEach(entry => cells[entry[0]][entry[1]].push(entry));
    const lines = data.rows.map((row, r) => ({r, row, found: cells[r].map(summary)})).filter(({row, found}) =>
      row[0].includes(wanted.value.trim()) && !(plain.checked && row[1]) && found.some(Boolean));
    lines.forEach(line => {
      const attacked = line.found.slice(1).filter(Boolean).map(one => one.value);
      line.whole = !attacked.length ? null : how.value === "worst" ? Math.min(...attacked) : attacked.reduce((a, b) => a + b, 0) / attacked.length;
    });
    const by = line => sorted === -1 ? line.whole : sorted === -2 ? line.row[0] : line.found[sorted]?.value ?? null;
    lines.sort((a, b) => {
      const x = by(a) ?? -1, y = by(b) ?? -1, order = x < y ? -1 : x > y ? 1 : 0;
      return (rising ? order : -order) || (a.row[0] < b.row[0] ? -1 : 1);
    });
    const head = make("tr", null, null);
    const names = [["rule", -2], [how.value === "worst" ? "worst of attacks" : "mean of attacks", -1], ...data.columns.map((name, k) => [name, k])];
    names.forEach(([name, key]) => {
      const order = sorted === key ? (rising ? "ascending" : "descending") : "none";
      const cell = make("th", null, head, {scope: "col", "aria-sort": order});
      const button = make("button", name.replaceAll("_", "_\u200b") + (sorted === key ? (rising ? " ▲" : " ▼") : ""), cell, {type: "button"});
      button.addEventListener("click", () => { rising = sorted === key ? !rising : key === -2; sorted = key; draw(); });
    });
    const body = lines.map(line => {
      const tr = make("tr", null, null, {"data-rule": line.row[0]}), name = make("th", line.row[0], tr, {scope: "row"});
      if (line.row[1]) make("small", " " + line.row[1], name);
      const whole = make("td", line.whole === null ? "" : line.whole.toFixed(2), tr, {class: "whole"});
      if (line.whole !== null) [whole.style.background, whole.style.color] = colours(line.whole);
      line.found.forEach((one, column) => {
        const td = make("td", null, tr);
        if (!one) return;
        const text = one.refused === one.all ? one.least[6] : one.value.toFixed(2) + (one.refused ? " ·" : "");
        const button = make("button", text, td, {type: "button"});
        const told = one.refused ? `; ${one.refused} of ${one.all} ${one.least[6] || "refused"}` : "";
        button.title = `${line.row[0]}, ${data.columns[column]}: ${one.value.toFixed(3)}${told}`;
        if (one.refused === one.all) td.className = "refused";
        else [td.style.background, button.style.color] = colours(one.value);
        button.addEventListener("click", () => show(one.least));
      });
      return tr;
    });
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...body);
  }
  function show(entry) {
    const where = entry[2].map((choice, k) => data.facets[k].choices[choice]).join(", ");
    const [metric, rounds] = data.axes[entry[2][0]];
    const others = data.entries.filter(one => one[1] === entry[1] && one[2].every((choice, k) => choice === entry[2][k]) && one[8].length);
    const value = entry[6] || `${entry[3].toFixed(2)}` + (entry[4] < entry[5] ? ` (${entry[4].toFixed(2)} to ${entry[5].toFixed(2)} over seeds)` : "");
    const title = `${data.rows[entry[0]][0]} under ${data.columns[entry[1]]}, ${where}: ${value}` + (entry[7] === null ? "" : `; ${metric} ${entry[7]} at the end`);
    behind.replaceChildren(make("p", title, null, {class: "told"}));
    const numbers = others.flatMap(one => one[8]).filter(one => one !== null);
    if (!numbers.length) return;
    const ends = numbers.slice().sort((a, b) => a - b), low = ends[0];
    const high = Math.min(ends[ends.length - 1], 3 * ends[Math.floor(ends.length / 2)] || Infinity), span = high - low || 1;
    const width = 640, height = 260, left = 48, right = 12, top = 16, bottom = 34, svg = "http://www.w3.org/2000/svg";
    const plot = document.createElementNS(svg, "svg");
    const put = (name, attributes, text) => {
      const element = document.createElementNS(svg, name);
      Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
      if (text !== undefined) element.textContent = text;
      plot.append(element);
      return element;
    };
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.setAttribute("class", "plot");
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", title);
    const last = rounds[rounds.length - 1] || 1, x = k => left + (width - left - right) * rounds[k] / last;
    const y = one => height - bottom - (height - top - bottom) * (Math.min(one, high + .1 * span) - low) / (1.1 * span);
    [low, (low + high) / 2, high].forEach(tick => {
      put("path", {class: "grid", d: `M${left} ${y(tick)}H${width - right}`});
      put("text", {x: left - 5, y: y(tick) + 4, "text-anchor": "end"}, Number(tick.toPrecision(3)));
    });
    put("text", {x: 4, y: 11, class: "name"}, metric);
    put("text", {x: width / 2, y: height - 4, "text-anchor": "middle"}, `round, 1 to ${last}`);
    others.sort((a, b) => (a === entry) - (b === entry)).forEach(one => {
      const points = one[8].map((number, k) => number === null ? null : `${x(k).toFixed(1)} ${y(number).toFixed(1)}`);
      const line = put("path", {class: one === entry ? "line c0" : "line other", d: points.filter(Boolean).map((p, k) => (k ? "L" : "M") + p).join("")});
      const name = document.createElementNS(svg, "title");
      name.textContent = `${data.rows[one[0]][0]}: ${one[7] ?? "diverged"}`;
      line.append(name);
    });
    behind.append(plot, make("p", `Blue: ${data.rows[entry[0]][0]}. Grey: the other rules in the same cell; point at a line for its name.`, null, {class: "note"}));
  }
  draw();
}
