"use strict";
const $ = (id) => document.getElementById(id);
const percent = (share, digits = 0) => (share === null || share === undefined ? "–" : (100 * share).toFixed(digits) + "\u00a0%");
const plural = (n, one, many) => n + " " + (n === 1 ? one : many);

function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

let view = null;
let drawn = { board: "", versions: "", journal: "" };
let chosen = new Set();
let busy = false;
let token = sessionStorage.getItem("offmap-token");

async function ask(path, body) {
  const headers = token ? { authorization: "Bearer " + token } : {};
  const options = body === undefined ? { headers } : {
    method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body),
  };
  const answer = await fetch(path, options);
  if (answer.status === 401) {
    await askToken();
    return ask(path, body);
  }
  if (!answer.ok) {
    const words = await answer.json().catch(() => ({ error: "the service did not answer" }));
    const failure = new Error(words.error);
    failure.view = words.view;  // the new state, when someone else was faster
    throw failure;
  }
  return answer;
}

let opening = null;
function askToken() {
  opening ??= new Promise((resolve) => {
    const dialog = $("token-dialog");
    $("token-form").onsubmit = () => {
      token = $("token").value.trim();
      sessionStorage.setItem("offmap-token", token);
      opening = null;
      resolve();
    };
    dialog.oncancel = (event) => event.preventDefault();
    dialog.showModal();
  });
  return opening;
}

let toastTimer = 0;
function toast(words) {
  const place = $("toast");
  place.textContent = words.charAt(0).toUpperCase() + words.slice(1);
  place.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { place.hidden = true; }, 6000);
}

async function act(path, body) {
  if (busy) return;
  busy = true;
  try {
    show(await (await ask(path, body)).json());
  } catch (error) {
    if (error.view) show(error.view);
    toast(error.message);
  } finally {
    busy = false;
  }
}
const seen = () => ({ board: view.board.number, revision: view.board.revision });
const edit = (action, details) => act("/v1/triage/act", { ...seen(), action, ...details });

const pictures = new Map();
const queue = [];
let loading = 0;
function item(id) {
  if (!pictures.has(id)) {
    pictures.set(id, new Promise((resolve) => queue.push(async () => {
      try {
        const answer = await ask("/v1/triage/items/" + encodeURIComponent(id));
        const kind = answer.headers.get("content-type") || "";
        resolve(kind.startsWith("image/") ? { url: URL.createObjectURL(await answer.blob()) } : await answer.json());
      } catch {
        resolve({});
      }
    })));
    pump();
  }
  return pictures.get(id);
}
async function pump() {
  if (loading >= 6 || !queue.length) return;
  loading += 1;
  await queue.shift()();
  loading -= 1;
  pump();
}

function thumbs(ids, label) {
  const box = el("div", { className: "thumbs", role: "img" });
  box.setAttribute("aria-label", label);
  for (const id of ids) {
    const blank = el("span", { className: "thumb blank" });
    box.append(blank);
    item(id).then((found) => {
      if (found.url) blank.replaceWith(el("img", { className: "thumb", src: found.url, alt: "", draggable: false }));
      else if (found.text) { blank.className = "thumb"; blank.dir = "auto"; blank.textContent = found.text; box.classList.add("words"); box.removeAttribute("role"); }
      else blank.textContent = found.score === undefined ? "gone" : Number(found.score).toPrecision(3);
    });
  }
  return box;
}

