// Asks the master every two seconds and shows what it says. A master that is away is waited for.

import { ask, byId, bytes, curve, element, fill, number, seconds, table } from "./dom.js";
import { requestView } from "./request.js";

const PERIOD_MS = 2000;
const STATES = { open: "good", ready: "good", draining: "warn", quiet: "warn", connecting: "warn" };
const OUTCOMES = { finished: "good", cancelled: "warn", left: "warn" };
const state = { list: "recent", data: null };

async function refresh() {
  try {
    state.data = await ask("data");
    show(state.data);
    document.body.dataset.state = "live";
  } catch (error) {
    document.body.dataset.state = "away";
    say(`No answer from the master: ${error.message}`, "bad");
  }
  setTimeout(refresh, PERIOD_MS);
}

function say(text, kind) {
  const line = byId("readiness");
  if (line.textContent !== text) line.textContent = text;
  line.className = kind;
}

function show({ cluster, live, requests, running }) {
  byId("model").textContent = cluster.model;
  byId("version").textContent = `pdserve ${cluster.version}`;
  if (cluster.not_ready_reason === null) say("Ready", "good");
  else say(`Not ready: ${cluster.not_ready_reason}`, "bad");
  showLive(live, running);
  showCluster(cluster);
  showRequests(requests);
}

