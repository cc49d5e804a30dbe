// Keys, and what a live part says about its connection. Pages work without this file.
"use strict";
(() => {
  const typing = (node) => node instanceof Element && node.closest("input, textarea, select, [contenteditable]");
  const step = (by) => {
    const items = [...document.querySelectorAll("article.pause, [data-item]")];
    if (!items.length) return;
    const at = items.findIndex((item) => item.contains(document.activeElement));
    const next = items[Math.min(items.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  const inItem = (selector) => {
    const item = document.activeElement?.closest("article.pause") ?? document.querySelector("article.pause");
    item?.querySelector(selector)?.focus();
  };
  const keys = {
    "/": () => (document.querySelector("[data-find]") ?? document.querySelector("nav a[href$='/find']"))?.focus(),
    j: () => step(1),
    k: () => step(-1),
    // It moves to the button: a slip of a finger decides nothing.
    a: () => inItem("button[value=approve]"),
    r: () => inItem("[data-reason]"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  const say = (event, text) => {
    const place = document.querySelector("[data-connection]");
    if (place) place.textContent = text;
  };
  // A browser that is online again does not wait for the next try.
  const connections = new Set();
  document.addEventListener("htmx:sse:before:connection", (event) => connections.add(event.detail.connection));
  addEventListener("online", () => connections.forEach((each) => each.delayCanceller?.()));
  document.addEventListener("htmx:sse:after:connection", (event) => say(event, "live"));
  document.addEventListener("htmx:sse:error", (event) => say(event, "the connection broke; trying again"));
  document.addEventListener("htmx:sse:close", (event) => say(event, "not live"));
  document.addEventListener("expired", (event) => say(event, "your login has ended: log in again; a form that you send is kept"));
  // The tail keeps the newest rows only.
  document.addEventListener("htmx:sse:after:message", (event) => {
    const list = event.target;
    if (!(list instanceof Element) || !list.matches("[data-most]")) return;
    while (list.children.length > Number(list.dataset.most)) list.firstElementChild.remove();
  });
  document.addEventListener("change", (event) => {
    const all = event.target;
    if (!(all instanceof Element) || !all.matches("[data-all]")) return;
    for (const box of document.querySelectorAll("input[name=chosen]")) box.checked = all.checked;
  });
})();
