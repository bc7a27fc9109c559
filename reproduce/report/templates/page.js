// The buttons that copy a command; a page works without them.
"use strict";
(() => {
  for (const copy of document.querySelectorAll("button.copy")) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      const text = copy.parentElement.querySelector("pre");
      try {
        await navigator.clipboard.writeText(text.textContent);
        copy.textContent = "Copied";
      } catch { // not allowed here: it is selected, and Ctrl-C copies it
        getSelection().selectAllChildren(text);
        copy.textContent = "Selected";
      }
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    });
  }
})();
