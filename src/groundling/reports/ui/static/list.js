// Search, filter and sort the table in each element of class `list`. The user's choices are kept in the URL.
"use strict";
const collator = new Intl.Collator(undefined, { numeric: true });

function valueOf(row, column) {
  const cell = row.cells[column];
  return cell ? (cell.dataset.value ?? cell.textContent.trim()) : "";
}

function compare(one, other) {
  const missing = (value) => value === "" || value === "–";
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  const difference = Number(one) - Number(other);
  return Number.isNaN(difference) ? collator.compare(one, other) : difference;
}

function field(kind, name, label, parent) {
  const made = document.createElement(kind);
  made.name = name;
  const around = document.createElement("label");
  around.append(label + " ", made);
  parent.append(around);
  return made;
}

function control(list) {
  const body = list.querySelector("tbody"), rows = [...body.rows], headers = [...list.querySelectorAll("thead th")];
  const address = new URL(location), bar = document.createElement("div"), count = document.createElement("output");
  const key = (name) => `${list.id}.${name}`;
  bar.className = "filters";
  const search = field("input", key("search"), "search", bar);
  search.type = "search";
  const selects = new Map();
  headers.forEach((header, column) => {
    const values = [...new Set(rows.map((row) => valueOf(row, column)))].sort(compare);
    if (!("filter" in header.dataset) || values.length < 2) return;
    const select = field("select", key(header.textContent), header.textContent, bar);
    select.append(new Option("all", ""), ...values.map((value) => new Option(value)));
    selects.set(column, select);
  });
  bar.append(count);
  list.prepend(bar);
  const fields = [search, ...selects.values()];
  for (const one of fields) one.value = address.searchParams.get(one.name) ?? "";
  let [sorted, falling] = (address.searchParams.get(key("sort")) ?? "").split(" ");

  function update() {
    const words = search.value.toLowerCase().split(/\s+/), at = headers.findIndex((one) => one.textContent === sorted);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const matches = [...selects].every(([column, one]) => !one.value || one.value === valueOf(row, column));
      // Selected runs stay visible, since they will be compared.
      row.hidden = !(matches && words.every((word) => text.includes(word))) && !row.querySelector(":checked");
    }
    const order = [...rows];
    if (at >= 0) order.sort((a, b) => compare(valueOf(a, at), valueOf(b, at)) * (falling ? -1 : 1));
    body.append(...order);
    headers.forEach((one, column) => one.setAttribute("aria-sort", column !== at ? "none" : falling ? "descending" : "ascending"));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    for (const one of fields) address.searchParams.set(one.name, one.value);
    address.searchParams.set(key("sort"), at < 0 ? "" : `${sorted}${falling ? " falling" : ""}`);
    for (const name of [...fields.map((one) => one.name), key("sort")]) {
      if (!address.searchParams.get(name)) address.searchParams.delete(name);
    }
    history.replaceState(null, "", address);
  }

  for (const header of headers.filter((one) => one.textContent)) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      falling = header.textContent === sorted && !falling ? "falling" : "";
      sorted = header.textContent;
      update();
    });
  }
  search.addEventListener("input", update);
  for (const select of selects.values()) select.addEventListener("change", update);
  update();
}

document.querySelectorAll(".list").forEach(control);
