// The console's only script. Every page works without it; it adds the theme, live updates, questions and live tails.
"use strict";

const themes = ["system", "light", "dark"];
const themeNames = { system: "as the system", light: "light", dark: "dark" };

function storedTheme() {
  const found = localStorage.getItem("theme");
  return themes.includes(found) ? found : "system";
}

function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = `Theme: ${themeNames[theme]}`;
  button.hidden = false;
}

function startTheme() {
  applyTheme(storedTheme());
  document.getElementById("theme").addEventListener("click", () => {
    const next = themes[(themes.indexOf(storedTheme()) + 1) % themes.length];
    localStorage.setItem("theme", next);
    applyTheme(next);
  });
}

// Live updates: the parts marked data-live are replaced by those of the same page, read again.
function startUpdates() {
  const seconds = Number(document.body.dataset.refresh);
  const button = document.getElementById("updates");
  if (!seconds || !button) return;
  let isOn = sessionStorage.getItem("updates") !== "off";
  const show = () => {
    button.textContent = `Live updates: ${isOn ? "on" : "off"}`;
    button.setAttribute("aria-pressed", String(isOn));
    button.hidden = false;
  };
  button.addEventListener("click", () => {
    isOn = !isOn;
    sessionStorage.setItem("updates", isOn ? "on" : "off");
    show();
  });
  show();
  setInterval(async () => {
    if (!isOn || document.hidden) return;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Live-Update": "1" }, signal: AbortSignal.timeout(8000) });
      if (answer.redirected) return location.reload();
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(part.id);
        // What a person uses now stays: a link with the focus, numbers that are unfolded.
        if (!fresh || part.contains(document.activeElement) || part.querySelector("details[open]")) continue;
        part.replaceChildren(...fresh.childNodes);
      }
    } catch {
      // The next round tries again; the page shows what it knew.
    }
  }, seconds * 1000);
}

function startQuestions() {
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
}

// A live tail: entries come as text, and stay text.
const rowsMax = 300;

function startTail(box) {
  const button = document.createElement("button");
  const status = document.createElement("span");
  const list = document.createElement("ol");
  button.type = "button";
  button.textContent = "Start the live tail";
  status.className = "quiet";
  status.setAttribute("role", "status");
  list.tabIndex = 0;
  list.setAttribute("aria-label", "Entries as they come");
  list.hidden = true;
  box.append(button, " ", status, list);
  let source = null;
  let count = 0;
  const stop = (text) => {
    source?.close();
    source = null;
    button.textContent = "Start the live tail";
    status.textContent = text;
  };
  button.addEventListener("click", () => {
    if (source) return stop(`stopped after ${count} entries`);
    count = 0;
    list.hidden = false;
    button.textContent = "Stop the live tail";
    status.textContent = "waiting for entries";
    source = new EventSource(box.dataset.tail);
    source.addEventListener("entry", (event) => {
      const entry = JSON.parse(event.data);
      const row = document.createElement("li");
      for (const text of [`${entry.ledger}:${entry.entry}`, `${entry.bytes} B`]) {
        const cell = document.createElement("span");
        cell.textContent = text;
        row.append(cell);
      }
      const payload = document.createElement("pre");
      payload.className = "payload";
      payload.textContent = entry.text + (entry.cut ? " …" : "");
      row.append(payload);
      list.prepend(row);
      while (list.children.length > rowsMax) list.lastChild.remove();
      count += 1;
      status.textContent = `${count} entries`;
    });
    source.addEventListener("skipped", (event) => {
      count += JSON.parse(event.data).entries;
    });
    source.addEventListener("end", (event) => stop(`ended: ${JSON.parse(event.data).reason}`));
    source.onerror = () => stop("the console closed the stream; start it again");
  });
}

startTheme();
startUpdates();
startQuestions();
document.querySelectorAll("[data-tail]").forEach(startTail);
