// Texts of options: AdversaryOptions, LinkOptions, RuntimeOptions::from_environment.
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "src/base/env.h"
#include "src/base/format.h"

namespace overlace {
namespace {

constexpr const char* kAdversaryForm =
    "seed=N with optional delay_us=0..1000000, pieces=1..64, window=1..1024, late_read=0|1, weak_signal=0|1, "
    "workers=1..16";
constexpr const char* kLinkForm = "RATE,LATENCY such as 2GB/s,20us (B, KB, MB, GB per second; ns, us, ms, s), or none";

[[noreturn]] void bad(const char* what, std::string_view text, const std::string& why, const char* form) {
  throw InvalidArgument(Errc::invalid_argument, base::format("{} \"{}\": {}; wanted {}", what, text, why, form));
}

std::optional<uint64_t> parse_unsigned(std::string_view text, uint64_t max) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size() || value > max) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

using Units = std::vector<std::pair<std::string_view, double>>;

/// "2.5GB/s" with the units given, longest first.
std::optional<double> parse_quantity(std::string_view text, const Units& units) {
  for (const auto& [unit, factor] : units) {
    if (!text.ends_with(unit)) continue;
    const std::string_view number = text.substr(0, text.size() - unit.size());
    double value = 0;
    const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (number.empty() || code != std::errc() || end != number.data() + number.size() || !std::isfinite(value))
      return std::nullopt;
    return value * factor;
  }
  return std::nullopt;
}

const Units kRates = {{"GB/s", 1e9}, {"MB/s", 1e6}, {"KB/s", 1e3}, {"B/s", 1}};
const Units kTimes = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};

/// Largest unit in which the value has at most three digits before the point.
std::string quantity_text(double value, const Units& units) {
  for (const auto& [unit, factor] : units)
    if (value >= factor) return base::format("{:.6g}{}", value / factor, unit);
  return base::format("{:.6g}{}", value / units.back().second, units.back().first);
}

}  // namespace

AdversaryOptions AdversaryOptions::parse(std::string_view text) {
  AdversaryOptions options;
  options.enabled = true;
  const auto number = [&](std::string_view key, std::string_view value, uint64_t min, uint64_t max) {
    const std::optional<uint64_t> parsed = parse_unsigned(value, max);
    if (!parsed || *parsed < min) bad("adversary", text, base::format("{} is \"{}\"", key, value), kAdversaryForm);
    return *parsed;
  };
  if (text.empty()) bad("adversary", text, "it is empty", kAdversaryForm);
  for (const std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    if (equals == std::string_view::npos) bad("adversary", text, base::format("\"{}\" has no =", part), kAdversaryForm);
    const std::string_view value = part.substr(equals + 1);
    if (key == "seed")
      options.seed = number(key, value, 0, std::numeric_limits<uint64_t>::max());
    else if (key == "delay_us")
      options.max_delay_us = static_cast<int>(number(key, value, 0, 1000000));
    else if (key == "pieces")
      options.max_pieces = static_cast<int>(number(key, value, 1, 64));
    else if (key == "window")
      options.reorder_window = static_cast<int>(number(key, value, 1, 1024));
    else if (key == "late_read")
      options.late_read = number(key, value, 0, 1) == 1;
    else if (key == "weak_signal")
      options.weak_signal = number(key, value, 0, 1) == 1;
    else if (key == "workers")
      options.workers = static_cast<int>(number(key, value, 1, 16));
    else
      bad("adversary", text, base::format("\"{}\" is unknown", key), kAdversaryForm);
  }
  return options;
}

LinkOptions LinkOptions::parse(std::string_view text) {
  LinkOptions options;
  if (text == "none") return options;
  const std::vector<std::string_view> parts = split(text, ',');
  const bool between_hosts = parts.size() == 3 && parts[2] == "hosts";
  if (parts.size() != 2 && !between_hosts) bad("link", text, base::format("it has {} parts", parts.size()), kLinkForm);
  const std::optional<double> rate = parse_quantity(parts[0], kRates);
  if (!rate || *rate < 1e3 || *rate > 1e12) bad("link", text, base::format("the rate is \"{}\"", parts[0]), kLinkForm);
  const std::optional<double> latency = parse_quantity(parts[1], kTimes);
  if (!latency || *latency < 0 || *latency > 10)
    bad("link", text, base::format("the latency is \"{}\"", parts[1]), kLinkForm);
  options.enabled = true;
  options.bytes_per_s = *rate;
  options.latency_s = *latency;
  options.between_hosts = between_hosts;
  return options;
}

std::string LinkOptions::to_string() const {
  if (!enabled) return "none";
  Units times = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  return quantity_text(bytes_per_s, kRates) + "," + quantity_text(latency_s, times) + (between_hosts ? ",hosts" : "");
}

CheckOptions CheckOptions::parse(std::string_view text) {
  CheckOptions options;
  if (text.empty()) return options;
  for (const std::string_view word : split(text, ',')) {
    if (word != "sync" && word != "calls")
      bad("checks", text, base::format("\"{}\" is unknown", word), "a comma-separated list of sync, calls");
    (word == "sync" ? options.sync : options.calls) = true;
  }
  return options;
}

std::string CheckOptions::to_string() const {
  return std::string(sync ? "sync" : "") + (sync && calls ? "," : "") + (calls ? "calls" : "");
}

RuntimeOptions RuntimeOptions::from_environment() {
  const base::Env& env = base::env();
  RuntimeOptions options;
  options.backend = env.backend == "cpu"         ? Backend::cpu
                    : env.backend == "cuda_peer" ? Backend::cuda_peer
                                                 : Backend::automatic;
  options.heap_bytes = static_cast<size_t>(env.heap_bytes);
  options.max_heap_bytes = static_cast<size_t>(env.max_heap_bytes);
  options.timeout_ms = env.timeout_s * 1000;
  options.wait = env.wait == "spin"    ? WaitPolicy::spin
                 : env.wait == "futex" ? WaitPolicy::futex
                                       : WaitPolicy::automatic;
  if (!env.adversary.empty()) options.adversary = AdversaryOptions::parse(env.adversary);
  if (!env.link.empty()) options.link = LinkOptions::parse(env.link);
  options.net_engine = env.net_engine;
  options.checks = CheckOptions::parse(env.check);
  return options;
}

}  // namespace overlace
