// Selects and copies: works in a file that was opened from disk, where the clipboard interface may be closed.
for (const button of document.querySelectorAll("button[data-copy]")) button.addEventListener("click", () => {
  const range = document.createRange(), selection = getSelection();
  range.selectNode(button.closest(".table").querySelector("table"));
  selection.removeAllRanges(); selection.addRange(range);
  button.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl+C";
});
