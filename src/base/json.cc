#include "src/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace overlace::base {
namespace {

constexpr size_t kMaxDepth = 128;

[[noreturn]] void wrong_type(std::string_view wanted, const Json& got) {
  throw_error(Errc::internal, format("internal error: JSON value is {}, wanted {}", got.type_name(), wanted));
}

/// Input iterator that knows how far the parser has read, for events that carry no position.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  const char* at = nullptr;
  const char** read = nullptr;
  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    *read = ++at;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& other) const { return at == other.at; }
  bool operator!=(const CountingIterator& other) const { return at != other.at; }
};

/// Where the last of the first `num_read` characters stands.
std::string position(std::string_view text, size_t num_read) {
  const std::string_view before = text.substr(0, std::min(num_read, text.size()) - (num_read > 0 ? 1 : 0));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() : before.size() - newline - 1;
  return format("line {}, column {}", line, column + 1);
}

/// Reason of a nlohmann error without its own code and position.
std::string reason_of(const nlohmann::detail::exception& e) {
  std::string_view what = e.what();
  if (size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
  if (what.starts_with("parse error"))
    if (size_t colon = what.find(": "); colon != std::string_view::npos) what.remove_prefix(colon + 2);
  return std::string(what);
}

/// Builds a Json from parser events.
class Builder {
 public:
  Builder(std::string_view text, std::string_view source, const char* const* read)
      : text_(text), source_(source), read_(read) {}

  bool null() { return add(Json()); }
  bool boolean(bool v) { return add(Json(v)); }
  bool number_integer(int64_t v) { return add(Json(v)); }
  bool number_unsigned(uint64_t v) {
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return add(Json(static_cast<double>(v)));
    return add(Json(static_cast<int64_t>(v)));
  }
  bool number_float(double v, const std::string& /*text*/) { return add(Json(v)); }
  bool string(std::string& v) { return add(Json(std::move(v))); }
  bool binary(nlohmann::json::binary_t& /*v*/) { return fail("binary value"); }
  bool start_object(size_t /*elements*/) { return open(Json::object()); }
  bool start_array(size_t /*elements*/) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (!stack_.back().keys.insert(name).second) return fail(format("key \"{}\" occurs twice", name));
    stack_.back().key = std::move(name);
    return true;
  }
  bool parse_error(size_t offset, const std::string& /*token*/, const nlohmann::detail::exception& e) {
    status_ = error(Errc::corrupt, "{}: {}: {}", source_, position(text_, offset), reason_of(e));
    return false;
  }

  const Status& status() const { return status_; }
  Json& root() { return root_; }

 private:
  struct Frame {
    Json value;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  bool fail(const std::string& why) {
    const auto offset = static_cast<size_t>(*read_ - text_.data());
    status_ = error(Errc::corrupt, "{}: {}: {}", source_, position(text_, offset), why);
    return false;
  }
  bool add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (Frame& top = stack_.back(); top.value.is_array()) {
      top.value.as_array().push_back(std::move(value));
    } else {
      top.value.as_object().emplace_back(std::move(top.key), std::move(value));
    }
    return true;
  }
  bool open(Json value) {
    if (stack_.size() >= kMaxDepth) return fail(format("nested deeper than {} levels", kMaxDepth));
    stack_.push_back({std::move(value), {}, {}});
    return true;
  }
  bool close() {
    Json value = std::move(stack_.back().value);
    stack_.pop_back();
    return add(std::move(value));
  }

  std::string_view text_, source_;
  const char* const* read_;
  std::vector<Frame> stack_;
  Json root_;
  Status status_;
};

/// Length of the well-formed UTF-8 sequence at the begin of `text`, 0 if there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (lead == 0xED && byte(1) > 0x9F) return 0;  // surrogate
  if (lead == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;  // above U+10FFFF
  return length;
}

