// Makes the pages better; each of them works without it. Nothing here talks to another host, and the delete tokens stay
// in this browser (localStorage), since the page of a paste is kept by caches and must be the same for everybody.
(() => {
"use strict";

const root = document.documentElement;
const $ = (selector) => document.querySelector(selector);
root.classList.add("js");

const kept = {
  get(name) { try { return JSON.parse(localStorage.getItem(name)); } catch { return null; } },
  set(name, value) {
    try { value === null ? localStorage.removeItem(name) : localStorage.setItem(name, JSON.stringify(value)); return true; } catch { return false; }
  },
};
const pastes = () => { const list = kept.get("pastes"); return Array.isArray(list) ? list : []; };
const forget = (id) => kept.set("pastes", pastes().filter((each) => each.id !== id));
const PASTES_MAX = 500;

// The theme, before anything is painted.
const theme = kept.get("theme");
if (theme === "light" || theme === "dark") root.dataset.theme = theme;

function toast(text) {
  const old = $(".toast");
  if (old) old.remove();
  const box = document.createElement("div");
  box.className = "toast";
  box.setAttribute("role", "status");
  box.textContent = text;
  document.body.append(box);
  setTimeout(() => box.remove(), 2500);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Plain http has no clipboard: the copy command, with our text.
    let done = false;
    document.addEventListener("copy", (event) => {
      event.stopImmediatePropagation();
      event.preventDefault();
      event.clipboardData.setData("text/plain", text);
      done = true;
    }, { once: true, capture: true });
    document.execCommand("copy");
    if (!done) { toast("This browser does not let a page copy"); return; }
  }
  toast(`${what} copied`);
}

function left(expires) {
  const minutes = Math.round((expires - Date.now()) / 60000);
  if (minutes < 1) return expires > Date.now() ? "in less than a minute" : "just now";
  const [count, unit] = minutes < 120 ? [minutes, "minute"] : minutes < 2880 ? [Math.round(minutes / 60), "hour"] : [Math.round(minutes / 1440), "day"];
  return `in ${count} ${unit}${count === 1 ? "" : "s"}`;
}

const spokenSize = (bytes) => bytes < 10240 ? `${bytes} byte${bytes === 1 ? "" : "s"}` : bytes < 1048576 ? `${Math.floor(bytes / 1024)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`;

// ---- the form ----

function editor(form) {
  const text = $("#content"), alertBox = $("#alert"), size = $("#size"), submit = form.querySelector("button.main");
  const { title, language, expires_in: expires, file } = form.elements;
  const max = Number(form.dataset.max), base = form.dataset.base, clone = form.elements.clone_of;
  let source = null; // {bytes, value}: what was dropped, chosen or cloned, and the text that shows it
  let key = null; // one create's secret: sent again with the same paste, it can't make a second one
  let saving = false, released = false, timer = 0;

  const encoder = new TextEncoder();
  const body = () => source !== null && (source.value === null || source.value === text.value) ? source.bytes : encoder.encode(text.value);
  const complain = (message) => { alertBox.textContent = message; };

  function changed() {
    key = null;
    clearTimeout(timer);
    timer = setTimeout(settle, 200);
  }
  function settle() {
    clearTimeout(timer);
    const count = body().length;
    size.textContent = `${spokenSize(count)} of ${spokenSize(max)}`;
    size.className = count > max ? "js-only over" : "js-only";
    if (saving) return;
    const draft = { text: text.value, title: title.value, language: language.value, expires: expires.value };
    if (!kept.set("draft", draft.text || draft.title ? draft : null)) size.textContent += " (too large to keep over a reload)";
  }
  function guess() {
    const name = title.value.toLowerCase();
    let found = "";
    for (const option of document.querySelectorAll("#languages option")) {
      const matches = (pattern) => pattern.startsWith("*.") ? name.endsWith(pattern.slice(1)) : pattern === name;
      if (name && option.label.toLowerCase().split(" ").some(matches)) { found = option.value; break; }
    }
    language.placeholder = found ? `${found} (from the name)` : "Language";
  }

  function load(bytes, name) {
    source = { bytes, value: null };
    try {
      text.value = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
      if (!text.value.includes("\0")) { source.value = text.value; text.readOnly = false; }
    } catch {
      text.value = "";
    }
    if (source.value === null) {
      text.value = "";
      complain(`${name || "This"} is not text: its ${spokenSize(bytes.length)} are saved as they are. Type to write something instead.`);
    } else complain("");
    changed();
    settle();
  }
  async function take(chosen) {
    if (!chosen) return;
    if (chosen.size > max) { complain(`${chosen.name} has ${spokenSize(chosen.size)}; a paste may have ${spokenSize(max)} here.`); return; }
    load(new Uint8Array(await chosen.arrayBuffer()), chosen.name);
    if (chosen.name) { title.value = chosen.name; guess(); }
    file.value = "";
    text.focus();
  }

  async function save() {
    if (saving) return;
    const bytes = body();
    if (!bytes.length) { complain("There is nothing to save yet."); text.focus(); return; }
    if (bytes.length > max) { complain(`This is ${spokenSize(bytes.length)}; a paste may have ${spokenSize(max)} here.`); return; }
    const options = new URLSearchParams({ expires_in: expires.value });
    if (title.value) options.set("title", title.value);
    if (language.value) options.set("language", language.value);
    key = key || Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const headers = { "Content-Type": "application/octet-stream", "Idempotency-Key": key };
    const token = form.elements.create_token;
    if (token) headers.Authorization = `Bearer ${token.value}`;
    settle();
    saving = true;
    submit.disabled = true;
    complain("");
    let made = null;
    try {
      const answer = await fetch(`${base}/api/v1/pastes?${options}`, { method: "POST", headers, body: bytes });
      const told = await answer.json();
      if (answer.status === 201) made = told;
      else complain(`Not saved: ${told.detail}`);
    } catch {
      complain("Not saved: this pastebin could not be reached. Your text is still here; try again.");
    }
    saving = false;
    submit.disabled = false;
    if (made === null) return;
    kept.set("pastes", [{ id: made.id, token: made.delete_token, title: made.title, expires: made.expires_at }, ...pastes()].slice(0, PASTES_MAX));
    kept.set("draft", null);
    saving = true; // no draft any more while the page goes
    try { sessionStorage.setItem("created", made.id); } catch { /* the bar stays closed then */ }
    location.assign(`${base}/${made.id}`);
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); save(); });
  form.addEventListener("input", (event) => { if (event.target === title) guess(); changed(); });
  file.addEventListener("change", () => take(file.files[0]));
  addEventListener("pagehide", settle);
  addEventListener("pageshow", (event) => { if (event.persisted) { saving = false; submit.disabled = false; } });
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && (event.key === "Enter" || event.key === "s")) {
      event.preventDefault();
      save();
    }
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") released = true;
    if (event.key !== "Tab" || released || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    indent(text, event.shiftKey);
  });
  text.addEventListener("blur", () => { released = false; });
  text.addEventListener("paste", (event) => { const [chosen] = event.clipboardData.files; if (chosen) { event.preventDefault(); take(chosen); } });
  addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("Files")) { event.preventDefault(); form.classList.add("dropping"); } });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) form.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    form.classList.remove("dropping");
    if (event.dataTransfer.files.length) { event.preventDefault(); take(event.dataTransfer.files[0]); }
  });

  const draft = kept.get("draft");
  if (clone) {
    fetch(`${base}/${clone.value}/raw`).then(async (answer) => {
      const bytes = new Uint8Array(await answer.arrayBuffer());
      if (answer.ok && text.value === text.defaultValue) load(bytes, title.value);
    }).catch(() => {}); // the server put the text there too
  } else if (draft && !text.value) {
    text.value = draft.text;
    title.value = title.value || draft.title;
    language.value = language.value || draft.language;
    for (const option of expires.options) option.selected = option.value === draft.expires || (option.selected && ![...expires.options].some((each) => each.value === draft.expires));
  }
  guess();
  settle();
  // The browser's own autofocus waits for the first frame, and would lose what a quick typist has typed by then.
  if (document.activeElement === document.body) text.focus();
}

