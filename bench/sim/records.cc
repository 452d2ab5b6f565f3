#include "bench/sim/records.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "overlace/error.h"
#include "overlace/operator.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/statistics.h"
#include "src/plan/decision.h"
#include "src/plan/recurrence.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/costs.h"
#include "src/spec/digest.h"
#include "src/spec/fused_pod.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::bench {
namespace {

using base::Json;

/// In rows of bench_fused: the tiles that tma_slot takes.
std::string tma_slot_of(const spec::OpSpec& op) {
  return spec::slot_tile_cols(op) == kSlotTileCols ? "slot bf16_k_128x128_c21_s6" : "slot bf16_k_128x256_c21_s4";
}

const Json* member(const Json& record, std::string_view outer, std::string_view inner) {
  const Json* v = record.find(outer);
  return v == nullptr ? nullptr : v->find(inner);
}

std::string text(const Json* v) { return v != nullptr && v->is_string() ? v->as_string() : ""; }

/// "grouped_unfused_1d:4"; else what the record says; of older ones, of `auto`, "...: 4 groups of at least ..."; else
/// 1, or 4 slabs of one kernel (what auto takes).
int degree_of(const Json& record, std::string_view op, const std::string& family) {
  const std::string competitor = text(record.find("competitor")), reason = text(record.find("reason"));
  if (const size_t colon = competitor.find(':'); colon != std::string::npos)
    return std::stoi(competitor.substr(colon + 1));
  if (const Json* degree = record.find("degree"); degree != nullptr) return static_cast<int>(degree->as_int());
  if (const size_t groups = reason.find(" groups of"); groups != std::string::npos) {
    const size_t begin = reason.rfind(' ', groups - 1);
    return std::stoi(reason.substr(begin == std::string::npos ? 0 : begin));
  }
  return spec::form_of(op, family) == spec::ClosedForm::slab_kernel ? 4 : 1;
}

/// Columns of the tile that the record names, where make_schedule would take others; else 0.
int64_t tile_cols_of(const Json& record, const spec::OpSpec& op) {
  const Json* cols = record.find("tile_n");
  if (cols == nullptr || cols->as_int() == spec::slot_tile_cols(op)) return 0;
  return cols->as_int();
}

/// The machine as a graph meets it that was captured.
spec::Machine without_host(spec::Machine machine) {
  spec::Machine::Latency& latency = machine.latency;
  for (spec::Figure* one : {&latency.host_call_us, &latency.host_kernel_us, &latency.host_copy_us,
                            &latency.host_collective_us, &latency.host_lanes_us})
    one->value = 0;
  return machine;
}

/// Every third shape of an operator, in the order of their digests.
void hold_out(std::vector<Measured>& list) {
  std::map<std::string, std::map<std::string, std::string>> shapes;  // by operator: digest, then shape
  const auto shape_of = [](const Measured& m) { return base::format("{} {} {} {}", m.op.op, m.op.m, m.op.n, m.op.k); };
  for (const Measured& m : list) shapes[m.op.op][spec::hash128(shape_of(m))] = shape_of(m);
  for (const auto& [op, by_digest] : shapes) {
    size_t number = 0;
    for (const auto& [digest, shape] : by_digest) {
      const bool is_third = number++ % 3 == 0;
      for (Measured& m : list) m.is_held_out = m.is_held_out || (is_third && shape_of(m) == shape);
    }
  }
}

bool is_valid_output(const Measured& m) {
  const spec::OperatorDef* op = spec::find_operator(m.op.op);
  const spec::FamilyDef* family = op == nullptr ? nullptr : spec::find_family(*op, m.family);
  return family == nullptr || family->purpose == spec::Purpose::plan;
}

constexpr const char* kNotSimulated = "not simulated";

using Found = std::map<std::tuple<Problem, std::string, int, int64_t>, Measured>;

/// `time_us`: median, p10, p90.
Measured& add(Found& found, Measured m, const Json& time_us) {
  Measured& one = found.try_emplace({problem_of(m), m.family, m.degree, m.tile_cols}, std::move(m)).first->second;
  const double us = time_us.find("median")->as_double();
  one.us.push_back(us);
  const Json *low = time_us.find("p10"), *high = time_us.find("p90");
  if (low != nullptr && high != nullptr && low->is_number() && high->is_number())
    one.spread = std::max(one.spread, (high->as_double() - low->as_double()) / 2 / us);
  return one;
}

bool is_host_bound(const Json& record) {
  const Json* flags = record.find("flags");
  return flags != nullptr && std::any_of(flags->as_array().begin(), flags->as_array().end(),
                                         [](const Json& flag) { return text(&flag) == "host_bound"; });
}

/// What `overlace tune` measured of a plain product of bf16: a line of a cache of plans, whose key has operator, M, N,
/// K, ranks and types in front.
base::Status add_plan(const std::string& where, const Json& line, Found& found) {
  std::istringstream key(text(line.find("key")));
  Measured of_all;
  spec::OpSpec& op = of_all.op;
  std::string dtype, out_dtype, layout, bias, has_a, activation;
  key >> op.op >> op.m >> op.n >> op.k >> op.ranks >> dtype >> out_dtype >> layout >> bias >> has_a >> activation;
  if (!key || !spec::is_operator(op.op)) return base::error(Errc::corrupt, "{}: wanted a line of plans", where);
  const bool is_plain = dtype == dtype_name(DType::bf16) && out_dtype == dtype && layout == "nk" && bias == "false" &&
                        has_a == "false" && activation == spec::name_of(spec::Activation::none);
  if (!is_plain || text(line.find("tier")) != plan::to_string(plan::Tier::probe)) return {};
  const Json* others = line.find("others");
  if (others == nullptr || !others->is_array()) return base::error(Errc::corrupt, "{}: wanted a line of plans", where);
  for (const Json& other : others->as_array()) {
    if (!other.is_array() || other.as_array().size() != 5 || !other.as_array()[0].is_string())
      return base::error(Errc::corrupt, "{}: wanted a line of plans", where);
    const Json::Array& cells = other.as_array();  // family, degree, us, lo_us, hi_us
    Measured m = of_all;
    m.family = cells[0].as_string();
    m.degree = spec::has_degree(m.family) ? static_cast<int>(cells[1].as_int()) : 1;
    Json time_us = Json::object();
    time_us.set("median", cells[2]).set("p10", cells[3]).set("p90", cells[4]);
    (void)add(found, std::move(m), time_us);
  }
  return {};
}

base::Status add_lines(const std::string& file, const std::string& bytes, Found& found) {
  for (size_t begin = 0, line = 1; begin < bytes.size(); ++line) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string where = base::format("{}:{}", file, line);
    const base::Result<Json> record = Json::parse(std::string_view(bytes).substr(begin, end - begin), where);
    begin = end + 1;
    if (!record.ok()) return record.status();
    if (record->find("overlace_plan") != nullptr) {
      OVERLACE_TRY(add_plan(where, *record, found));
      continue;
    }
    const std::string workload = text(record->find("workload")), schedule = text(record->find("schedule"));
    const Json* median = member(*record, "time_us", "median");
    if (!spec::is_operator(workload)) continue;
    if (median == nullptr || schedule.empty() || text(record->find("status")) != "ok") continue;
    Measured m;
    m.op.op = workload;
    m.op.m = member(*record, "case", "m")->as_int();
    m.op.n = member(*record, "case", "n")->as_int();
    m.op.k = member(*record, "case", "k")->as_int();
    if (text(member(*record, "case", "activation")) == spec::name_of(spec::Activation::swiglu))
      m.op.activation = spec::Activation::swiglu;
    m.op.ranks = static_cast<int>(record->find("team")->as_int());
    m.family = spec::without_suffix(workload, schedule);
    m.degree = degree_of(*record, workload, m.family);
    m.is_replayed = !text(record->find("launch")).empty() && text(record->find("launch")) != "stream";
    m.tile_cols = tile_cols_of(*record, m.op);
    const bool waits_for_host = is_host_bound(*record);
    if (m.is_replayed && waits_for_host) continue;  // its time is that of launching graphs, which no model has
    Measured& one = add(found, std::move(m), *record->find("time_us"));
    one.is_host_bound = one.is_host_bound || waits_for_host;
  }
  return {};
}

