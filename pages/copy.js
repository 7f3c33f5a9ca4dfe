// Adds to each command a button that copies it.
"use strict";
for (const block of document.querySelectorAll("pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(block);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  const frame = document.createElement("div");
  frame.className = "copyable";
  block.replaceWith(frame);
  frame.append(block, button);
}
