// JSON values. The parser (nlohmann-json) stays behind json.cc.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/base/status.h"

namespace overlace::base {

/// null, bool, int64, double, string, array, object (keys keep insertion order; a repeated key is a parse error).
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool v) : v_(v) {}
  Json(int v) : v_(int64_t{v}) {}
  Json(int64_t v) : v_(v) {}
  Json(uint64_t v) : v_(static_cast<int64_t>(v)) {}
  Json(double v) : v_(v) {}
  Json(const char* v) : v_(std::string(v)) {}
  Json(std::string v) : v_(std::move(v)) {}
  Json(std::string_view v) : v_(std::string(v)) {}
  Json(Array v) : v_(std::move(v)) {}
  Json(Object v) : v_(std::move(v)) {}
  static Json array(Array v = {}) { return Json(std::move(v)); }
  static Json object(Object v = {}) { return Json(std::move(v)); }

  bool is_null() const { return std::holds_alternative<std::monostate>(v_); }
  bool is_bool() const { return std::holds_alternative<bool>(v_); }
  bool is_int() const { return std::holds_alternative<int64_t>(v_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(v_); }
  bool is_string() const { return std::holds_alternative<std::string>(v_); }
  bool is_array() const { return std::holds_alternative<Array>(v_); }
  bool is_object() const { return std::holds_alternative<Object>(v_); }
  std::string_view type_name() const;

  /// Precondition: the type fits (else Internal). as_double takes integers too.
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  /// Member of an object, null if absent or not an object.
  const Json* find(std::string_view key) const;
  /// Sets or adds a member; turns null into an object.
  Json& set(std::string_view key, Json value);
  void push_back(Json value);

  /// indent < 0: one line without spaces. Doubles round-trip; NaN and infinities become null.
  std::string dump(int indent = -1) const;
  /// Errc::corrupt with `source`, line, column and reason. Depth <= 128, numbers outside int64 become double.
  static Result<Json> parse(std::string_view text, std::string_view source = "JSON");

  bool operator==(const Json&) const = default;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> v_;
};

}  // namespace overlace::base