/// The records of bench_fused: variants of fused kernels, of which those that are families are taken.
base::Status add_fused(const std::string& file, const std::string& bytes, Found& found) {
  const base::Result<Json> list = Json::parse(bytes, file);
  if (!list.ok()) return list.status();
  if (!list->is_array()) return base::error(Errc::corrupt, "{}: wanted a list of rows, as bench_fused writes it", file);
  for (const Json& row : list->as_array()) {
    for (const Json& variant : row.find("variants")->as_array()) {
      const std::string name = text(variant.find("name")), slab = "store_own k_slab q";
      const Json* median = member(variant, "time_us", "median");
      const bool is_slab = name.starts_with(slab) && name.find(' ', slab.size()) == std::string::npos;
      if (median == nullptr) continue;
      Measured m;
      m.op.op = text(row.find("op"));
      m.op.m = row.find("m")->as_int();
      m.op.n = row.find("n")->as_int();
      m.op.k = row.find("k")->as_int();
      m.op.ranks = static_cast<int>(row.find("ranks")->as_int());
      const bool is_slot =
          name == tma_slot_of(m.op) || (name == "slot" && "slot " + text(row.find("instance")) == tma_slot_of(m.op));
      if (!is_slab && !is_slot) continue;
      const auto form = is_slab ? spec::ClosedForm::slab_kernel : spec::ClosedForm::tile_kernel;
      const spec::FamilyDef* family = spec::find_family(m.op.op, form);
      if (family == nullptr) continue;
      m.family = family->name;
      m.degree = is_slab ? std::stoi(name.substr(slab.size())) : 64;
      (void)add(found, std::move(m), *variant.find("time_us"));
    }
  }
  return {};
}

}  // namespace