function card(group) {
  const key = "group-" + group.id;
  const hint = /^new \d+$/.test(group.suggestion) ? "Name this group" : group.suggestion + "?";
  const name = el("input", {
    type: "text", value: group.name ?? "", placeholder: hint, maxLength: 80, autocomplete: "off",
    id: key + "-name", ariaLabel: "Name of the group of " + group.size + " inputs",
    onchange: () => name.value.trim() && edit("name", { group: group.id, name: name.value.trim() }),
  });
  const pick = el("input", {
    type: "checkbox", checked: chosen.has(group.id), id: key + "-pick", ariaLabel: "Select this group for merging",
    onchange: () => {
      pick.checked ? chosen.add(group.id) : chosen.delete(group.id);
      box.classList.toggle("chosen", pick.checked);
      showTools();
    },
  });
  const known = el("select", {
    id: key + "-known", ariaLabel: "Say which known class this is",
    onchange: () => known.value !== "" && edit("known", { group: group.id, class: Number(known.value) }),
  }, el("option", { value: "" }, "It is known…"), ...view.board.classes.map((one) => el("option", { value: one.id }, one.name)));
  const box = el("article", { className: "group" + (group.name ? " named" : "") + (chosen.has(group.id) ? " chosen" : ""), id: key },
    el("div", { className: "group-head" }, pick, name, el("span", { className: "count" }, String(group.size))),
    group.keywords ? el("p", { className: "keywords" }, "Keywords: " + group.keywords.split(" ").join(", ")) : null,
    thumbs(group.exemplars, "Typical inputs of this group"),
    el("p", { className: "sure", title: "How much nearer its inputs are to this group than to the next one" }, "Confidence",
      el("meter", { min: 0, max: 1, value: group.confidence, ariaLabel: "Confidence" }), percent(group.confidence)),
    group.nearest.length ? el("p", { className: "near" }, "Nearest known: " + group.nearest.join(", ")) : null,
    group.doubtful.length ? el("details", { ontoggle: (event) => {
      if (event.target.open && !event.target.querySelector(".thumbs")) event.target.append(thumbs(group.doubtful, "Doubtful inputs of this group"));
    } }, el("summary", {}, "Doubtful ones")) : null,
    el("div", { className: "acts" },
      el("button", { type: "button", className: "quiet small", id: key + "-split", onclick: () => edit("split", { group: group.id, parts: 2 }) }, "Split"),
      el("button", { type: "button", className: "quiet small", id: key + "-discard", onclick: () => edit("discard", { group: group.id }) }, "Discard"),
      view.board.classes.length ? known : null));
  return box;
}

function showTools() {
  const there = new Set((view.board?.groups ?? []).map((group) => group.id));
  chosen = new Set([...chosen].filter((id) => there.has(id)));
  $("merge").hidden = chosen.size < 2;
  $("merge").textContent = "Merge " + chosen.size;
  $("undo").hidden = !view.can_undo;
  $("group").textContent = view.board ? "Group again" : "Group the unknown inputs";
  $("group").className = view.board ? "quiet" : "";
}

function showBoard() {
  const board = view.board, running = view.job?.running;
  const named = (board?.groups ?? []).filter((group) => group.name);
  const text = JSON.stringify(board);
  if (text !== drawn.board) {
    const focused = document.activeElement?.id;
    const typed = document.activeElement?.matches?.(".group input[type=text]") ? document.activeElement.value : null;
    if (board) $("list").replaceChildren(...board.groups.map(card));
    if (!board || !board.groups.length) {
      const open = view.stats.pile.open;
      $("list").replaceChildren(el("p", { className: "empty" }, board ? "No group is left here. Group again when more has come in."
        : open ? "Press “Group the unknown inputs” to see what these inputs have in common." : "Nothing unknown has come in yet."));
    }
    const again = focused && $(focused);
    if (again) { again.focus(); if (typed !== null && again.value === "") again.value = typed; }
    drawn.board = text;
  }
  $("lead").textContent = board
    ? plural(board.inputs, "input", "inputs") + " in " + plural(board.groups.length, "group", "groups") +
      ". Name what you recognise; merge what belongs together; split what does not; discard the rest."
    : "Inputs that the guard did not know are kept here until someone has looked at them.";
  const familiar = (board?.known ?? []).map((one) => one.size + " like " + one.name);
  $("familiar").textContent = (familiar.length ? "Probably known after all: " + familiar.join(", ") + ". " : "") +
    (board?.discarded ? plural(board.discarded, "input is", "inputs are") + " discarded." : "");
  $("learning").hidden = !board || !board.groups.length;
  const what = named.length ? "New: " + named.map((group) => group.name).join(", ") + "."
    : "Name at least one group first. Groups without a name stay unknown inputs.";
  $("learn-lead").textContent = what + " Known classes are learned along, and may lose at most " +
    percent(view.max_forgetting, 1) + " of their accuracy; else nothing is deployed.";
  $("learn").disabled = running || !named.length || Boolean(view.missing);
  $("missing").hidden = !view.missing;
  $("missing").textContent = view.missing ?? "";
  for (const control of document.querySelectorAll(".group input, .group button, .group select, .tools button")) control.disabled = Boolean(running);
}

