#include "src/spec/digest.h"

#include <type_traits>

#include "src/spec/expand.h"

namespace overlace::spec {
namespace {

/// The parts of a schedule as bytes, each list behind its length and each text too: no two schedules give the same.
/// Members are taken apart by structured bindings, so that a new one does not compile before it is written here.
class Bytes {
 public:
  explicit Bytes(std::string_view own) : own_(own) {}
  const std::string& text() const { return text_; }

  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void add(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(std::string_view text) {
    add(text.size());
    text_ += text;
  }
  void add(const std::string& text) { add(std::string_view(text)); }
  void add(const Expr& expr) { add(std::string_view(expr.text())); }
  template <class T>
  void add(const std::vector<T>& list) {
    add(list.size());
    for (const T& item : list) add(item);
  }
  template <class T>
  void add(const std::map<std::string, T, std::less<>>& map) {
    add(map.size());
    for (const auto& [name, value] : map) {
      add(name);
      add(value);
    }
  }
  template <class T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  void add(const Param& param) {
    add(param.index());
    std::visit([this](const auto& value) { add(value); }, param);
  }
  void add(const Loop& loop) {
    const auto& [var, begin, end] = loop;
    add_all(var, begin, end);
  }
  void add(const Range& range) {
    const auto& [begin, count] = range;
    add_all(begin, count);
  }
  void add(const Region& region) {
    const auto& [buffer, at, dims, each] = region;
    add_all(buffer, at, dims, each);
  }
  void add(const Buffer& buffer) {
    const auto& [name, space, dtype, shape, depth] = buffer;
    add_all(name, space, dtype, shape, depth);
  }
  void add(const SignalDecl& signal) {
    const auto& [name, slots, scope] = signal;
    add_all(name, slots, scope);
  }
  void add(const Wait& wait) {
    const auto& [signal, slot, from, at_least, each, previous] = wait;
    add_all(signal, slot, from, at_least, each, previous);
  }
  void add(const Set& set) {
    const auto& [signal, slot, at, amount, each] = set;
    add_all(signal, slot, at, amount, each);
  }
  void add(const Task& task) {
    const auto& [id, kind, engine, queue, order, loops, params, combine, reads, writes, deps, waits, wait_by, sets] =
        task;
    add_all(id, kind, engine, queue, order, loops, params, combine, reads, writes, deps, waits, wait_by, sets);
  }
  void add(const Schedule& schedule) {
    const auto& [version, op, family, params, consts, tables, deterministic, buffers, signals, tasks] = schedule;
    add_all(version, op, family);
    add(params.size());
    for (const auto& [name, value] : params) {
      add(name);
      add(name == own_ ? Param(int64_t{0}) : value);
    }
    add_all(consts, tables, deterministic, buffers, signals, tasks);
  }

 private:
  template <class... T>
  void add_all(const T&... values) {
    (add(values), ...);
  }

  std::string_view own_;
  std::string text_;
};

}  // namespace

std::string hash128(std::string_view bytes) {
  __extension__ using Wide = unsigned __int128;
  // FNV-1a with its published 128-bit basis and prime (2^88 + 2^8 + 0x3b).
  Wide hash = (Wide{0x6c62272e07bb0142} << 64) | 0x62b821756295c58d;
  constexpr Wide kPrime = (Wide{1} << 88) | 0x13b;
  for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  std::string out;
  for (int shift = 124; shift >= 0; shift -= 4) out += "0123456789abcdef"[static_cast<size_t>(hash >> shift) & 15];
  return out;
}

std::string digest(const Schedule& schedule) { return hash128(schedule.to_json()); }

std::string fingerprint(const Schedule& schedule, std::string_view own) {
  Bytes bytes(own);
  bytes.add(schedule);
  return hash128(bytes.text());
}

}  // namespace overlace::spec
