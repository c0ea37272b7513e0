// Replaces the page content with the current one. Without this script, the page reloads itself.
"use strict";

const stale = document.getElementById("stale");

async function refresh() {
  if (document.hidden || String(getSelection())) return; // hidden, or the user is selecting text
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const scrolled = [...document.querySelectorAll(".wide")].map((each) => each.scrollLeft);
    document.querySelector("main").replaceWith(document.adoptNode(fresh.querySelector("main")));
    document.querySelectorAll(".wide").forEach((each, index) => { each.scrollLeft = scrolled[index] || 0; });
    stale.hidden = true;
  } catch {
    stale.hidden = false;
  }
}

setInterval(refresh, Number(document.body.dataset.refreshSeconds) * 1000);
