#include <algorithm>
#include <cctype>
#include <limits>
#include <string>
#include <utility>

#include "overlace/error.h"
#include "overlace/schedule.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/base/status.h"
#include "src/spec/names.h"

namespace overlace::spec {
namespace {

using base::Json;

constexpr int kScheduleVersion = 1;

/// A value and where it stands: "/tasks/1/reads/0".
class Place {
 public:
  Place(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}
  const Json& value() const { return *value_; }

  [[noreturn]] void refuse(std::string_view wanted) const {
    std::string got = value_->dump();
    if (got.size() > 60) got = got.substr(0, 57) + "...";
    throw_error(Errc::bad_schedule,
                base::format("schedule {}: got {}, wanted {}", path_.empty() ? "/" : path_, got, wanted));
  }
  Place at(size_t i) const { return {value_->as_array()[i], path_ + "/" + std::to_string(i)}; }
  Place at(std::string_view key) const { return {*value_->find(key), path_ + "/" + std::string(key)}; }
  bool has(std::string_view key) const { return value_->find(key) != nullptr; }
  size_t size() const { return value_->as_array().size(); }

  const Place& array(size_t least, size_t most, std::string_view wanted) const {
    if (!value_->is_array() || size() < least || size() > most) refuse(wanted);
    return *this;
  }
  /// An object with only these keys, and "x-..." ones; `required` must be there.
  const Place& object(std::initializer_list<std::string_view> keys,
                      std::initializer_list<std::string_view> required) const {
    if (!value_->is_object()) refuse("an object");
    for (const auto& [key, member] : value_->as_object()) {
      if (key.starts_with("x-") || std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      std::string list;
      for (std::string_view known : keys) list += (list.empty() ? "" : ", ") + std::string(known);
      Place(member, path_ + "/" + key).refuse("no such key (known: " + list + ")");
    }
    for (std::string_view key : required) {
      if (!has(key)) refuse("an object with \"" + std::string(key) + "\"");
    }
    return *this;
  }
  std::string text() const {
    if (!value_->is_string()) refuse("a string");
    return value_->as_string();
  }
  std::string name() const {
    const std::string out = value_->is_string() ? value_->as_string() : "";
    auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    if (out.empty() || std::isdigit(static_cast<unsigned char>(out[0])) ||
        !std::all_of(out.begin(), out.end(), is_word)) {
      refuse("a name of letters, digits and underscores");
    }
    return out;
  }
  int64_t integer(int64_t least, int64_t most) const {
    if (!value_->is_int() || value_->as_int() < least || value_->as_int() > most) {
      refuse(base::format("an integer from {} to {}", least, most));
    }
    return value_->as_int();
  }
  bool boolean() const {
    if (!value_->is_bool()) refuse("true or false");
    return value_->as_bool();
  }
  Expr expr() const {
    if (value_->is_int()) return value_->as_int();
    if (!value_->is_string()) refuse("an integer or an expression");
    try {
      return value_->as_string();
    } catch (const Error& error) {
      throw_error(Errc::bad_schedule, base::format("schedule {}: {}", path_, error.what()));
    }
  }
  /// One of a list of names, by position.
  template <class Enum, size_t n>
  Enum one_of(const std::array<std::string_view, n>& names) const {
    const auto it = value_->is_string() ? std::find(names.begin(), names.end(), value_->as_string()) : names.end();
    if (it != names.end()) return static_cast<Enum>(it - names.begin());
    std::string list;
    for (std::string_view known : names) list += (list.empty() ? "" : ", ") + std::string(known);
    refuse("one of " + list);
  }

 private:
  const Json* value_;
  std::string path_;
};

DType dtype_of(const Place& place) {
  for (DType t : {DType::fp64, DType::fp32, DType::fp16, DType::bf16, DType::e4m3, DType::e5m2, DType::i64, DType::i32,
                  DType::i8, DType::u8}) {
    if (place.text() == dtype_name(t)) return t;
  }
  place.refuse("one of fp64, fp32, fp16, bf16, e4m3, e5m2, i64, i32, i8, u8");
}

Loop loop_of(const Place& place) {
  place.array(3, 3, "[variable, begin, end]");
  return {place.at(0).name(), place.at(1).expr(), place.at(2).expr()};
}

Params params_of(const Place& place) {
  if (!place.value().is_object()) place.refuse("an object");
  Params out;
  for (const auto& [key, value] : place.value().as_object()) {
    if (key.starts_with("x-")) continue;
    const Place member = place.at(key);
    if (value.is_bool()) {
      out[key] = value.as_bool();
    } else if (value.is_int()) {
      out[key] = value.as_int();
    } else if (value.is_number()) {
      out[key] = value.as_double();
    } else if (value.is_string()) {
      out[key] = value.as_string();
    } else {
      member.refuse("a number, a string, true or false");
    }
  }
  return out;
}

template <class Read>
auto list_of(const Place& place, Read read) {
  place.array(0, std::numeric_limits<size_t>::max(), "an array");
  std::vector<decltype(read(place))> out;
  for (size_t i = 0; i < place.size(); ++i) out.push_back(read(place.at(i)));
  return out;
}

Region region_of(const Place& place) {
  place.array(2, 16, "[buffer, rank, [begin, count], ..., {\"each\": ...}]");
  Region out{place.at(0).name(), place.at(1).expr()};
  for (size_t i = 2; i < place.size(); ++i) {
    const Place part = place.at(i);
    if (i + 1 == place.size() && part.value().is_object()) {
      out.each = loop_of(part.object({"each"}, {"each"}).at("each"));
    } else {
      part.array(2, 2, "[begin, count]");
      out.dims.push_back({part.at(0).expr(), part.at(1).expr()});
    }
  }
  return out;
}

Wait wait_of(const Place& place) {
  place.array(4, 5, "[signal, slot, from, at_least, {\"each\": ..., \"previous\": ...}]");
  Wait out{.signal = place.at(0).name(),
           .slot = place.at(1).expr(),
           .from = place.at(2).expr(),
           .at_least = place.at(3).expr()};
  if (place.size() == 5) {
    const Place extra = place.at(4);
    extra.object({"each", "previous"}, {});
    if (extra.has("each")) out.each = loop_of(extra.at("each"));
    if (extra.has("previous")) out.previous = extra.at("previous").boolean();
  }
  return out;
}

Set set_of(const Place& place) {
  place.array(4, 5, "[signal, slot, at, add, {\"each\": ...}]");
  Set out{.signal = place.at(0).name(),
          .slot = place.at(1).expr(),
          .at = place.at(2).expr(),
          .add = place.at(3).integer(1, std::numeric_limits<int32_t>::max())};
  if (place.size() == 5) out.each = loop_of(place.at(4).object({"each"}, {"each"}).at("each"));
  return out;
}

Buffer buffer_of(const Place& place) {
  place.array(4, 5, "[name, space, dtype, shape, depth]");
  Buffer out{place.at(0).name(), place.at(1).one_of<Space>(kSpaceNames), dtype_of(place.at(2)),
             list_of(place.at(3), [](const Place& p) { return p.expr(); })};
  if (place.size() == 5) out.depth = static_cast<int>(place.at(4).integer(1, 1024));
  return out;
}

SignalDecl signal_of(const Place& place) {
  place.array(2, 3, "[name, slots, scope]");
  SignalDecl out{place.at(0).name(), place.at(1).expr()};
  if (place.size() == 3) out.scope = place.at(2).one_of<Scope>(kScopeNames);
  return out;
}

Task task_of(const Place& place) {
  place.object({"combine", "deps", "engine", "id", "kind", "loops", "order", "params", "queue", "reads", "sets",
                "wait_by", "waits", "writes"},
               {"id", "kind", "engine"});
  Task out;
  out.id = place.at("id").name();
  out.kind = place.at("kind").one_of<Kind>(kKindNames);
  out.engine = place.at("engine").one_of<Engine>(kEngineNames);
  if (place.has("queue")) out.queue = place.at("queue").expr();
  if (place.has("order")) out.order = place.at("order").expr();
  if (place.has("loops")) out.loops = list_of(place.at("loops"), loop_of);
  if (place.has("params")) out.params = params_of(place.at("params"));
  if (place.has("combine")) out.combine = place.at("combine").one_of<Combine>(kCombineNames);
  if (place.has("reads")) out.reads = list_of(place.at("reads"), region_of);
  if (place.has("writes")) out.writes = list_of(place.at("writes"), region_of);
  if (place.has("deps")) out.deps = list_of(place.at("deps"), [](const Place& p) { return p.name(); });
  if (place.has("waits")) out.waits = list_of(place.at("waits"), wait_of);
  if (place.has("wait_by")) out.wait_by = place.at("wait_by").one_of<WaitBy>(kWaitByNames);
  if (place.has("sets")) out.sets = list_of(place.at("sets"), set_of);
  return out;
}

}  // namespace

Schedule Schedule::from_json(std::string_view text) {
  base::Result<Json> parsed = Json::parse(text, "schedule");
  if (!parsed.ok()) throw_error(Errc::bad_schedule, parsed.status().message());
  const Place root(*parsed, "");
  root.object({"buffers", "consts", "deterministic", "family", "op", "overlace_schedule", "params", "signals", "tables",
               "tasks"},
              {"overlace_schedule", "op", "family"});
  Schedule out;
  out.version = static_cast<int>(root.at("overlace_schedule").integer(1, kScheduleVersion));
  out.op = root.at("op").name();
  out.family = root.at("family").name();
  if (root.has("params")) out.params = params_of(root.at("params"));
  if (root.has("consts")) {
    const Place consts = root.at("consts");
    if (!consts.value().is_object()) consts.refuse("an object");
    for (const auto& [name, value] : consts.value().as_object()) out.consts[name] = consts.at(name).expr();
  }
  if (root.has("tables")) {
    const Place tables = root.at("tables");
    if (!tables.value().is_object()) tables.refuse("an object");
    for (const auto& [name, value] : tables.value().as_object()) {
      out.tables[name] = list_of(tables.at(name), [](const Place& p) {
        return p.integer(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
      });
    }
  }
  if (root.has("deterministic")) out.deterministic = root.at("deterministic").boolean();
  if (root.has("buffers")) out.buffers = list_of(root.at("buffers"), buffer_of);
  if (root.has("signals")) out.signals = list_of(root.at("signals"), signal_of);
  if (root.has("tasks")) out.tasks = list_of(root.at("tasks"), task_of);
  return out;
}

}  // namespace overlace::spec