function showLive(live, running) {
  const last = (name) => live.points.findLast((point) => point[name] !== null)?.[name] ?? null;
  const share = live.cached_share === null ? "–" : `${number(100 * live.cached_share)} %`;
  const tiles = [
    ["Requests / s", number(live.requests_per_s, 2)], ["Tokens / s", number(live.tokens_per_s)], ["Running", running],
    ["TTFT, median", seconds(last("ttft_s")?.p50)], ["TPOT, median", seconds(last("tpot_s")?.p50)],
    ["ITL, median", seconds(last("itl_s")?.p50)], ["Prompt tokens cached", share],
    ["Handed off / s", bytes(live.handed_off_bytes_per_s)],
  ];
  fill(byId("tiles"), tiles.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const rate = (title, name) => curve(title, number(live.points.at(-1)?.[name] ?? 0), [live.points.map((point) => point[name])]);
  const spread = (title, name) => curve(`${title} P50, P95, P99`,
    ["p50", "p95", "p99"].map((key) => seconds(last(name)?.[key])).join(", "),
    ["p50", "p95", "p99"].map((key) => live.points.map((point) => point[name]?.[key] ?? null)));
  fill(byId("curves"), [
    rate("Requests / s", "requests_per_s"), rate("Tokens / s", "tokens_per_s"),
    spread("TTFT", "ttft_s"), spread("TPOT", "tpot_s"), spread("ITL", "itl_s"),
  ]);
  const errors = Object.entries(live.errors).map(([kind, count]) => `${kind} ${count}`);
  byId("errors").textContent = errors.length ? `Errors in ten minutes: ${errors.join(", ")}` : "No errors in ten minutes.";
}

function showCluster({ instances, hops, masters }) {
  const counts = new Map();
  instances.forEach((one) => counts.set(`${one.role} ${one.state}`, (counts.get(`${one.role} ${one.state}`) ?? 0) + 1));
  byId("counts").textContent = `${instances.length} instances. ${[...counts].map(([what, many]) => `${many} ${what}`).join(", ")}`;
  const columns = [["Instance"], ["Role"], ["State"], ["Running", "n"], ["Queued", "n"], ["Prefill tokens", "n"], ["Blocks held of all"],
    ["Cached", "n"], ["Step", "n"], ["Exports", "n"], ["Circuit"], ["Version"], ["Act"], ["Why", "trouble"]];
  table(byId("instances"), "Instances", columns, instances, (one) => [
    [element("span", { title: `${one.address}, ${one.model}` }, one.name)], one.role,
    [element("span", { class: `state ${STATES[one.state] ?? "bad"}` }, one.state)],
    number(one.running_sequences), number(one.queued_requests), number(one.queued_prefill_tokens),
    [blocks(one), `${number(one.held_blocks)} of ${number(one.blocks)}`], number(one.cached_blocks),
    one.decode_step_s ? seconds(one.decode_step_s) : "–", number(one.exports), one.circuit, one.version,
    [element("button", { type: "button", class: "danger", disabled: one.state !== "open", "aria-label": `Drain ${one.name}`, onclick: () => drain(one.name) }, "Drain")],
    [one.trouble, one.cut_from.length ? `gets no KV from ${one.cut_from.join(", ")}` : null].filter(Boolean).join("; "),
  ]);
  showHops(hops);
  fill(byId("masters"), masters.map((one) => element("li", {}, `${one.id}: HTTP ${one.http_address}, gRPC ${one.rpc_address}${one.is_this ? " (this one)" : ""}`)));
}

function blocks({ held_blocks: held, free_blocks: free, blocks: all }) {
  const width = (part) => ({ width: `${(100 * part) / Math.max(1, all)}%` });
  return element("span", { class: "blocks", "aria-hidden": "true" }, element("i", { style: width(held) }), element("i", { style: width(free) }));
}

// From rows to columns: requests handed over, and the mean time it took.
function showHops(hops) {
  const from = [...new Set(hops.map((hop) => hop.prefill))];
  const to = [...new Set(hops.map((hop) => hop.decode))];
  const target = byId("hops");
  if (target.dataset.columns !== to.join()) target.replaceChildren();
  target.dataset.columns = to.join();
  const cell = (prefill, decode) => {
    const hop = hops.find((one) => one.prefill === prefill && one.decode === decode);
    return hop ? `${hop.requests} × ${seconds(hop.mean_s)}` : "–";
  };
  table(target, "Rows prefill, columns decode; of the requests remembered", [["from"], ...to.map((name) => [name, "n"])], from,
    (prefill) => [prefill, ...to.map((decode) => cell(prefill, decode))]);
}

function showRequests(requests) {
  const columns = [["Request"], ["Arrived"], ["Ended"], ["Prompt", "n"], ["Generated", "n"], ["TTFT", "n"], ["Whole", "n"], ["Attempts", "n"], ["Instances"]];
  table(byId("requests"), "Choose one for its timeline", columns, requests[state.list], (one) => [
    [element("button", { type: "button", class: "link", onclick: () => find(one.id) }, one.id)],
    new Date(one.arrived_unix_s * 1000).toLocaleTimeString(),
    [element("span", { class: `state ${OUTCOMES[one.outcome] ?? "bad"}` }, one.error || one.outcome)],
    number(one.prompt_tokens), number(one.completion_tokens), seconds(one.first_token_s), seconds(one.total_s), one.attempts,
    [...new Set([one.prefill_instance, one.decode_instance])].filter(Boolean).join(" → "),
  ]);
}

async function find(name) {
  const place = byId("found");
  try {
    const { requests } = await ask(`requests/${encodeURIComponent(name)}`);
    place.replaceChildren(...requests.map((one) => requestView(one, cancel)));
  } catch (error) {
    place.replaceChildren(element("p", { class: "bad" }, error.message));
  }
}

const drain = (name) => act(`Drain ${name}? It finishes what it has and takes nothing new until it is restarted.`, `drain/${encodeURIComponent(name)}`, `Told ${name} to drain.`);
const cancel = (id) => act(`Cancel ${id}? Its client gets an error.`, `cancel/${encodeURIComponent(id)}`, `Cancelled ${id}.`);

function act(question, path, done) {
  byId("confirm-text").textContent = question;
  byId("confirm-yes").onclick = async () => {
    try {
      await ask(path, { method: "POST" });
      byId("found").replaceChildren(element("p", { class: "good" }, done));
    } catch (error) {
      byId("found").replaceChildren(element("p", { class: "bad" }, error.message));
    }
  };
  byId("confirm").showModal();
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  if (byId("wanted").value.trim()) find(byId("wanted").value.trim());
});
document.querySelectorAll("[data-list]").forEach((button) => button.addEventListener("click", () => {
  state.list = button.dataset.list;
  document.querySelectorAll("[data-list]").forEach((one) => one.setAttribute("aria-pressed", one === button));
  if (state.data) showRequests(state.data.requests);
}));
refresh();
