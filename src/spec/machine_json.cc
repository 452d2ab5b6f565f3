// Machines as JSON. One list of fields (`visit`) serves reader and writer.
#include <algorithm>
#include <cmath>

#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/spec/digest.h"
#include "src/spec/fusable.h"
#include "src/spec/machine.h"

namespace overlace::spec {
namespace {

using base::Json;

constexpr int kMachineVersion = 1;
constexpr double kMostUs = 1e9, kMostRate = 1e7, kMostFactor = 100;
constexpr int64_t kMostInt = int64_t{1} << 50;

/// What the values of a curve do as its sizes grow.
enum class Growth { rises, any };

template <class Range, class Text>
std::string joined_texts(const Range& range, Text text) {
  std::string out;
  for (const auto& x : range) out += (out.empty() ? "" : ", ") + std::string(text(x));
  return out;
}

class Writer {
 public:
  Json out = Json::object();
  void text(const char* key, const std::string& v) {
    if (!v.empty()) out.set(key, v);
  }
  void flag(const char* key, bool v) { out.set(key, v); }
  template <class Int>
  void integer(const char* key, Int v, int64_t) {
    if (v != 0) out.set(key, static_cast<int64_t>(v));
  }
  template <class Int>
  void integer_or(const char* key, Int usual, Int v, int64_t) {
    if (v != usual) out.set(key, static_cast<int64_t>(v));
  }
  template <class Int>
  void needed(const char* key, Int v, int64_t) {
    if (v != 0) out.set(key, static_cast<int64_t>(v));
  }
  void figure(const char* key, const Figure& f, double) {
    if (f.value != 0) out.set(key, of(f));
  }
  void figure_or(const char* key, const Figure& usual, const Figure& f, double) {
    if (f != usual) out.set(key, of(f));
  }
  void curve(const char* key, const char* unit, const Curve& c, double, Growth) {
    if (c.empty()) return;
    Json points = Json::array();
    for (const auto& p : c.points) points.push_back(Json::array({p[0], p[1]}));
    Json one = Json::object();
    one.set("points", std::move(points)).set("source", name_of(c.source)).set("x", unit);
    out.set(key, std::move(one));
  }
  template <class Part, class Fields>
  void part(const char* key, const Part& part, Fields fields) {
    Writer inner;
    fields(inner, part);
    if (!inner.out.as_object().empty()) out.set(key, std::move(inner.out));
  }
  template <class Item, class Fields>
  void list(const char* key, const std::vector<Item>& items, Fields fields) {
    if (items.empty()) return;
    Json array = Json::array();
    for (const Item& item : items) {
      Writer inner;
      fields(inner, item);
      array.push_back(std::move(inner.out));
    }
    out.set(key, std::move(array));
  }
  void load(const char* key, Load v) { out.set(key, name_of(v)); }
  void errors(const char* key, const Machine::Errors& v) {
    if (v.empty()) return;
    Json all = Json::object();
    for (const auto& [op, families] : v) {
      Json one = Json::object();
      for (const auto& [family, e] : families) one.set(family, Json::array({e.p50, e.p90}));
      all.set(op, std::move(one));
    }
    out.set(key, std::move(all));
  }
  void finish() {}