Problem problem_of(const Measured& m) {
  return {m.op.op, m.op.ranks, m.op.m, m.op.n, m.op.k, m.op.activation, m.is_replayed};
}

double Measured::measured_us() const { return base::median(us); }

base::Result<std::vector<Measured>> read_records(const std::vector<std::string>& files) {
  Found found;
  for (const std::string& file : files) {
    const base::Result<std::string> bytes = base::read_file(file);
    if (!bytes.ok()) return bytes.status();
    OVERLACE_TRY(file.ends_with(".json") ? add_fused(file, *bytes, found) : add_lines(file, *bytes, found));
  }
  std::vector<Measured> out;
  for (auto& [key, m] : found) out.push_back(std::move(m));
  hold_out(out);
  return out;
}

void predict(std::vector<Measured>& list, const spec::Machine& machine, int calls) {
  const spec::Machine replaying = without_host(machine);
  for (Measured& m : list) {
    const spec::Machine& on = m.is_replayed ? replaying : machine;
    m.recurrence_us = m.tile_cols == 0 ? plan::Recurrence(m.op, on).us({m.family, m.degree}) : std::nullopt;
    if (calls == 0) {
      m.problem = kNotSimulated;
      continue;
    }
    try {
      spec::Params options;
      if (m.tile_cols != 0) options["align_n"] = m.tile_cols;
      const spec::Schedule schedule = spec::make_schedule(m.op, m.family, m.degree, options);
      m.predicted_us = sim::try_simulate_folded(schedule, on, {.calls = calls}).value().us();
      m.problem.clear();
    } catch (const Error& e) {
      m.problem = e.what();
    }
  }
}

