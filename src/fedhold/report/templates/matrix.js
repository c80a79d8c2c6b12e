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
  const svg = "http://www.w3.org/2000/svg", filters = figure.querySelector(".filters"), behind = figure.querySelector(".behind");
  const choose = (name, words) => {
    const label = make("label", name + " ", filters), select = make("select", null, label);
    words.forEach(([text, value]) => make("option", text, select, {value}));
    select.addEventListener("change", draw);
    label.hidden = words.length < 2;
    return select;
  };
  const selects = data.facets.map(facet => choose(facet.name, [
    ...facet.groups.map(([name, members]) => [name, members.join(" ")]),
    ...(facet.choices.length > 1 ? [["all", facet.choices.map((_, k) => k).join(" ")]] : []),
    ...facet.choices.map((name, k) => [name, String(k)]),
  ]));
  const how = choose("show", [["worst", "worst"], ["mean", "mean"]]);
  const wanted = make("input", null, make("label", "rules with ", filters), {type: "search", size: 12, "aria-label": "rules with"});
  const plain = make("input", null, make("label", null, filters), {type: "checkbox"});
  plain.parentElement.append(" only rules that are told nothing");
  plain.parentElement.hidden = !data.rows.some(row => row[1]);
  wanted.addEventListener("input", draw);
  plain.addEventListener("change", draw);
  // Numbers are compared by how good they are: the sign is +1 where more is better, -1 where less is.
  const {worst, best, digits, logarithmic} = data.scale, sign = best > worst ? 1 : -1;
  const good = value => value === null ? -Infinity : sign * value;
  const text = value => value !== null && Math.abs(value) >= 1e5 ? value.toExponential(1).replace("e+", "e") : value?.toFixed(digits) ?? "";
  let sorted = -1, rising = false;

  function kept() {
    const allowed = selects.map(select => new Set(select.value.split(" ").map(Number)));
    return data.entries.filter(entry => entry[2].every((choice, k) => allowed[k].has(choice)));
  }
  function summary(entries) {
    if (!entries.length) return null;
    const least = entries.reduce((a, b) => good(b[3]) < good(a[3]) ? b : a), marked = entries.filter(entry => entry[6]).length;
    const value = how.value === "worst" ? least[3] : mean(entries.map(entry => entry[3]));
    return {value, least, marked, all: entries.length, mark: marked === entries.length || value === null ? least[6] : ""};
  }
  function mean(values) {
    const known = values.filter(value => value !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  }
  function colours(value) {
    const on = logarithmic ? Math.log : one => one, share = (on(value) - on(worst)) / (on(best) - on(worst));
    const at = Math.round(Math.min(1, Math.max(0, share)) * (data.colours.length - 1));
    return [data.colours[at], at < data.colours.length * .55 ? "#fff" : "#000"];
  }
  function fill(td, inner, value, mark) {
    inner.textContent = mark || text(value);
    if (mark) td.classList.add(mark === "diverged" ? "diverged" : "refused");
    else if (value !== null) [td.style.background, inner.style.color] = colours(value);
  }
  function draw() {
    const cells = data.rows.map(() => data.columns.map(() => []));
    kept().forEach(entry => cells[entry[0]][entry[1]].push(entry));
    const lines = data.rows.map((row, r) => ({r, row, found: cells[r].map(summary)})).filter(({row, found}) =>
      row[0].includes(wanted.value.trim()) && !(plain.checked && row[1]) && found.some(Boolean));
    lines.forEach(line => {
      const attacked = line.found.slice(data.plain).filter(Boolean);
      if (!attacked.length) return;
      const least = attacked.reduce((a, b) => good(b.value) < good(a.value) ? b : a);
      const value = how.value === "worst" ? least.value : mean(attacked.map(one => one.value));
      line.whole = {value, mark: value === null ? least.mark : ""};
    });
    const by = line => sorted === -2 ? line.row[0] : good((sorted === -1 ? line.whole : line.found[sorted])?.value ?? null);
    lines.sort((a, b) => {
      const x = by(a), y = by(b), order = x < y ? -1 : x > y ? 1 : 0;
      return (rising ? order : -order) || a.r - b.r;
    });
    const head = make("tr", null, null);
    const names = [["rule", -2], [how.value === "worst" ? "worst of attacks" : "mean of attacks", -1], ...data.columns.map((name, k) => [name, k])];
    names.forEach(([name, key]) => {
      const up = rising === (sign > 0 || key === -2), order = sorted === key ? (up ? "ascending" : "descending") : "none";
      const cell = make("th", null, head, {scope: "col", "aria-sort": order});
      const button = make("button", name.replaceAll("_", "_\u200b") + (sorted === key ? (up ? " ▲" : " ▼") : ""), cell, {type: "button"});
      button.addEventListener("click", () => { rising = sorted === key ? !rising : key === -2; sorted = key; draw(); });
    });
    const body = lines.map(line => {
      const tr = make("tr", null, null, {"data-rule": line.row[0]}), name = make("th", null, tr, {scope: "row"});
      name.append(swatch(line.r), line.row[0].replaceAll("_", "_\u200b"));
      if (line.row[1]) make("small", " " + line.row[1], name);
      const whole = make("td", null, tr, {class: "whole"});
      if (line.whole) fill(whole, whole, line.whole.value, line.whole.mark);
      line.found.forEach((one, column) => {
        const td = make("td", null, tr);
        if (!one) return;
        const button = make("button", null, td, {type: "button"});
        fill(td, button, one.value, one.mark);
        if (one.marked && !one.mark) button.append(" ·");
        const told = one.marked ? `; ${one.marked} of ${one.all} without a number` : "";
        button.title = `${line.row[0]}, ${data.columns[column]}: ${one.mark || text(one.value)}${told}`;
        button.addEventListener("click", () => show(one.least));
      });
      return tr;
    });
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...body);
  }
  function swatch(r) {
    const plot = document.createElementNS(svg, "svg"), line = document.createElementNS(svg, "path"), [colour, dashes] = data.styles[r];
    for (const [key, value] of Object.entries({width: 18, height: 10, "aria-hidden": true})) plot.setAttribute(key, value);
    for (const [key, value] of Object.entries({class: `line c${colour}`, d: "M0 5H18", "stroke-dasharray": dashes})) line.setAttribute(key, value);
    plot.append(line);
    return plot;
  }
  function show(entry) {
    const where = ["", ...entry[2].map((choice, k) => data.facets[k].choices[choice]).filter((_, k) => data.facets[k].choices.length > 1)].join(", ");
    const [metric, rounds] = data.axes[entry[2][0] ?? 0];
    const others = data.entries.filter(one => one[1] === entry[1] && one[2].every((choice, k) => choice === entry[2][k]) && one[8].length);
    const value = entry[6] || text(entry[3]) + (entry[4] < entry[5] ? ` (${text(entry[4])} to ${text(entry[5])} over seeds)` : "");
    const title = `${data.rows[entry[0]][0]}, ${data.columns[entry[1]]}${where}: ${value}` + (entry[7] === null ? "" : `; ${metric} ${entry[7]} at the end`);
    behind.replaceChildren(make("p", title, null, {class: "told"}));
    if (!others.length) return;
    const count = Math.min(rounds.length, 8), picked = [...new Set(Array.from({length: count}, (_, k) => Math.round(k * (rounds.length - 1) / Math.max(1, count - 1))))];
    const scroll = make("div", null, behind, {class: "scroll dense"}), numbers = make("table", null, scroll), head = make("tr", null, make("thead", null, numbers));
    [metric, ...picked.map(k => `round ${rounds[k]}`)].forEach(name => make("th", name, head, {scope: "col"}));
    const body = make("tbody", null, numbers);
    others.sort((a, b) => (b === entry) - (a === entry)).forEach(one => {
      const tr = make("tr", null, body, {class: one === entry ? "chosen" : ""}), name = make("th", null, tr, {scope: "row"});
      name.append(swatch(one[0]), data.rows[one[0]][0].replaceAll("_", "_\u200b"));
      picked.forEach(k => make("td", one[8][k] ?? "diverged", tr, {class: "number"}));
    });
    behind.append(make("p", "The chosen rule on top, the others at the same place below it; a number is the mean over seeds.", null, {class: "note"}));
  }
  draw();
}