function indent(text, back) {
  const { selectionStart: start, selectionEnd: end, value } = text;
  if (!back && start === end) { document.execCommand("insertText", false, "\t"); return; }
  const from = value.lastIndexOf("\n", start - 1) + 1;
  const lines = value.slice(from, end);
  const moved = back ? lines.replace(/^(\t| {1,4})/gm, "") : lines.replace(/^(?=.)/gm, "\t");
  if (moved === lines) return;
  text.setSelectionRange(from, end);
  document.execCommand("insertText", false, moved); // so that undo knows of it
  text.setSelectionRange(start === end ? Math.max(from, start - (lines.length - moved.length)) : from, from + moved.length - (start === end ? value.slice(start, end).length : 0));
}

// ---- a paste ----

function reading(id) {
  const text = $("#text"), mine = pastes().find((each) => each.id === id);
  const gone = $("#gone");
  if (gone) gone.textContent += ` (${left(Date.parse(gone.dateTime))})`;

  const wrap = $("#wrap");
  if (wrap) {
    const wanted = kept.get("wrap");
    if (wanted !== null && !wrap.checked) wrap.checked = wanted;
    wrap.addEventListener("change", () => kept.set("wrap", wrap.checked));
  }

  if (mine) {
    for (const input of document.querySelectorAll(".delete input")) input.value = mine.token;
    $("#token").textContent = mine.token;
    $(".token").hidden = false;
  }
  let created = null;
  try { created = sessionStorage.getItem("created"); sessionStorage.removeItem("created"); } catch { /* no storage */ }
  if (created === id) {
    const drop = $("#share").closest("details");
    drop.open = true;
    toast("Saved");
    drop.querySelector("button").focus();
  }
  if (!text) return;

  actions.copy = () => copy(text.textContent, "Text");
  // What is selected is copied as it stands in the document, whatever a browser makes of blocks.
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (selection.isCollapsed || !selection.containsNode(text, true)) return;
    const range = selection.getRangeAt(0), whole = document.createRange();
    whole.selectNodeContents(text);
    if (range.compareBoundaryPoints(Range.START_TO_START, whole) < 0) range.setStart(text, 0);
    if (range.compareBoundaryPoints(Range.END_TO_END, whole) > 0) range.setEnd(text, text.childNodes.length);
    whole.setStart(range.endContainer, range.endOffset);
    if (/^\r?\n$/.test(whole.toString())) range.setEnd(text, text.childNodes.length); // a last newline can't be selected
    event.preventDefault();
    event.clipboardData.setData("text/plain", range.toString());
  });

  let first = 0;
  function show(scroll) {
    const found = /^#L(\d+)(?:-L?(\d+))?$/.exec(location.hash);
    for (const line of text.querySelectorAll(".on")) line.classList.remove("on");
    if (!found) return;
    const [from, to] = [Number(found[1]), Number(found[2] || found[1])].sort((a, b) => a - b);
    first = Number(found[1]);
    for (let line = from; line <= to; line++) {
      const row = document.getElementById(`L${line}`);
      if (!row) break;
      row.classList.add("on");
      if (scroll && line === from) row.scrollIntoView({ block: "center" });
    }
  }
  text.addEventListener("click", (event) => {
    const number = event.target.closest("a[data-n]");
    if (!number || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const line = Number(number.dataset.n);
    const range = event.shiftKey && first ? [first, line].sort((a, b) => a - b) : [line];
    const start = first;
    history.replaceState(null, "", `#L${range.join("-L")}`);
    show(false);
    first = event.shiftKey && start ? start : line;
  });
  text.addEventListener("mousedown", (event) => { if (event.shiftKey && event.target.closest("a[data-n]")) event.preventDefault(); });
  addEventListener("hashchange", () => show(true));
  show(true);
}

