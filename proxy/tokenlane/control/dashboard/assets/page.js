"use strict";
// Draws what /live.json says, once a second. Text goes in as text only: names of models and
// replicas come from elsewhere.

const PERIOD_MS = 1000;
const $ = (id) => document.getElementById(id);
let paused = false;
let live = null;
let hourDue_ms = 0;

// -- sections --------------------------------------------------------------------------------

// Columns: [title, class, cell(row)]. A class "n" is a number; "head", "full", "bare", "wide", "flow": see the CSS.
function table(id, columns, rows, empty) {
  const target = $(id);
  if (!rows.length) {
    target.replaceChildren(el("tbody", {}, el("tr", {}, el("td", { class: "quiet full bare" }, empty))));
    return;
  }
  const head = el("tr", {}, ...columns.map(([title, how]) => el("th", { class: how, scope: "col" }, title)));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([title, how, cell]) => el("td", { class: how, "data-label": title }, cell(row)))));
  target.replaceChildren(el("thead", {}, head), el("tbody", {}, ...body));
}

const inFlight = (one) => count(one.requests) + (one.others ? ` (${count(one.others)} of others)` : "");
const late = (value) => (!known(value) ? "" : value >= 0.05 ? "bad" : value >= 0.01 ? "warn" : "");
const word = (text, how = "") => el("span", { class: `pill ${how}` }, text);
const coloured = (text, how) => el("span", { class: how }, text);

function saved() {
  const { tokens, prefill_s, replicas } = live.saved ?? {};
  if (!known(tokens)) return "none saved yet";
  const time = known(prefill_s) ? `, ${duration(prefill_s)} of prefill; now worth ${count(replicas)} replicas` : "";
  return `${count(tokens)} tokens saved${time}`;
}

const TILES = [
  {
    title: "Requests", lines: ["requests_per_s", "failed_per_s"], show: (value) => [count(value), "/s"],
    value: (now) => now.requests_per_s, level: (now) => (now.failed_per_s ? "bad" : ""),
    note: (now) => (now.failed_per_s ? `${count(now.failed_per_s)} /s failed` : "none failed"),
  },
  {
    title: "Time to first token", lines: ["ttft_p50_s", "ttft_p99_s"], show: seconds,
    value: (now) => now.ttft_p50_s, note: (now) => `p99 ${time(now.ttft_p99_s)}`,
  },
  {
    title: "Prompt tokens cached", lines: ["hit_rate"], show: (value) => [percent(value), ""],
    value: (now) => now.hit_rate, note: saved, long: true,
  },
  {
    title: "Loop lateness, p99", lines: ["late_p99_s", "late_worst_s"], show: seconds,
    value: (now) => now.late_p99_s, level: (now) => late(now.late_p99_s), note: (now) => `worst ${time(now.late_worst_s)}`,
  },
  {
    title: "In flight", lines: ["in_flight"], show: (value) => [count(value), ""],
    value: (now) => now.in_flight, note: (now) => `${count(now.queued_tokens)} tokens queued`,
  },
  {
    title: "Tokens out", lines: ["output_tokens_per_s"], show: (value) => [count(value), "/s"],
    value: (now) => now.output_tokens_per_s, note: (now) => `${count(now.input_tokens_per_s)} /s in`,
  },
];

function tiles() {
  if (!$("tiles").children.length) {
    for (const tile of TILES) {
      const made = el("div", { class: "tile" }, el("h3", {}, tile.title), el("div", { class: "value" }), el("p", { class: tile.long ? "long" : null }), el("div", { class: "graph" }));
      made.addEventListener("pointermove", (event) => { made.dataset.at = event.offsetX / made.clientWidth; drawTile(made, tile); });
      made.addEventListener("pointerleave", () => { delete made.dataset.at; drawTile(made, tile); });
      $("tiles").append(made);
    }
  }
  [...$("tiles").children].forEach((made, at) => drawTile(made, TILES[at]));
}