void dump_string(std::string_view text, std::string& out) {
  out += '"';
  while (!text.empty()) {
    const char c = text.front();
    const size_t length = utf8_length(text);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (length == 0) {
      out += "\\ufffd";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  out += '"';
}

void dump_double(double value, std::string& out) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const std::string text = fmt::format("{}", value);  // shortest text that reads back as the same double
  out += text;
  if (text.find_first_of(".e") == std::string::npos) out += ".0";
}

void new_line(int indent, int level, std::string& out) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * static_cast<size_t>(level), ' ');
}

void dump_value(const Json& value, int indent, int level, std::string& out) {
  if (value.is_array() || value.is_object()) {
    const bool is_array = value.is_array();
    bool first = true;
    out += is_array ? '[' : '{';
    const auto begin_member = [&] {
      if (!first) out += ',';
      first = false;
      new_line(indent, level + 1, out);
    };
    if (is_array) {
      for (const Json& element : value.as_array()) {
        begin_member();
        dump_value(element, indent, level + 1, out);
      }
    } else {
      for (const auto& [key, member] : value.as_object()) {
        begin_member();
        dump_string(key, out);
        out += indent < 0 ? ":" : ": ";
        dump_value(member, indent, level + 1, out);
      }
    }
    if (!first) new_line(indent, level, out);
    out += is_array ? ']' : '}';
  } else if (value.is_string()) {
    dump_string(value.as_string(), out);
  } else if (value.is_int()) {
    out += fmt::format("{}", value.as_int());
  } else if (value.is_number()) {
    dump_double(value.as_double(), out);
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else {
    out += "null";
  }
}

}  // namespace

std::string_view Json::type_name() const {
  static constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                                "a string", "an array",  "an object"};
  return kNames[v_.index()];
}

bool Json::as_bool() const {
  if (!is_bool()) wrong_type("a boolean", *this);
  return std::get<bool>(v_);
}
int64_t Json::as_int() const {
  if (!is_int()) wrong_type("an integer", *this);
  return std::get<int64_t>(v_);
}
double Json::as_double() const {
  if (is_int()) return static_cast<double>(std::get<int64_t>(v_));
  if (!is_number()) wrong_type("a number", *this);
  return std::get<double>(v_);
}
const std::string& Json::as_string() const {
  if (!is_string()) wrong_type("a string", *this);
  return std::get<std::string>(v_);
}
const Json::Array& Json::as_array() const {
  if (!is_array()) wrong_type("an array", *this);
  return std::get<Array>(v_);
}
Json::Array& Json::as_array() {
  if (!is_array()) wrong_type("an array", *this);
  return std::get<Array>(v_);
}
const Json::Object& Json::as_object() const {
  if (!is_object()) wrong_type("an object", *this);
  return std::get<Object>(v_);
}
Json::Object& Json::as_object() {
  if (!is_object()) wrong_type("an object", *this);
  return std::get<Object>(v_);
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : as_object())
    if (name == key) return &value;
  return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) v_ = Object{};
  Object& members = as_object();
  for (auto& [name, member] : members) {
    if (name == key) {
      member = std::move(value);
      return *this;
    }
  }
  members.emplace_back(std::string(key), std::move(value));
  return *this;
}

void Json::push_back(Json value) {
  if (is_null()) v_ = Array{};
  as_array().push_back(std::move(value));
}

std::string Json::dump(int indent) const {
  std::string out;
  dump_value(*this, indent, 0, out);
  return out;
}

Result<Json> Json::parse(std::string_view text, std::string_view source) {
  // The parser takes a zero byte for the end of its input.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    return error(Errc::corrupt, "{}: {}: zero byte", source, position(text, zero + 1));
  const char* read = text.data();
  Builder builder(text, source, &read);
  const bool ok = nlohmann::json::sax_parse(CountingIterator{text.data(), &read},
                                            CountingIterator{text.data() + text.size(), &read}, &builder);
  if (!ok) {
    if (builder.status().ok()) return error(Errc::corrupt, "{}: not JSON", source);
    return builder.status();
  }
  return std::move(builder.root());
}

}  // namespace overlace::base