// ---- my pastes ----

function listMine(list) {
  const base = list.dataset.base;
  list.replaceChildren();
  for (const each of pastes()) {
    if (each.expires && Date.parse(each.expires) < Date.now()) { forget(each.id); continue; }
    const row = document.createElement("li"), link = document.createElement("a"), note = document.createElement("span"), button = document.createElement("button");
    link.href = `${base}/${encodeURIComponent(each.id)}`;
    link.textContent = each.title || each.id;
    note.textContent = each.expires ? `gone ${left(Date.parse(each.expires))}` : "kept until deleted";
    button.className = "danger small";
    button.textContent = "Delete";
    button.setAttribute("aria-label", `Delete ${each.title || each.id}`);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        const answer = await fetch(`${base}/api/v1/pastes/${encodeURIComponent(each.id)}`, { method: "DELETE", headers: { "X-Delete-Token": each.token } });
        if (answer.status === 204 || answer.status === 404) {
          forget(each.id);
          listMine(list);
          toast("Deleted: gone here now, from caches within a minute");
          return;
        }
        $("#alert").textContent = `Not deleted: ${(await answer.json()).detail}`;
      } catch {
        $("#alert").textContent = "Not deleted: this pastebin could not be reached. Try again.";
      }
      button.disabled = false;
    });
    row.append(link, note, button);
    list.append(row);
  }
  if (!list.children.length) {
    const row = document.createElement("li");
    row.textContent = "Nothing yet.";
    list.append(row);
  }
}