function showVersion(version) {
  const live = version.id === view.current, before = version.before, after = version.after;
  const pair = (name, one, two) => el("div", {}, el("dt", {}, name), el("dd", {}, el("span", {}, percent(one, 1) + " → "), percent(two, 1)));
  const rows = before.by_class.map(([name, count, then], i) =>
    el("tr", {}, el("td", {}, name), el("td", {}, String(count)), el("td", {}, percent(then, 1)), el("td", {}, percent(after.by_class[i][2], 1))));
  const button = live
    ? el("button", { type: "button", className: "quiet", id: "rollback", onclick: () => act("/v1/triage/rollback", {}) }, "Roll back")
    : version.accepted && version.usable
      ? el("button", { type: "button", id: "deploy-" + version.id, onclick: () => act("/v1/triage/deploy", { version: version.id }) }, "Deploy")
      : null;
  return el("article", { className: "version" + (live ? " live" : ""), id: "version-" + version.id },
    el("div", { className: "version-head" },
      el("h3", {}, "Version " + version.id + ": " + (version.new_classes.join(", ") || "no new class"),
        el("span", { className: "tag" + (version.accepted ? "" : " no") }, live ? "in service" : version.accepted ? "ready" : "not deployed")),
      button),
    el("dl", { className: "compare" },
      pair("Known classes right", before.known, after.known), pair("New classes right", before.new, after.new),
      pair("Known inputs accepted", before.accepted_known, after.accepted_known),
      pair("New inputs accepted", before.accepted_new, after.accepted_new)),
    el("p", { className: "small" }, version.reason.charAt(0).toUpperCase() + version.reason.slice(1) + "."),
    el("details", {}, el("summary", {}, "Class by class, on held-out inputs"),
      el("table", {}, el("thead", {}, el("tr", {}, ...["Class", "Inputs", "Before", "After"].map((word) => el("th", { scope: "col" }, word)))), el("tbody", {}, ...rows))));
}

function showVersions() {
  const text = JSON.stringify([view.versions, view.current]);
  $("outcome").hidden = !view.versions.length;
  if (text === drawn.versions) return;
  const open = new Set([...document.querySelectorAll(".version details[open]")].map((one) => one.closest(".version").id));
  $("versions").replaceChildren(...[...view.versions].reverse().map(showVersion));
  for (const id of open) $(id)?.querySelector("details")?.setAttribute("open", "");
  drawn.versions = text;
}

function showJournal() {
  const text = JSON.stringify(view.journal);
  if (text === drawn.journal) return;
  const words = {
    group: (d) => "grouped " + d.inputs + " inputs", name: (d) => "named group " + d.group + " “" + d.name + "”",
    merge: (d) => "merged groups " + d.groups.join(", "), split: (d) => "split group " + d.group,
    discard: (d) => "discarded group " + d.group, known: (d) => "called group " + d.group + " known, class " + d.class,
    undo: () => "took the last edit back", learned: (d) => "learned version " + d.version + (d.accepted ? "" : ", not to be deployed"),
    reload: () => "read the first guard anew from its file",
    deploy: (d) => "deployed version " + d.version, rollback: (d) => "rolled back to " + (d.version ? "version " + d.version : "the first guard"),
  };
  $("journal").replaceChildren(...[...view.journal].reverse().map((entry) =>
    el("li", { className: entry.undone ? "undone" : "" },
      new Date(1000 * entry.time).toLocaleString() + ": " + (words[entry.action]?.(entry.details) ?? entry.action))));
  drawn.journal = text;
}

