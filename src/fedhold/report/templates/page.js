for (const chart of document.querySelectorAll(".chart")) {
  const rounds = chart.dataset.rounds.split(" ").filter(Boolean).map(Number), last = rounds.length - 1;
  const items = [...chart.querySelectorAll(".legend li")], values = items.map(item => item.dataset.values.split(" "));
  const lines = [...chart.querySelectorAll(".plot .line")], bands = [...chart.querySelectorAll(".plot .band")];
  const marks = [...chart.querySelectorAll(".plot .mark")];
  const plot = chart.querySelector(".plot"), area = plot.querySelector("svg"), cursor = plot.querySelector(".cursor");
  const show = k => {
    chart.querySelector(".round").textContent = rounds[k];
    items.forEach((item, i) => { item.querySelector(".value").textContent = values[i][k]; });
  };
  const places = chart.dataset.places?.split(" ").map(Number) ?? rounds.map(k => rounds[last] > 1 ? (k - 1) / (rounds[last] - 1) : 0);
  const across = k => places[k] * area.viewBox.baseVal.width;
  if (last >= 0) {
    plot.addEventListener("pointermove", event => {
      const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(area.getScreenCTM().inverse()).x;
      let k = 0;
      rounds.forEach((_, i) => { if (Math.abs(across(i) - x) < Math.abs(across(k) - x)) k = i; });
      cursor.setAttribute("transform", `translate(${across(k)})`);
      cursor.setAttribute("visibility", "visible");
      show(k);
    });
    plot.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); show(last); });
  }
  items.forEach((item, i) => {
    const dim = on => [lines, bands, marks].forEach(all => all.forEach((path, j) => path.classList.toggle("dim", on && j !== i)));
    item.addEventListener("pointerenter", () => dim(true));
    item.addEventListener("pointerleave", () => dim(false));
  });
}
for (const ledger of document.querySelectorAll(".ledger")) {
  const {nodes, rounds, cells, letters, full, marks} = ledger.dataset, readout = ledger.querySelector(".readout");
  const names = nodes.split(" "), firsts = rounds.split(" "), rows = cells.split(" "), area = ledger.querySelector(".cells");
  const words = Object.fromEntries(marks.split(";").map(mark => [mark[0], mark.slice(1)]));
  const read = event => {
    const box = area.getBoundingClientRect(), at = (part, whole, count) => Math.min(count - 1, Math.max(0, Math.floor(part / whole * count)));
    const row = at(event.clientY - box.top, box.height, names.length), column = at(event.clientX - box.left, box.width, firsts.length);
    const letter = rows[row][column], share = letters.indexOf(letter) * full / (letters.length - 1);
    const said = words[letter] ?? `share ${share.toFixed(2)}${share >= full ? ", or more" : ""}`;
    readout.textContent = `Node ${names[row]}, round ${firsts[column]}: ${said}.`;
  };
  for (const kind of ["pointermove", "pointerdown"]) area.addEventListener(kind, read);
}
