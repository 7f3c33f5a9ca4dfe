// Shows the image that fits first, with what runs it, and then the others that fit; if no locked image does, the cells
// without a lock that fit. Without this, all are listed.
"use strict";
(() => {
  const form = document.getElementById("choose");
  const cards = [...document.getElementById("images").children];
  const fields = [...form.querySelectorAll("select")];

  const unlocked = document.getElementById("unlocked");
  const rows = [...document.getElementById("cells").querySelectorAll("tr[data-gpu]")];

  function apply() {
    const chosen = fields.filter((field) => field.value);
    const fits = (element) =>
      chosen.every((field) => element.dataset[field.name].split("|").includes(field.value));
    const fitting = cards.filter(fits);
    const others = fitting.length ? [] : rows.filter(fits);
    const first = chosen.length ? fitting.toSorted((one, other) => one.dataset.place - other.dataset.place)[0] : undefined;
    for (const card of cards) {
      card.hidden = !fitting.includes(card);
      card.classList.toggle("first", card === first);
      card.querySelector("details").open = card === first;
    }
    unlocked.replaceChildren(...others.map((row) => {
      const item = document.createElement("li");
      item.append(row.querySelector("a").cloneNode(true), " ", row.querySelector(".state").cloneNode(true));
      return item;
    }));
    unlocked.hidden = !others.length;
    form.elements.found.value = fitting.length
      ? `${fitting.length} of ${cards.length} images`
      : others.length
        ? `No locked image fits, but ${others.length} without a lock; their pages say how to get them:`
        : "No cell fits.";
  }

  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
})();
