// The theme's button and the buttons that copy a command; a page works without them.
"use strict";
(() => {
  const root = document.documentElement.style;
  const button = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.colorScheme || (prefersDark.matches ? "dark" : "light")) === "dark";
  const say = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  button.addEventListener("click", () => {
    root.colorScheme = isDark() ? "light" : "dark";
    document.dispatchEvent(new Event("theme"));
    say();
  });
  prefersDark.addEventListener("change", say);
  button.hidden = false;
  say();

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