function drawTile(made, tile) {
  const lines = tile.lines.map((name) => live.series[name] ?? []);
  // Young gateways have little to show: the picture grows with them up to three minutes.
  const length = Math.max(lines[0].length, 60);
  let value = tile.value(live.now), note = tile.note(live.now);
  if (made.dataset.at !== undefined) {
    const back = length - 1 - Math.round(Math.min(Math.max(made.dataset.at, 0), 1) * (length - 1));
    const at = lines[0].length - 1 - back;
    value = lines[0][at] ?? null;
    note = `${Math.round(back * live.period_s)} s ago`;
  }
  const [number, unit] = tile.show(value);
  const [, shown, text, graph] = made.children;
  shown.className = `value ${tile.level?.(live.now) ?? ""}`;
  shown.replaceChildren(number, el("span", {}, unit));
  text.textContent = note;
  graph.replaceChildren(spark(lines, length, `${tile.title}, the last three minutes`));
}

function header() {
  document.title = `${live.unready ? "⚠ " : ""}tokenlane`;
  $("version").textContent = live.version;
  const state = $("state");
  state.className = `pill ${live.unready ? "bad" : "good"}`;
  state.textContent = live.unready ?? "serving";
  $("verdict").className = live.verdict.level;
  $("verdict").textContent = live.verdict.text;
  const facts = [
    ["on", live.url], ["policy", live.policy],
    ["workers", live.workers.length], ["connections", live.now.connections], ["up for", duration(live.uptime_s)],
  ];
  $("facts").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

function replicas() {
  const level = {
    up: "good", draining: "warn", down: "bad", ejected: "bad", refused: "bad", full: "warn", starting: "warn",
  };
  const usage = (row) => (row.kv_usage > 0.95 ? "bad" : row.kv_usage > 0.8 ? "warn" : "");
  table("replicas", [
    ["Replica", "head", (row) => row.id],
    ["Health", "bare", (row) => row.state === "up" && (row.times_slower || row.starved) ? word(row.starved ? "starved" : "slow", "warn") : word(row.state, level[row.state])],
    ["Requests", "n flow", (row) => `${count(row.requests_per_s)} /s`],
    ["Failed", "n flow", (row) => coloured(`${count(row.failed_per_s)} /s`, row.failed_per_s ? "bad" : "")],
    ["TTFT p50", "n flow", (row) => coloured(time(row.ttft_p50_s), row.times_slower ? "warn" : "")],
    ["In flight", "n", (row) => count(row.in_flight)],
    ...(live.fleet ? [["Of others", "n", (row) => count(row.peers_in_flight)]] : []),
    ["Queued tokens", "n", (row) => count(row.queued_tokens)],
    ["Runs", "n", (row) => count(row.running)],
    ["Waits", "n", (row) => count(row.waiting)],
    ["KV cache", "", (row) => bar(row.kv_usage, percent(row.kv_usage), usage(row))],
    ["KV tokens", "n wide", (row) => count(row.cache_tokens)],
    ["Hit rate", "n flow", (row) => percent(row.hit_rate)],
    ["Ids", "", (row) => word(row.ids || NONE, row.ids.startsWith("other") ? "bad" : row.ids === "unproven" ? "warn" : row.ids ? "good" : "")],
    ["Models", "n full", (row) => row.models.join(", ") || NONE],
  ], live.replicas, "No replica is configured.");
}

const FLOWS = [
  ["Requests", "requests_per_s", (value) => `${count(value)} /s`], ["Failed", "failed_per_s", (value) => `${count(value)} /s`],
  ["TTFT p50", "ttft_p50_s", time], ["Hit rate", "hit_rate", percent],
];

// A column has one scale, so that a replica that differs stands out.
function flows(hour) {
  const rows = Object.entries(hour.flows), longest = Math.max(...rows.map(([, flow]) => flow.requests_per_s.length), 0);
  const length = Math.max(longest, 10), span_s = length * hour.period_s, span = span_s < 3600 ? duration(span_s) : "hour";
  $("hour").hidden = longest < 2;
  $("hour").querySelector("small").textContent = `over the last ${span}; each column has one scale`;
  table("flows", [["Replica", "head", ([id]) => id], ...FLOWS.map(([title, name, show]) => {
    const high = Math.max(...rows.flatMap(([, flow]) => flow[name]).filter(known), 1e-9);
    return [title, "n", ([id, flow]) => el("div", { class: "bar" },
      spark([flow[name]], length, `${id}: ${title}, the last ${span}, at most ${show(Math.max(...flow[name].filter(known), 0))}`, "line small", high),
      el("span", {}, show(flow[name].at(-1))))];
  })], rows, "");
}

function events() {
  $("events").hidden = !live.events.length;
  $("happened").replaceChildren(...live.events.slice(0, 12).map((row) => el("li", {},
    el("time", { class: "quiet" }, clock(row.at_s)), coloured(` ${row.text}${row.count ? `: ${count(row.count)}` : ""}`, row.level))));
}

function peers() {
  $("fleet").hidden = !live.fleet;
  if (!live.fleet) return;
  const up = live.fleet.store === "up";
  $("store").replaceChildren(`Fleet ${live.fleet.name}, store `, word(live.fleet.store, up ? "good" : "bad"));
  table("peers", [
    ["Gateway", "head", (row) => row.name],
    ["Version", "", (row) => coloured(row.version, row.version === live.version ? "" : "warn")],
    ["Seen", "n", (row) => time(row.seen_s)],
    ["In flight", "n", (row) => count(row.in_flight)],
    ["Queued tokens", "n", (row) => count(row.queued_tokens)],
    ["Clock ahead", "n", (row) => time(row.clock_skew_s)],
    ["Unknown replicas", "n", (row) => coloured(count(row.unknown_replicas), row.unknown_replicas ? "warn" : "")],
  ], live.fleet.peers, "No other gateway is seen.");
}

// Says in a line what a fold holds. It opens where there is news, and closes when that is over.
const news = new Map();
function fold(id, isNews, text) {
  const shown = $(id).querySelector("small");
  shown.className = isNews ? "warn" : "";
  shown.textContent = text;
  if ((news.get(id) ?? false) !== isNews) $(id).open = isNews;
  news.set(id, isNews);
}

function loops() {
  const level = { ready: "good", starting: "warn", draining: "warn", dead: "bad" };
  table("workers", [
    ["Worker", "head", (row) => `${row.worker}`],
    ["State", "", (row) => word(row.state, level[row.state])],
    ["p50", "n wide", (row) => time(row.late_p50_s)],
    ["p99", "n", (row) => coloured(time(row.late_p99_s), late(row.late_p99_s))],
    ["Worst", "n", (row) => coloured(time(row.late_worst_s), late(row.late_worst_s))],
    ["Restarts", "n", (row) => coloured(count(row.restarts), row.restarts ? "warn" : "")],
  ], live.workers, "No worker runs.");
  // The machine's own pauses are no news, nor are short ones.
  const held = live.stalls.filter((row) => row.cause !== "os" && late(row.worst_s) === "bad");
  const out = live.workers.filter((row) => row.state !== "ready");
  const said = [out.length ? out.map((row) => `worker ${row.worker} ${row.state}`).join(", ") : `all ${live.workers.length} ready`,
    ...held.map((row) => `held ${time(row.worst_s)} by ${row.cause}`), `worst ${time(live.now.late_worst_s)}`];
  fold("loops", held.length + out.length > 0, said.join("; "));
  const most = Math.max(...live.stalls.map((row) => row.total), 1);
  const seen = live.stalls.filter((row) => row.total);
  const rows = seen.map((row) => el("tr", {},
    el("td", { class: "head" }, row.cause),
    el("td", { class: "full bare" }, bar(row.total / most, count(row.total), held.includes(row) ? "warn" : "")),
    el("td", { class: "n bare" }, coloured(time(row.worst_s), held.includes(row) ? "warn" : "")),
    el("td", { class: "n bare wide" }, row.count ? `${count(row.count)} just now` : "")));
  const head = el("thead", {}, el("tr", {}, el("th", {}, "Stalls by cause"), el("th", {}, "since the start"), el("th", { class: "n" }, "longest, last minute"), el("th", { class: "wide" })));
  const more = el("p", { class: "quiet" }, "The last of them, with their stacks: ", el("a", { href: "stalls" }, "/stalls"));
  $("stalls").replaceChildren(...(rows.length ? [el("table", {}, head, el("tbody", {}, ...rows)), more] : []));
}

function ladder() {
  table("rungs", [
    ["Rung", "head", (row) => row.rung],
    ["Share", "full", (row) => bar(row.share, percent(row.share), row.rung === "bail" ? "warn" : "")],
    ["Per s", "n", (row) => count(row.per_s)],
    ["p50", "n wide", (row) => time(row.p50_s)],
    ["p99", "n", (row) => time(row.p99_s)],
  ], live.rungs, "");
  const used = live.rungs.filter((row) => row.share).sort((one, other) => other.share - one.share);
  const bails = used.some((row) => row.rung === "bail" && row.share > 0.05);
  fold("ladder", bails, used.map((row) => `${row.rung} ${percent(row.share)}`).join(", ") || "no prompt just now");
  $("bails").textContent = live.bails.length
    ? `Routed without ids: ${live.bails.map((row) => `${row.word} ${percent(row.share)}`).join(", ")}.` : "";
}

const HOW = { prefix: "good", cold: "accent", spill: "warn", bail: "warn", "no-tokenizer": "warn", "no-tokens": "warn" };

function decision(row) {
  const saved = row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : 0;
  const about = row.exact ? "" : "about ";
  const failed = row.status >= 500 || !["ok", "client_gone"].includes(row.outcome);
  const summary = el("summary", {},
    el("span", { class: "quiet" }, clock(row.at_s)),
    el("span", {}, word(row.reason, HOW[row.reason] ?? "")),
    el("span", { class: "to" }, row.replica),
    el("span", { class: "wide" }, bar(saved, `${count(row.cached_tokens)} of ${about}${count(row.prompt_tokens)}`)),
    el("span", { class: "wide quiet" }, row.rung ?? ""),
    el("span", { class: "right ttft" }, time(row.ttft_s ?? row.duration_s)),
    el("span", { class: `right wide ${failed ? "bad" : "quiet"}` }, String(row.status)));
  const reported = known(row.actual_cached_tokens) ? ` The replica reported ${count(row.actual_cached_tokens)} cached tokens.` : "";
  const ids = row.rung ? ` Its ${about}${count(row.prompt_tokens)} token ids: rung ${row.rung}, ${time(row.tokenize_s)}.` : "";
  const text = `${row.model} went to ${row.replica}: ${row.why}.${ids}${reported} ${row.outcome}, ${row.status}, ${time(row.duration_s)} in all.`;
  const columns = ["Candidate", "Cached tokens", "In flight", "Queued tokens", "Cost"];
  const head = el("tr", {}, ...columns.map((title, at) => el("th", { class: at ? "n" : "" }, title)));
  const body = row.candidates.map((one) => el("tr", {},
    el("td", { class: one.replica === row.replica ? "accent" : "" }, one.replica),
    ...[count(one.cached_tokens), inFlight(one), count(one.queued_tokens), count(one.cost)].map((text) => el("td", { class: "n" }, text))));
  const made = el("details", { "data-number": row.number }, summary);
  // Most are never opened.
  made.addEventListener("toggle", () => {
    if (made.children.length === 1) made.append(el("div", { class: "more" }, el("p", {}, text), el("table", {}, el("thead", {}, head), el("tbody", {}, ...body))));
  }, { once: true });
  return made;
}

function routing() {
  const foreseen = live.now.predicted_ratio;
  const ids = live.forwarded.find((row) => row.word === "ids")?.share ?? 0, why = live.as_text.map((row) => `${row.word} ${percent(row.share)}`);
  const sent = live.forwarded.length ? [word(`${percent(ids)} sent as ids${why.length ? `; as text: ${why.join(", ")}` : ""}`)] : [];
  $("reasons").replaceChildren(...sent, ...live.reasons.map((row) => word(`${row.word} ${percent(row.share)}`, HOW[row.word] ?? "")),
    ...(known(foreseen) ? [word(`${percent(foreseen)} of the cached tokens foreseen`)] : []));
  const target = $("decisions");
  const seen = new Map([...target.querySelectorAll("details")].map((made) => [Number(made.dataset.number), made]));
  const rows = live.decisions.slice(0, 15).map((row) => seen.get(row.number) ?? decision(row));
  // What somebody reads stays, however many came after it.
  for (const made of seen.values()) if (made.open && !rows.includes(made)) rows.push(made);
  if (rows.length) target.replaceChildren(...rows);
  else target.replaceChildren(el("p", { class: "quiet" }, "No request was routed yet."));
}

function models() {
  table("models", [
    ["Model", "head", (row) => row.model],
    ["TTFT p50", "n", (row) => time(row.ttft_p50_s)],
    ["p99", "n", (row) => time(row.ttft_p99_s)],
    ["Between tokens", "n", (row) => time(row.tpot_p50_s)],
    ["Tokens in", "n", (row) => `${count(row.input_tokens_per_s)} /s`],
    ["Tokens out", "n", (row) => `${count(row.output_tokens_per_s)} /s`],
  ], live.models, "No model was asked for yet.");
  $("doubts").textContent = Object.entries(live.doubts ?? {}).map(
    ([model, why]) => `Ids of ${model} may differ from vLLM's: ${why.join("; ")}.`).join(" ");
}

function settings() {
  const changed = live.settings.filter((row) => !row.is_default);
  $("changed").textContent = `${changed.length} differ from the defaults`;
  const last = live.config?.last, notes = [];
  if (last?.problems.length) notes.push(`The settings last read were refused: ${last.problems.join("; ")}`);
  if (last?.restart.length) notes.push(`Need a restart: ${last.restart.join(", ")}`);
  $("reloaded").hidden = !notes.length;
  $("reloaded").textContent = notes.join(". ");
  if (!$("config").open) return;
  const rows = [...changed, ...live.settings.filter((row) => row.is_default)];
  $("settings").replaceChildren(el("tbody", {}, ...rows.map((row) => el("tr", {},
    el("td", { class: row.is_default ? "quiet" : "" }, row.path),
    el("td", { class: row.is_default ? "quiet" : "accent" }, row.value)))));
}

// -- the loop --------------------------------------------------------------------------------

function draw() {
  for (const section of [header, tiles, replicas, events, peers, loops, ladder, routing, models, settings]) section();
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

async function look() {
  if (!paused && !document.hidden) {
    try {
      live = await ask("live.json");
      if (Date.now() >= hourDue_ms) {
        const hour = await ask("hour.json");
        hourDue_ms = Date.now() + hour.period_s * 1000;
        flows(hour);
      }
      document.body.classList.remove("stale");
      draw();
    } catch (error) {
      document.body.classList.add("stale");
      $("state").className = "pill bad";
      $("state").textContent = "no answer from the gateway";
    }
  }
  setTimeout(look, PERIOD_MS);
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Paused" : "Pause";
});
if (matchMedia("(max-width: 640px)").matches) $("routing").open = false;
$("config").addEventListener("toggle", () => { if (live) settings(); });
look();