 private:
  static Json of(const Figure& f) { return Json::array({f.value, name_of(f.source)}); }
};

/// An object and where it stands: "f.json: /gemm/tiles/0".
class Reader {
 public:
  Reader(const Json& value, std::string place) : value_(value), place_(std::move(place)) {
    if (!value_.is_object()) refuse("", value_, "an object");
  }
  void text(const char* key, std::string& out) {
    if (const Json* v = take(key)) {
      if (!v->is_string() || v->as_string().size() > 200) refuse(key, *v, "a string of at most 200 characters");
      out = v->as_string();
    }
  }
  void flag(const char* key, bool& out) {
    if (const Json* v = take(key)) {
      if (!v->is_bool()) refuse(key, *v, "true or false");
      out = v->as_bool();
    }
  }
  template <class Int>
  void integer(const char* key, Int& out, int64_t most) {
    if (const Json* v = take(key)) {
      if (!v->is_int() || v->as_int() < 1 || v->as_int() > most)
        refuse(key, *v, base::format("an integer from 1 to {}", most));
      out = static_cast<Int>(v->as_int());
    }
  }
  template <class Int>
  void integer_or(const char* key, Int usual, Int& out, int64_t most) {
    out = usual;
    integer(key, out, most);
  }
  template <class Int>
  void needed(const char* key, Int& out, int64_t most) {
    if (value_.find(key) == nullptr) refuse(key, Json(), base::format("an integer from 1 to {}", most));
    integer(key, out, most);
  }
  void figure(const char* key, Figure& out, double most) {
    const Json* v = take(key);
    if (v == nullptr) return;
    const std::string wanted = base::format("[value, \"measured\" or \"prior\"], the value > 0 and <= {:g}", most);
    if (!v->is_array() || v->as_array().size() != 2 || !v->as_array()[0].is_number()) refuse(key, *v, wanted);
    out.value = v->as_array()[0].as_double();
    if (!(out.value > 0 && out.value <= most)) refuse(key, *v, wanted);
    out.source = source_of(key, v->as_array()[1]);
  }
  void figure_or(const char* key, const Figure& usual, Figure& out, double most) {
    out = usual;
    figure(key, out, most);
  }
  void curve(const char* key, const char* unit, Curve& out, double most, Growth growth) {
    const Json* v = take(key);
    if (v == nullptr) return;
    Reader inner(*v, place_ + "/" + key);
    const Json *x = inner.take("x"), *points = inner.take("points"), *source = inner.take("source");
    if (x == nullptr || !x->is_string() || x->as_string() != unit)
      inner.refuse("x", x == nullptr ? Json() : *x, base::format("\"{}\", the unit of the sizes", unit));
    out.source = inner.source_of("source", source == nullptr ? Json() : *source);
    if (points == nullptr || !points->is_array() || points->as_array().empty() || points->as_array().size() > 1000)
      inner.refuse("points", points == nullptr ? Json() : *points, "1 to 1000 pairs [size, value]");
    for (size_t i = 0; i < points->as_array().size(); ++i) inner.point(i, points->as_array()[i], out, most, growth);
    inner.finish();
  }
  template <class Part, class Fields>
  void part(const char* key, Part& part, Fields fields) {
    if (const Json* v = take(key)) {
      Reader inner(*v, place_ + "/" + key);
      fields(inner, part);
      inner.finish();
    }
  }
  template <class Item, class Fields>
  void list(const char* key, std::vector<Item>& items, Fields fields) {
    const Json* v = take(key);
    if (v == nullptr) return;
    if (!v->is_array() || v->as_array().size() > 1000) refuse(key, *v, "a list of at most 1000 objects");
    for (size_t i = 0; i < v->as_array().size(); ++i) {
      Reader inner(v->as_array()[i], base::format("{}/{}/{}", place_, key, i));
      fields(inner, items.emplace_back());
      inner.finish();
    }
  }
  void load(const char* key, Load& out) {
    const Json* v = take(key);
    const std::string wanted = "one of " + joined_texts(kLoadNames, [](std::string_view n) { return n; });
    const auto it = v != nullptr && v->is_string() ? std::find(kLoadNames.begin(), kLoadNames.end(), v->as_string())
                                                   : kLoadNames.end();
    if (it == kLoadNames.end()) refuse(key, v == nullptr ? Json() : *v, wanted);
    out = static_cast<Load>(it - kLoadNames.begin());
  }
  void errors(const char* key, Machine::Errors& out) {
    const Json* v = take(key);
    if (v == nullptr) return;
    if (!v->is_object()) refuse(key, *v, "an object: operator, then family, then [p50, p90]");
    for (const auto& [op, families] : v->as_object()) {
      if (!families.is_object()) refuse(key, families, "an object: family, then [p50, p90]");
      for (const auto& [family, e] : families.as_object()) {
        const bool is_pair = e.is_array() && e.as_array().size() == 2 && e.as_array()[0].is_number() &&
                             e.as_array()[1].is_number() && e.as_array()[0].as_double() >= 0 &&
                             e.as_array()[1].as_double() >= e.as_array()[0].as_double();
        if (!is_pair) refuse(std::string(key) + "/" + op + "/" + family, e, "[p50, p90] with 0 <= p50 <= p90");
        out[op][family] = {e.as_array()[0].as_double(), e.as_array()[1].as_double()};
      }
    }
  }
  /// No key is left that nobody asked for.
  void finish() const {
    for (const auto& [key, value] : value_.as_object()) {
      if (key.starts_with("x-") || std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      for (const std::string& known : known_) {
        if (known.starts_with(key + "_")) refuse(key, value, "a key with its unit: " + known);
      }
      refuse(key, value, "no such key (known: " + joined_texts(known_, [](const std::string& k) { return k; }) + ")");
    }
  }
  const Json* take(const char* key) {
    known_.emplace_back(key);
    return value_.find(key);
  }
  [[noreturn]] void refuse(const std::string& key, const Json& value, std::string_view wanted) const {
    std::string got = value.dump();
    if (got.size() > 60) got = got.substr(0, 57) + "...";
    throw_error(Errc::invalid_argument,
                base::format("{}{}: got {}, wanted {}", place_, key.empty() ? "" : "/" + key, got, wanted));
  }

 private:
  Source source_of(const std::string& key, const Json& v) const {
    if (v.is_string() && v.as_string() == name_of(Source::measured)) return Source::measured;
    if (!v.is_string() || v.as_string() != name_of(Source::prior)) refuse(key, v, "\"measured\" or \"prior\"");
    return Source::prior;
  }
  void point(size_t i, const Json& p, Curve& out, double most, Growth growth) const {
    const std::string key = base::format("points/{}", i);
    if (!p.is_array() || p.as_array().size() != 2 || !p.as_array()[0].is_number() || !p.as_array()[1].is_number())
      refuse(key, p, "[size, value]");
    const double x = p.as_array()[0].as_double(), y = p.as_array()[1].as_double();
    if (!(x > 0 && x <= 1e18)) refuse(key, p, "a size > 0 and <= 1e18");
    if (!(y > 0 && y <= most)) refuse(key, p, base::format("a value > 0 and <= {:g}", most));
    if (i > 0 && x <= out.points.back()[0])
      refuse(key, p, base::format("a size > {:g}, that before", out.points.back()[0]));
    if (i > 0 && growth == Growth::rises && y < out.points.back()[1])
      refuse(key, p,
             base::format("a value >= {:g}, that before: it must not fall as sizes grow", out.points.back()[1]));
    out.points.push_back({x, y});
  }

  const Json& value_;
  std::string place_;
  std::vector<std::string> known_;
};

template <class V, class M>
void visit_costs(V& v, M& m) {
  v.part("gemm", m.gemm, [](auto& w, auto& g) {
    w.list("tiles", g.tiles, [](auto& t, auto& tile) {
      t.needed("rows", tile.rows, 65536);
      t.needed("cols", tile.cols, 65536);
      t.figure("wave_us", tile.wave_us, kMostUs);
      t.figure("k_ns", tile.k_ns, kMostUs);
    });
    w.figure("start_us", g.start_us, kMostUs);
    w.figure("sustained_TFLOPs", g.sustained_TFLOPs, kMostRate);
    w.figure("stream_GBps", g.stream_GBps, kMostRate);
    w.figure("sm_stream_GBps", g.sm_stream_GBps, kMostRate);
    w.figure("unaligned_rows", g.unaligned_rows, kMostFactor);
    w.figure("empty_rows", g.empty_rows, kMostFactor);
    w.figure_or("fp8_speedup", Machine::Gemm{}.fp8_speedup, g.fp8_speedup, kMostFactor);
  });
  v.part("copy", m.copy, [](auto& w, auto& c) {
    w.curve("pair_us", "bytes", c.pair_us, kMostUs, Growth::rises);
    w.curve("local_us", "bytes", c.local_us, kMostUs, Growth::rises);
    w.figure("start_us", c.start_us, kMostUs);
    w.figure("peer_GBps", c.peer_GBps, kMostRate);
    w.figure("all_GBps", c.all_GBps, kMostRate);
    w.figure("local_GBps", c.local_GBps, kMostRate);
    w.figure("row_us", c.row_us, kMostUs);
    w.figure("trigger_us", c.trigger_us, kMostUs);
    w.figure("post_us", c.post_us, kMostUs);
    w.figure("out_of_step", c.out_of_step, kMostFactor);
    w.figure_or("most_grouped", Machine::Copy{}.most_grouped, c.most_grouped, kMostFactor);
  });
  v.part("few_rows", m.few_rows, [](auto& w, auto& o) {
    w.figure("gather_start_us", o.gather_start_us, kMostUs);
    w.figure("gather_sm_GBps", o.gather_sm_GBps, kMostRate);
    w.figure("sum_start_us", o.sum_start_us, kMostUs);
    w.figure("sum_sm_GBps", o.sum_sm_GBps, kMostRate);
    w.figure_or("measured_rows", Machine::FewRows{}.measured_rows, o.measured_rows, kMostRate);
  });
  v.part("transport", m.transport, [](auto& w, auto& t) {
    w.curve("store_GBps", "ctas", t.store_GBps, kMostRate, Growth::any);
    w.curve("tma_GBps", "ctas", t.tma_GBps, kMostRate, Growth::any);
  });
  v.part("link", m.link, [](auto& w, auto& l) {
    w.figure("egress_GBps", l.egress_GBps, kMostRate);
    w.figure("ingress_GBps", l.ingress_GBps, kMostRate);
  });
  v.part("memory", m.memory, [](auto& w, auto& x) {
    w.figure("hbm_GBps", x.hbm_GBps, kMostRate);
    w.figure("reduce_GBps", x.reduce_GBps, kMostRate);
    w.curve("reduce_us", "bytes", x.reduce_us, kMostUs, Growth::rises);
    w.integer("l2_bytes", x.l2_bytes, kMostInt);
  });
  v.part("collectives", m.collectives, [](auto& w, auto& c) {
    w.curve("all_gather_us", "bytes", c.all_gather_us, kMostUs, Growth::any);
    w.curve("reduce_scatter_us", "bytes", c.reduce_scatter_us, kMostUs, Growth::any);
    w.curve("all_reduce_us", "bytes", c.all_reduce_us, kMostUs, Growth::any);
    w.curve("all_to_all_us", "bytes", c.all_to_all_us, kMostUs, Growth::any);
  });
  v.part("latency", m.latency, [](auto& w, auto& l) {
    w.figure("launch_us", l.launch_us, kMostUs);
    w.figure("event_us", l.event_us, kMostUs);
    w.figure("flag_us", l.flag_us, kMostUs);
    w.figure("wait_us", l.wait_us, kMostUs);
    w.figure("signal_us", l.signal_us, kMostUs);
    w.figure("barrier_us", l.barrier_us, kMostUs);
    w.figure("call_us", l.call_us, kMostUs);
    w.figure("host_kernel_us", l.host_kernel_us, kMostUs);
    w.figure("host_copy_us", l.host_copy_us, kMostUs);
    w.figure("host_collective_us", l.host_collective_us, kMostUs);
    w.figure("host_call_us", l.host_call_us, kMostUs);
    w.figure("host_lanes_us", l.host_lanes_us, kMostUs);
  });
}

/// Files that name no capability are of Hopper GPUs, or of CPU ranks.
template <class V, class M>
void visit(V& v, M& m) {
  v.text("name", m.name);
  v.flag("is_gpu", m.is_gpu);
  v.integer_or("compute_capability", kFusedCapability, m.compute_capability, 999);
  v.integer("ranks", m.ranks, 65536);
  v.integer("sms", m.sms, 65536);
  v.flag("has_copy_engine", m.has_copy_engine);
  v.flag("has_net_engine", m.has_net_engine);
  v.integer("max_connections", m.max_connections, 1024);
  v.integer("heap_bytes", m.heap_bytes, kMostInt);
  v.integer("num_signal_ids", m.num_signal_ids, kMostInt);
  v.text("small_m_machine", m.small_m_machine);
  v.text("device", m.device);
  v.text("driver", m.driver);
  v.text("cuda", m.cuda);
  v.text("nccl", m.nccl);
  v.text("topology", m.topology);
  v.text("date", m.date);
  v.text("git", m.git);
  visit_costs(v, m);
  v.part("storage", m.storage, [](auto& w, auto& s) {
    w.curve("read_GBps", "bytes", s.read_GBps, kMostRate, Growth::any);
    w.figure("read_kIOPS", s.read_kIOPS, kMostRate);
    w.figure("write_GBps", s.write_GBps, kMostRate);
    w.figure("start_us", s.start_us, kMostUs);
  });
  v.part("host", m.host,
         [](auto& w, auto& h) { w.curve("to_device_us", "bytes", h.to_device_us, kMostUs, Growth::rises); });
  v.list("contention", m.contention, [](auto& w, auto& c) {
    w.load("slowed", c.slowed);
    w.load("by", c.by);
    w.figure("factor", c.factor, 1000);
  });
  v.part("noise", m.noise, [](auto& w, auto& n) {
    w.figure("kernel_sigma", n.kernel_sigma, 10);
    w.figure("start_skew_us", n.start_skew_us, kMostUs);
  });
  v.errors("errors", m.errors);
  v.errors("recurrence_errors", m.recurrence_errors);
}

}  // namespace

double Curve::at(double x) const {
  OVERLACE_ASSERT(!points.empty());
  if (x <= points.front()[0] || points.size() == 1) return points.front()[1];
  const auto above = std::find_if(points.begin() + 1, points.end() - 1, [&](const auto& p) { return p[0] >= x; });
  const auto &a = *(above - 1), &b = *above;
  return a[1] * std::exp(std::log(b[1] / a[1]) * (std::log(x / a[0]) / std::log(b[0] / a[0])));
}

Machine rated_machine(const MachineRates& rates) {
  Machine out;
  out.name = "rates";
  out.is_gpu = rates.is_gpu;
  out.hosts = rates.hosts;
  out.copy.all_GBps = {rates.link_bytes_per_s * 1e-9};
  out.gemm.sustained_TFLOPs = {rates.flops_per_s * 1e-12};
  return out;
}

std::string to_json(const Machine& machine, int indent) {
  Writer writer;
  writer.out.set("overlace_machine", kMachineVersion);
  visit(writer, machine);
  return writer.out.dump(indent);
}

Machine machine_from_json(std::string_view text, std::string_view source) {
  const base::Result<Json> json = Json::parse(text, source);
  if (!json.ok()) throw_error(Errc::invalid_argument, json.status().message());
  Reader reader(*json, std::string(source) + ": ");
  const Json* version = reader.take("overlace_machine");
  if (version == nullptr || !version->is_int() || version->as_int() != kMachineVersion)
    reader.refuse("overlace_machine", version == nullptr ? Json() : *version, base::format("{}", kMachineVersion));
  Machine out;
  visit(reader, out);
  reader.finish();
  return out;
}

std::string digest(const Machine& machine) {
  Machine plain = machine;
  plain.date.clear();
  plain.git.clear();
  plain.storage = {};
  plain.host = {};
  return hash128(to_json(plain));
}

std::vector<std::string> shipped_machines() {
  std::vector<std::string> out;
  for (int i = 0; i < kNumShippedMachines; ++i) out.emplace_back(kShippedMachines[i].name);
  return out;
}

Machine find_machine(std::string_view name) {
  if (name.ends_with(".json")) {
    base::Result<std::string> text = base::read_file(std::string(name));
    text.status().or_throw();
    return machine_from_json(*text, name);
  }
  for (int i = 0; i < kNumShippedMachines; ++i) {
    if (kShippedMachines[i].name == name) return machine_from_json(kShippedMachines[i].json, name);
  }
  throw_error(Errc::invalid_argument,
              base::format("machine: got {}, wanted a file that ends in .json or one of {}", name,
                           joined_texts(shipped_machines(), [](const std::string& n) { return n; })));
}

}  // namespace overlace::spec
