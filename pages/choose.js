// Shows the image that fits first, with what runs it, and then the others that fit. Without this, all are listed.
"use strict";
(() => {
  const form = document.getElementById("choose");
  const cards = [...document.getElementById("images").children];
  const fields = [...form.querySelectorAll("select")];

  function apply() {
    const chosen = fields.filter((field) => field.value);
    const fitting = cards.filter((card) =>
      chosen.every((field) => card.dataset[field.name].split("|").includes(field.value)));
    const first = chosen.length ? fitting.toSorted((one, other) => one.dataset.place - other.dataset.place)[0] : undefined;
    for (const card of cards) {
      card.hidden = !fitting.includes(card);
      card.classList.toggle("first", card === first);
      card.querySelector("details").open = card === first;
    }
    form.elements.found.value = fitting.length
      ? `${fitting.length} of ${cards.length} images`
      : "No locked image fits. The matrix below has the reasons.";
  }

  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
})();