function showFigures() {
  const stats = view.stats, guard = view.guard;
  $("guard").textContent = guard.detector + (view.current ? " · version " + view.current : "") + (guard.classes ? " · " + guard.classes + " classes" : "");
  $("share").textContent = percent(stats.unknown_share, 1);
  $("share-note").textContent = stats.recent ? "of the last " + plural(stats.recent, "input", "inputs") : "nothing has come in yet";
  $("open").textContent = stats.pile.open.toLocaleString();
  $("open-note").textContent = stats.pile.resolved + " learned, " + stats.pile.discarded + " discarded";
  const { edges, counts } = stats.scores, most = Math.max(1, ...counts);
  const bars = counts.map((count, i) => {
    const out = guard.threshold !== null && i < edges.length && edges[i] <= guard.threshold;
    const bar = el("i", { className: out ? "out" : "", title: count + " inputs" });
    bar.style.height = (100 * count) / most + "%";
    return bar;
  });
  $("histogram").replaceChildren(...bars);
  const promise = "at least " + percent(guard.tpr) + " of known inputs are accepted" +
    (guard.confidence === null ? "" : ", with " + percent(guard.confidence) + " confidence");
  $("threshold-note").textContent = (stats.drift && stats.drift.alarm ? "promised before the drift: " : "") + promise;
  $("notice").hidden = !view.notice;
  $("notice").textContent = view.notice ?? "";
  const words = driftWords(stats.drift);
  $("drift").hidden = !words;
  $("drift").textContent = words;
}

function listed(words) {
  const shown = words.slice(0, 5), rest = words.length - shown.length;
  return shown.join(", ") + (rest ? " and " + rest + " more" : "");
}

function driftWords(drift) {
  if (!drift) return "";
  const of = (what, direction) => drift.classes.filter((one) => one.what === what && one.direction === direction).map((one) => "“" + one.class + "”");
  const parts = [
    ["more inputs than at calibration are taken for ", of("share", "higher")],
    ["fewer are taken for ", of("share", "lower")],
    ["scores have risen in ", of("score", "higher")],
    ["scores have sunk in ", of("score", "lower")],
    ["these features have moved: ", drift.features.map((one) => one.feature + (one.direction === "higher" ? " (up)" : " (down)"))],
  ].filter(([, names]) => names.length).map(([words, names]) => words + listed(names));
  if (!parts.length && !drift.alarm) return "";
  const advice = " What the threshold promises was for inputs as before: look at the unknown ones, then calibrate anew or learn what is new.";
  if (!parts.length) return "Inputs have drifted from those of calibration; so far no class or feature stands out." + advice;
  return "Inputs have drifted from those of calibration: " + parts.join("; ") + "." + advice;
}

function showJob() {
  const job = view.job;
  $("job").hidden = !job || (!job.running && !job.error);
  if (!job) return;
  const home = $(job.kind === "learn" && view.board ? "learn-job" : "group-job");
  if ($("job").parentElement !== home) home.append($("job"));
  $("job-words").textContent = job.words.charAt(0).toUpperCase() + job.words.slice(1) + (job.running ? " …" : "");
  $("job-share").hidden = !job.running;
  $("job-share").value = job.share;
}

function show(next) {
  const learned = view?.job?.kind === "learn" && view.job.running && !next.job?.running && !next.job?.error;
  view = next;
  showFigures();
  showTools();
  showJob();
  showBoard();
  showVersions();
  showJournal();
  if (learned) {
    toast("learned; look at what it would change");
    $("outcome").scrollIntoView({ block: "start" });
  }
  document.body.dataset.ready = "yes";
}

async function poll() {
  try {
    if (!document.hidden && !busy) {
      const next = await (await ask("/v1/triage")).json();
      if (!busy) show(next);
    }
  } catch (error) {
    $("job").hidden = false;
    $("job-words").textContent = "The service does not answer: " + error.message;
    $("job-share").hidden = true;
  }
  setTimeout(poll, view?.job?.running ? 400 : 2500);
}

$("group").addEventListener("click", () => act("/v1/triage/group", {}));
$("undo").addEventListener("click", () => act("/v1/triage/undo", seen()));
$("merge").addEventListener("click", () => {
  const groups = [...chosen];
  chosen.clear();
  edit("merge", { groups });
});
$("learn").addEventListener("click", () => act("/v1/triage/learn", seen()));
poll();