// ---- the operator's page ----

async function renew() {
  if (document.hidden || $("details[open]") || document.activeElement.closest("main button, main summary")) return;
  try {
    const answer = await fetch(location.href);
    if (answer.ok) $("main").replaceChildren(...new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main").childNodes);
  } catch { /* the figures stay as old as their time says */ }
}

// ---- keys ----

const actions = {
  link: () => copy($("#link").value, "Link"),
  token: () => copy($("#token").textContent, "Token"),
  keys: overlay,
};

function overlay() {
  const dialog = document.createElement("dialog"), names = document.createElement("dl"), close = document.createElement("button");
  dialog.setAttribute("aria-label", "Keys");
  for (const each of document.querySelectorAll("[data-key], [data-keys]")) {
    const key = document.createElement("dt"), what = document.createElement("dd"), cap = document.createElement("kbd");
    cap.textContent = each.dataset.key || each.dataset.keys;
    key.append(cap);
    what.textContent = each.dataset.label || each.textContent;
    names.append(key, what);
  }
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(names, close);
  document.body.append(dialog);
  dialog.showModal();
}

function keys(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || event.repeat || $("dialog[open]")) return;
  if (event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]")) return;
  const found = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === event.key);
  if (!found) return;
  event.preventDefault();
  found.click();
  if (found.matches("summary")) found.focus();
}

addEventListener("DOMContentLoaded", () => {
  for (const radio of document.getElementsByName("theme")) {
    if (radio.value === (root.dataset.theme || "system")) radio.checked = true;
    radio.addEventListener("change", () => {
      if (radio.value === "system") delete root.dataset.theme; else root.dataset.theme = radio.value;
      kept.set("theme", radio.value === "system" ? null : radio.value);
    });
  }
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => actions[button.dataset.do]());
  addEventListener("keydown", keys);
  const { id, deleted, mine, refresh } = document.body.dataset;
  if (deleted) forget(deleted);
  if (id) reading(id);
  if (mine !== undefined) listMine($("#mine"));
  if ($("#editor")) editor($("#editor"));
  if (refresh) setInterval(renew, refresh * 1000);
});
})();
