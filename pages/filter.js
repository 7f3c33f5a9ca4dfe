// Hides the cells that are not asked for. The page is complete without: this only takes away.
"use strict";
(() => {
  const form = document.getElementById("filter");
  const { filter, state, found } = form.elements;
  const groups = [...document.getElementById("cells").tBodies].map((body) => {
    const head = body.rows[0].textContent;
    const rows = [...body.rows].slice(1).map((row) => ({ row, text: `${head} ${row.textContent}`.toLowerCase() }));
    return { body, rows };
  });

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/);
    let shown = 0;
    let all = 0;
    for (const { body, rows } of groups) {
      let here = 0;
      for (const { row, text } of rows) {
        const wanted = (!state.value || row.dataset.state === state.value) && words.every((word) => text.includes(word));
        row.hidden = !wanted;
        here += wanted;
      }
      body.hidden = !here;
      shown += here;
      all += rows.length;
    }
    found.value = `${shown} of ${all} cells`;
  }

  function remember() {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value)).toString();
    try {
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
    } catch {
      // a browser may refuse it for files: the filter works all the same
    }
  }

  const asked = new URLSearchParams(location.search);
  filter.value = asked.get("filter") ?? "";
  state.value = asked.get("state") ?? "";
  if (state.selectedIndex < 0) state.value = "";
  form.hidden = false;
  form.addEventListener("input", () => { apply(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
})();
