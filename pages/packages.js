// Hides the packages that are not asked for. The page is complete without: this only takes away.
"use strict";
(() => {
  const form = document.getElementById("filter");
  const { filter, found } = form.elements;
  const rows = [...document.getElementById("packages").tBodies[0].rows]
    .map((row) => ({ row, text: row.textContent.toLowerCase() }));

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const { row, text } of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    found.value = `${shown} of ${rows.length} packages`;
  }

  filter.value = new URLSearchParams(location.search).get("filter") ?? "";
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
})();
