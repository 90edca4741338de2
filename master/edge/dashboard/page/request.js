// One request: its timeline as bars, what was asked, and why it ended.

import { element, number, seconds } from "./dom.js";

const KINDS = { "decode queue": "queue", "wait for a route": "wait" };

export function requestView({ record, spans, tpot_s: tpot, is_running: isRunning }, cancel) {
  const { timeline, sampling } = record;
  const ended = isRunning ? "running" : record.outcome + (record.finish_reasons.length ? `: ${record.finish_reasons.join(", ")}` : "");
  const facts = [
    `${ended}${record.error ? ` (${record.error}) ${record.message}` : ""}`,
    `${number(record.prompt_tokens)} prompt tokens, ${number(record.cached_tokens)} of them cached, ${number(record.completion_tokens)} generated`,
    `TTFT ${seconds(timeline.first_token_s)}, TPOT ${seconds(tpot)}, whole ${seconds(timeline.total_s)}, attempts ${timeline.attempts}`,
    [...Object.entries(sampling), ["priority", record.priority]].map(([name, value]) => `${name} ${value}`).join(", "),
  ];
  if (timeline.transport) {
    facts.push(`KV over ${timeline.transport}: ${number(timeline.blocks_sent)} blocks sent, ${number(timeline.blocks_skipped)} were there`);
  }
  return element("article", {},
    element("h3", {}, record.answer_id, record.name ? ` (${record.name})` : ""),
    element("p", {}, `${record.model}, ${new Date(record.arrived_unix_s * 1000).toLocaleString()}`),
    ...facts.map((fact) => element("p", {}, fact)),
    ...(isRunning ? [element("button", { type: "button", class: "danger", onclick: () => cancel(record.id) }, "Cancel it")] : []),
    element("ol", { class: "bars", "aria-label": "Timeline" }, ...spans.map((span) => bar(span, timeline.total_s))));
}

function bar(span, total) {
  const isAttempt = span.name === "attempt";
  const kind = KINDS[span.name] ?? span.name;
  const label = isAttempt ? `attempt ${span.attempt}` : span.name;
  const left = `${(100 * span.start_s) / Math.max(total, 1e-9)}%`;
  const width = `${(100 * span.duration_s) / Math.max(total, 1e-9)}%`;
  const failed = isAttempt && span.detail ? "failed" : "";
  return element("li", { class: `${isAttempt ? "attempt" : ""} k-${kind} ${failed}` },
    element("span", {}, label, " ", element("em", {}, [span.instance, span.detail].filter(Boolean).join(" · "))),
    element("span", { class: "track", "aria-hidden": "true" }, element("i", { style: { left, width } })),
    element("span", { "aria-label": `began after ${seconds(span.start_s)}, took ${seconds(span.duration_s)}` }, seconds(span.duration_s)));
}