Score score(const std::vector<const Measured*>& list) {
  Score out;
  std::vector<double> errors, signs;
  std::map<Problem, std::vector<const Measured*>> cases;
  for (const Measured* m : list) {
    if (!m->problem.empty()) continue;
    errors.push_back(std::abs(m->error()));
    signs.push_back(m->error());
    if (is_valid_output(*m)) cases[problem_of(*m)].push_back(m);
  }
  out.n = errors.size();
  if (errors.empty()) return out;
  out.median = base::median(errors);
  out.p90 = base::percentile(errors, 90);
  out.max = *std::max_element(errors.begin(), errors.end());
  out.bias = base::median(signs);
  int64_t agree = 0;
  for (const auto& [key, members] : cases) {
    for (size_t i = 0; i < members.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const double measured = members[i]->measured_us() / members[j]->measured_us();
        if (std::abs(std::log(measured)) < 0.02) continue;  // a tie within the noise of measuring
        const bool same = (measured > 1) == (members[i]->predicted_us > members[j]->predicted_us);
        agree += same ? 1 : -1;
        ++out.pairs;
      }
    }
  }
  out.tau = out.pairs > 0 ? static_cast<double>(agree) / static_cast<double>(out.pairs) : 1;
  return out;
}

std::string report(const std::vector<Measured>& list) {
  std::string out = base::format("{:<44}{:>5}{:>9}{:>9}{:>9}{:>9}{:>8}{:>7}\n", "", "n", "median", "p90", "max", "bias",
                                 "tau", "pairs");
  const auto row = [&](const std::string& name, auto belongs) {
    std::vector<const Measured*> part;
    for (const Measured& m : list) {
      if (belongs(m)) part.push_back(&m);
    }
    const Score s = score(part);
    if (s.n == 0) return;
    out += base::format("{:<44}{:>5}{:>8.1f}%{:>8.1f}%{:>8.1f}%{:>+8.1f}%{:>8.2f}{:>7}\n", name, s.n, 100 * s.median,
                        100 * s.p90, 100 * s.max, 100 * s.bias, s.tau, s.pairs);
  };
  row("all", [](const Measured&) { return true; });
  row("shapes of the fit", [](const Measured& m) { return !m.is_held_out; });
  row("shapes held out", [](const Measured& m) { return m.is_held_out; });
  row("held out, the device is the limit", [](const Measured& m) { return m.is_held_out && !m.is_host_bound; });
  std::map<std::pair<std::string, std::string>, int> kinds;
  for (const Measured& m : list) ++kinds[{base::format("{} x{}", m.op.op, m.op.ranks), m.family}];
  for (const auto& kind : kinds) {
    row(base::format("held out, {} {}", kind.first.first, kind.first.second), [&](const Measured& m) {
      return m.is_held_out && base::format("{} x{}", m.op.op, m.op.ranks) == kind.first.first &&
             m.family == kind.first.second;
    });
  }
  for (const Measured& m : list) {
    if (!m.problem.empty() && m.problem != kNotSimulated)
      out += base::format("{} {}: {}\n", m.op.to_string(), m.family, m.problem);
  }
  return out;
}

Json as_json(const std::vector<Measured>& list) {
  Json out = Json::array();
  for (const Measured& m : list) {
    Json one = Json::object();
    one.set("op", m.op.op).set("m", m.op.m).set("n", m.op.n).set("k", m.op.k).set("ranks", m.op.ranks);
    one.set("activation", spec::name_of(m.op.activation)).set("replayed", m.is_replayed);
    one.set("family", m.family).set("degree", m.degree).set("tile_cols", m.tile_cols).set("held_out", m.is_held_out);
    one.set("host_bound", m.is_host_bound).set("measured_us", m.measured_us());
    one.set("predicted_us", m.problem.empty() ? Json(m.predicted_us) : Json());
    one.set("recurrence_us", m.recurrence_us ? Json(*m.recurrence_us) : Json());
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace overlace::bench
