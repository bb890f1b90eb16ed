// The box with values: follows the pointer, and the arrow keys when a chart has the focus.

// stops: how many places there are; nearest(x, y): which of them is meant; show(k): {x, title, rows: [{part, words, value}]}
function attachReadout(host, cross, { stops, nearest, show }) {
  const box = make("div", { class: "readout", role: "status", hidden: "" });
  host.append(box);
  let now = null;

  function close() {
    now = null;
    box.hidden = true;
    cross.setAttribute("visibility", "hidden");
  }

  function open(k) {
    now = k;
    const { x, title, rows } = show(k);
    box.replaceChildren(make("b", {}, title));
    for (const row of rows) {
      box.append(make("div", {}, [row.part ? keyOf(row.part) : make("span"), make("span", {}, row.words), make("span", {}, row.value)]));
    }
    box.hidden = false;
    cross.setAttribute("visibility", "visible");
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    const room = host.clientWidth - box.offsetWidth;
    const left = x + 14 <= room ? x + 14 : x - 14 - box.offsetWidth;
    box.style.left = `${Math.max(0, Math.min(room, left))}px`;
    box.style.top = "6px";
  }

  function follow(event) {
    const frame = host.getBoundingClientRect();
    const k = nearest(event.clientX - frame.left, event.clientY - frame.top);
    if (k === null) close();
    else if (k !== now) open(k);
  }

  host.onpointermove = follow;
  host.onpointerdown = follow;
  host.onpointerleave = close;
  host.onblur = close;
  host.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (event.key === "Escape") close();
    else if (event.key === "Home" || event.key === "End") open(event.key === "Home" ? 0 : stops - 1);
    else if (step && stops) open(now === null ? (step > 0 ? 0 : stops - 1) : Math.max(0, Math.min(stops - 1, now + step)));
    else return;
    event.preventDefault();
  };
}

function emptyChart(host, words) {
  host.replaceChildren(make("div", { class: "empty" }, words));
  host.removeAttribute("tabindex");
  host.onpointermove = host.onpointerdown = host.onpointerleave = host.onblur = host.onkeydown = null;
}
