#include <charconv>
#include <string>
#include <utility>

#include "overlace/schedule.h"
#include "src/base/json.h"
#include "src/spec/names.h"

namespace overlace::spec {
namespace {

using base::Json;

/// Literals as numbers, everything else as text.
Json json(const Expr& expr) {
  const std::string& text = expr.text();
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault == std::errc() && std::to_string(value) == text) return value;
  return text;
}

Json json(const Param& param) {
  return std::visit([](const auto& value) { return Json(value); }, param);
}

Json json(const Params& params) {
  Json out = Json::object();
  for (const auto& [name, value] : params) out.set(name, json(value));
  return out;
}

Json json(const Loop& loop) { return Json::Array{loop.var, json(loop.begin), json(loop.end)}; }

Json json(const Region& region) {
  Json out = Json::Array{region.buffer, json(region.at)};
  for (const Range& range : region.dims) out.push_back(Json::Array{json(range.begin), json(range.count)});
  if (region.each) out.push_back(Json::Object{{"each", json(*region.each)}});
  return out;
}

Json json(const Wait& wait) {
  Json out = Json::Array{wait.signal, json(wait.slot), json(wait.from), json(wait.at_least)};
  Json::Object extra;
  if (wait.each) extra.emplace_back("each", json(*wait.each));
  if (wait.previous) extra.emplace_back("previous", true);
  if (!extra.empty()) out.push_back(std::move(extra));
  return out;
}

Json json(const Set& set) {
  Json out = Json::Array{set.signal, json(set.slot), json(set.at), set.add};
  if (set.each) out.push_back(Json::Object{{"each", json(*set.each)}});
  return out;
}

Json json(const std::string& text) { return text; }
Json json(const Buffer& buffer);
Json json(const SignalDecl& signal);
Json json(const Task& task);

template <class T>
Json json_list(const std::vector<T>& list) {
  Json out = Json::array();
  for (const T& item : list) out.push_back(json(item));
  return out;
}

Json json(const Buffer& buffer) {
  Json out = Json::Array{buffer.name, name_of(buffer.space), dtype_name(buffer.dtype), json_list(buffer.shape)};
  if (buffer.depth != 1) out.push_back(buffer.depth);
  return out;
}

Json json(const SignalDecl& signal) { return Json::Array{signal.name, json(signal.slots), name_of(signal.scope)}; }

/// Keys in alphabetical order; what has its default value is left out.
Json json(const Task& task) {
  Json out = Json::object();
  if (task.combine != Combine::none) out.set("combine", name_of(task.combine));
  if (!task.deps.empty()) out.set("deps", json_list(task.deps));
  out.set("engine", name_of(task.engine));
  out.set("id", task.id);
  out.set("kind", name_of(task.kind));
  if (!task.loops.empty()) out.set("loops", json_list(task.loops));
  out.set("order", json(task.order));
  if (!task.params.empty()) out.set("params", json(task.params));
  out.set("queue", json(task.queue));
  if (!task.reads.empty()) out.set("reads", json_list(task.reads));
  if (!task.sets.empty()) out.set("sets", json_list(task.sets));
  if (task.wait_by != WaitBy::queue) out.set("wait_by", name_of(task.wait_by));
  if (!task.waits.empty()) out.set("waits", json_list(task.waits));
  if (!task.writes.empty()) out.set("writes", json_list(task.writes));
  return out;
}

}  // namespace

std::string Schedule::to_json() const {
  Json out = Json::object();
  out.set("buffers", json_list(buffers));
  Json const_list = Json::object(), table_list = Json::object();
  for (const auto& [name, expr] : consts) const_list.set(name, json(expr));
  for (const auto& [name, cells] : tables) {
    Json list = Json::array();
    for (int64_t cell : cells) list.push_back(cell);
    table_list.set(name, std::move(list));
  }
  out.set("consts", std::move(const_list));
  out.set("deterministic", deterministic);
  out.set("family", family);
  out.set("op", op);
  out.set("overlace_schedule", version);
  out.set("params", json(params));
  out.set("signals", json_list(signals));
  out.set("tables", std::move(table_list));
  out.set("tasks", json_list(tasks));
  return out.dump();
}

}  // namespace overlace::spec
