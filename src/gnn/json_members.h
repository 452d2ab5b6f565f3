// Members of JSON objects that others may have written, each checked as it is read.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/json.h"
#include "src/base/status.h"

namespace overlace::gnn {

/// An object whose members are read once each; the first thing that is wrong stays.
class Members {
 public:
  Members(const base::Json* object, std::string where) : object_(object), where_(std::move(where)) {}

  base::Status check_keys(std::initializer_list<std::string_view> known) const {
    if (object_ == nullptr || !object_->is_object())
      return base::invalid_argument("{}: {}, wanted an object", where_,
                                    object_ == nullptr ? "missing" : object_->type_name());
    for (const auto& [key, value] : object_->as_object()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      std::string words;
      for (const std::string_view word : known) words.append(words.empty() ? "" : ", ").append(word);
      return base::invalid_argument("{}: key \"{}\" is not known, wanted {}", where_, key, words);
    }
    return {};
  }
  base::Status integer(std::string_view key, int64_t least, int64_t* out) const {
    const base::Json* value = object_->find(key);
    if (value == nullptr || !value->is_int() || value->as_int() < least)
      return base::invalid_argument("{}: {} is {}, wanted an integer >= {}", where_, key, shown(value), least);
    *out = value->as_int();
    return {};
  }
  base::Status text(std::string_view key, std::string* out, bool may_be_null = false) const {
    const base::Json* value = object_->find(key);
    if (may_be_null && value != nullptr && value->is_null()) return {};
    if (value == nullptr || !value->is_string())
      return base::invalid_argument("{}: {} is {}, wanted a string", where_, key, shown(value));
    *out = value->as_string();
    return {};
  }
  base::Status file(std::string_view key, std::string_view beside, std::string* out) const {
    OVERLACE_TRY(text(key, out));
    if (out->empty() || out->find_first_of(std::string_view("/\0", 2)) != std::string::npos || *out == "." ||
        *out == "..")
      return base::invalid_argument("{}: {} is \"{}\", wanted the name of a file beside {}", where_, key, *out, beside);
    return {};
  }
  base::Status number(std::string_view key, double* out) const {
    const base::Json* value = object_->find(key);
    if (value == nullptr || !value->is_number())
      return base::invalid_argument("{}: {} is {}, wanted a number", where_, key, shown(value));
    *out = value->as_double();
    return {};
  }
  base::Status boolean(std::string_view key, bool* out) const {
    const base::Json* value = object_->find(key);
    if (value == nullptr || !value->is_bool())
      return base::invalid_argument("{}: {} is {}, wanted true or false", where_, key, shown(value));
    *out = value->as_bool();
    return {};
  }
  base::Status array(std::string_view key, const base::Json::Array** out) const {
    const base::Json* value = object_->find(key);
    if (value == nullptr || !value->is_array())
      return base::invalid_argument("{}: {} is {}, wanted an array", where_, key, shown(value));
    *out = &value->as_array();
    return {};
  }
  /// One of words, by its place.
  template <class Enum>
  base::Status word(std::string_view key, std::initializer_list<std::pair<const char*, Enum>> words, Enum* out) const {
    std::string got, wanted;
    OVERLACE_TRY(text(key, &got));
    for (const auto& [name, value] : words) {
      wanted += (wanted.empty() ? "" : ", ") + std::string(name);
      if (got == name) return *out = value, base::Status();
    }
    return base::invalid_argument("{}: {} is \"{}\", wanted one of {}", where_, key, got, wanted);
  }
  const std::string& where() const { return where_; }
  const base::Json* find(std::string_view key) const { return object_->find(key); }

 private:
  static std::string shown(const base::Json* value) {
    return value == nullptr ? "missing" : value->dump().substr(0, 64);
  }
  const base::Json* object_;
  std::string where_;
};

}  // namespace overlace::gnn
