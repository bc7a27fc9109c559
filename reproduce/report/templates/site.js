// Tables that sort by a click on a heading, and forms that filter one; both work without, unsorted.
"use strict";
(() => {
  const value = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.sort ?? cell.textContent.trim();
  };
  const compare = (one, other) => {
    if (one === "" || other === "") return (one === "") - (other === "");
    const [first, second] = [Number(one), Number(other)];
    return Number.isNaN(first) || Number.isNaN(second) ? one.localeCompare(other) : first - second;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const descending = heading.getAttribute("aria-sort") === "ascending";
        for (const other of headings) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((one, other) => {
          const [first, second] = [value(one, place), value(other, place)];
          const order = compare(first, second);
          return descending && first !== "" && second !== "" ? -order : order; // empty ones last
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  for (const form of document.querySelectorAll("form.filter")) {
    const rows = [...document.getElementById(form.dataset.for).tBodies[0].rows];
    const selects = [...form.querySelectorAll("select")];
    const output = form.querySelector("output");
    for (const select of selects) {
      const values = [...new Set(rows.map((row) => row.dataset[select.name]))].sort();
      select.append(...values.map((name) => new Option(name, name)));
      select.parentElement.hidden = values.length < 2;
    }
    const apply = () => {
      const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const fits = words.every((word) => text.includes(word))
          && selects.every(({ name, value }) => !value || row.dataset[name] === value);
        row.hidden = !fits;
        shown += fits;
      }
      output.textContent = `${shown} of ${rows.length}`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = rows.length < 3;
    apply();
  }
})();
